"""PaTR: process-scorer guided adaptive tree rollouts (Algorithm 1)."""

import dataclasses
import statistics
from collections.abc import Sequence

from patr.rollouts import rules
from patr.rollouts.base import Limits, LiveBranch
from patr.rollouts.engine import Engine
from patr.rollouts.rules import Candidate
from patr.types import Decision, Task, Tree


@dataclasses.dataclass(frozen=True, kw_only=True)
class Patr:
    """Expands promising branches, stops hopeless ones, keeps all of them in the group.

    Where the paper is silent: the `top_k` best of the active branches are expanded, however good they are; of equal
    scores the older branch goes first; the median is that of all scored active branches, the expanded included; when
    the scorer failed a branch survives and is neither ranked nor compared. A branch both low and repeating is pruned
    as low. `max_leaves` lets only so many be expanded, best first, that the tree never has more leaves, pruned and
    failed ones counted; a top_k branch it holds back is treated like the rest. A branch that starts to repeat itself
    is stopped at once (`repeat_check='turn'`), since with K < Theta a checkpoint comes too early to see it.

    Raises ValueError naming the knob, its value and what is allowed.
    """

    initial_branches: int = 4  # B0, section 5.1
    score_every: int = 5  # K in turns, section 5.1: 5 on FrozenLake, 13 on SWE tasks
    children: int = 2  # M, section 5.1
    top_k: int = 2  # branches expanded at a checkpoint, section 6.1; 0 only prunes
    prune_margin: float = 0.5  # alpha of eq. 5, section 5.1
    repeat_limit: int | None = 6  # Theta, section 5.1; None turns the rule off
    repeat_check: str = "turn"  # 'turn' | 'checkpoint': when the repeat rule is asked
    pruned_reward: str = "outcome"  # 'outcome' of the state it stopped in | 'zero'
    group: str = "keep_all"  # 'keep_all' | 'best_n', section 6.2: whether pruned branches are trained on
    max_leaves: int | None = None

    def __post_init__(self):
        knobs = dataclasses.asdict(self)
        margin = knobs.pop("prune_margin")
        rules.check_branching("patr", **knobs)
        if not 0 <= margin <= 1:
            raise ValueError(f"patr: prune_margin={margin!r}: expected a number in [0, 1], like the scores")

    def check(self, limits: Limits) -> None:
        """Raise ValueError if no branch could live to its first checkpoint."""
        rules.check_interval("patr", self.score_every, limits.max_turns)

    async def rollout(self, task: Task, engine: Engine) -> Tree:
        """Algorithm 1 for one task."""
        async with engine.session(task, self.pruned_reward) as session:
            active = await session.start(self.initial_branches)
            while active := await session.advance(active, self.score_every, self._check_turn):
                scores = await session.score(active)
                candidates = [Candidate(b.path, b.actions, s) for b, s in zip(active, scores, strict=True)]
                decisions = self.decide(candidates, session.leaves)
                active = await session.carry_out(active, decisions, self.children)
            return session.tree("patr", self.group)

    def decide(self, active: Sequence[Candidate], leaves: int) -> tuple[Decision, ...]:
        """What a checkpoint does to each active branch (Algorithm 1, lines 7 and 8).

        active: in order of creation. leaves: branches of the tree so far, of any status, that were not expanded.
        """
        ranks = rules.ranks(active)
        expanded = rules.expansions(self.top_k, self.children, leaves, self.max_leaves)
        scores = [candidate.score for candidate in active if candidate.score is not None]
        lowest = statistics.median(scores) - self.prune_margin if scores else None
        return tuple(self._route(candidate, ranks.get(candidate.path), expanded, lowest) for candidate in active)

    def _route(self, candidate: Candidate, rank: int | None, expanded: int, lowest: float | None) -> Decision:
        if rank is not None and rank < expanded:
            return candidate.decision("expand", "top_k", expanded, rank)
        if rank is not None and candidate.score < lowest:
            return candidate.decision("prune", "margin", lowest, rank)
        if repeating := self.repeat_check == "checkpoint" and rules.repeat_decision(candidate, self.repeat_limit):
            return dataclasses.replace(repeating, rank=rank)
        if rank is None:
            return candidate.decision("survive", "unscored")
        return candidate.decision("survive", "none", lowest, rank)

    def _check_turn(self, branch: LiveBranch) -> Decision | None:
        if self.repeat_check == "turn":
            return rules.repeat_decision(Candidate(branch.path, branch.actions), self.repeat_limit)
