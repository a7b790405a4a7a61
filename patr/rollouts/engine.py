"""The only caller of sampler, environment and scorer; controllers decide, the engine does.

An `Engine` serves one step. A controller opens a `Session` for its task, advances and forks its live branches, and
takes the finished `Tree` from it. Live branches never leave this package.
"""

import collections
import dataclasses
import logging
import numbers
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from patr.envs.base import Env
from patr.rollouts.base import Chat, Limits, LiveBranch
from patr.rollouts.live_env import EnvFailed, LiveEnv
from patr.rollouts.waiting import EnvCalls, together
from patr.samplers.base import Sampler, SampleRequest, SamplerError
from patr.scorers.base import Scorer
from patr.seeds import seed_for
from patr.types import Branch, Decision, Ledger, Status, Task, Tree, Turn


class Controller(Protocol):
    """One way to roll out a group."""

    def check(self, limits: Limits) -> None:
        """Raise ValueError if the controller cannot work within these limits."""

    async def rollout(self, task: Task, engine: "Engine") -> Tree:
        """Roll out one task."""


class Engine:
    """Everything the rollouts of one step share. Lives in one event loop.

    make_env: a new, not yet reset environment.
    step: the training step; with run_seed and task id it addresses every random choice.
    env_retries, scorer_retries: further tries after a failure, per call.
    env_threads: environment calls at once, each in a thread; 0 calls in the event loop. With threads, what is sampled
        together follows their timing, and float rounding with it: runs repeat to the bit only without.
    env_timeout: seconds one environment call may take; needs env_threads.
    Raises ValueError if limits.max_context exceeds what the sampler holds.
    """

    def __init__(
        self,
        sampler: Sampler,
        make_env: Callable[[], Env],
        chat: Chat,
        scorer: Scorer | None,
        limits: Limits,
        run_seed: int,
        step: int,
        *,
        env_retries: int = 2,
        scorer_retries: int = 2,
        env_threads: int = 0,
        env_timeout: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ):
        if limits.max_context > sampler.max_context:
            raise ValueError(
                f"limits: max_context={limits.max_context}: the sampler holds {sampler.max_context} tokens"
            )
        if min(env_retries, scorer_retries) < 0:
            raise ValueError(f"env_retries={env_retries}, scorer_retries={scorer_retries}: expected 0 or more")
        self.sampler, self.make_env, self.chat, self.scorer, self.limits = sampler, make_env, chat, scorer, limits
        self.run_seed, self.step, self.clock = run_seed, step, clock
        self.env_retries, self.scorer_retries = env_retries, scorer_retries
        self.env_calls = EnvCalls(env_threads, env_timeout)

    async def run(self, tasks: Sequence[Task], controller: Controller) -> list[Tree]:
        """One tree a task, in the order of `tasks`, all rolled out at once.

        Raises ValueError if the controller does not fit the limits, SamplerError if the sampler gives up; the
        other rollouts are cancelled then, and every environment closed.
        """
        controller.check(self.limits)
        return await together(controller.rollout(task, self) for task in tasks)

    def session(self, task: Task, pruned_reward: str = "outcome") -> "Session":
        """Use as `async with`: however it is left, its environments are closed."""
        return Session(self, task, pruned_reward)


class Session:
    """The rollout of one task."""

    def __init__(self, engine: Engine, task: Task, pruned_reward: str):
        self._engine, self._task, self._pruned_reward = engine, task, pruned_reward
        self._counts = collections.Counter()
        self._decisions: list[Decision] = []
        env = LiveEnv(task, engine.make_env, engine.env_calls, engine.env_retries, self._counts)
        self._root = LiveBranch(path=(), env=env)
        self._branches: list[LiveBranch] = []  # in order of creation
        self._started = engine.clock()

    async def __aenter__(self) -> "Session":
        return self

    async def __aexit__(self, *_) -> None:
        await together(branch.env.close() for branch in (self._root, *self._branches))

    @property
    def leaves(self) -> int:
        """Branches, of any status, that were not replaced by children."""
        return sum(branch.status is not Status.EXPANDED for branch in self._branches)

    def seed(self, purpose: str, branch: LiveBranch) -> int:
        """The seed of a choice about the branch's next turn."""
        engine = self._engine
        return seed_for(engine.run_seed, purpose, engine.step, self._task.id, branch.path, len(branch.turns))

    async def start(self, n: int) -> list[LiveBranch]:
        """n branches that share the prompt; the environment is reset once and forked.

        If it cannot be reset all n are error branches. If the prompt leaves no room they end by length at once.
        """
        try:
            messages = await self._root.env.reset()
        except EnvFailed as failure:
            self._root.status, self._root.error = Status.ERROR, str(failure)
        else:
            self._root.ids = tuple(self._engine.chat.prompt(messages))
        branches = await self.fork(self._root, n)
        if self._root.error:
            for branch in branches:
                branch.status, branch.error = Status.ERROR, self._root.error
        elif self._room(len(self._root.ids)) < 1:
            logging.warning("task %s: its prompt of %d tokens fills the context", self._task.id, len(self._root.ids))
            await together(self.finish(branch, Status.LENGTH) for branch in branches)
        return _active(branches)

    async def advance(
        self,
        branches: Sequence[LiveBranch],
        turns: int,
        check: Callable[[LiveBranch], Decision | None] = lambda branch: None,
    ) -> list[LiveBranch]:
        """Take up to `turns` turns in every branch, all at once. Gives back those still active, in order.

        check: asked after each turn of a branch that goes on; if it answers with a decision the branch is pruned.
        """
        await together(self._advance(branch, turns, check) for branch in branches)
        return _active(branches)

    async def score(self, branches: Sequence[LiveBranch]) -> list[float | None]:
        """Process scores in [0, 1], in order. All None if the scorer failed as often as it may.

        Every failed call counts as one of `scorer_failures`. Raises ValueError if the engine has no scorer.
        """
        if self._engine.scorer is None:
            raise ValueError("this rollout asks for process scores: give the engine a scorer")
        histories = [branch.turns for branch in branches]
        for _ in range(self._engine.scorer_retries + 1):
            self._counts["scorer_calls"] += 1
            try:
                return _checked_scores(await self._engine.scorer.score(self._task, histories), len(histories))
            except SamplerError:
                raise
            except Exception as error:  # whatever a scorer or its server raises
                self._counts["scorer_failures"] += 1
                logging.warning("task %s: scorer error: %r", self._task.id, error)
        return [None] * len(histories)

    async def carry_out(
        self, branches: Sequence[LiveBranch], decisions: Sequence[Decision], children: int
    ) -> list[LiveBranch]:
        """Log one decision a branch and do it: expand, prune or let survive.

        Gives back the branches active now: the survivors, then the children.
        """
        self._decisions += decisions
        routed = {kind: [] for kind in ("expand", "prune", "survive")}
        for branch, decision in zip(branches, decisions, strict=True):
            routed[decision.kind].append(branch)
        await together(self.finish(branch, Status.PRUNED) for branch in routed["prune"])
        families = await together(self.fork(branch, children) for branch in routed["expand"])
        return routed["survive"] + [child for family in families for child in family]

    async def fork(self, branch: LiveBranch, n: int) -> list[LiveBranch]:
        """Replace a branch by n children that share its tokens and go on from copies of its environment."""
        *copies, heir = children = [
            LiveBranch((*branch.path, i), branch.env.unbuilt_copy(), branch.ids, branch.turns, len(branch.turns))
            for i in range(n)
        ]
        self._branches += children
        branch.status = Status.EXPANDED
        for child in copies:
            await branch.env.fork_into(child.env)
        heir.env, branch.env = branch.env, heir.env
        return children

    async def finish(self, branch: LiveBranch, status: Status) -> None:
        """End a branch with the outcome reward of the state it is in.

        An observation after its last own turn is dropped: nothing follows it, so it would be computed for nothing.
        """
        if len(branch.turns) > branch.inherited:
            *earlier, last = branch.turns
            branch.ids = branch.ids[: len(branch.ids) - len(last.observation_ids)]
            branch.turns = (*earlier, dataclasses.replace(last, observation_ids=()))
        try:
            paid = status is not Status.PRUNED or self._pruned_reward == "outcome"
            branch.reward = await branch.env.outcome() if paid else 0.0
            branch.status = status
        except EnvFailed as failure:
            branch.status, branch.error = Status.ERROR, str(failure)
        await branch.env.close()

    def tree(self, method: str, group: str = "keep_all") -> Tree:
        """What was rolled out. Raises ValueError while a branch is still active."""
        if active := _active(self._branches):
            raise ValueError(f"task {self._task.id}: branch {active[0].path} is still active; finish it first")
        order = {branch.path: i for i, branch in enumerate(self._branches)}
        return Tree(
            task=self._task,
            prompt_ids=self._root.ids,
            branches=tuple(map(_frozen, self._branches)),
            decisions=tuple(sorted(self._decisions, key=lambda d: (d.turn, order[d.path]))),
            ledger=Ledger(**self._counts, wall_seconds=self._engine.clock() - self._started),
            step=self._engine.step,
            method=method,
            group=group,
        )

    async def _advance(self, branch: LiveBranch, turns: int, check: Callable) -> None:
        for _ in range(turns):
            try:
                ending = await self._turn(branch)
            except EnvFailed as failure:
                branch.status, branch.error = Status.ERROR, str(failure)
                return
            if ending:
                await self.finish(branch, ending)
                return
            if decision := check(branch):
                self._decisions.append(decision)
                await self.finish(branch, Status.PRUNED)
                return

    async def _turn(self, branch: LiveBranch) -> Status | None:
        """Sample, act, append. Gives back why the trajectory ends here, if it does.

        The environment acts on a turn that was cut by length too: what a half action means is its business.
        """
        chat, limits = self._engine.chat, self._engine.limits
        request = SampleRequest(
            prompt_ids=branch.ids,
            seed=self.seed("sample", branch),
            max_tokens=min(limits.max_turn_tokens, self._room(len(branch.ids))),
            stop_ids=chat.stop_ids,
            temperature=limits.temperature,
        )
        sample = await self._engine.sampler.sample(request)
        if len(sample.ids) > request.max_tokens:
            raise SamplerError(f"sampler returned {len(sample.ids)} ids, {request.max_tokens} were asked for")
        self._counts["sampled_tokens"] += len(sample.ids)
        self._counts["prefilled_tokens"] += sample.prefilled_tokens
        self._counts["cached_tokens"] += sample.cached_tokens
        result = await branch.env.step(chat.decode_turn(sample.ids), self.seed("env", branch))
        ending, observed = None, ()
        if result.done:
            ending = Status.DONE
        elif len(branch.turns) + 1 == limits.max_turns:
            ending = Status.TURN_LIMIT
        else:
            observed = tuple(chat.observation(result.observation, after=sample.finish_reason))
            if self._room(len(branch.ids) + len(sample.ids) + len(observed)) < 1:
                ending, observed = Status.LENGTH, ()
        turn = Turn(
            action_ids=tuple(sample.ids),
            logprobs=tuple(sample.logprobs),
            observation_ids=observed,
            action=result.action,
            reward=float(result.reward),
            finish_reason=sample.finish_reason,
            observation=result.observation,
            info=dict(result.info),
            weight_version=sample.weight_version,
        )
        branch.ids += turn.action_ids + observed
        branch.turns += (turn,)
        return ending

    def _room(self, length: int) -> int:
        """Tokens that may still be sampled after a trajectory of `length` tokens."""
        limits = self._engine.limits
        return min(limits.max_context, limits.max_response_tokens + len(self._root.ids)) - length


def _active(branches: Iterable[LiveBranch]) -> list[LiveBranch]:
    return [branch for branch in branches if branch.status is Status.ACTIVE]


def _checked_scores(scores: Sequence[float], count: int) -> list[float]:
    scores = list(scores)
    if len(scores) != count:
        raise ValueError(f"{len(scores)} scores for {count} branches")
    for score in scores:
        # NaN fails the comparison, so it is refused with the rest.
        if not isinstance(score, numbers.Real) or isinstance(score, bool) or not 0 <= score <= 1:
            raise ValueError(f"process score {score!r}: expected a number in [0, 1]")
    return [float(score) for score in scores]


def _frozen(branch: LiveBranch) -> Branch:
    return Branch(branch.path, branch.turns[branch.inherited :], branch.status, branch.reward, branch.error)
