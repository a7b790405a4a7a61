"""Joining parts gives what the whole would."""

import jax.numpy as jnp
import pytest

from patr.objectives.metrics import Max, Mean


def test_parts_join_to_the_whole():
    values, weights = jnp.array([1.0, 2.0, 6.0]), jnp.array([1.0, 0.0, 3.0])
    whole = Mean.of(values, weights)
    assert float(whole.value) == pytest.approx(19 / 4)
    assert float((Mean.of(values[:1], weights[:1]) + Mean.of(values[1:], weights[1:])).value) == float(whole.value)
    assert float((Max(1.5) + Max(0.5)).value) == 1.5


def test_nothing_measured_is_zero():
    assert float(Mean(0.0, 0.0).value) == 0.0
