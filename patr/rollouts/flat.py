"""GRPO groups: independent trajectories that share the prompt and nothing else."""

import dataclasses

from patr.rollouts import rules
from patr.rollouts.base import Limits
from patr.rollouts.engine import Engine
from patr.types import Task, Tree


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flat:
    """A group of `group_size` trajectories. Raises ValueError naming the knob, its value and what is allowed."""

    group_size: int = 8  # GRPO and DAPO in PaTR, section 5.1

    def __post_init__(self):
        rules.check_count("flat", "group_size", self.group_size, 1)

    def check(self, limits: Limits) -> None:
        """Any limits do."""

    async def rollout(self, task: Task, engine: Engine) -> Tree:
        """Roll out one task."""
        async with engine.session(task) as session:
            branches = await session.start(self.group_size)
            await session.advance(branches, engine.limits.max_turns)
            return session.tree("flat")
