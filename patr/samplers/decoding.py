"""The sampler's two compiled functions over a pool of cache blocks: prefill and decode.

All shapes are fixed by the caller; what varies between calls (which blocks, how many tokens) is data. Block numbers
outside the pool mark padding: what they would write is dropped.
"""

import jax
import jax.numpy as jnp

from patr.models.attention import NOWHERE
from patr.models.cache import CachedRows, KVCache, PagedRows
from patr.models.qwen import Qwen


def prefill(
    model: Qwen, pool: KVCache, blocks, sources, starts, tokens, begins, ends, tile_query, tile_blocks, tile_starts
) -> tuple[KVCache, jax.Array]:
    """Compute new tokens, each row one block: columns begins [R] to ends [R] of tokens [R, S].

    starts [R]: the position of each row's column 0. The other arguments are those of `PagedRows`.
    Returns the pool and the hidden state [R, E] of each row's last new token.
    """
    columns = jnp.arange(tokens.shape[1])
    new = (begins[:, None] <= columns) & (columns < ends[:, None])
    positions = jnp.where(new, starts[:, None] + columns, NOWHERE)
    attend = PagedRows(pool, blocks, sources, positions, tile_query, tile_blocks, tile_starts)
    hidden = model(tokens, positions, attend)
    last = jnp.maximum(ends - 1, 0)[:, None, None]
    return attend.pool, jnp.take_along_axis(hidden, last, axis=1)[:, 0]


def decode(
    model: Qwen, pool: KVCache, ends, reads, tables, lengths, seeds, temperatures, budgets, stop_ids, *, steps: int
):
    """Sample until a stop id or the budget, every row on its own.

    ends [B, E]: the hidden state of the last prompt token. lengths [B] of the prompts.
    reads, tables [B, n]: the blocks of each path in order, to read from and to leave the sampled tokens in. They
        differ where a row goes on from a copy of another's last block.
    seeds [B, 2] uint32; temperatures [B]; budgets [B] in 1..steps, 0 for padding; stop_ids [B, J].
    Returns the pool, ids [B, steps], logprobs [B, steps] and counts [B]. The last sampled token of a row is not in
    the pool: it is the first to be prefilled next turn.
    """
    B = len(reads)

    def sample(step, logits):
        keys = jax.vmap(lambda seed: jax.random.fold_in(jax.random.wrap_key_data(seed), step))(seeds)
        greedy = temperatures == 0
        logits = logits / jnp.where(greedy, 1.0, temperatures)[:, None]
        # The default mode never gives noise above 16.6: rare tokens of a large vocabulary would be too rare.
        noise = jax.vmap(lambda key: jax.random.gumbel(key, logits.shape[1:], mode="high"))(keys)
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
        positions = jnp.where(alive, lengths + step, NOWHERE)[:, None]
        attend = CachedRows(cache, positions)
        hidden = model(jax.lax.dynamic_slice_in_dim(ids, step, 1, axis=1), positions, attend)
        emitted = emit(step + 1, model.logits(hidden[:, 0]), ids, logprobs, counts, alive)
        return step + 1, attend.cache, emitted

    blank = jnp.zeros((B, steps), jnp.int32), jnp.zeros((B, steps), jnp.float32), jnp.zeros((B,), jnp.int32)
    first = emit(0, model.logits(ends), *blank, budgets > 0)
    state = (jnp.int32(0), _gather(pool, reads), first)
    _, cache, (ids, logprobs, counts, _) = jax.lax.while_loop(lambda state: state[2][3].any(), body, state)
    return _write_back(pool, tables, cache, lengths, steps), ids, logprobs, counts


def _gather(pool: KVCache, reads) -> KVCache:
    """The paths of blocks [B, n] as rows: [B, K, n * S, D] a layer."""

    def joined(held):
        rows = jnp.take(held, reads, axis=0, mode="fill", fill_value=0).swapaxes(1, 2)  # [B, K, n, S, D]
        return rows.reshape(*rows.shape[:2], -1, rows.shape[-1])

    return jax.tree.map(joined, pool)


def _write_back(pool: KVCache, tables, cache: KVCache, lengths, steps: int) -> KVCache:
    """Put the blocks in which `steps` tokens after `lengths` [B] can lie back into the pool."""
    S = pool.keys[0].shape[2]
    places = lengths[:, None] // S + jnp.arange(-(-steps // S) + 1)  # [B, m]
    blocks = jnp.take_along_axis(tables, places, axis=1, mode="fill", fill_value=jnp.iinfo(tables.dtype).max)

    def put(held, rows):
        rows = rows.reshape(*rows.shape[:2], -1, S, rows.shape[-1])  # [B, K, n, S, D]
        parts = jnp.take_along_axis(rows, places[:, None, :, None, None], axis=2, mode="clip").swapaxes(1, 2)
        return held.at[blocks].set(parts, mode="drop")

    return jax.tree.map(put, pool, cache)
