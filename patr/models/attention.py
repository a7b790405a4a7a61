"""Attention along root paths, and two ways to lay a path out; cache.py has two more.

Whatever the layout, one rule says what a query sees: the keys at root-path
positions up to its own. A strategy's only work is to bring, for every row of
queries, the keys and values of its path together.
"""

import dataclasses

import chex
import jax
import jax.numpy as jnp

NOWHERE = 2**30  # the position of padding: no token sees it
TILE_KEYS = 4  # rows of keys a tile of attention brings together
_HIDDEN = -1e30


def path_attention(q: jax.Array, k: jax.Array, v: jax.Array, positions: jax.Array) -> jax.Array:
    """Grouped-query attention of q [B, T, H, D] over k, v [B, K, P, D] in path order.

    The query at position p (positions [B, T]) sees path positions 0..p.
    Returns [B, T, H, D].
    """
    B, T, H, D = q.shape
    K, P = k.shape[1:3]
    chex.assert_shape([k, v], (B, K, P, D))
    chex.assert_shape(positions, (B, T))
    scores = jnp.einsum("bkqd,bkpd->bkqp", _join_groups(q * D**-0.5, K), k, preferred_element_type=jnp.float32)
    hidden = jnp.where(jnp.arange(P) <= positions[..., None], 0.0, _HIDDEN)  # [B, T, P]
    scores = scores + jnp.tile(hidden, (1, H // K, 1))[:, None]
    weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True)))
    # Dividing after the product keeps the [.., P] pass fused: 2x on the CPU.
    out = jnp.einsum("bkqp,bkpd->bkqd", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
    return _part_groups(out / weights.sum(axis=-1, keepdims=True), T).astype(v.dtype)


def tiled_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    positions: jax.Array,
    key_positions: jax.Array,
    tile_query: jax.Array,
    tile_keys: jax.Array,
) -> jax.Array:
    """Grouped-query attention of q [R, T, H, D] over blocks of keys k, v [C, K, S, D], where a path is made of blocks.

    Tile n is a row of queries, tile_query[n], against W blocks, tile_keys[n] [W]; the tiles of a query row add up to
    its path and follow each other. The query at position p (positions [R, T]) sees the keys whose position in the
    tile (key_positions [N, W * S]) is at most p. Row R and block C are padding. Work and memory go with the number of
    tiles, whatever the longest path is. Returns [R, T, H, D]; 0 in rows without a tile.
    """
    R, T, H, D = q.shape
    C, K, S, _ = k.shape
    N, W = tile_keys.shape
    chex.assert_shape([k, v], (C, K, S, D))
    chex.assert_shape(positions, (R, T))
    chex.assert_shape(key_positions, (N, W * S))
    chex.assert_shape(tile_query, (N,))

    def of_queries(x):
        return jnp.take(x, tile_query, axis=0, mode="clip")

    def of_keys(x):  # [C, K, S, D] -> [N, K, W * S, D]
        gathered = jnp.take(x, tile_keys, axis=0, mode="fill", fill_value=0)
        return gathered.swapaxes(1, 2).reshape(N, K, W * S, D)

    queries = of_queries(_join_groups(q * D**-0.5, K))
    scores = jnp.einsum("nkqd,nkpd->nkqp", queries, of_keys(k), preferred_element_type=jnp.float32)
    hidden = jnp.where(key_positions[:, None] <= of_queries(positions)[..., None], 0.0, _HIDDEN)  # [N, T, W * S]
    scores = scores + jnp.tile(hidden, (1, H // K, 1))[:, None]

    # One softmax over all tiles of a row; where a row has none, a maximum that is finite and a sum that is not 0.
    of_row = dict(segment_ids=tile_query, num_segments=R, indices_are_sorted=True)
    largest = jnp.maximum(jax.ops.segment_max(jax.lax.stop_gradient(scores).max(axis=-1), **of_row), _HIDDEN)
    weights = jnp.exp(scores - of_queries(largest)[..., None])
    out = jnp.einsum("nkqp,nkpd->nkqd", weights.astype(v.dtype), of_keys(v), preferred_element_type=jnp.float32)
    out, total = (jax.ops.segment_sum(x, **of_row) for x in (out, weights.sum(axis=-1)))
    return _part_groups(out / jnp.where(total == 0, 1.0, total)[..., None], T).astype(v.dtype)


def _join_groups(q: jax.Array, K: int) -> jax.Array:
    """[B, T, K * G, D] -> [B, K, G * T, D]: all queries of one key head side by side."""
    B, T, H, D = q.shape
    return q.reshape(B, T, K, H // K, D).transpose(0, 2, 3, 1, 4).reshape(B, K, -1, D)


def _part_groups(x: jax.Array, T: int) -> jax.Array:
    """The inverse of `_join_groups`."""
    B, K, _, D = x.shape
    return x.reshape(B, K, -1, T, D).transpose(0, 3, 1, 2, 4).reshape(B, T, -1, D)


@dataclasses.dataclass(frozen=True)
class CausalRows:
    """Every row is one whole trajectory: its own tokens are its path."""

    positions: jax.Array  # [B, T]

    def __call__(self, layer: int, q, k, v):
        del layer
        return path_attention(q, k.swapaxes(1, 2), v.swapaxes(1, 2), self.positions)


@dataclasses.dataclass(frozen=True)
class TreeRows:
    """Rows are pieces of tree segments; a row's path is the rows from the root to itself, named by tiles."""

    positions: jax.Array  # [B, T]; NOWHERE where there is no token
    tile_query: jax.Array  # [N]
    tile_keys: jax.Array  # [N, W]

    def __call__(self, layer: int, q, k, v):
        del layer
        # Beyond NOWHERE, so that even padding does not see a row that is none.
        in_tiles = jnp.take(self.positions, self.tile_keys, axis=0, mode="fill", fill_value=NOWHERE + 1)
        return tiled_attention(
            q,
            k.swapaxes(1, 2),
            v.swapaxes(1, 2),
            self.positions,
            in_tiles.reshape(len(self.tile_query), -1),
            self.tile_query,
            self.tile_keys,
        )
