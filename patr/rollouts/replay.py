"""Re-derives a tree's decisions from its record: the method that is named is the method that ran."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Protocol

from patr.rollouts import rules
from patr.rollouts.rules import Candidate
from patr.types import Branch, Decision, Status, Tree


class Branching(Protocol):
    """What replaying needs of a controller; `Patr` and `TreeRandom` have it."""

    score_every: int
    children: int
    repeat_limit: int | None
    repeat_check: str

    def decide(self, active: Sequence[Candidate], leaves: int) -> tuple[Decision, ...]:
        """As `Patr.decide`."""


def replay(tree: Tree, controller: Branching) -> tuple[Decision, ...]:
    """The decisions `controller` takes given the tree's turns and recorded scores.

    Raises ValueError at the first of them that was not recorded as such, and at the first branch whose status or
    number of children does not follow from them.
    """
    nodes = _nodes(tree)
    recorded = {(decision.path, decision.turn): decision for decision in tree.decisions}
    order = {node.branch.path: i for i, node in enumerate(nodes)}
    derived = []
    for turn in range(1, 1 + max((node.end for node in nodes), default=0)):
        decided = _decide(nodes, turn, controller, recorded)
        derived += sorted(decided, key=lambda decision: order[decision.path])
    for again, before in itertools.zip_longest(derived, tree.decisions):
        if again != before:
            raise ValueError(f"task {tree.task.id}: recorded {before}, but replaying gives {again}")
    _check_statuses(nodes, derived, controller.children)
    return tuple(derived)


@dataclasses.dataclass(frozen=True)
class _Node:
    branch: Branch
    actions: tuple[str, ...]  # from the root
    start: int  # turns its ancestors took

    @property
    def end(self) -> int:
        return len(self.actions)

    def until(self, turn: int, score: float | None = None) -> Candidate:
        return Candidate(self.branch.path, self.actions[:turn], score)


def _nodes(tree: Tree) -> list[_Node]:
    nodes = []
    for branch in tree.branches:
        actions = tuple(turn.action for turn in tree.lineage_turns(branch.path))
        nodes.append(_Node(branch, actions, len(actions) - len(branch.turns)))
    return nodes


def _decide(nodes: Sequence[_Node], turn: int, controller: Branching, recorded: dict) -> list[Decision]:
    alive = [node for node in nodes if _alive_after(node, turn, recorded)]
    decisions = []
    if controller.repeat_check == "turn":
        for node in tuple(alive):
            if decision := rules.repeat_decision(node.until(turn), controller.repeat_limit):
                decisions.append(decision)
                alive.remove(node)
    if alive and turn % controller.score_every == 0:
        before = [recorded.get((node.branch.path, turn)) for node in alive]
        active = [node.until(turn, decision and decision.score) for node, decision in zip(alive, before, strict=True)]
        replaced = [node for node in nodes if node.end < turn and node.branch.status is Status.EXPANDED]
        leaves = sum(node.start < turn for node in nodes) - len(replaced)
        decisions += controller.decide(active, leaves)
    return decisions


def _alive_after(node: _Node, turn: int, recorded: dict) -> bool:
    if turn < node.end:
        return node.start < turn
    # Whether a failed branch broke before or after its last checkpoint only the record knows.
    failed_later = node.branch.status is Status.ERROR and (node.branch.path, turn) in recorded
    return turn == node.end > node.start and (node.branch.status in (Status.EXPANDED, Status.PRUNED) or failed_later)


def _check_statuses(nodes: Sequence[_Node], decisions: Sequence[Decision], children: int) -> None:
    kinds = {(decision.path, decision.turn): decision.kind for decision in decisions}
    for node in nodes:
        path, status = node.branch.path, node.branch.status
        kind = kinds.get((path, node.end))
        families = sum(other.branch.path[:-1] == path for other in nodes)
        follows = {
            Status.EXPANDED: kind == "expand" and families == children,
            Status.PRUNED: kind == "prune",
            Status.ERROR: kind != "expand",
        }.get(status, kind is None)
        if not follows:
            raise ValueError(f"branch {path} is {status} with {families} children, but its last decision was {kind}")
