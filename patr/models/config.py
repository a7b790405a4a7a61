"""One config for the Qwen2 and Qwen3 families, and the sizes we train."""

import dataclasses

import jax

# What the backward pass finds kept of each block; the rest it computes again.
REMAT = {
    "none": None,  # everything is kept
    "products": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,  # the outputs of its matrices
    "block": jax.checkpoint_policies.nothing_saveable,  # its input alone
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Architecture of a dense Qwen causal language model.

    Qwen2 and Qwen2.5 have biases on q, k, v; Qwen3 normalises q and k per head
    instead. Everything else is shared: grouped-query attention, rotary
    positions, RMSNorm, SwiGLU. Raises ValueError for shapes that cannot be.
    """

    vocab_size: int
    embed_dim: int
    mlp_dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    qkv_bias: bool = True  # Qwen2
    qk_norm: bool = False  # Qwen3
    tie_embeddings: bool = True
    rope_theta: float = 1e6
    norm_eps: float = 1e-6
    max_context: int = 32768
    dtype: str = "float32"  # of activations and cache; parameters stay float32
    remat: str = "none"  # what training computes again instead of keeping it: a key of REMAT

    def __post_init__(self):
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_heads={self.num_heads} must be a multiple of num_kv_heads={self.num_kv_heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} must be even: rotary positions turn pairs")
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f"dtype={self.dtype!r}: allowed are 'float32' and 'bfloat16'")
        if self.remat not in REMAT:
            raise ValueError(f"remat={self.remat!r}: allowed are {', '.join(map(repr, REMAT))}")

    @property
    def num_parameters(self) -> int:
        attention = self.embed_dim * self.head_dim * 2 * (self.num_heads + self.num_kv_heads)
        attention += self.qkv_bias * self.head_dim * (self.num_heads + 2 * self.num_kv_heads)
        attention += self.qk_norm * 2 * self.head_dim
        layer = attention + 3 * self.embed_dim * self.mlp_dim + 2 * self.embed_dim
        tables = (1 if self.tie_embeddings else 2) * self.vocab_size * self.embed_dim
        return tables + self.num_layers * layer + self.embed_dim


_QWEN2 = dict(vocab_size=151936, qkv_bias=True, qk_norm=False, rope_theta=1e6, dtype="bfloat16")
_QWEN3 = dict(vocab_size=151936, qkv_bias=False, qk_norm=True, dtype="bfloat16")

PRESETS = {
    # For a laptop: learns a grid world from nothing in minutes.
    "tiny": ModelConfig(
        vocab_size=512, embed_dim=96, mlp_dim=288, num_layers=3, num_heads=3, num_kv_heads=1, head_dim=32,
        rope_theta=1e4, max_context=2048,
    ),
    # Sizes of the published checkpoints (their config.json).
    "qwen2.5-0.5b": ModelConfig(
        embed_dim=896, mlp_dim=4864, num_layers=24, num_heads=14, num_kv_heads=2, head_dim=64, **_QWEN2
    ),
    "qwen2.5-3b": ModelConfig(
        embed_dim=2048, mlp_dim=11008, num_layers=36, num_heads=16, num_kv_heads=2, head_dim=128, **_QWEN2
    ),
    "qwen3-4b": ModelConfig(
        embed_dim=2560, mlp_dim=9728, num_layers=36, num_heads=32, num_kv_heads=8, head_dim=128, rope_theta=5e6,
        max_context=262144, **_QWEN3,
    ),
}  # fmt: skip


def preset(name: str, **overrides) -> ModelConfig:
    """A named size, with fields replaced. Raises ValueError naming the known ones."""
    if name not in PRESETS:
        raise ValueError(f"unknown model {name!r}; known: {', '.join(PRESETS)}")
    return dataclasses.replace(PRESETS[name], **overrides)
