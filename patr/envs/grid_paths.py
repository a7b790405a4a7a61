"""Shortest hole-free paths on a grid of S start, F frozen, H hole and G goal cells."""

import functools
from collections import deque
from collections.abc import Sequence

Distances = tuple[tuple[int | None, ...], ...]

# Gymnasium's action order: the position in this table is the action's number.
MOVES = {"left": (0, -1), "down": (1, 0), "right": (0, 1), "up": (-1, 0)}


def distances_to_goal(rows: Sequence[str]) -> Distances:
    """Moves from every cell to the goal, by breadth-first search; holes are walls.

    Returns one entry per cell, None for holes and for cells the goal cannot be
    reached from. Cached per map. Raises ValueError if there is no goal.
    """
    return _distances(tuple(rows))


def expert_action(rows: Sequence[str], row: int, column: int) -> str:
    """First move of a shortest hole-free path; of equal moves the first of left, down, right, up.

    Raises ValueError on the goal, in a hole, and where no path leads to the goal.
    """
    distances = distances_to_goal(rows)
    here = distances[row][column]
    if not here:
        raise ValueError(f"row {row}, column {column} has no next move: it is {describe_cell(rows, row, column)}")
    return next(
        move
        for move, (down, right) in MOVES.items()
        if inside(rows, row + down, column + right) and distances[row + down][column + right] == here - 1
    )


def inside(rows: Sequence[str], row: int, column: int) -> bool:
    return 0 <= row < len(rows) and 0 <= column < len(rows[0])


def describe_cell(rows: Sequence[str], row: int, column: int) -> str:
    """'edge' outside the grid, else 'hole', 'goal' or 'free'."""
    if not inside(rows, row, column):
        return "edge"
    return {"H": "hole", "G": "goal"}.get(rows[row][column], "free")


def find_cell(rows: Sequence[str], letter: str) -> tuple[int, int]:
    """Row and column of the first cell with this letter. Raises ValueError if there is none."""
    for row, cells in enumerate(rows):
        if letter in cells:
            return row, cells.index(letter)
    raise ValueError(f"the map has no {letter!r} cell: {list(rows)}")


@functools.lru_cache(maxsize=4096)
def _distances(rows: tuple[str, ...]) -> Distances:
    goal = find_cell(rows, "G")
    found: dict[tuple[int, int], int] = {goal: 0}
    frontier = deque([goal])
    while frontier:
        row, column = frontier.popleft()
        for down, right in MOVES.values():
            cell = row + down, column + right
            if cell not in found and inside(rows, *cell) and rows[cell[0]][cell[1]] != "H":
                found[cell] = found[row, column] + 1
                frontier.append(cell)
    return tuple(tuple(found.get((row, column)) for column in range(len(rows[0]))) for row in range(len(rows)))
