"""Policies small enough for tests."""

from flax import nnx

from patr.models.config import ModelConfig
from patr.models.qwen import Qwen


def small_config(**overrides) -> ModelConfig:
    """A Qwen2 of a few thousand parameters."""
    sizes = dict(vocab_size=61, embed_dim=32, mlp_dim=48, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8)
    return ModelConfig(**(sizes | dict(rope_theta=1e4, max_context=128) | overrides))


def small_model(seed: int = 0, **overrides) -> Qwen:
    """A small Qwen with random weights."""
    return Qwen(small_config(**overrides), rngs=nnx.Rngs(seed))
