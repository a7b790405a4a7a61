"""Learning rates by hand, and what the optimizer does to a matrix and a vector."""

import math

import jax.numpy as jnp
import optax
import pytest

from patr.training.optimizer import OptimizerConfig, learning_rate, make_optimizer


def rates(schedule, total, at, warmup_steps=4):
    rate = learning_rate(OptimizerConfig(learning_rate=0.4, warmup_steps=warmup_steps, schedule=schedule), total)
    return [float(rate(update)) for update in at]


@pytest.mark.parametrize("schedule", ["constant", "cosine", "linear"])
def test_warm_up_rises_evenly_to_the_peak_and_begins_above_zero(schedule):
    assert rates(schedule, 12, range(5)) == pytest.approx([0.08, 0.16, 0.24, 0.32, 0.4])


def test_after_warm_up_each_schedule_goes_its_own_way_to_the_last_update():
    quarter = 0.2 * (1 + math.cos(math.pi / 4))
    after_warm_up = [4, 6, 8, 12, 20]  # start, a quarter, the middle, the end, and beyond it
    assert rates("constant", 12, after_warm_up) == pytest.approx([0.4] * 5)
    assert rates("linear", 12, after_warm_up) == pytest.approx([0.4, 0.3, 0.2, 0, 0])
    assert rates("cosine", 12, after_warm_up) == pytest.approx([0.4, quarter, 0.2, 0, 0], abs=1e-7)


def test_without_warm_up_a_schedule_starts_at_its_peak():
    assert rates("constant", 8, [0, 4, 8], warmup_steps=0) == pytest.approx([0.4, 0.4, 0.4])
    assert rates("linear", 8, [0, 4, 8], warmup_steps=0) == pytest.approx([0.4, 0.2, 0])
    assert rates("cosine", 8, [0, 4, 8], warmup_steps=0) == pytest.approx([0.4, 0.2, 0], abs=1e-7)


PARAMS = {"matrix": jnp.full((2, 2), 3.0), "vector": jnp.full(2, 3.0)}


def updated(gradients, **config):
    """PARAMS after the first update."""
    optimizer = make_optimizer(OptimizerConfig(**{"learning_rate": 0.1} | config), total_updates=10)
    updates, _ = optimizer.update(gradients, optimizer.init(PARAMS), PARAMS)
    return optax.apply_updates(PARAMS, updates)


def test_weights_of_matrices_decay_and_those_of_vectors_do_not():
    gradients = {"matrix": jnp.zeros((2, 2)), "vector": jnp.zeros(2)}
    found = updated(gradients, weight_decay=0.5)
    assert found["matrix"] == pytest.approx(3 - 0.1 * 0.5 * 3)
    assert found["vector"] == pytest.approx(3)


@pytest.mark.parametrize(("max_grad_norm", "clipped_by"), [(10.0, 1), (1.0, 5)])
def test_gradients_above_the_largest_norm_are_scaled_down_to_it(max_grad_norm, clipped_by):
    """Adam's first update is -rate * g / (|g| + eps); an eps as large as the gradients makes their size visible."""
    gradients = {"matrix": jnp.array([[3.0, 0.0], [0.0, 0.0]]), "vector": jnp.array([0.0, -4.0])}  # of norm 5
    found = updated(gradients, max_grad_norm=max_grad_norm, eps=1.0)
    first, second = 3 / clipped_by, 4 / clipped_by
    assert found["matrix"][0, 0] == pytest.approx(3 - 0.1 * first / (first + 1))
    assert found["vector"][1] == pytest.approx(3 + 0.1 * second / (second + 1))
    assert found["matrix"][1, 1] == found["vector"][0] == 3
