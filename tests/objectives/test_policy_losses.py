"""The clipped surrogate, flat and tree, against hand values and each other."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from patr.objectives import policy_losses
from patr.objectives.policy_losses import Objective, TokenWeights

flat_policy_loss, tree_policy_loss = (
    jax.jit(f, static_argnames="objective") for f in (policy_losses.flat_policy_loss, policy_losses.tree_policy_loss)
)

PLAIN = Objective(clip_low=0.2, clip_high=0.5, kl_coef=0.0)
DUAL = Objective(clip_low=0.2, clip_high=0.5, dual_clip=3.0, kl_coef=0.0)


def surrogate(ratio, advantage, objective):
    """The surrogate of one token of share 1, as a function of its ratio, and its slope in log-probability."""

    def f(logprob):
        one = jnp.ones(1)
        return -flat_policy_loss(logprob * one, 0 * one, 0 * one, advantage * one, one, objective, 1.0)[0]

    value, slope = jax.value_and_grad(f)(jnp.log(ratio))
    return float(value), float(slope)


@pytest.mark.parametrize(
    "ratio, advantage, objective, value, slope",
    [
        (1.2, 2.0, PLAIN, 2.4, 2.4),  # inside: rho A, whose slope in log rho is itself
        (1.6, 2.0, PLAIN, 3.0, 0.0),  # good and already likelier: (1 + clip_high) A
        (0.5, 2.0, PLAIN, 1.0, 1.0),  # good and less likely: no clip
        (0.5, -2.0, PLAIN, -1.6, 0.0),  # bad and already less likely: (1 - clip_low) A
        (4.0, -2.0, PLAIN, -8.0, -8.0),  # bad and likelier: no clip ...
        (4.0, -2.0, DUAL, -6.0, 0.0),  # ... but dual clip
        (2.5, -2.0, DUAL, -5.0, -5.0),
        (1.3, 0.0, DUAL, 0.0, 0.0),
    ],
)
def test_clip_hand_values(ratio, advantage, objective, value, slope):
    # A ratio passes through float32 log and exp.
    assert surrogate(ratio, advantage, objective) == pytest.approx((value, slope), rel=1e-6, abs=1e-7)


def test_kl_entropy_and_metrics_hand_values():
    objective = Objective(clip_low=0.2, clip_high=0.2, kl_coef=0.5, entropy_coef=0.1)
    ratio = np.array([1.5, 0.5, 1.0])
    ref_ratio = np.array([2.0, 1.0, 0.5])  # p_ref / p
    logprobs = np.array([-1.0, -2.0, -0.5])
    arrays = (logprobs, [0.3, 0.2, 0.1], logprobs - np.log(ratio), [1.0, -1.0, 1.0], [0.5, 0.25, 0.25])
    loss, metrics = flat_policy_loss(
        *(jnp.array(x, jnp.float32) for x in arrays), objective, 4.0, jnp.array(logprobs + np.log(ref_ratio))
    )
    policy = -(0.5 * 1.2 - 0.25 * 0.8 + 0.25 * 1.0)
    k3 = ref_ratio - np.log(ref_ratio) - 1
    entropy = 0.5 * 0.3 + 0.25 * 0.2 + 0.25 * 0.1
    expected = policy + 0.5 * np.dot([0.5, 0.25, 0.25], k3) - 0.1 * entropy
    assert float(loss) == pytest.approx(expected, rel=1e-6)
    found = {name: float(metric.value) for name, metric in metrics.items()}
    assert found == pytest.approx(
        {
            "loss": expected / 4,
            "policy_loss": policy / 4,
            "kl": k3.mean(),
            "entropy": 0.2,
            "ratio": 1.0,
            "ratio_max_deviation": 0.5,
            "approx_kl": (ratio - 1 - np.log(ratio)).mean(),
            "clip_low": 1 / 3,
            "clip_high": 1 / 3,
        },
        rel=1e-5,
    )


@pytest.mark.parametrize("objective", [PLAIN, DUAL, Objective(kl_coef=0.1, entropy_coef=0.2, dual_clip=2.0)])
def test_one_token_of_many_leaves_equals_its_copies(objective):
    rng = np.random.default_rng(0)
    advantages, shares = rng.normal(size=6), rng.uniform(0.1, 1.0, size=6)
    advantages[2] = 0.0
    for ratio in (0.1, 0.9, 1.2, 2.2, 5.0):
        token = [jnp.array([x], jnp.float32) for x in (-1.0, 0.7, -1.0 - math.log(ratio))]
        ref = jnp.array([-1.3])
        gains, up, down = shares * advantages, advantages > 0, advantages < 0
        sums = [(gains * up).sum(), (gains * down).sum(), shares.sum(), 6, up.sum(), down.sum()]
        weights = TokenWeights(*(jnp.array([x], jnp.float32) for x in sums))
        tree = tree_policy_loss(*token, weights, objective, 1.0, ref)
        copies = [jnp.tile(x, 6) for x in token]
        flat = flat_policy_loss(
            *copies, *(jnp.array(x, jnp.float32) for x in (advantages, shares)), objective, 1.0, jnp.tile(ref, 6)
        )
        for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(flat), strict=True):
            # Six float32 terms summed in two orders.
            assert float(a) == pytest.approx(float(b), rel=2e-6, abs=2e-6)


def test_a_flat_group_sends_no_gradient_without_kl_and_entropy():
    logprobs = jnp.array([-1.0, -2.0])
    weights = TokenWeights(*jnp.array([[0, 0], [0, 0], [0.5, 0.5], [2, 1], [0, 0], [0, 0]], jnp.float32))
    slopes = jax.grad(lambda x: tree_policy_loss(x, -x, logprobs - 1, weights, PLAIN, 1.0, logprobs)[0])(logprobs)
    assert slopes.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_nothing_leaks_from_untrained_places(poison):
    objective = Objective(kl_coef=0.1, entropy_coef=0.1)

    def loss(x, advantages, shares):
        return flat_policy_loss(x, x, x - 0.1, advantages, shares, objective, 0.0, x * 1.1)

    gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))
    shares = jnp.array([0.5, 0.0, 0.5])
    (expected, _), expected_slopes = gradient(jnp.array([-1.0, -3.0, -2.0]), jnp.ones(3), shares)
    (found, _), slopes = gradient(jnp.array([-1.0, poison, -2.0]), jnp.array([1.0, poison, 1.0]), shares)
    assert float(found) == float(expected) != 0
    assert slopes.tolist() == expected_slopes.tolist() and slopes[1] == 0 != slopes[0]

    everywhere = jnp.full(3, poison)
    (found, metrics), slopes = gradient(everywhere, everywhere, jnp.zeros(3))
    assert float(found) == 0.0 and slopes.tolist() == [0.0] * 3
    assert all(float(metric.value) == 0.0 for metric in metrics.values())

    weights = TokenWeights(*jnp.zeros((6, 3)))
    found, metrics = tree_policy_loss(everywhere, everywhere, everywhere, weights, objective, 0.0, everywhere)
    assert float(found) == 0.0
    assert all(float(metric.value) == 0.0 for metric in metrics.values())


@pytest.mark.parametrize(
    "key, value",
    [
        ("clip_low", 1.0),
        ("clip_low", math.nan),
        ("clip_high", -0.1),
        ("dual_clip", 1.0),
        ("kl_coef", -1.0),
        ("entropy_coef", math.inf),
        ("reduction", "mean"),
    ],
)
def test_impossible_objectives_are_named(key, value):
    with pytest.raises(ValueError, match=f"{key}='?{value}'?: allowed"):
        Objective(**{key: value})


def test_kl_without_a_reference_is_refused():
    with pytest.raises(ValueError, match=r"kl_coef=0.001 needs ref_logprobs"):
        flat_policy_loss(*jnp.zeros((5, 2)), Objective(), 1.0)
