"""Shares and denominators against hand values."""

import numpy as np
import pytest

from patr.objectives.reductions import group_shares


@pytest.mark.parametrize(
    "reduction, shares, denominator",
    [
        ("seq_mean_token_mean", [1 / 4, 1 / 12], 1.0),
        ("token_mean", [1.0, 1.0], 8.0),
        ("seq_mean_token_sum", [1 / 2, 1 / 2], 1.0),
    ],
)
def test_hand_values(reduction, shares, denominator):
    found = group_shares(reduction, [2, 6])
    np.testing.assert_allclose(found[0], shares, rtol=1e-15)
    assert found[1] == denominator


@pytest.mark.parametrize("reduction", ["seq_mean_token_mean", "token_mean"])
def test_a_constant_loss_of_one_reduces_to_one(reduction):
    groups = [[3, 1, 7], [2], [5, 5]]
    parts = [group_shares(reduction, lengths) for lengths in groups]
    total = sum(shares @ np.array(lengths) for (shares, _), lengths in zip(parts, groups, strict=True))
    assert total / sum(part for _, part in parts) == pytest.approx(1.0, rel=1e-15)


def test_an_empty_group_is_no_group():
    shares, denominator = group_shares("seq_mean_token_mean", [])
    assert shares.tolist() == [] and denominator == 0


def test_unknown_reduction_is_named():
    with pytest.raises(ValueError, match="reduction='mean': allowed are seq_mean_token_mean, token_mean"):
        group_shares("mean", [1])
