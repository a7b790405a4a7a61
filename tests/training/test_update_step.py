"""An update is one step of the optimizer along the gradient of the whole batch, however it is split into packs."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from small_models import small_model
from tree_cases import fork, leaf, tree, turn

from patr.batching.buckets import Buckets, Size
from patr.batching.flat import flat_batch
from patr.batching.tree import pack_trees
from patr.models.attention import CausalRows
from patr.models.qwen import split
from patr.objectives.advantages import group_advantages
from patr.objectives.policy_losses import Objective
from patr.training.losses import flat_loss, tree_loss
from patr.training.state import TrainState
from patr.training.step import Updater

GRAPH, PARAMS = split(small_model())
OBJECTIVE = Objective(kl_coef=0.0, reduction="token_mean")
ONE_GROUP, ALL_GROUPS = Size(5, 12, 12), Size(15, 36, 36)


def group(name, first_id):
    """A fork and a branch beside it: three leaves, nine sampled tokens with those that two leaves share counted twice.

    A token is as likely as under a uniform policy over 61 tokens, exp(-4.1), and a small fresh one is near that.
    """
    a, b, c, d = range(first_id, first_id + 4)
    return tree(
        [1, 2],
        fork((0,), turn([a, b], [3], [-4.1] * 2)),
        leaf((0, 0), turn([c], [], [-4.1]), reward=1.0),
        leaf((0, 1), turn([d], [], [-4.1])),
        leaf((1,), turn([d, c, a], [], [-4.1] * 3)),
        task=name,
    )


GROUPS = [group("a", 10), group("b", 20), group("c", 30)]
ADVANTAGES = [group_advantages([1.0, 0.0, 0.0])] * 3


def loss(params, pack, reference):
    return tree_loss(nnx.merge(GRAPH, params), pack, OBJECTIVE, 1.0)


def updated(optimizer, size, groups=GROUPS, advantages=ADVANTAGES, **options):
    """How many packs, and the state after an update."""
    buckets = Buckets(row_length=4, sizes=(size,))
    batch = pack_trees(groups, advantages, reduction="token_mean", buckets=buckets, **options)
    state = TrainState(PARAMS, optimizer.init(PARAMS))
    return len(batch.packs), Updater(loss, optimizer)(state, batch.packs, batch.denominator)[0]


def test_a_step_of_gradient_descent_is_minus_the_gradient_of_the_mean_loss_in_one_pack_or_in_three():
    rows = flat_batch(GROUPS, ADVANTAGES, reduction="token_mean")
    gradient = jax.jit(jax.grad(lambda params: flat_loss(nnx.merge(GRAPH, params), rows, OBJECTIVE, 1.0)[0]))(PARAMS)
    tokens = 3 * 9
    expected = jax.tree.map(lambda p, g: p - g / tokens, PARAMS, gradient)
    largest = max(float(jnp.abs(g).max()) for g in jax.tree.leaves(gradient)) / tokens
    assert largest > 0.01
    for size, packs in ((ALL_GROUPS, 1), (ONE_GROUP, 3)):
        found, state = updated(optax.sgd(1.0), size)
        assert found == packs
        for after, wanted in zip(jax.tree.leaves(state.params), jax.tree.leaves(expected), strict=True):
            # Sums of float32 in another order, and the rounding of parameters near 1.
            np.testing.assert_allclose(after, wanted, rtol=0, atol=1e-5 * largest + 2e-7)


def test_when_no_group_has_variance_and_all_are_skipped_the_optimizer_does_not_even_count_a_step():
    optimizer = optax.adam(0.1)
    fresh = TrainState(PARAMS, optimizer.init(PARAMS))
    packs, state = updated(optimizer, ALL_GROUPS, advantages=[np.zeros(3)] * 3, skip_zero_variance=True)
    assert packs == 0
    for before, after in zip(jax.tree.leaves(fresh), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(after, before)


def test_an_update_makes_the_rewarded_branch_likelier_and_the_other_less_likely():
    @jax.jit
    def next_logprobs(params):
        model, tokens, positions = nnx.merge(GRAPH, params), jnp.array([[1, 2]]), jnp.array([[0, 1]])
        return jax.nn.log_softmax(model.logits(model(tokens, positions, CausalRows(positions))))[0, 1]

    before = next_logprobs(PARAMS)
    branches = [leaf((i,), turn([token], [], [float(before[token])])) for i, token in enumerate((10, 20))]
    _, state = updated(optax.sgd(0.01), ONE_GROUP, [tree([1, 2], *branches)], [group_advantages([1.0, 0.0])])
    change = next_logprobs(state.params) - before
    assert change[10] > 0 > change[20]
