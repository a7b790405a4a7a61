"""What a rollout controller needs of a process scorer (PaTR eq. 3)."""

from collections.abc import Sequence
from typing import Protocol

from patr.types import Task, Turn


class Scorer(Protocol):
    """Rates partial trajectories of one task in [0, 1]; higher is more promising.

    Scores decide where sampling budget goes and never enter the loss.
    """

    async def score(self, task: Task, histories: Sequence[Sequence[Turn]]) -> Sequence[float]:
        """One score per history (all turns from the root, oldest first)."""
