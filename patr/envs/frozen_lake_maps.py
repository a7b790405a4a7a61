"""FrozenLake maps and task sets, as a function of seeds only.

Maps are rows of S start, F frozen, H hole and G goal cells. They and the
reference task set are those of rLLM 0.2, on which PaTR (section 5.1) is measured.
"""

import functools
from collections.abc import Sequence

import numpy as np

from patr.seeds import seed_for
from patr.types import Task

# The reference regenerates every map with this limit on reset, whatever limit it was configured with.
PATH_LIMIT = 5


def generate_map(seed: int, size: int, p: float, path_limit: int = PATH_LIMIT) -> list[str]:
    """The `size` x `size` map of a seed.

    p: probability that a cell is frozen rather than a hole.
    path_limit: a map is accepted only if a depth-limited search finds the goal
    within path_limit + 1 moves; size**2 asks for plain solvability.
    Raises ValueError for size < 2, p outside [0, 1] or path_limit < 0.
    """
    if size < 2 or not 0 <= p <= 1 or path_limit < 0:
        raise ValueError(f"size {size}, p {p}, path_limit {path_limit}: need size >= 2, p in [0, 1], path_limit >= 0")
    rng = np.random.default_rng(seed)
    while True:
        cells = rng.choice(["F", "H"], (size, size), p=[p, 1 - p]).tolist()
        start, goal = _draw_ends(rng, size)
        cells[start[0]][start[1]] = "S"
        cells[goal[0]][goal[1]] = "G"
        if _goal_within_limit(cells, start, path_limit):
            return ["".join(row) for row in cells]


def task_map(task: Task) -> tuple[str, ...]:
    """The map a FrozenLake task is played on: its literal `map`, or that of its seed, size and p. Cached.

    `path_limit` in the task's data is optional.
    Raises ValueError if a key is missing or a literal map is malformed.
    """
    data = task.data
    if "map" in data:
        return _checked_map(task.id, data["map"])
    missing = [key for key in ("seed", "size", "p") if key not in data]
    if missing:
        raise ValueError(
            f"task {task.id}: FrozenLake data lacks {', '.join(map(repr, missing))}; give seed, size and p, or a map"
        )
    return _cached_map(int(data["seed"]), int(data["size"]), float(data["p"]), int(data.get("path_limit", PATH_LIMIT)))


def reference_tasks(split: str) -> list[Task]:
    """The reference data set: 10,000 'train' or 100 'test' tasks, sizes 2 to 9, p in [0.6, 0.85).

    Ids read frozen_lake/<split>/<index>-<seed>-<size>. Raises ValueError for another split.
    """
    if split not in ("train", "test"):
        raise ValueError(f"split {split!r}: FrozenLake has 'train' and 'test'")
    return list(_all_reference_tasks()[split])


def four_by_four_tasks(seed: int, count: int) -> list[Task]:
    """4x4 tasks with p 0.8, random start and goal and paths of any length, as RAGEN and TSR use.

    Their map seeds are drawn from (seed, index), so a longer list only adds tasks.
    """
    tasks = []
    for index in range(count):
        map_seed = seed_for(seed, "frozen_lake_4x4", index)
        data = {"seed": map_seed, "size": 4, "p": 0.8, "path_limit": 16}
        tasks.append(Task(f"frozen_lake_4x4/{seed}/{index}-{map_seed}", data))
    return tasks


def _draw_ends(rng: np.random.Generator, size: int) -> tuple[tuple[int, int], tuple[int, int]]:
    while True:
        start_row, start_column, goal_row, goal_column = (int(rng.integers(0, size)) for _ in range(4))
        if (start_row, start_column) != (goal_row, goal_column):
            return (start_row, start_column), (goal_row, goal_column)


def _goal_within_limit(cells: list[list[str]], start: tuple[int, int], path_limit: int) -> bool:
    # A cell counts as discovered at the depth it is first reached, even when a shorter way exists. Some maps
    # with a short enough path are therefore rejected; the reference maps depend on it, and on the push order.
    size = len(cells)
    frontier, discovered = [(*start, 0)], set()
    while frontier:
        row, column, depth = frontier.pop()
        if depth > path_limit or (row, column) in discovered:
            continue
        discovered.add((row, column))
        for down, right in ((1, 0), (0, 1), (-1, 0), (0, -1)):
            r, c = row + down, column + right
            if not (0 <= r < size and 0 <= c < size):
                continue
            if cells[r][c] == "G":
                return True
            if cells[r][c] != "H":
                frontier.append((r, c, depth + 1))
    return False


@functools.lru_cache(maxsize=16384)
def _cached_map(seed: int, size: int, p: float, path_limit: int) -> tuple[str, ...]:
    return tuple(generate_map(seed, size, p, path_limit))


def _checked_map(task_id: str, rows: Sequence[str]) -> tuple[str, ...]:
    rows = tuple(rows)
    letters = "".join(rows)
    if len({len(row) for row in rows}) != 1 or set(letters) - set("SFHG"):
        raise ValueError(f"task {task_id}: a map is rows of equal length out of S, F, H and G, not {list(rows)}")
    if letters.count("S") != 1 or letters.count("G") != 1:
        raise ValueError(f"task {task_id}: a map has one S and one G: {list(rows)}")
    return rows


@functools.cache
def _all_reference_tasks() -> dict[str, tuple[Task, ...]]:
    rng = np.random.RandomState(42)
    counts = {"train": 10_000, "test": 100}
    # The order of these draws is the data set.
    seeds = {split: rng.randint(0, 100_000, n) for split, n in counts.items()}
    sizes = {split: rng.randint(2, 10, n) for split, n in counts.items()}
    frozen = {split: rng.uniform(0.6, 0.85, n) for split, n in counts.items()}
    return {
        split: tuple(
            Task(f"frozen_lake/{split}/{index}-{seed}-{size}", {"seed": seed, "size": size, "p": p})
            for index, (seed, size, p) in enumerate(
                zip(seeds[split].tolist(), sizes[split].tolist(), frozen[split].tolist(), strict=True)
            )
        )
        for split in counts
    }
