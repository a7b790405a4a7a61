"""Outcome advantages of a rollout group. Runs on the host, over a handful of rewards."""

from collections.abc import Sequence

import numpy as np


def group_advantages(rewards: Sequence[float], eps: float = 1e-6) -> np.ndarray:
    """A_i = (r_i - mean) / (std + eps) of one group of rewards [G], as float64 [G].

    PaTR eq. 1 and, over the leaves of a tree, eq. 9. The paper leaves the kind of std open: it is the unbiased one
    here. A group without variance (see `has_no_variance`) has nothing to compare and gets exact zeros.
    Raises ValueError naming the first reward that is not finite.
    """
    rewards = np.asarray(rewards, np.float64)
    for position in np.flatnonzero(~np.isfinite(rewards)):
        raise ValueError(
            f"reward {position} of a group of {len(rewards)} is {rewards[position]}: "
            "leave a failed rollout out of the group (Status.ERROR) instead of giving it such a reward"
        )
    if has_no_variance(rewards):
        return np.zeros_like(rewards)
    return (rewards - rewards.mean()) / (rewards.std(ddof=1) + eps)


def has_no_variance(rewards: Sequence[float]) -> bool:
    """Whether a group teaches nothing: fewer than two rewards, or all the same."""
    # Compared directly: rounding in the mean can leave a std of 1e-17 between equal rewards.
    return len(rewards) < 2 or min(rewards) == max(rewards)
