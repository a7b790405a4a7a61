"""What the methods that grow a tree share: everything but the numbers that branches are ranked by."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

from patr.rollouts import rules
from patr.rollouts.base import Limits, LiveBranch
from patr.rollouts.engine import Engine, Session
from patr.rollouts.rules import Candidate
from patr.types import Decision, Task, Tree


@dataclasses.dataclass(frozen=True, kw_only=True)
class Branching:
    """Every `score_every` turns the best of the active branches are expanded; a method says what best means.

    `max_leaves` lets only so many be expanded, best first, that the tree never has more leaves, pruned and failed
    ones counted; a top_k branch it holds back is treated like the rest. A branch that starts to repeat itself is
    stopped at once (`repeat_check='turn'`), since with K < Theta a checkpoint comes too early to see it.

    Raises ValueError naming the knob, its value and what is allowed.
    """

    initial_branches: int = 4  # B0, section 5.1
    score_every: int = 5  # K in turns, section 5.1: 5 on FrozenLake, 13 on SWE tasks
    children: int = 2  # M, section 5.1
    top_k: int = 2  # branches expanded at a checkpoint, section 6.1; 0 only prunes
    repeat_limit: int | None = 6  # Theta, section 5.1; None turns the rule off
    repeat_check: str = "turn"  # 'turn' | 'checkpoint': when the repeat rule is asked
    pruned_reward: str = "outcome"  # 'outcome' of the state it stopped in | 'zero'
    group: str = "keep_all"  # 'keep_all' | 'best_n', section 6.2: whether pruned branches are trained on
    max_leaves: int | None = None

    method: ClassVar[str]
    expand_rule: ClassVar[str]  # the name of its ranking in the record

    def __post_init__(self):
        rules.check_count(self.method, "initial_branches", self.initial_branches, 1)
        rules.check_count(self.method, "score_every", self.score_every, 1)
        rules.check_count(self.method, "children", self.children, 2)
        rules.check_count(self.method, "top_k", self.top_k, 0)
        if self.repeat_limit is not None:
            rules.check_count(self.method, "repeat_limit", self.repeat_limit, 2)
        if self.max_leaves is not None:
            rules.check_count(self.method, "max_leaves", self.max_leaves, self.initial_branches)
        rules.check_choice(self.method, "repeat_check", self.repeat_check, ("turn", "checkpoint"))
        rules.check_choice(self.method, "pruned_reward", self.pruned_reward, ("outcome", "zero"))
        rules.check_choice(self.method, "group", self.group, ("keep_all", "best_n"))

    def check(self, limits: Limits) -> None:
        """Raise ValueError if no branch could live to its first checkpoint."""
        if self.score_every > limits.max_turns:
            raise ValueError(
                f"{self.method}: score_every={self.score_every} exceeds max_turns={limits.max_turns}, so no branch "
                f"would ever be expanded; expected 1 to {limits.max_turns}"
            )

    async def rollout(self, task: Task, engine: Engine) -> Tree:
        """Algorithm 1 for one task."""
        async with engine.session(task, self.pruned_reward) as session:
            active = await session.start(self.initial_branches)
            while active := await session.advance(active, self.score_every, self._check_turn):
                scores = await self.scores(session, active)
                candidates = [Candidate(b.path, b.actions, s) for b, s in zip(active, scores, strict=True)]
                decisions = self.decide(candidates, session.leaves)
                active = await session.carry_out(active, decisions, self.children)
            return session.tree(self.method, self.group)

    async def scores(self, session: Session, active: Sequence[LiveBranch]) -> Sequence[float | None]:
        """The numbers to rank the active branches by; None where there is none."""
        raise NotImplementedError

    def lowest(self, scores: Sequence[float]) -> float | None:
        """The score below which a branch is pruned; None if no score prunes."""
        del scores
        return None

    def decide(self, active: Sequence[Candidate], leaves: int) -> tuple[Decision, ...]:
        """What a checkpoint does to each active branch (Algorithm 1, lines 7 and 8).

        active: in order of creation. leaves: branches of the tree so far, of any status, that were not expanded.
        """
        ranks = rules.ranks(active)
        expanded = rules.expansions(self.top_k, self.children, leaves, self.max_leaves)
        scores = [candidate.score for candidate in active if candidate.score is not None]
        lowest = self.lowest(scores) if scores else None
        return tuple(self._route(candidate, ranks.get(candidate.path), expanded, lowest) for candidate in active)

    def _route(self, candidate: Candidate, rank: int | None, expanded: int, lowest: float | None) -> Decision:
        if rank is not None and rank < expanded:
            return candidate.decision("expand", self.expand_rule, expanded, rank)
        if rank is not None and lowest is not None and candidate.score < lowest:
            return candidate.decision("prune", "margin", lowest, rank)
        if repeating := self.repeat_check == "checkpoint" and rules.repeat_decision(candidate, self.repeat_limit):
            return dataclasses.replace(repeating, rank=rank)
        if rank is None:
            return candidate.decision("survive", "unscored")
        return candidate.decision("survive", "none", lowest, rank)

    def _check_turn(self, branch: LiveBranch) -> Decision | None:
        if self.repeat_check == "turn":
            return rules.repeat_decision(Candidate(branch.path, branch.actions), self.repeat_limit)
