"""How per-token losses become one number: the share c_i of a trajectory's tokens, and what the sum is divided by.

loss = sum over groups, trajectories i and tokens of c_i * token loss, over the denominator of the whole batch. A share
depends on its own group alone and denominators add up, so groups can be put in any micro-batch on any device.
"""

from collections.abc import Callable, Sequence

import numpy as np

# name -> (shares [G], the group's part of the denominator), both from the trajectory lengths [G].
REDUCTIONS: dict[str, tuple[Callable[[np.ndarray], np.ndarray], Callable[[np.ndarray], float]]] = {
    # The mean of each trajectory, then of the group, then over groups (GRPO; PaTR eq. 2).
    "seq_mean_token_mean": (lambda lengths: 1 / (len(lengths) * lengths), lambda lengths: 1.0),
    # Every trained token of the batch weighs the same (DAPO).
    "token_mean": (lambda lengths: np.ones(len(lengths)), lambda lengths: float(lengths.sum())),
    # The sum of each trajectory, then means over group and groups: long trajectories weigh more.
    "seq_mean_token_sum": (lambda lengths: np.full(len(lengths), 1 / len(lengths)), lambda lengths: 1.0),
}


def group_shares(reduction: str, lengths: Sequence[int]) -> tuple[np.ndarray, float]:
    """Shares c_i [G] of a group's trajectories, and the group's part of the batch denominator.

    lengths: sampled tokens |tau_i| of each trajectory [G], all at least 1. A group without trajectories is no group:
    its part is 0. Raises ValueError for an unknown reduction.
    """
    check_reduction(reduction)
    lengths = np.asarray(lengths, np.int64)
    if not len(lengths):
        return np.zeros(0), 0.0
    shares, denominator = REDUCTIONS[reduction]
    return shares(lengths), denominator(lengths)


def check_reduction(reduction: str) -> None:
    """Raise ValueError unless the reduction is known."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction={reduction!r}: allowed are {', '.join(REDUCTIONS)}")
