"""What the engine needs of a chat template, where trajectories end, and a branch while it rolls out."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Protocol

from patr.envs.base import Message
from patr.rollouts.live_env import LiveEnv
from patr.types import Path, Status, Turn


class Chat(Protocol):
    """What a rollout needs of a chat template: ids that are only ever appended."""

    stop_ids: tuple[int, ...]

    def prompt(self, messages: Sequence[Message]) -> Sequence[int]:
        """Ids up to where the policy's first turn begins."""

    def observation(self, text: str, after: str) -> Sequence[int]:
        """Ids between two sampled turns; `after` is the finish reason ('stop' or 'length') of the first."""

    def decode_turn(self, ids: Sequence[int]) -> str:
        """The text of a sampled turn, without its end-of-turn."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Where a trajectory ends at the latest."""

    max_turns: int
    max_turn_tokens: int  # sampled in one turn
    max_response_tokens: int  # sampled and observed, all after the prompt
    max_context: int  # the whole trajectory
    temperature: float = 1.0  # 0 is greedy

    def __post_init__(self):
        for name, value in dataclasses.asdict(self).items():
            if name != "temperature" and value < 1:
                raise ValueError(f"limits: {name}={value}: expected at least 1")
        if not 0 <= self.temperature < math.inf:
            raise ValueError(f"limits: temperature={self.temperature}: expected a finite number >= 0")


@dataclasses.dataclass(eq=False)
class LiveBranch:
    """A branch while it rolls out. Only its session changes it."""

    path: Path
    env: LiveEnv
    ids: tuple[int, ...] = ()  # from the root; only grows
    turns: tuple[Turn, ...] = ()  # from the root
    inherited: int = 0  # how many of the turns are its ancestors'
    status: Status = Status.ACTIVE
    reward: float | None = None
    error: str = ""

    @property
    def actions(self) -> tuple[str, ...]:
        """Canonical actions from the root."""
        return tuple(turn.action for turn in self.turns)
