"""The parts of a Qwen block. Parameters are float32; compute is in the config's dtype."""

import jax
import jax.numpy as jnp
from flax import nnx

from patr.models.config import ModelConfig


def parameter(rngs: nnx.Rngs, shape: tuple[int, int], axes: tuple[str, str], *, fan_in: int) -> nnx.Param:
    """One declaration of a weight: its shape, its logical axes (for sharding) and its initialisation.

    Normal with variance 1 / fan_in. The usual deviation of 0.02 is meant for wide models: a narrow one then starts
    with attention so flat that a small policy trained from nothing learns nothing of the grid.
    """
    return nnx.Param(nnx.initializers.normal(fan_in**-0.5)(rngs.params(), shape, jnp.float32), axes=axes)


class Linear(nnx.Module):
    """y = x @ kernel (+ bias)."""

    def __init__(self, config: ModelConfig, inputs: int, outputs: int, axes: tuple[str, str], *, bias=False, rngs):
        self.kernel = parameter(rngs, (inputs, outputs), axes, fan_in=inputs)
        self.bias = nnx.Param(jnp.zeros((outputs,), jnp.float32), axes=axes[1:]) if bias else None
        self.dtype = config.dtype

    def __call__(self, x: jax.Array) -> jax.Array:
        y = x @ self.kernel[...].astype(self.dtype)
        return y if self.bias is None else y + self.bias[...].astype(self.dtype)


class RMSNorm(nnx.Module):
    """x / rms(x) * scale over the last axis, in float32."""

    def __init__(self, size: int, eps: float):
        self.scale = nnx.Param(jnp.ones((size,), jnp.float32), axes=(None,))
        self.eps = eps

    def __call__(self, x: jax.Array) -> jax.Array:
        y = x.astype(jnp.float32)
        y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + self.eps)
        return (y * self.scale[...]).astype(x.dtype)


class SwiGLU(nnx.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig, *, rngs):
        self.gate = Linear(config, config.embed_dim, config.mlp_dim, ("embed", "mlp"), rngs=rngs)
        self.up = Linear(config, config.embed_dim, config.mlp_dim, ("embed", "mlp"), rngs=rngs)
        self.down = Linear(config, config.mlp_dim, config.embed_dim, ("mlp", "embed"), rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))


def rotary(positions: jax.Array, head_dim: int, theta: float) -> tuple[jax.Array, jax.Array]:
    """cos and sin [B, T, D/2] of the rotation at each position [B, T] (RoFormer, half-split pairs)."""
    frequencies = theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    angles = positions[..., None].astype(jnp.float32) * frequencies
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotate the pairs (x_i, x_{i + D/2}) of x [B, T, heads, D]."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[:, :, None], sin[:, :, None]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
