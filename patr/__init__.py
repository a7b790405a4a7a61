"""patr: process-scorer guided adaptive tree rollouts for multi-turn agent RL, in JAX."""

__version__ = "0.1.0"
