"""Group advantages against hand values."""

import math

import numpy as np
import pytest

from patr.objectives.advantages import group_advantages, has_no_variance


def test_hand_values():
    # mean 0.25, unbiased variance (0.75^2 + 3 * 0.25^2) / 3 = 0.25
    np.testing.assert_allclose(group_advantages([1, 0, 0, 0], eps=0.0), [1.5, -0.5, -0.5, -0.5], rtol=1e-15)
    np.testing.assert_allclose(group_advantages([1, 0, 0, 0], eps=0.5), [0.75, -0.25, -0.25, -0.25], rtol=1e-15)
    # Two rewards: std |a - b| / sqrt(2)
    np.testing.assert_allclose(group_advantages([3, 1], eps=0.0), [1 / math.sqrt(2), -1 / math.sqrt(2)], rtol=1e-15)


def test_small_groups_are_finite():
    assert group_advantages([]).tolist() == []
    assert group_advantages([0.7]).tolist() == [0.0]
    assert np.isfinite(group_advantages([0.2, 0.9])).all()
    assert np.isfinite(group_advantages([0.2, 0.9, 0.9])).all()


def test_zero_variance_groups_give_exact_zeros():
    # The mean of three 0.1 is not 0.1 in floating point.
    assert group_advantages([0.1, 0.1, 0.1]).tolist() == [0.0, 0.0, 0.0]
    assert has_no_variance([]) and has_no_variance([5.0]) and has_no_variance([0.1] * 3)
    assert not has_no_variance([0.1, 0.1, 0.2])


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_rewards_that_are_not_finite_are_named(bad):
    with pytest.raises(ValueError, match=r"reward 2 of a group of 4 is -?(nan|inf).*Status.ERROR"):
        group_advantages([0.0, 1.0, bad, 0.0])
