"""FrozenLake as a text environment; the dynamics are Gymnasium's."""

import copy
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv
from gymnasium.envs.toy_text.utils import categorical_sample

from patr.envs.base import Message, StepResult
from patr.envs.frozen_lake_maps import task_map
from patr.envs.frozen_lake_text import HINTS, observation_text, parse_actions, system_prompt
from patr.envs.grid_paths import MOVES, find_cell
from patr.types import Task

_ACTION_IDS = {move: number for number, move in enumerate(MOVES)}


class FrozenLake:
    """One FrozenLake episode (PaTR section 5.1). Tasks: see `patr.envs.frozen_lake_maps`.

    Entering the goal gives reward 1 and ends the episode, a hole gives 0 and ends it.
    A reply without a valid move uses up a turn and changes nothing.

    is_slippery: each move goes astray to either side with probability 1/3 each.
    max_turns: the turn budget the prompt counts down. Using it up is not an outcome
        of the episode: `done` stays False, and one step more raises.
    max_actions_per_turn: above 1, a reply may hold several moves separated by ||.
    hints: of 'position' and 'surroundings', short lines below the grid that spare the
        policy reading it. Off by default; with them a tiny policy trained from nothing
        learns the task in minutes. Results with hints are not results of the benchmark.
    Raises ValueError for an option out of range and an unknown hint.
    """

    def __init__(
        self,
        *,
        is_slippery: bool = False,
        max_turns: int = 10,
        max_actions_per_turn: int = 1,
        hints: Sequence[str] = (),
    ):
        if max_turns < 1 or max_actions_per_turn < 1:
            raise ValueError(f"max_turns {max_turns}, max_actions_per_turn {max_actions_per_turn}: both must be >= 1")
        if isinstance(hints, str) or set(hints) - set(HINTS):
            raise ValueError(f"hints {hints!r}: give a tuple out of {', '.join(map(repr, HINTS))}")
        self.is_slippery = is_slippery
        self.max_turns = max_turns
        self.max_actions_per_turn = max_actions_per_turn
        self.hints = tuple(hints)
        self._rows: tuple[str, ...] = ()

    def opening(self, task: Task) -> tuple[Message, Message]:
        """Raises ValueError if the task's data names no map."""
        rows = task_map(task)
        observation = observation_text(rows, *find_cell(rows, "S"), self.max_turns, self.hints, "")
        return (
            Message("system", system_prompt(self.is_slippery, self.max_actions_per_turn)),
            Message("user", observation),
        )

    def reset(self, task: Task) -> tuple[Message, Message]:
        """Raises ValueError if the task's data names no map."""
        self._rows = task_map(task)
        self._transitions = _transitions(self._rows, self.is_slippery)
        self._row, self._column = find_cell(self._rows, "S")
        self.turns_left = self.max_turns
        return self.opening(task)

    def step(self, text: str, seed: int) -> StepResult:
        """Raises RuntimeError before `reset`, after the end and beyond max_turns."""
        self._check_can_step()
        before = self._row, self._column
        moves = parse_actions(text, self.max_actions_per_turn)
        taken, reward = self._walk(moves, seed)
        self.turns_left -= 1
        effective = (self._row, self._column) != before
        return StepResult(
            observation=self._observation(_note(bool(moves), effective)),
            reward=reward,
            done=self._ended(),
            action=" ".join(taken) or "invalid",
            info={**self.state(), "valid": bool(moves), "effective": effective},
        )

    def fork(self) -> "FrozenLake":
        # Every attribute is immutable or a shared table nobody writes to.
        return copy.copy(self)

    def outcome(self) -> float:
        """1.0 on the goal, else 0.0."""
        return float(self._letter() == "G")

    def close(self) -> None:
        pass

    def state(self) -> Mapping[str, Any]:
        """Where the episode stands: `map` (rows), `row` and `column`, counted from 0 at the upper left."""
        return {"map": list(self._rows), "row": self._row, "column": self._column}

    def _check_can_step(self) -> None:
        if not self._rows:
            raise RuntimeError("step before reset: call reset(task) first")
        if self._ended():
            raise RuntimeError("the episode has ended: call reset(task) to start another")
        if not self.turns_left:
            raise RuntimeError(f"all {self.max_turns} turns are used: raise max_turns or stop the rollout there")

    def _walk(self, moves: tuple[str, ...], seed: int) -> tuple[list[str], float]:
        rng = np.random.default_rng(seed)
        taken, reward, width = [], 0.0, len(self._rows[0])
        for move in moves:
            if self._ended():
                break
            outcomes = self._transitions[self._row * width + self._column][_ACTION_IDS[move]]
            _, cell, gain, _ = outcomes[categorical_sample([outcome[0] for outcome in outcomes], rng)]
            self._row, self._column = divmod(cell, width)
            taken.append(move)
            reward += gain
        return taken, reward

    def _ended(self) -> bool:
        return self._letter() in "HG"

    def _letter(self) -> str:
        return self._rows[self._row][self._column]

    def _observation(self, note: str) -> str:
        return observation_text(self._rows, self._row, self._column, self.turns_left, self.hints, note)


# Bounded: a slippery 9x9 table takes some 100 kB. Running episodes keep theirs alive themselves.
@functools.lru_cache(maxsize=256)
def _transitions(rows: tuple[str, ...], is_slippery: bool) -> dict[int, dict[int, list[tuple]]]:
    return FrozenLakeEnv(desc=list(rows), is_slippery=is_slippery).P


def _note(valid: bool, effective: bool) -> str:
    if not valid:
        return "No valid move in your reply."
    return "" if effective else "You did not move."
