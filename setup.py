"""Packaging of patr. Tested versions are pinned in constraints.txt."""

from pathlib import Path

from setuptools import find_packages, setup

setup(
    name="patr",
    version="0.1.0",
    description="Process-scorer guided adaptive tree rollouts for multi-turn agent RL, in JAX",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["patr", "patr.*"]),
    install_requires=[
        "absl-py",
        "chex",
        "flax>=0.12",
        "gymnasium>=1.0",
        "jax>=0.10",
        "matplotlib",
        "ml-collections>=1.0",
        "numpy",
        "optax",
        "orbax-checkpoint>=0.12",
        "rich",
        "safetensors",
        "tensorboardX",
        "tokenizers",
        "transformers>=5",
    ],
    extras_require={
        "cuda": ["jax[cuda13]>=0.10"],
        "vllm": ["httpx"],
        "swe": ["docker", "swebench"],
        "notebooks": ["ipykernel", "nbclient", "nbformat"],
        "dev": ["hypothesis", "jinja2", "pytest", "pytest-xdist", "ruff", "torch"],
    },
)
