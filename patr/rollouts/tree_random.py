"""Tree-Random: PaTR's tree with the branches to expand drawn at random (PaTR section 5.1, baselines)."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from patr.rollouts.base import LiveBranch
from patr.rollouts.branching import Branching
from patr.rollouts.engine import Session


@dataclasses.dataclass(frozen=True, kw_only=True)
class TreeRandom(Branching):
    """At each checkpoint every active branch draws a number; the `top_k` highest are expanded.

    No score prunes. The paper does not say whether repeating branches are stopped; here they are, as in PaTR, so that
    the two differ in the scores alone (`repeat_limit=None` turns it off). A draw is a function of run seed, step, task,
    path and turn, and is recorded as the decision's score.
    """

    method: ClassVar[str] = "tree_random"
    expand_rule: ClassVar[str] = "random"

    async def scores(self, session: Session, active: Sequence[LiveBranch]) -> Sequence[float]:
        """A draw in [0, 1) for each branch."""
        return [session.seed("expand", branch) / 2**63 for branch in active]
