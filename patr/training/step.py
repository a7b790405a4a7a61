"""One optimizer update over the packs of a batch, compiled once per pack shape."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from patr.batching.tree import Pack
from patr.objectives.metrics import Metrics
from patr.training.state import TrainState

# (params, pack, reference parameters or None) -> (summed loss, metrics)
Loss = Callable[[Any, Pack, Any], tuple[jax.Array, Metrics]]


class Updater:
    """Gradients summed over packs, then one step of the optimizer.

    The loss of the batch is sum / denominator over all its packs, so how a batch is split into packs changes nothing.
    """

    def __init__(self, loss: Loss, optimizer: optax.GradientTransformation):
        self._gradients = jax.jit(functools.partial(_add_gradients, loss), donate_argnums=1)
        self._apply = jax.jit(functools.partial(_apply, optimizer), donate_argnums=2)

    def __call__(
        self, state: TrainState, packs: Sequence[Pack], denominator: float, reference: Any = None
    ) -> tuple[TrainState, dict[str, float]]:
        """The state after one update and the metrics of the batch before it.

        reference: parameters of the reference policy, if the loss asks for them. Without packs (every group was
        flat and skipped) nothing changes, not even the optimizer's momentum.
        """
        if not packs:
            return state, {}
        total, metrics = jax.tree.map(jnp.zeros_like, state.params), None
        for pack in packs:
            total, new = self._gradients(state.params, total, pack, reference)
            metrics = new if metrics is None else {name: metrics[name] + new[name] for name in metrics}
        params, opt_state, norm = self._apply(state.params, state.opt_state, total, denominator)
        values = {name: float(metric.value) for name, metric in metrics.items()}
        return state.replace(params=params, opt_state=opt_state), values | {"grad_norm": float(norm)}


def _add_gradients(loss: Loss, params, total, pack: Pack, reference):
    gradients, metrics = jax.grad(loss, has_aux=True)(params, pack, reference)
    return jax.tree.map(jnp.add, total, gradients), metrics


def _apply(optimizer, params, opt_state, total, denominator):
    gradients = jax.tree.map(lambda g: g / denominator, total)
    updates, opt_state = optimizer.update(gradients, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, optax.tree.norm(gradients)
