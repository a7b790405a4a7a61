"""One optimizer update over the packs of a batch, compiled once per pack shape."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from patr.batching.tree import Pack
from patr.objectives.metrics import Mean, Metrics, joined
from patr.training.state import TrainState

# (params, pack, reference parameters or None) -> (summed loss, metrics)
Loss = Callable[[Any, Pack, Any], tuple[jax.Array, Metrics]]


class Updater:
    """Gradients summed over packs, then one step of the optimizer.

    The loss of the batch is sum / denominator over all its packs, so how a batch is split into packs changes nothing.
    """

    def __init__(self, loss: Loss, optimizer: optax.GradientTransformation):
        self._gradients = jax.jit(functools.partial(_add_gradients, loss), donate_argnums=1)
        self._apply = jax.jit(functools.partial(_apply, optimizer), donate_argnums=(1, 2))

    def __call__(
        self, state: TrainState, packs: Sequence[Pack], denominator: float, reference: Any = None
    ) -> tuple[TrainState, Metrics]:
        """The state after one update, and the metrics of the batch before it with the norms of gradient and parameters.

        The optimizer state given is used up; the parameters stay, as a sampler may hold them.

        reference: parameters of the reference policy, if the loss asks for them. Without packs (every group had
        equal rewards and was skipped) nothing changes, not even the optimizer's momentum.
        """
        if not packs:
            return state, {}
        total, metrics = jax.tree.map(jnp.zeros_like, state.params), {}
        for pack in packs:
            total, new = self._gradients(state.params, total, pack, reference)
            metrics = joined(metrics, new)
        params, opt_state, norms = self._apply(state.params, state.opt_state, total, denominator)
        return state.replace(params=params, opt_state=opt_state), metrics | norms


def _add_gradients(loss: Loss, params, total, pack: Pack, reference):
    gradients, metrics = jax.grad(loss, has_aux=True)(params, pack, reference)
    return jax.tree.map(jnp.add, total, gradients), metrics


def _apply(optimizer, params, opt_state, total, denominator):
    gradients = jax.tree.map(lambda g: g / denominator, total)
    updates, opt_state = optimizer.update(gradients, opt_state, params)
    params = optax.apply_updates(params, updates)
    norms = {"grad_norm": Mean(optax.tree.norm(gradients), 1.0), "param_norm": Mean(optax.tree.norm(params), 1.0)}
    return params, opt_state, norms
