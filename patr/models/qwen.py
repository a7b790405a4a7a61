"""Qwen2 and Qwen3 causal language models.

How tokens see each other is not the model's business: `attend` is passed in
(see attention.py), so that rows, cached rows and trees run through one body.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from patr.models.config import REMAT, ModelConfig
from patr.models.layers import Linear, RMSNorm, SwiGLU, parameter, rotary, rotate

Attend = Callable[[int, jax.Array, jax.Array, jax.Array], jax.Array]


class Qwen(nnx.Module):
    """tokens -> hidden states; `logits` reads them out."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.config = config
        table = (config.vocab_size, config.embed_dim), ("vocab", "embed")
        self.embedding = parameter(rngs, *table, fan_in=config.embed_dim)
        self.blocks = nnx.List([Block(config, rngs=rngs) for _ in range(config.num_layers)])
        self.norm = RMSNorm(config.embed_dim, config.norm_eps)
        self.head = None if config.tie_embeddings else parameter(rngs, *table, fan_in=config.embed_dim)

    def __call__(self, tokens: jax.Array, positions: jax.Array, attend: Attend, *, training=False) -> jax.Array:
        """Hidden states [B, T, E] of tokens [B, T] at root-path positions [B, T].

        attend(layer, q [B, T, H, D], k [B, T, K, D], v [B, T, K, D]) -> [B, T, H, D].
        training: keep for a backward pass only what `config.remat` says. `attend` must then be a pure function.
        """
        chex.assert_rank([tokens, positions], 2)
        chex.assert_equal_shape([tokens, positions])
        x = self.embedding[...].astype(self.config.dtype)[tokens]
        cos, sin = rotary(positions, self.config.head_dim, self.config.rope_theta)
        for layer, block in enumerate(self.blocks):

            def through(block, x, layer=layer):
                return block(x, cos, sin, layer, attend)

            if training and self.config.remat != "none":
                through = nnx.remat(through, policy=REMAT[self.config.remat])
            x = through(block, x)
        return self.norm(x)

    def logits(self, hidden: jax.Array) -> jax.Array:
        """Next-token logits [..., V] in float32 of hidden states [..., E]."""
        table = self.embedding if self.head is None else self.head
        return jnp.einsum("...e,ve->...v", hidden, table[...].astype(hidden.dtype), preferred_element_type=jnp.float32)


class Block(nnx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.attention_norm = RMSNorm(config.embed_dim, config.norm_eps)
        self.attention = Attention(config, rngs=rngs)
        self.mlp_norm = RMSNorm(config.embed_dim, config.norm_eps)
        self.mlp = SwiGLU(config, rngs=rngs)

    def __call__(self, x, cos, sin, layer, attend):
        x = x + self.attention(self.attention_norm(x), cos, sin, layer, attend)
        return x + self.mlp(self.mlp_norm(x))


class Attention(nnx.Module):
    """Grouped-query attention with rotary positions; biases as Qwen2, q/k norm as Qwen3."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        E, D = config.embed_dim, config.head_dim
        H, K = config.num_heads, config.num_kv_heads
        self.q = Linear(config, E, H * D, ("embed", "heads"), bias=config.qkv_bias, rngs=rngs)
        self.k = Linear(config, E, K * D, ("embed", "kv_heads"), bias=config.qkv_bias, rngs=rngs)
        self.v = Linear(config, E, K * D, ("embed", "kv_heads"), bias=config.qkv_bias, rngs=rngs)
        self.out = Linear(config, H * D, E, ("heads", "embed"), rngs=rngs)
        self.q_norm = RMSNorm(D, config.norm_eps) if config.qk_norm else None
        self.k_norm = RMSNorm(D, config.norm_eps) if config.qk_norm else None
        self.head_dim = D

    def __call__(self, x, cos, sin, layer, attend):
        q, k, v = (f(x).reshape(*x.shape[:2], -1, self.head_dim) for f in (self.q, self.k, self.v))
        if self.q_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        y = attend(layer, rotate(q, cos, sin), rotate(k, cos, sin), v)
        return self.out(y.reshape(*x.shape[:2], -1))


def split(model: Qwen) -> tuple[nnx.GraphDef, dict]:
    """The model's structure and its parameters as a plain nested dict; `nnx.merge` joins them again."""
    graph, state = nnx.split(model)
    return graph, nnx.to_pure_dict(state)
