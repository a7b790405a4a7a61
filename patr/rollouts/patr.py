"""PaTR: process-scorer guided adaptive tree rollouts (Algorithm 1)."""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import ClassVar

from patr.rollouts.base import LiveBranch
from patr.rollouts.branching import Branching
from patr.rollouts.engine import Session


@dataclasses.dataclass(frozen=True, kw_only=True)
class Patr(Branching):
    """Expands promising branches, stops hopeless ones, keeps all of them in the group.

    Where the paper is silent: the `top_k` best of the active branches are expanded, however good they are; of equal
    scores the older branch goes first; the median is that of all scored active branches, the expanded included; when
    the scorer failed a branch survives and is neither ranked nor compared. A branch both low and repeating is pruned
    as low.
    """

    prune_margin: float = 0.5  # alpha of eq. 5, section 5.1

    method: ClassVar[str] = "patr"
    expand_rule: ClassVar[str] = "top_k"

    def __post_init__(self):
        super().__post_init__()
        if not 0 <= self.prune_margin <= 1:
            raise ValueError(f"patr: prune_margin={self.prune_margin!r}: expected a number in [0, 1], like the scores")

    async def scores(self, session: Session, active: Sequence[LiveBranch]) -> Sequence[float | None]:
        """The process scorer's."""
        return await session.score(active)

    def lowest(self, scores: Sequence[float]) -> float:
        """The median less alpha (eq. 5)."""
        return statistics.median(scores) - self.prune_margin
