"""Metrics that join exactly: over micro-batches, devices and hosts the parts give what the whole would."""

import dataclasses

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Mean:
    """A weighted mean as its two sums. Adding two joins what they measured."""

    sum: jax.Array | float  # []
    denominator: jax.Array | float  # []

    @classmethod
    def of(cls, values: jax.Array, weights: jax.Array) -> "Mean":
        """The mean of values weighted by weights, both of one shape."""
        return cls(jnp.sum(values * weights), jnp.sum(weights))

    def __add__(self, other: "Mean") -> "Mean":
        return Mean(self.sum + other.sum, self.denominator + other.denominator)

    @property
    def value(self) -> jax.Array:
        """sum / denominator; 0 if nothing was measured."""
        return jnp.where(self.denominator == 0, 0.0, self.sum / jnp.where(self.denominator == 0, 1.0, self.denominator))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Max:
    """The largest of non-negative values. Adding two joins what they measured."""

    value: jax.Array | float  # []; 0 if nothing was measured

    def __add__(self, other: "Max") -> "Max":
        return Max(jnp.maximum(self.value, other.value))


Metrics = dict[str, Mean | Max]


def joined(a: Metrics, b: Metrics) -> Metrics:
    """What two parts measured, as one; an empty part measured nothing."""
    return a | {name: a[name] + metric if name in a else metric for name, metric in b.items()}
