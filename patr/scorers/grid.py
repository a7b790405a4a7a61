"""The heuristic scorer of grid worlds (PaTR appendix A)."""

import dataclasses
from collections.abc import Sequence

from patr.envs.grid_paths import distances_to_goal, find_cell
from patr.types import Task, Turn


@dataclasses.dataclass(frozen=True, kw_only=True)
class GridProgress:
    """reward_weight * accumulated reward + distance_weight * progress, in [0, 1].

    Progress is 1 - d / (d0 + 1): d the shortest hole-free path from the player to
    the goal, d0 the one from the start. It is 1 on the goal, 1 / (d0 + 1) at the start,
    and 0 where d > d0, in a hole, and where no path leads to the goal.
    The paper names both terms but gives neither weights nor normaliser. The start is put above 0 so that wandering
    off still ranks below standing still. By default all weight is on progress: where reward comes only at the end,
    as in FrozenLake, every active branch has 0 of it, and weight there would only narrow the scores.
    The accumulated reward must lie in [0, 1], as FrozenLake's does: scores beyond are refused by the engine.
    Raises ValueError for weights that are negative or do not sum to 1, and for a branch without a turn.
    """

    reward_weight: float = 0.0
    distance_weight: float = 1.0

    def __post_init__(self):
        weights = (self.reward_weight, self.distance_weight)
        if min(weights) < 0 or abs(sum(weights) - 1) > 1e-9:
            raise ValueError(
                f"scorer: reward_weight={self.reward_weight}, distance_weight={self.distance_weight}: "
                "expected non-negative weights that sum to 1"
            )

    async def score(self, task: Task, histories: Sequence[Sequence[Turn]]) -> list[float]:
        return [self._score(history) for history in histories]

    def _score(self, history: Sequence[Turn]) -> float:
        if not history:
            raise ValueError("grid progress is read off the last turn: score branches that have taken one")
        reward = sum(turn.reward for turn in history)
        return self.reward_weight * reward + self.distance_weight * _progress(history[-1].info)


def _progress(state) -> float:
    rows = state["map"]
    distances = distances_to_goal(rows)
    start_row, start_column = find_cell(rows, "S")
    start, here = distances[start_row][start_column], distances[state["row"]][state["column"]]
    if start is None or here is None:
        return 0.0
    return max(0.0, 1 - here / (start + 1))
