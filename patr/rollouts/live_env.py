"""One branch's environment, able to start afresh when it breaks."""

import collections
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from patr.envs.base import Env, Message, StepResult
from patr.rollouts.waiting import EnvCalls
from patr.types import Task


class EnvFailed(RuntimeError):
    """The environment failed as often as it may; the branch is an error branch."""


class _Step(NamedTuple):
    text: str
    seed: int
    result: StepResult


class LiveEnv:
    """An environment and the steps that led to its state.

    A call that fails is tried again in a fresh environment, reset and led to the same state by the same texts and
    seeds, up to `retries` times; then EnvFailed. Every failure counts as one of `environment_errors`, every step,
    replayed ones too, as one of `environment_steps`.
    """

    def __init__(
        self,
        task: Task,
        make: Callable[[], Env],
        calls: EnvCalls,
        retries: int,
        counts: collections.Counter,
        steps: tuple[_Step, ...] = (),
    ):
        self._task, self._make, self._calls, self._retries, self._counts = task, make, calls, retries, counts
        self._steps = steps
        self._env: Env | None = None  # built on first use

    async def reset(self) -> Sequence[Message]:
        """The messages of the prompt."""
        return await self._retried(self._build)

    async def step(self, text: str, seed: int) -> StepResult:
        result = await self._retried(lambda: self._step(text, seed))
        self._steps += (_Step(text, seed, result),)
        return result

    async def outcome(self) -> float:
        return await self._retried(self._outcome)

    def unbuilt_copy(self) -> "LiveEnv":
        """The same state, reached by replaying the steps unless `fork_into` fills it first."""
        return LiveEnv(self._task, self._make, self._calls, self._retries, self._counts, self._steps)

    async def fork_into(self, copy: "LiveEnv") -> None:
        """Fill an unbuilt copy by forking. If that fails both are rebuilt by replay when next used."""
        if self._env is None:
            return
        try:
            copy._env = await self._calls(self._env.fork, undo=_close)
        except Exception as error:  # whatever the environment raises
            await self._failed(error)

    async def close(self) -> None:
        """Release the environment; what it raises on the way out is only logged."""
        env, self._env = self._env, None
        if env is None:
            return
        try:
            await self._calls(env.close)
        except Exception:
            logging.warning("task %s: an environment failed to close", self._task.id, exc_info=True)

    async def _retried(self, attempt: Callable[[], Awaitable[Any]]) -> Any:
        for tries_left in range(self._retries, -1, -1):
            try:
                return await attempt()
            except Exception as error:  # whatever the environment raises
                await self._failed(error)
                if not tries_left:
                    raise EnvFailed(f"{type(error).__name__}: {error}") from error

    async def _failed(self, error: Exception) -> None:
        self._counts["environment_errors"] += 1
        logging.warning("task %s: environment error: %r", self._task.id, error)
        await self.close()

    async def _step(self, text: str, seed: int) -> StepResult:
        if self._env is None:
            await self._build()
        result = await self._calls(self._env.step, text, seed)
        self._counts["environment_steps"] += 1
        if not isinstance(result, StepResult) or not math.isfinite(result.reward):
            raise TypeError(f"Env.step returned {result!r}: expected a StepResult with a finite reward")
        return result

    async def _outcome(self) -> float:
        if self._env is None:
            await self._build()
        outcome = float(await self._calls(self._env.outcome))
        if not math.isfinite(outcome):
            raise ValueError(f"Env.outcome returned {outcome}: expected a finite number")
        return outcome

    async def _build(self) -> Sequence[Message]:
        self._env = await self._calls(self._make, undo=_close)
        messages = await self._calls(self._env.reset, self._task)
        for number, step in enumerate(self._steps, start=1):
            replayed = await self._step(step.text, step.seed)
            if replayed != step.result:
                raise RuntimeError(f"a fresh environment gave {replayed} at turn {number}, not {step.result} as before")
        return messages


def _close(env: Env) -> None:
    env.close()
