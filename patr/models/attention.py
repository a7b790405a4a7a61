"""Attention along root paths, and two ways to lay a path out; cache.py has two more.

Whatever the layout, one rule says what a query sees: the keys at root-path
positions up to its own. A strategy's only work is to bring, for every row of
queries, the keys and values of its path together.
"""

import dataclasses
import functools

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
    chunk: int | None = None,
) -> jax.Array:
    """Grouped-query attention of q [R, T, H, D] over blocks of keys k, v [C, K, S, D], where a path is made of blocks.

    Tile n is a row of queries, tile_query[n], against W blocks, tile_keys[n] [W]; the tiles of a query row add up to
    its path and follow each other. The query at position p (positions [R, T]) sees the keys whose position in the
    tile (key_positions [N, W * S]) is at most p. Row R and block C are padding. Work goes with the number of tiles,
    whatever the longest path is. Returns [R, T, H, D]; 0 in rows without a tile.

    chunk: tiles whose scores exist at once; by default as many as give 256 MB of them. The backward pass computes
    them again (FlashAttention, arXiv 2205.14135), so what is kept between the passes does not grow with the tiles.
    """
    R, T, H, D = q.shape
    C, K, S, _ = k.shape
    N, W = tile_keys.shape
    chex.assert_shape([k, v], (C, K, S, D))
    chex.assert_shape(positions, (R, T))
    chex.assert_shape(key_positions, (N, W * S))
    chex.assert_shape(tile_query, (N,))
    chunk = min(N, chunk or max(1, 2**26 // (H * T * W * S)))
    tiles = _Tiles(tile_query, tile_keys, key_positions)
    out = _attend_tiles(_join_groups(q * D**-0.5, K), k, v, positions, tiles.in_chunks(chunk, R, C))
    return _part_groups(out, T).astype(v.dtype)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Tiles:
    query: jax.Array  # [..., n]
    keys: jax.Array  # [..., n, W]
    key_positions: jax.Array  # [..., n, W * S]

    def in_chunks(self, chunk: int, no_row: int, no_block: int) -> "_Tiles":
        """[N, ...] -> [chunks, chunk, ...], the last one filled up with padding."""
        N = len(self.query)
        chunks = -(-N // chunk)

        def split(x, fill):
            padding = [(0, chunks * chunk - N)] + [(0, 0)] * (x.ndim - 1)
            return jnp.pad(x, padding, constant_values=fill).reshape(chunks, chunk, *x.shape[1:])

        return _Tiles(
            split(self.query, no_row), split(self.keys, no_block), split(self.key_positions, NOWHERE + 1)
        )  # fmt: skip

    def of_queries(self, x):
        """What every tile has of x [R, ...]: [n, ...]."""
        return jnp.take(x, self.query, axis=0, mode="clip")

    def of_keys(self, x):
        """[C, K, S, D] -> [n, K, W * S, D]."""
        gathered = jnp.take(x, self.keys, axis=0, mode="fill", fill_value=0)
        n, W, K, S, D = gathered.shape
        return gathered.swapaxes(1, 2).reshape(n, K, W * S, D)

    def sum_by_row(self, x, rows: int):
        """[n, ...] -> [R, ...]."""
        return jax.ops.segment_sum(x, self.query, rows, indices_are_sorted=True)

    def max_by_row(self, x, rows: int):
        return jax.ops.segment_max(x, self.query, rows, indices_are_sorted=True)

    def add_to_keys(self, total, x):
        """total [C, K, S, D] with x [n, K, W * S, D] added to the blocks it belongs to."""
        K, S, D = total.shape[1:]
        blocks = x.reshape(len(x), K, -1, S, D).swapaxes(1, 2)
        return total.at[self.keys].add(blocks, mode="drop")

    def scores(self, q, k, positions):
        """[n, K, G * T, W * S], far below zero where a query does not see a key."""
        T = positions.shape[1]
        scores = _float32_einsum("nkqd,nkpd->nkqp", self.of_queries(q), self.of_keys(k))
        hidden = jnp.where(self.key_positions[:, None] <= self.of_queries(positions)[..., None], 0.0, _HIDDEN)
        return scores + jnp.tile(hidden, (1, q.shape[2] // T, 1))[:, None]


_float32_einsum = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)


@jax.custom_vjp
def _attend_tiles(q, k, v, positions, chunks):
    """q [R, K, G * T, D], scaled, over the tiles of all chunks: [R, K, G * T, D] in float32."""
    return _forward(q, k, v, positions, chunks)[0]


def _forward(q, k, v, positions, chunks):
    R = len(q)

    def add(so_far, tiles):
        largest, total, out = so_far
        scores = tiles.scores(q, k, positions)
        new = jnp.maximum(largest, tiles.max_by_row(scores.max(axis=-1), R))
        weights = jnp.exp(scores - tiles.of_queries(new)[..., None])
        shrink = jnp.exp(largest - new)
        total = total * shrink + tiles.sum_by_row(weights.sum(axis=-1), R)
        values = _float32_einsum("nkqp,nkpd->nkqd", weights.astype(v.dtype), tiles.of_keys(v))
        return (new, total, out * shrink[..., None] + tiles.sum_by_row(values, R)), None

    # Finite where a row has no tile, so that nothing there becomes NaN.
    start = jnp.full(q.shape[:3], _HIDDEN), jnp.zeros(q.shape[:3]), jnp.zeros(q.shape)
    (largest, total, out), _ = jax.lax.scan(add, start, chunks)
    total = jnp.where(total == 0, 1.0, total)
    out = out / total[..., None]
    return out, (q, k, v, positions, chunks, out, largest, 1 / total)


def _backward(kept, d_out):
    q, k, v, positions, chunks, out, largest, share = kept
    R = len(q)
    along = jnp.sum(d_out * out, axis=-1)  # [R, K, G * T]

    def add(so_far, tiles):
        dq, dk, dv = so_far
        weights = jnp.exp(tiles.scores(q, k, positions) - tiles.of_queries(largest)[..., None])
        weights *= tiles.of_queries(share)[..., None]
        d_tile = tiles.of_queries(d_out).astype(v.dtype)
        d_scores = _float32_einsum("nkqd,nkpd->nkqp", d_tile, tiles.of_keys(v)) - tiles.of_queries(along)[..., None]
        d_scores = (d_scores * weights).astype(q.dtype)
        weights = weights.astype(v.dtype)
        dq += tiles.sum_by_row(_float32_einsum("nkqp,nkpd->nkqd", d_scores, tiles.of_keys(k)), R)
        dk = tiles.add_to_keys(dk, _float32_einsum("nkqp,nkqd->nkpd", d_scores, tiles.of_queries(q)))
        dv = tiles.add_to_keys(dv, _float32_einsum("nkqp,nkqd->nkpd", weights, d_tile))
        return (dq, dk, dv), None

    start = jnp.zeros(q.shape), jnp.zeros(k.shape), jnp.zeros(v.shape)
    (dq, dk, dv), _ = jax.lax.scan(add, start, chunks)
    return dq.astype(q.dtype), dk.astype(k.dtype), dv.astype(v.dtype), None, None


_attend_tiles.defvjp(_forward, _backward)


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
    chunk: int | None = None  # see `tiled_attention`

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
            self.chunk,
        )
