"""What a rollout needs of an environment."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from patr.types import Task


@dataclasses.dataclass(frozen=True)
class Message:
    """One chat message."""

    role: str  # 'system' | 'user' | 'assistant'
    content: str


@dataclasses.dataclass(frozen=True)
class StepResult:
    """The environment's answer to one action."""

    observation: str  # text of the next user message
    reward: float
    done: bool
    action: str  # canonical name of what was done; 'invalid' if the text held no action
    info: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # JSON-serialisable


class Env(Protocol):
    """One episode. Any exception raised here makes an error branch, never a reward."""

    def opening(self, task: Task) -> Sequence[Message]:
        """What `reset` will return, without starting anything: cheap, so that prompts can be checked before a run."""

    def reset(self, task: Task) -> Sequence[Message]:
        """Start the task; the messages are the prompt (system, then user)."""

    def step(self, text: str, seed: int) -> StepResult:
        """Act on the policy's reply. Chance is a function of `seed` alone."""

    def fork(self) -> "Env":
        """An independent copy: parent and child never influence each other."""

    def outcome(self) -> float:
        """The outcome reward of the state the episode is in now."""

    def close(self) -> None:
        """Release what the episode holds. Safe to call twice."""
