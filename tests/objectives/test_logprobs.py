"""Chunked log-probabilities equal the full ones, in value, gradient and nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from patr.objectives.logprobs import token_logprobs


def full(table, hidden, targets, temperature):
    logprobs = jax.nn.log_softmax(hidden @ table.T / temperature)
    return logprobs[jnp.arange(len(targets)), targets], -jnp.sum(jnp.exp(logprobs) * logprobs, axis=-1)


def chunked(table, hidden, targets, temperature, chunk):
    return token_logprobs(lambda h: h @ table.T, hidden, targets, temperature, chunk)


@pytest.mark.parametrize("temperature, chunk", [(1.0, 1), (0.5, 4), (1.5, 64)])
def test_equals_the_full_version_with_gradients(temperature, chunk):
    rng = np.random.default_rng(0)
    table, hidden = jnp.array(rng.normal(size=(11, 6))), jnp.array(rng.normal(size=(10, 6)))
    targets, mix = jnp.array(rng.integers(0, 11, 10)), jnp.array(rng.normal(size=(2, 10)))

    def mixed(f, *settings):
        return lambda table, hidden: jnp.vdot(mix, jnp.stack(f(table, hidden, targets, *settings)))

    expected = jax.jit(jax.value_and_grad(mixed(full, temperature), (0, 1)))(table, hidden)
    found = jax.jit(jax.value_and_grad(mixed(chunked, temperature, chunk), (0, 1)))(table, hidden)
    # float32 sums of tens of terms of size one, in another order.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5), found, expected)


def test_entropy_of_the_scaled_distribution():
    uniform = token_logprobs(lambda h: jnp.zeros((len(h), 7)), jnp.zeros((3, 2)), jnp.zeros(3, int))
    np.testing.assert_allclose(uniform[1], np.log(7), rtol=1e-6)
    np.testing.assert_allclose(uniform[0], -np.log(7), rtol=1e-6)
    # Two outcomes with logits 2 and 0 at temperature 2: p = sigmoid(1).
    p = 1 / (1 + np.exp(-1))
    logprob, entropy = token_logprobs(lambda h: h, jnp.array([[2.0, 0.0]]), jnp.array([0]), temperature=2.0)
    assert float(logprob[0]) == pytest.approx(np.log(p), rel=1e-6)
    assert float(entropy[0]) == pytest.approx(-p * np.log(p) - (1 - p) * np.log(1 - p), rel=1e-6)


def test_memory_does_not_grow_with_tokens_times_vocabulary():
    V, E, chunk = 4096, 8, 32

    def scratch_bytes(M):
        def loss(table, hidden):
            logprobs, entropy = chunked(table, hidden, jnp.zeros(M, int), 1.0, chunk)
            return logprobs.sum() + entropy.sum()

        shapes = jax.ShapeDtypeStruct((V, E), jnp.float32), jax.ShapeDtypeStruct((M, E), jnp.float32)
        return jax.jit(jax.grad(loss, (0, 1))).lower(*shapes).compile().memory_analysis().temp_size_in_bytes

    small, large = scratch_bytes(256), scratch_bytes(4096)
    logits_of_the_rest = (4096 - 256) * V * 4
    assert large - small < logits_of_the_rest / 50  # a few vectors of E a token are left
    assert small < 8 * chunk * V * 4  # a handful of [chunk, V] at once


@pytest.mark.parametrize("temperature, chunk", [(0.0, 8), (-1.0, 8), (float("nan"), 8), (1.0, 0)])
def test_impossible_settings_are_named(temperature, chunk):
    with pytest.raises(ValueError, match="expected temperature > 0 and chunk >= 1"):
        token_logprobs(lambda h: h, jnp.zeros((2, 3)), jnp.zeros(2, int), temperature, chunk)
