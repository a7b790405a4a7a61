"""Every leaf written out as a row of its own: the plain form that tree training must agree with."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from patr.objectives.reductions import group_shares
from patr.types import Tree


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FlatBatch:
    """Trajectories as rows, padded on the right with zeros."""

    tokens: np.ndarray  # int32 [B, T]
    mask: np.ndarray  # bool [B, T] where a token was sampled
    old_logprobs: np.ndarray  # float32 [B, T] of the tokens, when they were sampled
    advantages: np.ndarray  # float32 [B, T]
    shares: np.ndarray  # float32 [B, T]; 0 where mask is False
    denominator: np.ndarray  # float32 [] what these rows add to the denominator of the batch


def flat_batch(
    trees: Sequence[Tree],
    advantages: Sequence[Sequence[float]],
    *,
    reduction: str,
    rows: int | None = None,
    length: int | None = None,
) -> FlatBatch:
    """All trajectories of the trees, in order, one a row.

    advantages: for each tree, those of its `trajectories()`, in that order.
    reduction: the objective's; see reductions.py.
    rows, length: B and T; as many as needed if None. Raises ValueError if they do not suffice.
    """
    trajectories, row_advantages, row_shares, denominator = [], [], [], 0.0
    for tree, group_advantages in zip(trees, advantages, strict=True):
        group = tree.trajectories()
        shares, part = group_shares(reduction, [sum(t.mask) for t in group])
        trajectories += group
        row_advantages += list(group_advantages)
        row_shares += list(shares)
        denominator += part
    longest = max((len(t.ids) for t in trajectories), default=1)
    B, T = rows or max(len(trajectories), 1), length or longest
    if len(trajectories) > B or longest > T:
        raise ValueError(f"{len(trajectories)} trajectories of up to {longest} tokens do not fit [{B}, {T}]")

    tokens, mask = np.zeros((B, T), np.int32), np.zeros((B, T), bool)
    old_logprobs, token_advantages, token_shares = np.zeros((3, B, T), np.float32)
    for row, (t, advantage, share) in enumerate(zip(trajectories, row_advantages, row_shares, strict=True)):
        n = len(t.ids)
        tokens[row, :n] = t.ids
        mask[row, :n] = t.mask
        old_logprobs[row, :n] = t.logprobs
        token_advantages[row] = advantage * mask[row]
        token_shares[row] = share * mask[row]
    return FlatBatch(tokens, mask, old_logprobs, token_advantages, token_shares, np.float32(denominator))
