"""Keys and values kept for later, and the two ways queries go on from them."""

import dataclasses

import jax
import jax.numpy as jnp

from patr.models.attention import NOWHERE, path_attention, tiled_attention


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KVCache:
    """Keys and values of every layer: pieces of P tokens in path order, [pieces, K, P, D] each.

    A piece is a whole trajectory for `CachedRows`, a block of a few tokens for `PagedRows`.
    """

    keys: tuple[jax.Array, ...]
    values: tuple[jax.Array, ...]

    @classmethod
    def empty(cls, config, pieces: int, length: int) -> "KVCache":
        shape = (pieces, config.num_kv_heads, length, config.head_dim)
        new = tuple(jnp.zeros(shape, config.dtype) for _ in range(2 * config.num_layers))
        return cls(new[: config.num_layers], new[config.num_layers :])

    def with_layer(self, layer: int, keys: jax.Array, values: jax.Array) -> "KVCache":
        """The cache with what one layer holds replaced."""

        def put(held, new):
            return (*held[:layer], new, *held[layer + 1 :])

        return KVCache(put(self.keys, keys), put(self.values, values))


class CachedRows:
    """Row r continues row r of a cache; the cache with the new tokens is left in `cache`.

    Tokens whose position is outside the cache are padding: they are not stored.
    """

    def __init__(self, cache: KVCache, positions: jax.Array):
        self.cache, self.positions = cache, positions  # positions [B, T]

    def __call__(self, layer: int, q, k, v):
        rows = jnp.arange(len(k))[:, None]

        def store(held, new):
            return held.at[rows, :, self.positions].set(new, mode="drop")

        keys, values = store(self.cache.keys[layer], k), store(self.cache.values[layer], v)
        self.cache = self.cache.with_layer(layer, keys, values)
        return path_attention(q, keys, values, self.positions)


class PagedRows:
    """Every row is the image of one block of a pool: some of its tokens are there already, some are new.

    blocks [R]: the block each row is; a number outside the pool marks padding.
    sources [R]: the block whose content stands where a row has no new token. It is the block itself, or another one
        that the row starts as a copy of.
    positions [R, S]: of the new tokens along the root path; NOWHERE at the others.
    tile_query [N], tile_blocks [N, W]: the blocks of each row's path, itself the last, as in `tiled_attention`.
    tile_starts [N]: the position of the first token of each tile.
    The pool with the new tokens is left in `pool`.
    """

    def __init__(self, pool: KVCache, blocks, sources, positions, tile_query, tile_blocks, tile_starts):
        self.pool, self.blocks, self.sources, self.positions = pool, blocks, sources, positions
        self.tile_query, self.tile_blocks, self.tile_starts = tile_query, tile_blocks, tile_starts

    def __call__(self, layer: int, q, k, v):
        new = (self.positions < NOWHERE)[:, None, :, None]

        def store(held, fresh):
            image = jnp.where(new, fresh.swapaxes(1, 2), held[self.sources])
            return held.at[self.blocks].set(image, mode="drop")

        keys, values = store(self.pool.keys[layer], k), store(self.pool.values[layer], v)
        self.pool = self.pool.with_layer(layer, keys, values)
        # Behind the tokens a row holds stand positions above any query's, whatever the block's content is.
        in_tile = jnp.arange(self.tile_blocks.shape[1] * keys.shape[2])
        return tiled_attention(
            q, keys, values, self.positions, self.tile_starts[:, None] + in_tile, self.tile_query, self.tile_blocks
        )
