"""How FrozenLake speaks: prompt, grid, hints, and the move read from a reply.

The prompt is our own and kept short. Cells stand apart, so that each stays a
token of its own.
"""

import re
from collections.abc import Sequence

from patr.envs.grid_paths import MOVES, describe_cell, find_cell

HINTS = ("position", "surroundings")

_SPAN = re.compile(r"```(.*?)```", re.DOTALL)
_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_WORDS = {name: name for name in MOVES} | {str(number): name for number, name in enumerate(MOVES, start=1)}


def parse_action(text: str) -> str | None:
    """The move of a reply that holds one move a turn; None if there is none.

    The last span in triple backticks decides. Stripped and in any case it must be
    left, down, right, up, or their number 1 to 4, and nothing else. What stands in
    <think>...</think> is not an answer, nor is what follows a <think> never closed.
    """
    moves = parse_actions(text, 1)
    return moves[0] if moves else None


def parse_actions(text: str, limit: int) -> tuple[str, ...]:
    """At most `limit` moves of a reply, read as in `parse_action`.

    With a limit above 1 the span holds moves separated by ||; unknown ones are dropped.
    """
    # A template may open the thought in the prompt, which leaves its closing tag alone in the reply.
    answer = _THOUGHT.sub(" ", text).rpartition("</think>")[2]
    spans = _SPAN.findall(answer)
    if not spans:
        return ()
    words = [spans[-1]] if limit == 1 else spans[-1].split("||")
    known = [_WORDS[word] for word in (word.strip().lower() for word in words) if word in _WORDS]
    return tuple(known[:limit])


def system_prompt(is_slippery: bool, max_actions_per_turn: int) -> str:
    """Role, goal, legend, moves and answer format, in at most 90 words."""
    lines = [
        "You walk on a frozen lake. Reach the goal; a hole ends the walk.",
        "Legend: P you, _ ice, O hole, G goal.",
        "Moves: left, down, right, up. At the edge you stay.",
    ]
    if is_slippery:
        lines.append("The ice is slippery: a move may slide you to either side of it.")
    if max_actions_per_turn == 1:
        lines.append("End your reply with one move in triple backticks: ```left```")
    else:
        lines.append(
            f"End your reply with up to {max_actions_per_turn} moves in triple backticks, split by ||: ```left || up```"
        )
    return "\n".join(lines)


def observation_text(
    rows: Sequence[str], row: int, column: int, turns_left: int, hints: Sequence[str], note: str = ""
) -> str:
    """The grid, the hints asked for and the turns left; `note` comes first."""
    lines = [note] if note else []
    lines.append(grid_text(rows, row, column))
    if "position" in hints:
        goal_row, goal_column = find_cell(rows, "G")
        lines.append(f"You: row {row}, column {column}. Goal: row {goal_row}, column {goal_column}.")
    if "surroundings" in hints:
        around = (f"{move} {describe_cell(rows, row + down, column + right)}" for move, (down, right) in MOVES.items())
        lines.append(", ".join(around).capitalize() + ".")
    lines.append(f"Turns left: {turns_left}.")
    return "\n".join(lines)


def grid_text(rows: Sequence[str], row: int, column: int) -> str:
    """The map with the player: P on ice, X in a hole, √ on the goal; cells by spaces, rows by newlines."""
    cells = [[{"H": "O", "G": "G"}.get(letter, "_") for letter in letters] for letters in rows]
    cells[row][column] = {"H": "X", "G": "√"}.get(rows[row][column], "P")
    return "\n".join(" ".join(line) for line in cells)
