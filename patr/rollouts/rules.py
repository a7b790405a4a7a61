"""What checkpoints decide by. Pure: the same branches and scores give the same decisions."""

import dataclasses
from collections.abc import Sequence

from patr.types import Decision, Path


@dataclasses.dataclass(frozen=True)
class Candidate:
    """An active branch at a checkpoint."""

    path: Path
    actions: tuple[str, ...]  # canonical, from the root
    score: float | None = None  # None: the scorer failed

    def decision(self, kind: str, rule: str, threshold: float | None = None, rank: int | None = None) -> Decision:
        return Decision(len(self.actions), self.path, kind, rule, self.score, threshold, rank)


def ranks(active: Sequence[Candidate]) -> dict[Path, int]:
    """Rank of every scored branch, 0 for the highest score; of equal scores the older branch goes first."""
    scored = [candidate for candidate in active if candidate.score is not None]
    best_first = sorted(scored, key=lambda candidate: -candidate.score)  # stable
    return {candidate.path: rank for rank, candidate in enumerate(best_first)}


def expansions(top_k: int, children: int, leaves: int, max_leaves: int | None) -> int:
    """How many branches may be expanded: each adds children - 1 leaves, and max_leaves is never exceeded."""
    return top_k if max_leaves is None else min(top_k, (max_leaves - leaves) // (children - 1))


def repeats(actions: Sequence[str], limit: int | None) -> bool:
    """Whether the last `limit` actions are the same (PaTR section 4.1, Theta). None: never."""
    return limit is not None and len(actions) >= limit and len(set(actions[-limit:])) == 1


def repeat_decision(candidate: Candidate, limit: int | None) -> Decision | None:
    """The decision to prune a branch that repeats itself, if it does."""
    return candidate.decision("prune", "repeat", limit) if repeats(candidate.actions, limit) else None


def check_count(method: str, knob: str, value: int, least: int) -> None:
    """Raise ValueError unless `value` is a whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{method}: {knob}={value!r}: expected a whole number, at least {least}")


def check_choice(method: str, knob: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise ValueError unless `value` is one of `allowed`."""
    if value not in allowed:
        raise ValueError(f"{method}: {knob}={value!r}: expected one of {', '.join(map(repr, allowed))}")
