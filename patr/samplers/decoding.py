"""The sampler's three compiled functions: prefill, fork and decode over a pool of rows.

All shapes are fixed by the caller; what varies between calls (which rows, how
many tokens) is data. Row numbers outside the pool mark padding: what they would
write is dropped.
"""

import dataclasses

import jax
import jax.numpy as jnp

from patr.models.attention import CachedRows, KVCache
from patr.models.qwen import Qwen


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Pool:
    """What the sampler remembers of every row: its cache and the logits after its last prompt token."""

    cache: KVCache  # [R, K, P, D] per layer
    logits: jax.Array  # [R, V] float32

    @classmethod
    def empty(cls, config, rows: int, length: int) -> "Pool":
        return cls(KVCache.empty(config, rows, length), jnp.zeros((rows, config.vocab_size), jnp.float32))


def prefill(model: Qwen, pool: Pool, rows, tokens, starts, counts, *, length: int) -> Pool:
    """Append counts [B] of tokens [B, T] to rows [B], which hold starts [B] tokens already.

    length: static bound on starts + counts; only that much of a row is read.
    """
    offsets = jnp.arange(tokens.shape[1])
    positions = jnp.where(offsets < counts[:, None], starts[:, None] + offsets, length)
    attend = CachedRows(pool.cache.take(rows, length), positions)
    hidden = model(tokens, positions, attend)
    last = jnp.take_along_axis(hidden, jnp.maximum(counts - 1, 0)[:, None, None], axis=1)[:, 0]
    return Pool(
        cache=_write_back(pool.cache, rows, attend.cache, positions, length),
        logits=pool.logits.at[rows].set(model.logits(last), mode="drop"),
    )


def fork(pool: Pool, sources, rows, *, length: int) -> Pool:
    """Copy the first `length` positions of rows `sources` [B] to `rows` [B]."""
    return Pool(
        cache=pool.cache.put(rows, pool.cache.take(sources, length)),
        logits=pool.logits.at[rows].set(pool.logits[sources], mode="drop"),
    )


def decode(model: Qwen, pool: Pool, rows, starts, seeds, temperatures, budgets, stop_ids, *, length: int, steps: int):
    """Sample until a stop id or the budget, every row on its own.

    starts [B] tokens held; seeds [B, 2] uint32; temperatures [B]; budgets [B] in
    1..steps, 0 for padding; stop_ids [B, J]. Returns the pool, ids [B, steps],
    logprobs [B, steps] and counts [B]. The last sampled token of a row is not
    in its cache: it is the first to be prefilled next turn.
    """
    B = rows.shape[0]

    def sample(step, logits):
        keys = jax.vmap(lambda seed: jax.random.fold_in(jax.random.wrap_key_data(seed), step))(seeds)
        greedy = temperatures == 0
        logits = logits / jnp.where(greedy, 1.0, temperatures)[:, None]
        noise = jax.vmap(lambda key: jax.random.gumbel(key, logits.shape[1:]))(keys)
        ids = jnp.argmax(jnp.where(greedy[:, None], logits, logits + noise), axis=-1).astype(jnp.int32)
        logprobs = jnp.take_along_axis(jax.nn.log_softmax(logits), ids[:, None], axis=-1)[:, 0]
        return ids, logprobs

    def emit(step, logits, ids, logprobs, counts, alive):
        token, logprob = sample(step, logits)
        ids = ids.at[:, step].set(jnp.where(alive, token, 0))
        logprobs = logprobs.at[:, step].set(jnp.where(alive, logprob, 0.0))
        counts = counts + alive
        alive = alive & ~(token[:, None] == stop_ids).any(axis=1) & (counts < budgets)
        return ids, logprobs, counts, alive

    def body(state):
        step, cache, (ids, logprobs, counts, alive) = state
        positions = jnp.where(alive, starts + step, length)[:, None]
        attend = CachedRows(cache, positions)
        hidden = model(jax.lax.dynamic_slice_in_dim(ids, step, 1, axis=1), positions, attend)
        emitted = emit(step + 1, model.logits(hidden[:, 0]), ids, logprobs, counts, alive)
        return step + 1, attend.cache, emitted

    blank = jnp.zeros((B, steps), jnp.int32), jnp.zeros((B, steps), jnp.float32), jnp.zeros((B,), jnp.int32)
    first = emit(0, pool.logits[rows], *blank, budgets > 0)
    state = (jnp.int32(0), pool.cache.take(rows, length), first)
    _, cache, (ids, logprobs, counts, _) = jax.lax.while_loop(lambda state: state[2][3].any(), body, state)

    fed = jnp.arange(steps) < counts[:, None] - 1
    positions = jnp.where(fed, starts[:, None] + jnp.arange(steps), length)
    pool = dataclasses.replace(pool, cache=_write_back(pool.cache, rows, cache, positions, length))
    return pool, ids, logprobs, counts


def _write_back(cache: KVCache, rows, part: KVCache, positions, length: int) -> KVCache:
    """Put the new positions [B, T] of the working copy `part` back into their rows of the pool."""
    beyond = jnp.where(positions < length, positions, jnp.iinfo(jnp.int32).max)
    index = jnp.arange(rows.shape[0])[:, None]

    def put(held, worked):
        new = worked[index, :, jnp.minimum(positions, length - 1)]  # [B, T, K, D]
        return held.at[rows[:, None], :, beyond].set(new, mode="drop")

    return jax.tree.map(put, cache, part)
