"""Fixtures every test may use."""

import jax
import pytest
from small_models import small_model

from patr.models.qwen import Qwen

jax.config.update("jax_default_matmul_precision", "highest")


@pytest.fixture(scope="session", params=["qwen2", "qwen3"])
def policy(request) -> Qwen:
    """One small policy of each family."""
    if request.param == "qwen2":
        return small_model()
    return small_model(qkv_bias=False, qk_norm=True, tie_embeddings=False, head_dim=16)
