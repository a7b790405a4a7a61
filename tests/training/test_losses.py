"""Training on trees is training on their leaves: the same loss, metrics and gradients."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import small_model
from flax import nnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tree_cases import fork, leaf, tree, trees, turn

from patr.batching.buckets import Buckets, Size
from patr.batching.flat import flat_batch
from patr.batching.tree import pack_trees
from patr.models.attention import CausalRows
from patr.objectives.advantages import group_advantages
from patr.objectives.policy_losses import Objective
from patr.objectives.reductions import REDUCTIONS
from patr.training.losses import flat_logprobs, flat_loss, imitation_loss, pack_logprobs, tree_loss

LENGTH = 41  # the longest path `trees` draws
ONE_PACK = Buckets(row_length=4, sizes=(Size(192, LENGTH, 288),))
MANY_PACKS = Buckets(row_length=8, sizes=(Size(36, LENGTH, 96),))
EVERYTHING = Objective(clip_low=0.2, clip_high=0.28, dual_clip=2.0, kl_coef=0.3, entropy_coef=0.2)
TEMPERATURE = 0.7

# Compiled once for each shape, whatever the trees; the weights are an argument so that they can be differentiated.
GRAPH, PARAMS = nnx.split(small_model())
REF_PARAMS = nnx.state(small_model(seed=1))


def compiled(f, **static):
    return jax.jit(lambda params, *args: f(nnx.merge(GRAPH, params), *args, TEMPERATURE, chunk=32, **static))


def with_gradients(loss):
    @jax.jit
    def f(params, batch, ref_logprobs):
        def of_params(params):
            return loss(nnx.merge(GRAPH, params), batch, EVERYTHING, TEMPERATURE, chunk=32, ref_logprobs=ref_logprobs)

        (_, metrics), gradients = jax.value_and_grad(of_params, has_aux=True)(params)
        return metrics, gradients

    return f


tree_gradients, flat_gradients = with_gradients(tree_loss), with_gradients(flat_loss)
pack_reference, flat_reference = compiled(pack_logprobs), compiled(flat_logprobs)


def advantages_of(batch_of_trees):
    return [group_advantages([t.reward for t in tree.trajectories()]) for tree in batch_of_trees]


def total(parts):
    """Metrics and gradients of micro-batches added up, the gradients over the denominator of the whole."""
    metrics = functools.reduce(lambda a, b: {k: a[k] + b[k] for k in a}, [metrics for metrics, _ in parts])
    gradients = jax.tree.map(lambda *x: sum(x) / metrics["loss"].denominator, *[gradients for _, gradients in parts])
    return {name: float(metric.value) for name, metric in metrics.items()}, gradients


def on_leaves(group, reduction):
    batch = flat_batch(group, advantages_of(group), reduction=reduction, rows=36, length=LENGTH)
    return total([flat_gradients(PARAMS, batch, flat_reference(REF_PARAMS, batch))])


def on_trees(group, reduction, buckets, **options):
    batch = pack_trees(group, advantages_of(group), reduction=reduction, buckets=buckets, **options)
    return total([tree_gradients(PARAMS, pack, pack_reference(REF_PARAMS, pack)) for pack in batch.packs])


def assert_same(found, expected):
    (found_metrics, found_gradients), (metrics, gradients) = found, expected
    # Float32 sums in another order: relative to the value, and to 1 where terms of size one cancel.
    assert found_metrics == pytest.approx(metrics, rel=2e-6, abs=1e-6)
    largest = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(gradients))
    for a, b in zip(jax.tree.leaves(found_gradients), jax.tree.leaves(gradients), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * largest)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(group=st.lists(trees(), min_size=1, max_size=3).filter(lambda group: any(t.trajectories() for t in group)))
def test_complaint_25_tree_equals_flat(reduction, group):
    expected = on_leaves(group, reduction)
    assert_same(on_trees(group, reduction, ONE_PACK), expected)
    assert_same(on_trees(group[::-1], reduction, MANY_PACKS), expected)


def forked(task="forked", scale=1.0):
    """Two forks, five leaves, a prompt of one token; token 0, the padding value, is sampled and observed."""
    return tree(
        [9],
        fork((0,), turn([0, 12], [0, 3], [-4.0 * scale, -4.4])),
        leaf((0, 0), turn([21, 0, 7], [], [-3.5, -4.1, -5.0]), reward=1.0),
        fork((0, 1), turn([30], [31], [-4.2])),
        leaf((0, 1, 0), turn([0], [], [-4.3]), reward=1.0),
        leaf((0, 1, 1), turn([44, 45], [], [-4.8, -3.3])),
        leaf((1,), turn([5, 6], [7], [-4.0, -4.0]), turn([8], [], [-3.7])),
        leaf((2,), turn([5], [], [-4.0]), reward=0.5),
        task=task,
    )


def lonely():
    return tree([4, 5], leaf((0,), turn([6, 7, 8], [], [-4.0, -3.9, -4.2]), reward=1.0), task="lonely")


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_complaint_23_order_and_split_of_micro_batches_do_not_matter(reduction):
    group = [forked("a"), lonely(), forked("b", 0.8), forked("c", 1.2)]
    expected = on_leaves(group, reduction)
    for order in (group, group[::-1], [group[i] for i in (2, 0, 3, 1)]):
        assert_same(on_trees(order, reduction, MANY_PACKS), expected)
    parts = [pack_trees([t], advantages_of([t]), reduction=reduction, buckets=MANY_PACKS).packs[0] for t in group]
    found = total([tree_gradients(PARAMS, pack, pack_reference(REF_PARAMS, pack)) for pack in parts])
    assert_same(found, expected)


def test_written_out_in_the_same_layout_equals_shared():
    group = [forked(), lonely()]
    assert_same(on_trees(group, "token_mean", ONE_PACK, share_prefixes=False), on_trees(group, "token_mean", ONE_PACK))


def test_complaint_11_padding_does_not_matter_even_where_content_has_its_id():
    t = lonely()
    content = tree(t.prompt_ids, leaf((0,), turn([0, 7, 0], [], [-4.0, -3.9, -4.2]), reward=1.0))
    snug = flat_batch([content], [[1.0]], reduction="seq_mean_token_mean")
    wide = flat_batch([content], [[1.0]], reduction="seq_mean_token_mean", rows=36, length=LENGTH)
    assert snug.tokens.shape == (1, 5)
    expected = total([flat_gradients(PARAMS, snug, flat_reference(REF_PARAMS, snug))])
    assert_same(total([flat_gradients(PARAMS, wide, flat_reference(REF_PARAMS, wide))]), expected)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
def test_complaints_27_and_31_the_ratio_of_the_first_update_is_1(temperature):
    """Rows of several lengths, with old log-probs from a plain softmax over each trajectory by itself."""
    model, objective = nnx.merge(GRAPH, PARAMS), Objective(kl_coef=0.0)
    batch = flat_batch([forked(), lonely()], [[0.0] * 5, [0.0]], reduction="token_mean")
    positions = jnp.broadcast_to(jnp.arange(batch.tokens.shape[1]), batch.tokens.shape)
    logits = model.logits(model(batch.tokens, positions, CausalRows(positions)))[:, :-1]
    every = jax.nn.log_softmax(logits / temperature)
    plain = np.take_along_axis(np.asarray(every), batch.tokens[:, 1:, None], axis=2)[..., 0]
    sampled = [list(np.where(row, x, 0)) for row, x in zip(batch.mask[:, 1:], plain, strict=True)]
    old = np.array([[0.0, *row] for row in sampled], np.float32)

    def deviation(found_metrics):
        return float(found_metrics["ratio_max_deviation"].value)

    # A float32 log-prob of size five is good to a few 1e-7; two layers of another summation order add some.
    fresh = dataclasses.replace(batch, old_logprobs=old)
    assert deviation(flat_loss(model, fresh, objective, temperature)[1]) < 2e-5
    (pack,) = pack_trees([forked(), lonely()], None, reduction="token_mean", buckets=ONE_PACK).packs
    logprobs = pack_logprobs(model, pack, temperature)
    recomputed = dataclasses.replace(pack, old_logprobs=logprobs)
    assert deviation(tree_loss(model, recomputed, objective, temperature)[1]) == 0.0
    first = old[0][batch.mask[0]]
    np.testing.assert_allclose(logprobs[: len(first)], first, rtol=0, atol=1e-5)
    assert deviation(tree_loss(model, recomputed, objective, temperature * 2)[1]) > 0.1


def test_complaint_22_a_flat_batch_sends_no_gradient():
    flat = tree([1], leaf((0,), turn([5, 6])), leaf((1,), turn([6])), task="flat")
    (pack,) = pack_trees([flat], advantages_of([flat]), reduction="token_mean", buckets=MANY_PACKS).packs
    model, objective = nnx.merge(GRAPH, PARAMS), Objective(kl_coef=0.0)
    gradients = nnx.grad(lambda model: tree_loss(model, pack, objective, 1.0)[0])(model)
    assert all(not np.any(x) for x in jax.tree.leaves(gradients))


def test_complaint_35_entropy_and_kl_cover_sampled_tokens_only():
    # One prompt token, one sampled, two observed, one sampled: two places of seven count.
    t = tree([9], leaf((0,), turn([12], [3, 4], [-4.0]), turn([21], [], [-4.0])))
    model, reference = nnx.merge(GRAPH, PARAMS), nnx.merge(GRAPH, REF_PARAMS)
    (pack,) = pack_trees([t], None, reduction="token_mean", buckets=MANY_PACKS).packs
    _, metrics = tree_loss(
        model, pack, Objective(), TEMPERATURE, ref_logprobs=pack_logprobs(reference, pack, TEMPERATURE)
    )

    def by_hand(model):
        positions = jnp.arange(5)[None]
        logits = model.logits(model(jnp.array([[9, 12, 3, 4, 21]]), positions, CausalRows(positions)))[0]
        return jax.nn.log_softmax(logits[np.array([0, 3])] / TEMPERATURE)

    ours, theirs = by_hand(model), by_hand(reference)
    entropy = -jnp.sum(jnp.exp(ours) * ours, axis=1).mean()
    towards = (theirs - ours)[jnp.arange(2), jnp.array([12, 21])]
    assert float(metrics["entropy"].value) == pytest.approx(float(entropy), rel=1e-5)
    assert 0 < float(metrics["entropy"].value) < math.log(61)
    assert float(metrics["kl"].value) == pytest.approx(float((jnp.exp(towards) - towards - 1).mean()), rel=1e-4)


def test_complaint_13_a_broken_state_in_an_unsampled_place_stays_there():
    """A model whose every hidden state of token 3 is NaN, where token 3 is observed last and so never a source."""
    t = tree([9], leaf((0,), turn([12, 14], [3], [-4.0, -4.1]), reward=1.0))
    batch = flat_batch([t], [[1.0]], reduction="token_mean")
    model = nnx.merge(GRAPH, PARAMS)

    class Broken:
        logits = staticmethod(model.logits)

        def __init__(self, poison):
            self.poison = poison

        def __call__(self, tokens, positions, attend):
            return jnp.where((tokens == 3)[..., None], self.poison, model(tokens, positions, attend))

    def loss(poison):
        return flat_loss(Broken(poison), batch, Objective(kl_coef=0.0), 1.0)[0]

    assert float(loss(jnp.nan)) == float(loss(0.0))
    assert float(jax.grad(loss)(jnp.nan)) == 0.0


def test_imitation_loss_is_the_mean_over_trained_tokens():
    model, group = nnx.merge(GRAPH, PARAMS), [forked(), lonely()]
    packed = pack_trees(group, None, reduction="token_mean", buckets=ONE_PACK, share_prefixes=False)
    (pack,) = packed.packs
    loss, metrics = imitation_loss(model, pack)
    batch = flat_batch(group, advantages_of(group), reduction="token_mean")
    expected = -np.asarray(flat_logprobs(model, batch, 1.0))[batch.mask].mean()
    assert float(metrics["loss"].value) == pytest.approx(expected, rel=1e-5)
    assert float(loss) == pytest.approx(expected * packed.denominator, rel=1e-5)
