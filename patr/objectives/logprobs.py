"""Log-probabilities and entropies without the [M, V] logits they come from."""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp


def token_logprobs(
    logits_fn: Callable[[jax.Array], jax.Array],
    hidden: jax.Array,
    targets: jax.Array,
    temperature: float = 1.0,
    chunk: int = 512,
) -> tuple[jax.Array, jax.Array]:
    """log p(targets) [M] and entropies in nats [M] of softmax(logits_fn(hidden) / temperature).

    logits_fn: hidden [chunk, E] -> logits [chunk, V]; gradients reach the parameters it closes over.
    hidden [M, E], targets int [M].
    chunk: tokens whose logits exist at once. Both passes go chunk by chunk, the backward one computing the logits
    again; the default holds about 300 MB of them at a vocabulary of 151,936.
    Raises ValueError unless temperature > 0 and chunk >= 1.
    """
    chex.assert_rank([hidden, targets], [2, 1])
    chex.assert_equal_shape_prefix([hidden, targets], 1)
    if not temperature > 0 or chunk < 1:
        raise ValueError(f"temperature={temperature}, chunk={chunk}: expected temperature > 0 and chunk >= 1")

    def of_chunk(part):
        hidden, targets = part
        logits = logits_fn(hidden).astype(jnp.float32) / temperature
        logprobs = jax.nn.log_softmax(logits)
        entropy = -jnp.sum(jnp.exp(logprobs) * logprobs, axis=-1)
        return jnp.take_along_axis(logprobs, targets[:, None], axis=-1)[:, 0], entropy

    M = len(targets)
    chunks = -(-M // chunk)
    chunk = -(-M // chunks)  # equal chunks: as little padding as can be

    def split(x):
        padding = [(0, chunks * chunk - M)] + [(0, 0)] * (x.ndim - 1)
        return jnp.pad(x, padding).reshape(chunks, chunk, *x.shape[1:])

    if chunks == 1:
        return of_chunk((hidden, targets))
    # No prevent_cse: the loop under `map` already keeps the recomputation apart from the first pass.
    of_chunk = jax.checkpoint(of_chunk, prevent_cse=False)
    logprobs, entropy = jax.lax.map(of_chunk, (split(hidden), split(targets)))
    return logprobs.reshape(-1)[:M], entropy.reshape(-1)[:M]
