"""Attention by tiles is attention along whole paths, however many tiles are looked at together."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from patr.models.attention import NOWHERE, CausalRows, TreeRows

T, W = 4, 4  # tokens of a row, rows of a tile
H, K, D = 4, 2, 8


def _one_path(rows: int) -> TreeRows:
    """A path of `rows` rows, the last half empty, as a tree without forks; one tile of padding at the end."""
    positions = np.arange(rows * T, dtype=np.int32).reshape(rows, T)
    positions[-1, T // 2 :] = NOWHERE
    query, keys = [], []
    for row in range(rows):
        for start in range(0, row + 1, W):
            query.append(row)
            keys.append([at if at <= row else rows for at in range(start, start + W)])
    return TreeRows(positions, np.array([*query, rows]), np.array([*keys, [rows] * W]))


@pytest.mark.parametrize("chunk", [1, 3, 7, None])
def test_tiles_give_the_attention_and_the_gradients_of_the_whole_path(chunk):
    rows = 6
    tree = _one_path(rows)
    n = rows * T - T // 2  # tokens
    q, k, v, g = (jax.random.normal(jax.random.key(i), (1, n, heads, D)) for i, heads in enumerate((H, K, K, H)))
    whole = CausalRows(jnp.arange(n)[None])

    def of_path(q, k, v):
        return whole(0, q, k, v)

    def of_tiles(q, k, v):
        in_rows = (jnp.pad(x[0], ((0, T // 2), (0, 0), (0, 0))).reshape(rows, T, -1, D) for x in (q, k, v))
        return TreeRows(tree.positions, tree.tile_query, tree.tile_keys, chunk)(0, *in_rows).reshape(1, -1, H, D)[:, :n]

    expected, path_vjp = jax.vjp(of_path, q, k, v)
    found, tiles_vjp = jax.vjp(of_tiles, q, k, v)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    for name, a, b in zip("qkv", tiles_vjp(g), path_vjp(g), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5, err_msg=name)


def test_rows_without_tiles_are_zero_and_send_no_gradient():
    tree = TreeRows(np.full((2, T), NOWHERE, np.int32), np.array([2]), np.full((1, W), 2))
    q, kv = jnp.ones((2, T, H, D)), jnp.ones((2, T, K, D))
    out, vjp = jax.vjp(lambda *qkv: tree(0, *qkv), q, kv, kv)
    assert not out.any()
    assert not any(x.any() for x in vjp(jnp.ones_like(out)))
