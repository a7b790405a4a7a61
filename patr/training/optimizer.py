"""The optimizer, from its config."""

import dataclasses
import math

import jax
import optax

SCHEDULES = ("constant", "cosine", "linear")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW with gradient clipping and a warmed-up schedule. Raises ValueError naming the value and what is allowed."""

    learning_rate: float
    warmup_steps: int = 0
    schedule: str = "constant"  # after warm-up; 'cosine' and 'linear' end at zero
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0

    def __post_init__(self):
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule={self.schedule!r}: allowed are {', '.join(SCHEDULES)}")
        for key, holds, allowed in (
            ("learning_rate", 0 <= self.learning_rate < math.inf, "a finite number >= 0"),
            ("warmup_steps", self.warmup_steps >= 0, "a number of updates >= 0"),
            ("b1", 0 <= self.b1 < 1, "0 <= b1 < 1"),
            ("b2", 0 <= self.b2 < 1, "0 <= b2 < 1"),
            ("eps", 0 < self.eps < math.inf, "a finite number > 0"),
            ("weight_decay", 0 <= self.weight_decay < math.inf, "a finite number >= 0"),
            ("max_grad_norm", self.max_grad_norm > 0, "a number > 0"),
        ):
            if not holds:
                raise ValueError(f"{key}={getattr(self, key)}: allowed is {allowed}")


def learning_rate(config: OptimizerConfig, total_updates: int) -> optax.Schedule:
    """Linear warm-up to the learning rate, then the schedule over what is left of total_updates.

    Updates that were skipped, because no group had any variance, are not counted.
    """
    peak, left = config.learning_rate, max(1, total_updates - config.warmup_steps)
    after = {
        "constant": optax.constant_schedule(peak),
        "cosine": optax.cosine_decay_schedule(peak, left),
        "linear": optax.linear_schedule(peak, 0.0, left),
    }[config.schedule]
    warmup = optax.linear_schedule(peak / (config.warmup_steps + 1), peak, config.warmup_steps)
    return optax.join_schedules([warmup, after], [config.warmup_steps])


def make_optimizer(config: OptimizerConfig, total_updates: int) -> optax.GradientTransformation:
    """AdamW; weight decay applies to matrices only, as is usual."""
    return optax.chain(
        optax.clip_by_global_norm(config.max_grad_norm),
        optax.adamw(
            learning_rate(config, total_updates),
            b1=config.b1,
            b2=config.b2,
            eps=config.eps,
            weight_decay=config.weight_decay,
            mask=lambda params: jax.tree.map(lambda x: x.ndim > 1, params),
        ),
    )
