"""Where model, layout and objective meet. Each loss is a sum to be divided by the denominator of the whole batch."""

import jax
import jax.numpy as jnp

from patr.batching.flat import FlatBatch
from patr.batching.tree import Pack
from patr.models.attention import CausalRows, TreeRows
from patr.models.qwen import Qwen
from patr.objectives.logprobs import token_logprobs
from patr.objectives.metrics import Mean, Metrics
from patr.objectives.policy_losses import Objective, flat_policy_loss, tree_policy_loss


def tree_loss(
    model: Qwen,
    pack: Pack,
    objective: Objective,
    temperature: float,
    *,
    chunk: int | None = None,
    ref_logprobs: jax.Array | None = None,
) -> tuple[jax.Array, Metrics]:
    """Policy loss of a pack, summed, and metrics. Equal to `flat_loss` of the same groups.

    temperature: the one the rollout was sampled at. ref_logprobs [M]: `pack_logprobs` of the reference policy.
    chunk: see `token_logprobs`; by default as many tokens as give 300 MB of logits. The gradient of a batch is the
    sum of those of its packs, over `metrics["loss"].denominator` of all of them.
    """
    logprobs, entropy = _at_entries(model, pack, temperature, chunk)
    return tree_policy_loss(
        logprobs, entropy, pack.old_logprobs, pack.weights, objective, pack.denominator, ref_logprobs
    )


def imitation_loss(model: Qwen, pack: Pack, *, chunk: int | None = None) -> tuple[jax.Array, Metrics]:
    """Negative log-likelihood of the trained tokens, weighted by their shares and summed, and metrics.

    With `reduction='token_mean'` the value of the metric "loss" is the mean over trained tokens.
    """
    logprobs, entropy = _at_entries(model, pack, 1.0, chunk)
    loss = -jnp.sum(pack.weights.share * logprobs)
    return loss, {"loss": Mean(loss, pack.denominator), "entropy": Mean.of(entropy, pack.weights.count)}


def pack_logprobs(model: Qwen, pack: Pack, temperature: float, *, chunk: int | None = None) -> jax.Array:
    """Log-probabilities [M] of a pack's targets under any model: the reference, or the policy before an update."""
    return _at_entries(model, pack, temperature, chunk)[0]


def flat_loss(
    model: Qwen,
    batch: FlatBatch,
    objective: Objective,
    temperature: float,
    *,
    chunk: int | None = None,
    ref_logprobs: jax.Array | None = None,
) -> tuple[jax.Array, Metrics]:
    """Policy loss of trajectories in rows, summed, and metrics.

    ref_logprobs [B, T]: `flat_logprobs` of the reference policy. The rest is as in `tree_loss`.
    """
    logprobs, entropy = _at_tokens(model, batch, temperature, chunk)
    return flat_policy_loss(
        logprobs,
        entropy,
        batch.old_logprobs,
        batch.advantages,
        batch.shares,
        objective,
        batch.denominator,
        ref_logprobs,
    )


def flat_logprobs(model: Qwen, batch: FlatBatch, temperature: float, *, chunk: int | None = None) -> jax.Array:
    """Log-probabilities [B, T] of the sampled tokens; elsewhere without meaning."""
    return _at_tokens(model, batch, temperature, chunk)[0]


def _at_entries(model, pack, temperature, chunk):
    hidden = model(
        pack.tokens, pack.positions, TreeRows(pack.positions, pack.tile_query, pack.tile_keys), training=True
    )
    sources = hidden.reshape(-1, hidden.shape[-1])[pack.source]
    return _masked_logprobs(model, sources, pack.target, pack.weights.count > 0, temperature, chunk)


def _at_tokens(model, batch, temperature, chunk):
    B, T = batch.tokens.shape
    positions = jnp.broadcast_to(jnp.arange(T), (B, T))
    hidden = model(batch.tokens, positions, CausalRows(positions), training=True)
    # Token t is predicted at t - 1; the first is predicted nowhere, and never sampled.
    sources = jnp.roll(hidden, 1, axis=1).reshape(B * T, -1)
    out = _masked_logprobs(model, sources, batch.tokens.reshape(-1), batch.mask.reshape(-1), temperature, chunk)
    return tuple(x.reshape(B, T) for x in out)


def _masked_logprobs(model, sources, targets, trained, temperature, chunk):
    # About 300 MB of logits at once, whatever the vocabulary.
    chunk = chunk or max(512, 2**26 // model.config.vocab_size)
    # Whatever stands in an untrained place, a NaN even, sends nothing back from here.
    sources = jnp.where(trained[:, None], sources, 0.0)
    return token_logprobs(model.logits, sources, targets, temperature, chunk)
