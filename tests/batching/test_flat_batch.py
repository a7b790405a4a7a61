"""Rows against trajectories written out by hand."""

import numpy as np
import pytest
from tree_cases import fork, leaf, tree, turn

from patr.batching.flat import flat_batch
from patr.types import Status

FORKED = tree(
    [1, 2],
    fork((0,), turn([3], [4], [-0.5])),
    leaf((0, 0), turn([5, 6], logprobs=[-0.25, -0.125]), reward=1.0),
    leaf((0, 1), turn([7], logprobs=[-2.0])),
    leaf((1,), turn([8]), status=Status.ERROR),
)


def test_rows_of_a_forked_tree():
    batch = flat_batch([FORKED], [[1.5, -0.5]], reduction="seq_mean_token_mean", rows=3)
    assert batch.tokens.tolist() == [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 7, 0], [0] * 6]
    assert batch.mask.astype(int).tolist() == [[0, 0, 1, 0, 1, 1], [0, 0, 1, 0, 1, 0], [0] * 6]
    assert batch.old_logprobs.tolist() == [[0, 0, -0.5, 0, -0.25, -0.125], [0, 0, -0.5, 0, -2.0, 0], [0] * 6]
    assert batch.advantages.tolist() == [[0, 0, 1.5, 0, 1.5, 1.5], [0, 0, -0.5, 0, -0.5, 0], [0] * 6]
    np.testing.assert_array_equal(batch.shares.sum(axis=1), np.float32([0.5, 0.5, 0.0]))
    np.testing.assert_array_equal(batch.shares[0], np.float32(1 / 6) * batch.mask[0])
    assert batch.denominator == 1


def test_shapes_that_do_not_suffice_are_refused():
    with pytest.raises(ValueError, match=r"2 trajectories of up to 6 tokens do not fit \[1, 6\]"):
        flat_batch([FORKED], [[0, 0]], reduction="token_mean", rows=1)
    with pytest.raises(ValueError, match=r"do not fit \[2, 5\]"):
        flat_batch([FORKED], [[0, 0]], reduction="token_mean", length=5)
