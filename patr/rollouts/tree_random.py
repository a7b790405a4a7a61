"""Tree-Random: PaTR's tree with the branches to expand drawn at random (PaTR section 5.1, baselines)."""

import dataclasses
from collections.abc import Sequence

from patr.rollouts import rules
from patr.rollouts.base import Limits, LiveBranch
from patr.rollouts.engine import Engine
from patr.rollouts.rules import Candidate
from patr.types import Decision, Task, Tree


@dataclasses.dataclass(frozen=True, kw_only=True)
class TreeRandom:
    """At each checkpoint every active branch draws a number; the `top_k` highest are expanded.

    No score prunes. The paper does not say whether repeating branches are stopped; here they are, as in PaTR, so that
    the two differ in the scores alone (`repeat_limit=None` turns it off). A draw is a function of run seed, step, task,
    path and turn, and is recorded as the decision's score. The knobs mean what they mean in `Patr`.

    Raises ValueError naming the knob, its value and what is allowed.
    """

    initial_branches: int = 4
    score_every: int = 5  # turns between draws
    children: int = 2
    top_k: int = 2
    repeat_limit: int | None = 6
    repeat_check: str = "turn"
    pruned_reward: str = "outcome"
    group: str = "keep_all"
    max_leaves: int | None = None

    def __post_init__(self):
        rules.check_branching("tree_random", **dataclasses.asdict(self))

    def check(self, limits: Limits) -> None:
        """Raise ValueError if no branch could live to its first checkpoint."""
        rules.check_interval("tree_random", self.score_every, limits.max_turns)

    async def rollout(self, task: Task, engine: Engine) -> Tree:
        """Roll out one task."""
        async with engine.session(task, self.pruned_reward) as session:
            active = await session.start(self.initial_branches)
            while active := await session.advance(active, self.score_every, self._check_turn):
                candidates = [Candidate(b.path, b.actions, session.seed("expand", b) / 2**63) for b in active]
                decisions = self.decide(candidates, session.leaves)
                active = await session.carry_out(active, decisions, self.children)
            return session.tree("tree_random", self.group)

    def decide(self, active: Sequence[Candidate], leaves: int) -> tuple[Decision, ...]:
        """What a checkpoint does to each active branch; arguments as in `Patr.decide`, scores being the draws."""
        ranks = rules.ranks(active)
        expanded = rules.expansions(self.top_k, self.children, leaves, self.max_leaves)
        return tuple(self._route(candidate, ranks[candidate.path], expanded) for candidate in active)

    def _route(self, candidate: Candidate, rank: int, expanded: int) -> Decision:
        if rank < expanded:
            return candidate.decision("expand", "random", expanded, rank)
        if repeating := self.repeat_check == "checkpoint" and rules.repeat_decision(candidate, self.repeat_limit):
            return dataclasses.replace(repeating, rank=rank)
        return candidate.decision("survive", "none", rank=rank)

    def _check_turn(self, branch: LiveBranch) -> Decision | None:
        if self.repeat_check == "turn":
            return rules.repeat_decision(Candidate(branch.path, branch.actions), self.repeat_limit)
