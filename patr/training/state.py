"""What changes from step to step."""

import dataclasses
from typing import Any

import jax
import optax


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """Parameters (a plain pytree of arrays), optimizer state, and how many steps they have seen."""

    params: Any
    opt_state: optax.OptState
    step: int = dataclasses.field(default=0, metadata={"static": True})

    def replace(self, **changes) -> "TrainState":
        return dataclasses.replace(self, **changes)
