"""Attention along root paths, and the three ways to lay a path out.

Whatever the layout, one rule says what a query sees: the keys at root-path
positions up to its own. A strategy's only work is to bring, for every row of
queries, the keys and values of its path into path order.
"""

import dataclasses

import chex
import jax
import jax.numpy as jnp


def path_attention(q: jax.Array, k: jax.Array, v: jax.Array, positions: jax.Array) -> jax.Array:
    """Grouped-query attention of q [B, T, H, D] over k, v [B, K, P, D] in path order.

    The query at position p (positions [B, T]) sees path positions 0..p.
    Returns [B, T, H, D].
    """
    B, T, H, D = q.shape
    K, P = k.shape[1:3]
    chex.assert_shape([k, v], (B, K, P, D))
    chex.assert_shape(positions, (B, T))
    G = H // K
    q = (q * D**-0.5).reshape(B, T, K, G, D).transpose(0, 2, 3, 1, 4).reshape(B, K, G * T, D)
    scores = jnp.einsum("bkqd,bkpd->bkqp", q, k, preferred_element_type=jnp.float32)
    hidden = jnp.where(jnp.arange(P) <= positions[..., None], 0.0, -1e30)  # [B, T, P]
    scores = scores + jnp.tile(hidden, (1, G, 1))[:, None]
    weights = jnp.exp(scores - jax.lax.stop_gradient(scores.max(axis=-1, keepdims=True)))
    # Dividing after the product keeps the [.., P] pass fused: 2x on the CPU.
    out = jnp.einsum("bkqp,bkpd->bkqd", weights.astype(v.dtype), v, preferred_element_type=jnp.float32)
    out = (out / weights.sum(axis=-1, keepdims=True)).astype(v.dtype)
    return out.reshape(B, K, G, T, D).transpose(0, 3, 1, 2, 4).reshape(B, T, H, D)


@dataclasses.dataclass(frozen=True)
class CausalRows:
    """Every row is one whole trajectory: its own tokens are its path."""

    positions: jax.Array  # [B, T]

    def __call__(self, layer: int, q, k, v):
        del layer
        return path_attention(q, k.swapaxes(1, 2), v.swapaxes(1, 2), self.positions)


@dataclasses.dataclass(frozen=True)
class TreePaths:
    """Rows are pieces of tree segments; a row's path is gathered from the packed tokens."""

    path: jax.Array  # [B, P] packed index (row * T + column) of the token at each path position
    positions: jax.Array  # [B, T]

    def __call__(self, layer: int, q, k, v):
        del layer

        def gather(x):  # [B, T, K, D] -> [B, K, P, D]
            packed = x.reshape(-1, *x.shape[2:])
            return packed[self.path].swapaxes(1, 2)

        return path_attention(q, gather(k), gather(v), self.positions)


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
