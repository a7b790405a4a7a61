"""Attention along root paths, and the three ways to lay a path out.

Whatever the layout, one rule says what a query sees: the keys at root-path
positions up to its own. A strategy's only work is to bring, for every row of
queries, the keys and values of its path together.
"""

import dataclasses

import chex
import jax
import jax.numpy as jnp

NOWHERE = 2**30  # the position of padding: no token sees it
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
    q: jax.Array, k: jax.Array, v: jax.Array, positions: jax.Array, tile_query: jax.Array, tile_keys: jax.Array
) -> jax.Array:
    """Grouped-query attention of q [B, T, H, D] over k, v [B, T, K, D] where a path is made of whole rows.

    Tile n is a row of queries, tile_query[n], against W rows of keys, tile_keys[n] [W]; the tiles of a query row add
    up to its path and follow each other. A query sees what stands in them at a position (positions [B, T]) up to its
    own. Row number B is padding. Work and memory go with the number of tiles, whatever the longest path is.
    Returns [B, T, H, D]; 0 in rows without a tile.
    """
    B, T, H, D = q.shape
    K = k.shape[2]
    N, W = tile_keys.shape
    chex.assert_shape([k, v], (B, T, K, D))
    chex.assert_shape(positions, (B, T))
    chex.assert_shape(tile_query, (N,))

    def of_queries(x):
        return jnp.take(x, tile_query, axis=0, mode="clip")

    def of_keys(x):  # [B, T, K, D] -> [N, K, W * T, D]
        gathered = jnp.take(x.swapaxes(1, 2), tile_keys, axis=0, mode="fill", fill_value=0)
        return gathered.swapaxes(1, 2).reshape(N, K, W * T, D)

    queries = of_queries(_join_groups(q * D**-0.5, K))
    scores = jnp.einsum("nkqd,nkpd->nkqp", queries, of_keys(k), preferred_element_type=jnp.float32)
    # Beyond NOWHERE, so that even padding does not see a row that is none.
    key_positions = jnp.take(positions, tile_keys, axis=0, mode="fill", fill_value=NOWHERE + 1).reshape(N, 1, W * T)
    hidden = jnp.where(key_positions <= of_queries(positions)[..., None], 0.0, _HIDDEN)  # [N, T, W * T]
    scores = scores + jnp.tile(hidden, (1, H // K, 1))[:, None]

    # One softmax over all tiles of a row; where a row has none, a maximum that is finite and a sum that is not 0.
    of_row = dict(segment_ids=tile_query, num_segments=B, indices_are_sorted=True)
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
        return tiled_attention(q, k, v, self.positions, self.tile_query, self.tile_keys)


class CachedRows:
    """Rows continue what a `KVCache` holds; the cache with the new tokens is left in `cache`.

    Tokens whose position is outside the cache are padding: they are not stored.
    """

    def __init__(self, cache: "KVCache", positions: jax.Array):
        self.cache, self.positions = cache, positions  # positions [B, T]

    def __call__(self, layer: int, q, k, v):
        self.cache = self.cache.store(layer, k, v, self.positions)
        return path_attention(q, self.cache.keys[layer], self.cache.values[layer], self.positions)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KVCache:
    """Keys and values of every layer, a row a trajectory, in path order."""

    keys: tuple[jax.Array, ...]  # each [rows, K, P, D]
    values: tuple[jax.Array, ...]  # each [rows, K, P, D]

    @classmethod
    def empty(cls, config, rows: int, length: int) -> "KVCache":
        shape = (rows, config.num_kv_heads, length, config.head_dim)
        new = tuple(jnp.zeros(shape, config.dtype) for _ in range(2 * config.num_layers))
        return cls(new[: config.num_layers], new[config.num_layers :])

    def store(self, layer: int, k: jax.Array, v: jax.Array, positions: jax.Array) -> "KVCache":
        """The cache with k, v [B, T, K, D] written at positions [B, T] of one layer."""
        rows = jnp.arange(k.shape[0])[:, None]

        def put(held, new):
            held = list(held)
            held[layer] = held[layer].at[rows, :, positions].set(new, mode="drop")
            return tuple(held)

        return KVCache(put(self.keys, k), put(self.values, v))

    def take(self, rows: jax.Array, length: int) -> "KVCache":
        """The first `length` positions of some rows: a fork is two entries naming one row."""
        return jax.tree.map(lambda x: x[rows, :, :length], self)

    def put(self, rows: jax.Array, part: "KVCache") -> "KVCache":
        """Write back what `take` gave; row numbers outside the cache are dropped."""
        return jax.tree.map(
            lambda x, y: x.at[rows, :, : y.shape[2]].set(y, mode="drop", unique_indices=True), self, part
        )
