"""The policy body: the same numbers whichever way its tokens are laid out."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from small_models import small_config, small_model

from patr.models.attention import NOWHERE, CausalRows, TreeRows, path_attention
from patr.models.cache import CachedRows, KVCache, PagedRows
from patr.models.config import PRESETS, ModelConfig, preset
from patr.models.layers import rotary, rotate
from patr.models.qwen import Qwen

# Two float32 evaluation orders of the same sums, over logits of size about 10.
FLOAT32 = dict(rtol=0, atol=2e-4)


def rows_logits(model, ids):
    tokens = jnp.asarray([ids])
    positions = jnp.arange(len(ids))[None]
    return np.asarray(model.logits(model(tokens, positions, CausalRows(positions)))[0])


def numpy_attention(q, k, v, positions):
    """Grouped-query attention, one query at a time."""
    B, T, H, D = q.shape
    K = k.shape[1]
    out = np.zeros((B, T, H, D))
    for b in range(B):
        for t in range(T):
            for h in range(H):
                seen = positions[b, t] + 1
                keys, values = k[b, h // (H // K), :seen], v[b, h // (H // K), :seen]
                scores = keys @ q[b, t, h] / np.sqrt(D)
                weights = np.exp(scores - scores.max())
                out[b, t, h] = weights @ values / weights.sum()
    return out


def test_path_attention_equals_its_definition():
    rng = np.random.default_rng(0)
    q = rng.normal(size=(2, 3, 4, 6)).astype(np.float32)
    k, v = rng.normal(size=(2, 2, 2, 7, 6)).astype(np.float32)
    positions = np.array([[0, 1, 6], [3, 4, 5]])
    np.testing.assert_allclose(path_attention(q, k, v, positions), numpy_attention(q, k, v, positions), atol=1e-6)


def test_rotary_scores_depend_on_relative_position_only():
    rng = np.random.default_rng(1)
    q, k = rng.normal(size=(2, 1, 1, 1, 8)).astype(np.float32)

    def score(query_at, key_at):
        turned = [
            rotate(jnp.asarray(x), *rotary(jnp.asarray([[at]]), 8, 1e4)) for x, at in ((q, query_at), (k, key_at))
        ]
        return float(jnp.vdot(*turned))

    assert score(9, 4) == pytest.approx(score(105, 100), abs=1e-5)
    assert score(9, 4) != pytest.approx(score(9, 5), abs=1e-2)
    assert score(3, 3) == pytest.approx(float(np.vdot(q, k)), abs=1e-5)


def test_a_token_sees_nothing_after_it(policy):
    ids = [5, 17, 3, 44, 9, 30]
    changed = rows_logits(policy, [*ids[:4], 8, 2])
    np.testing.assert_allclose(rows_logits(policy, ids)[:4], changed[:4], **FLOAT32)
    assert np.abs(rows_logits(policy, ids)[4] - changed[4]).max() > 0.1


def test_cached_in_pieces_equals_whole(policy):
    ids = list(np.random.default_rng(2).integers(0, 61, 20))
    cache, pieces = KVCache.empty(policy.config, 1, 32), []
    for start, stop in ((0, 9), (9, 10), (10, 16), (16, 20)):
        positions = jnp.arange(start, stop)[None]
        attend = CachedRows(cache, positions)
        pieces.append(policy.logits(policy(jnp.asarray([ids[start:stop]]), positions, attend))[0])
        cache = attend.cache
    np.testing.assert_allclose(np.concatenate(pieces), rows_logits(policy, ids), **FLOAT32)


def test_a_fork_in_a_pool_of_blocks_goes_two_ways(policy):
    """Blocks of 4: the children share block 5 and start with a copy of half of block 2, which stays as it is."""
    prefix, left, right = [4, 9, 33, 12, 8, 15], [7, 7, 21], [50, 2]
    pool = KVCache.empty(policy.config, 6, 4)

    def run(pool, blocks, sources, rows, paths):
        """rows: the (position, id) of each column, None where nothing is new."""
        tokens = np.array([[at[1] if at else 0 for at in row] for row in rows])
        positions = np.array([[at[0] if at else NOWHERE for at in row] for row in rows])
        tile_query = np.array([r for r, path in enumerate(paths) for _ in range(0, len(path), 2)])
        tile_blocks = np.array([[*path, 6][i : i + 2] for path in paths for i in range(0, len(path), 2)])
        tile_starts = np.array([4 * i for path in paths for i in range(0, len(path), 2)])
        arrays = map(jnp.asarray, (blocks, sources, positions, tile_query, tile_blocks, tile_starts))
        attend = PagedRows(pool, *arrays)
        logits = policy.logits(policy(jnp.asarray(tokens), jnp.asarray(positions), attend))
        return attend.pool, np.asarray(logits)

    at = list(enumerate(prefix))
    pool, _ = run(pool, [5, 2], [5, 2], [at[:4], [*at[4:], None, None]], [[5], [5, 2]])
    kept = np.asarray(pool.keys[0][2])
    rows = [[None, None, (6, 7), (7, 7)], [(8, 21), None, None, None], [None, None, (6, 50), (7, 2)]]
    pool, logits = run(pool, [0, 1, 3], [2, 1, 2], rows, [[5, 0], [5, 0, 1], [5, 3]])
    np.testing.assert_allclose(
        np.concatenate([logits[0, 2:], logits[1, :1]]), rows_logits(policy, prefix + left)[6:], **FLOAT32
    )
    np.testing.assert_allclose(logits[2, 2:], rows_logits(policy, prefix + right)[6:], **FLOAT32)
    np.testing.assert_array_equal(pool.keys[0][2], kept)


def test_tree_rows_equal_whole_rows(policy):
    """Segments a, b under a, c under a, packed in rows of 4, read like the trajectories ab and ac."""
    a, b, c = [5, 6, 7, 8, 9], [10, 11, 12], [20, 21]
    tokens = np.zeros((4, 4), np.int32)
    positions = np.full((4, 4), NOWHERE, np.int32)
    tokens[0], tokens[1, :1], tokens[2, :3], tokens[3, :2] = a[:4], a[4:], b, c
    positions[0], positions[1, :1], positions[2, :3], positions[3, :2] = range(4), [4], range(5, 8), range(5, 7)
    # Two rows of keys a tile. Rows 2 and 3 take two tiles each, and the last tile is padding.
    tile_query = np.array([0, 1, 2, 2, 3, 3, 4])
    tile_keys = np.array([[0, 4], [0, 1], [0, 1], [2, 4], [0, 1], [3, 4], [4, 4]])
    attend = TreeRows(*map(jnp.asarray, (positions, tile_query, tile_keys)))
    logits = np.asarray(policy.logits(policy(tokens, positions, attend)))
    np.testing.assert_allclose(logits[2, :3], rows_logits(policy, a + b)[5:], **FLOAT32)
    np.testing.assert_allclose(logits[3, :2], rows_logits(policy, a + c)[5:], **FLOAT32)
    np.testing.assert_allclose(logits[1, 0], rows_logits(policy, a)[4], **FLOAT32)


def test_bfloat16_follows_float32():
    model = small_model()
    narrow = Qwen(dataclasses.replace(model.config, dtype="bfloat16"), rngs=nnx.Rngs(0))
    nnx.update(narrow, nnx.state(model))
    ids = [1, 2, 3, 4, 5]
    # bfloat16 keeps 8 bits: logits of size 10 are good to a few per cent after two layers.
    np.testing.assert_allclose(rows_logits(narrow, ids), rows_logits(model, ids), atol=1.0)
    assert narrow.logits(jnp.ones((1, 32), jnp.bfloat16)).dtype == jnp.float32
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(nnx.state(narrow)))


@pytest.mark.parametrize("overrides", [{}, dict(tie_embeddings=False), dict(qkv_bias=False, qk_norm=True)])
def test_parameter_count_is_the_sum_of_its_arrays(overrides):
    config = small_config(**overrides)
    arrays = jax.tree.leaves(nnx.state(Qwen(config, rngs=nnx.Rngs(0))))
    assert config.num_parameters == sum(x.size for x in arrays)


def test_presets_have_the_published_sizes():
    assert preset("qwen2.5-0.5b").num_parameters == 494_032_768
    assert preset("qwen2.5-3b").num_parameters == 3_085_938_688
    assert preset("qwen3-4b").num_parameters == 4_022_468_096
    assert 3e5 <= PRESETS["tiny"].num_parameters <= 2e6


def test_impossible_shapes_are_refused():
    with pytest.raises(ValueError, match="num_kv_heads=3"):
        small_config(num_kv_heads=3)
    with pytest.raises(ValueError, match="head_dim=7"):
        small_config(head_dim=7)
    with pytest.raises(ValueError, match="float16"):
        small_config(dtype="float16")
    with pytest.raises(ValueError, match=r"known: tiny, qwen2.5-0.5b"):
        preset("qwen2.5-1b")
    assert isinstance(preset("tiny", vocab_size=99), ModelConfig)
