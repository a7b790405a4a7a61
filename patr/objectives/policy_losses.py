"""The clipped surrogate with KL and entropy terms, over trajectory tokens and over the unique tokens of trees.

Losses are minimised: they are minus the objective of PaTR eq. 2. Both forms return sums; dividing by the denominator
of the whole batch is left to whoever has added up its micro-batches.
"""

import dataclasses
import math

import chex
import jax
import jax.numpy as jnp

from patr.objectives.metrics import Max, Mean, Metrics
from patr.objectives.reductions import check_reduction


@dataclasses.dataclass(frozen=True, kw_only=True)
class Objective:
    """What is minimised. The defaults are PaTR's (appendix, optimisation settings)."""

    clip_low: float = 0.28  # the ratio counts down to 1 - clip_low
    clip_high: float = 0.28  # the ratio counts up to 1 + clip_high
    dual_clip: float | None = None  # for negative advantages the ratio counts up to this, if set
    kl_coef: float = 0.001
    entropy_coef: float = 0.0
    reduction: str = "seq_mean_token_mean"

    def __post_init__(self):
        coefficient = "a finite number >= 0"
        for key, value, holds, allowed in (
            ("clip_low", self.clip_low, 0 <= self.clip_low < 1, "0 <= clip_low < 1"),
            ("clip_high", self.clip_high, 0 <= self.clip_high < math.inf, coefficient),
            ("dual_clip", self.dual_clip, self.dual_clip is None or 1 < self.dual_clip < math.inf, "None or above 1"),
            ("kl_coef", self.kl_coef, 0 <= self.kl_coef < math.inf, coefficient),
            ("entropy_coef", self.entropy_coef, 0 <= self.entropy_coef < math.inf, coefficient),
        ):
            if not holds:
                raise ValueError(f"objective: {key}={value}: allowed is {allowed}")
        check_reduction(self.reduction)

    @property
    def learns_from_equal_rewards(self) -> bool:
        """Whether a group whose advantages are all zero still has a gradient."""
        return bool(self.kl_coef or self.entropy_coef)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TokenWeights:
    """What each trained token of a tree stands for, summed over the leaves i that hold it. All [M]; 0 is padding."""

    positive: jax.Array  # W+ = sum of c_i A_i over A_i > 0
    negative: jax.Array  # W- = sum of c_i A_i over A_i < 0
    share: jax.Array  # W1 = sum of c_i
    count: jax.Array  # leaves
    positive_count: jax.Array  # leaves with A_i > 0
    negative_count: jax.Array  # leaves with A_i < 0


def flat_policy_loss(
    logprobs: jax.Array,
    entropy: jax.Array,
    old_logprobs: jax.Array,
    advantages: jax.Array,
    shares: jax.Array,
    objective: Objective,
    denominator: jax.Array | float,
    ref_logprobs: jax.Array | None = None,
) -> tuple[jax.Array, Metrics]:
    """Minus the clipped surrogate (PaTR eq. 2), plus KL and entropy terms: the sum over tokens, and metrics.

        L = sum c (-min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A) + kl_coef k3 - entropy_coef H)

    with rho = exp(logprobs - old_logprobs). Dual clip (Ye et al. 2020, eq. 5) keeps the surrogate of A < 0 above
    dual_clip * A. k3 = exp(ref - logprobs) - (ref - logprobs) - 1 is Schulman's estimate of the KL to the reference.

    All arrays are of one shape, with tokens of no trajectory at share 0, where anything may stand.
    denominator: what this part of the batch adds to the batch's; it only enters the metrics.
    Raises ValueError if kl_coef is set and ref_logprobs is not.
    """
    chex.assert_equal_shape([logprobs, entropy, old_logprobs, advantages, shares])
    trained = shares > 0
    terms = _terms(trained, logprobs, entropy, old_logprobs, ref_logprobs, objective)
    ratio, advantages = terms["ratio"], jnp.where(trained, advantages, 0.0)
    clipped = jnp.clip(ratio, 1 - objective.clip_low, 1 + objective.clip_high)
    surrogate = jnp.minimum(ratio * advantages, clipped * advantages)
    if objective.dual_clip is not None:
        surrogate = jnp.where(advantages < 0, jnp.maximum(surrogate, objective.dual_clip * advantages), surrogate)
    counts = (x.astype(jnp.float32) for x in (trained, trained & (advantages > 0), trained & (advantages < 0)))
    return _totals(shares * surrogate, terms, shares, *counts, objective, denominator)


def tree_policy_loss(
    logprobs: jax.Array,
    entropy: jax.Array,
    old_logprobs: jax.Array,
    weights: TokenWeights,
    objective: Objective,
    denominator: jax.Array | float,
    ref_logprobs: jax.Array | None = None,
) -> tuple[jax.Array, Metrics]:
    """`flat_policy_loss` of all leaves, from one entry [M] for each token they share.

    All copies of a token have one ratio rho, so their clipped terms collapse into three weights:

        sum_i c_i min(rho A_i, clip(rho) A_i)
            = W+ min(rho, 1 + clip_high) + W- min(max(rho, 1 - clip_low), dual_clip)

    while KL and entropy are weighted by W1. Metrics count a token once for every leaf that holds it.
    Raises ValueError if kl_coef is set and ref_logprobs is not.
    """
    chex.assert_equal_shape([logprobs, entropy, old_logprobs, *jax.tree.leaves(weights)])
    terms = _terms(weights.count > 0, logprobs, entropy, old_logprobs, ref_logprobs, objective)
    rising = jnp.minimum(terms["ratio"], 1 + objective.clip_high)
    falling = jnp.maximum(terms["ratio"], 1 - objective.clip_low)
    if objective.dual_clip is not None:
        falling = jnp.minimum(falling, objective.dual_clip)
    surrogate = weights.positive * rising + weights.negative * falling
    counts = weights.count, weights.positive_count, weights.negative_count
    return _totals(surrogate, terms, weights.share, *counts, objective, denominator)


def _terms(trained, logprobs, entropy, old_logprobs, ref_logprobs, objective) -> dict[str, jax.Array]:
    """Per-token quantities, of one value whatever stood where nothing is trained."""
    if ref_logprobs is None and objective.kl_coef:
        raise ValueError(f"objective: kl_coef={objective.kl_coef} needs ref_logprobs; pass them or set kl_coef to 0")
    # Chosen before the arithmetic: NaN * 0 is NaN, in the loss and in its gradient.
    logprobs, entropy, old_logprobs = (jnp.where(trained, x, 0.0) for x in (logprobs, entropy, old_logprobs))
    ratio = jnp.exp(logprobs - old_logprobs)
    terms = {"ratio": ratio, "approx_kl": ratio - 1 - (logprobs - old_logprobs), "entropy": entropy}
    if ref_logprobs is not None:
        towards_ref = jnp.where(trained, ref_logprobs, 0.0) - logprobs
        terms["kl"] = jnp.exp(towards_ref) - towards_ref - 1
    return terms


def _totals(surrogate, terms, share, count, positive_count, negative_count, objective, denominator):
    policy_loss = loss = -jnp.sum(surrogate)
    if objective.kl_coef:
        loss += objective.kl_coef * jnp.sum(share * terms["kl"])
    if objective.entropy_coef:
        loss -= objective.entropy_coef * jnp.sum(share * terms["entropy"])
    ratio = terms["ratio"]
    metrics: Metrics = {"loss": Mean(loss, denominator), "policy_loss": Mean(policy_loss, denominator)}
    metrics |= {name: Mean.of(values, count) for name, values in terms.items()}
    metrics["ratio_max_deviation"] = Max(jnp.max(jnp.where(count > 0, jnp.abs(ratio - 1), 0.0), initial=0.0))
    tokens = jnp.sum(count)
    metrics["clip_low"] = Mean(jnp.sum(negative_count * (ratio < 1 - objective.clip_low)), tokens)
    metrics["clip_high"] = Mean(jnp.sum(positive_count * (ratio > 1 + objective.clip_high)), tokens)
    return loss, metrics
