"""Run records: trees and metrics as JSON lines, each tagged with its schema version and step.

A line is written whole or, by a kill, in part; readers leave out a last line that is not whole, and a resumed run
cuts the file back to its checkpoint with `truncate_after` before it appends.
"""

import json
import logging
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from patr.types import Branch, Decision, Ledger, Status, Task, Tree, Turn

SCHEMA = 1

_TURN_SEQUENCES = ("action_ids", "logprobs", "observation_ids")


def append_trees(path: Path, trees: Iterable[Tree]) -> None:
    """Append one line a tree. Raises ValueError for a number that is not finite or data that is not JSON."""
    _append(path, [_dumps(tree_to_json(tree), f"the tree of task {tree.task.id}") for tree in trees])


def append_metrics(path: Path, step: int, metrics: Mapping[str, Any]) -> None:
    """Append the metrics of one step: numbers (0-d arrays too), strings or None.

    A number that is not finite is written as null, with a warning: the line of the step that went wrong is the one
    that will be looked for. Raises ValueError for the reserved names 'schema' and 'step'.
    """
    if reserved := {"schema", "step"} & set(metrics):
        raise ValueError(f"metrics named {sorted(reserved)}: these names tag the line; choose others")
    values = {name: _metric(path, step, name, value) for name, value in metrics.items()}
    _append(path, [_dumps({"schema": SCHEMA, "step": step, **values}, f"the metrics of step {step}")])


def read_trees(path: Path) -> Iterator[Tree]:
    """The trees of a file, one at a time. Raises ValueError for a damaged line or a newer schema, naming the line."""
    return (tree_from_json(line) for _, line in _lines(path))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """One dictionary a line, 'step' included. Raises ValueError as `read_trees` does."""
    return [{name: value for name, value in line.items() if name != "schema"} for _, line in _lines(path)]


def truncate_after(path: Path, step: int) -> None:
    """Drop the lines of later steps than `step`, and a last line that was cut. A file that is not there is fine.

    The kept lines replace the file in one rename, so that a kill leaves the old file or the new one.
    """
    path = Path(path)
    if not path.exists():
        return
    kept = path.with_name(path.name + ".kept")
    with open(kept, "w", encoding="utf-8") as out:
        out.writelines(text.rstrip("\n") + "\n" for text, line in _lines(path) if line["step"] <= step)
        out.flush()
        os.fsync(out.fileno())
    os.replace(kept, path)


def tree_to_json(tree: Tree) -> dict[str, Any]:
    """A tree as JSON values. Paths and token lists become lists."""
    return {
        "schema": SCHEMA,
        "step": tree.step,
        "method": tree.method,
        "group": tree.group,
        "task": {"id": tree.task.id, "data": dict(tree.task.data)},
        "prompt_ids": list(tree.prompt_ids),
        "branches": [_branch_to_json(branch) for branch in tree.branches],
        "decisions": [{**vars(decision), "path": list(decision.path)} for decision in tree.decisions],
        "ledger": dict(vars(tree.ledger)),
    }


def tree_from_json(line: Mapping[str, Any]) -> Tree:
    """The inverse of `tree_to_json`."""
    return Tree(
        task=Task(**line["task"]),
        prompt_ids=tuple(line["prompt_ids"]),
        branches=tuple(map(_branch_from_json, line["branches"])),
        decisions=tuple(Decision(**{**decision, "path": tuple(decision["path"])}) for decision in line["decisions"]),
        ledger=Ledger(**line["ledger"]),
        step=line["step"],
        method=line["method"],
        group=line["group"],
    )


def _append(path: Path, lines: list[str]) -> None:
    with open(path, "a", encoding="utf-8") as file:
        file.write("".join(lines))


def _dumps(line: dict[str, Any], what: str) -> str:
    try:
        return json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n"
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what} is not JSON: {error}; records hold finite numbers, strings, lists and maps") from None


def _metric(path: Path, step: int, name: str, value: Any) -> Any:
    if value is None or isinstance(value, (str, int)):
        return value
    number = float(value)
    if math.isfinite(number):
        return number
    logging.warning("%s: metric %r of step %d is %s and is recorded as null", path, name, step, number)
    return None


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    with open(path, encoding="utf-8") as file:
        for number, text in enumerate(file, start=1):
            try:
                line = json.loads(text)
            except json.JSONDecodeError as error:
                if not text.endswith("\n"):
                    return  # cut by a kill; only the last line can lack its end
                raise ValueError(f"{path}, line {number} is damaged: {error}; remove it or restore the file") from None
            if line["schema"] > SCHEMA:
                raise ValueError(
                    f"{path}, line {number} has schema {line['schema']}, this patr reads up to {SCHEMA}: "
                    "upgrade patr to read it"
                )
            yield text, line


def _branch_to_json(branch: Branch) -> dict[str, Any]:
    return {**vars(branch), "path": list(branch.path), "turns": list(map(_turn_to_json, branch.turns))}


def _turn_to_json(turn: Turn) -> dict[str, Any]:
    sequences = {name: list(vars(turn)[name]) for name in _TURN_SEQUENCES}
    return {**vars(turn), **sequences, "info": dict(turn.info)}


def _branch_from_json(line: Mapping[str, Any]) -> Branch:
    turns = tuple(map(_turn_from_json, line["turns"]))
    return Branch(**{**line, "path": tuple(line["path"]), "turns": turns, "status": Status(line["status"])})


def _turn_from_json(line: Mapping[str, Any]) -> Turn:
    sequences = {name: tuple(line[name]) for name in _TURN_SEQUENCES}
    return Turn(**{**line, **sequences})
