"""FrozenLake behind Gymnasium's interface: numbered actions, the grid as an array."""

from typing import Any, ClassVar

import gymnasium
import numpy as np

from patr.envs.frozen_lake import FrozenLake
from patr.envs.frozen_lake_text import grid_text
from patr.envs.grid_paths import MOVES
from patr.types import Task

# The position in this string is the cell's number; a blank lies outside the map.
CELLS = " _OGPX√"


class FrozenLakeGym(gymnasium.Env):
    """`gymnasium.make("patr/FrozenLake-v0")`.

    Actions 0 to 3: left, down, right, up. Observations [max_size, max_size] uint8:
    0 outside the map, then 1 ice, 2 hole, 3 goal, 4 player, 5 player in a hole,
    6 player on the goal. An episode is truncated after max_turns.
    `reset(options={"task": task})` plays that task; without one the map is drawn
    from the reference distribution, sizes 2 to 9 (at most max_size), p in [0.6, 0.85).
    """

    metadata: ClassVar = {"render_modes": ["ansi"], "render_fps": 4}

    def __init__(
        self, *, is_slippery: bool = False, max_turns: int = 10, max_size: int = 9, render_mode: str | None = None
    ):
        if render_mode not in (None, "ansi"):
            raise ValueError(f"render_mode {render_mode!r}: only 'ansi' exists")
        self.render_mode = render_mode
        self.action_space = gymnasium.spaces.Discrete(len(MOVES))
        self.observation_space = gymnasium.spaces.Box(0, len(CELLS) - 1, (max_size, max_size), np.uint8)
        self._env = FrozenLake(is_slippery=is_slippery, max_turns=max_turns)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        """Raises ValueError if the map is larger than max_size."""
        super().reset(seed=seed)
        task = (options or {}).get("task") or self._draw_task()
        self._env.reset(task)
        info = dict(self._env.state())
        if max(len(info["map"]), len(info["map"][0])) > self.observation_space.shape[0]:
            raise ValueError(f"task {task.id}: its map does not fit max_size {self.observation_space.shape[0]}")
        return self._observation(), info

    def step(self, action: int):
        result = self._env.step(f"```{list(MOVES)[action]}```", int(self.np_random.integers(2**63)))
        truncated = not result.done and not self._env.turns_left
        return self._observation(), result.reward, result.done, truncated, dict(result.info)

    def render(self) -> str | None:
        return self._grid() if self.render_mode == "ansi" else None

    def _draw_task(self) -> Task:
        data = {
            "seed": int(self.np_random.integers(0, 100_000)),
            "size": int(self.np_random.integers(2, min(9, self.observation_space.shape[0]) + 1)),
            "p": float(self.np_random.uniform(0.6, 0.85)),
        }
        return Task(f"frozen_lake/gym/{data['seed']}-{data['size']}", data)

    def _observation(self) -> np.ndarray:
        cells = np.zeros(self.observation_space.shape, np.uint8)
        for row, line in enumerate(self._grid().splitlines()):
            symbols = line.split(" ")
            cells[row, : len(symbols)] = [CELLS.index(symbol) for symbol in symbols]
        return cells

    def _grid(self) -> str:
        state = self._env.state()
        return grid_text(state["map"], state["row"], state["column"])
