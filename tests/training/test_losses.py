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
BUCKETS = Buckets(row_length=4, sizes=(Size(66, LENGTH, 168),))  # holds any of its trees; two or three small ones too
EVERYTHING = Objective(clip_low=0.2, clip_high=0.28, dual_clip=2.0, kl_coef=0.3, entropy_coef=0.2)
TEMPERATURE = 0.7

GRAPH, PARAMS = nnx.split(small_model())
REF_PARAMS = nnx.state(small_model(seed=1))


def with_gradients(loss, logprobs):
    """Metrics and gradients of a batch, with the reference's log-probs taken on the way."""

    @jax.jit
    def f(batch):
        ref_logprobs = logprobs(nnx.merge(GRAPH, REF_PARAMS), batch, TEMPERATURE, chunk=32)

        def of_params(params):
            return loss(nnx.merge(GRAPH, params), batch, EVERYTHING, TEMPERATURE, chunk=32, ref_logprobs=ref_logprobs)

        (_, metrics), gradients = jax.value_and_grad(of_params, has_aux=True)(PARAMS)
        return metrics, gradients

    return f


tree_gradients = with_gradients(tree_loss, pack_logprobs)
flat_gradients = with_gradients(flat_loss, flat_logprobs)


def advantages_of(batch_of_trees):
    return [group_advantages([t.reward for t in tree.trajectories()]) for tree in batch_of_trees]


def total(parts):
    """Metrics and gradients of micro-batches added up, the gradients over the denominator of the whole."""
    metrics = functools.reduce(lambda a, b: {k: a[k] + b[k] for k in a}, [metrics for metrics, _ in parts])
    gradients = jax.tree.map(lambda *x: sum(x) / metrics["loss"].denominator, *[gradients for _, gradients in parts])
    return {name: float(metric.value) for name, metric in metrics.items()}, gradients


def on_leaves(group, reduction):
    batch = flat_batch(group, advantages_of(group), reduction=reduction, rows=36, length=LENGTH)
    return total([flat_gradients(batch)])


def on_trees(group, reduction, **options):
    packs = pack_trees(group, advantages_of(group), reduction=reduction, buckets=BUCKETS, **options).packs
    return total([tree_gradients(pack) for pack in packs])


def assert_same(found, expected, terms=1):
    """terms: how many tokens' terms of size one the loss adds up without averaging them."""
    (found_metrics, found_gradients), (metrics, gradients) = found, expected
    # Float32 sums in another order: relative to the value, or to its terms where they cancel.
    assert found_metrics == pytest.approx(metrics, rel=2e-6, abs=1e-6 * terms)
    largest = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(gradients))
    for a, b in zip(jax.tree.leaves(found_gradients), jax.tree.leaves(gradients), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * largest)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(group=st.lists(trees(), min_size=1, max_size=3).filter(lambda group: any(t.trajectories() for t in group)))
def test_complaint_25_tree_equals_flat(reduction, group):
    longest = max(sum(t.mask) for tree in group for t in tree.trajectories())
    terms = longest if reduction == "seq_mean_token_sum" else 1
    expected = on_leaves(group, reduction)
    assert_same(on_trees(group, reduction), expected, terms)
    assert_same(on_trees(group[::-1], reduction), expected, terms)


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
    assert len(pack_trees(group, advantages_of(group), reduction=reduction, buckets=BUCKETS).packs) == 1
    for order in (group, group[::-1], [group[i] for i in (2, 0, 3, 1)]):
        assert_same(on_trees(order, reduction), expected)
    parts = [pack_trees([t], advantages_of([t]), reduction=reduction, buckets=BUCKETS).packs[0] for t in group]
    assert_same(total([tree_gradients(pack) for pack in parts]), expected)


def test_written_out_in_the_same_layout_equals_shared():
    group = [forked(), lonely()]
    assert_same(on_trees(group, "token_mean", share_prefixes=False), on_trees(group, "token_mean"))


def test_complaint_11_padding_does_not_matter_even_where_content_has_its_id():
    content = tree([4, 5], leaf((0,), turn([0, 7, 0], [], [-4.0, -3.9, -4.2]), reward=1.0))
    wide = flat_batch([content], [[1.0]], reduction="seq_mean_token_mean", rows=36, length=LENGTH)
    snug = flat_batch([content], [[1.0]], reduction="seq_mean_token_mean")
    assert snug.tokens.tolist() == [[4, 5, 0, 7, 0]]
    assert_same(total([flat_gradients(wide)]), total([flat_gradients(snug)]))
    assert_same(on_trees([content], "seq_mean_token_mean"), on_leaves([content], "seq_mean_token_mean"))


def plain_logprobs(model, tokens, temperature):
    """log softmax [B, T - 1, V] of the next token, at every place of rows of tokens."""
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    logits = model.logits(model(tokens, positions, CausalRows(positions)))
    return jax.nn.log_softmax(logits[:, :-1] / temperature)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
def test_complaints_27_and_31_the_ratio_of_the_first_update_is_1(temperature):
    """Trees whose log-probs are those of a plain softmax over each trajectory, at the sampling temperature."""
    group = [forked(), lonely()]
    batch = flat_batch(group, advantages_of(group), reduction="token_mean")

    @jax.jit
    def old_logprobs(batch):
        every = plain_logprobs(nnx.merge(GRAPH, PARAMS), batch.tokens, temperature)
        return jnp.pad(jnp.take_along_axis(every, batch.tokens[:, 1:, None], axis=2)[..., 0], ((0, 0), (1, 0)))

    @functools.partial(jax.jit, static_argnames="temperature")
    def deviations(batch, pack, temperature):
        model, objective = nnx.merge(GRAPH, PARAMS), Objective(kl_coef=0.0)
        found = flat_loss(model, batch, objective, temperature), tree_loss(model, pack, objective, temperature)
        return [metrics["ratio_max_deviation"].value for _, metrics in found]

    old = np.asarray(old_logprobs(batch))
    sampled = {
        (t.ids[:at], t.ids[at]): float(old[row, at])
        for row, t in enumerate(t for tree in group for t in tree.trajectories())
        for at in np.flatnonzero(t.mask)
    }
    fresh = [with_logprobs(t, sampled) for t in group]
    rows = flat_batch(fresh, advantages_of(fresh), reduction="token_mean")
    (pack,) = pack_trees(fresh, advantages_of(fresh), reduction="token_mean", buckets=BUCKETS).packs
    # A float32 log-prob of size ten is good to 1e-6; two layers of sums in another order add some.
    assert max(deviations(rows, pack, temperature)) < 3e-5
    assert min(deviations(rows, pack, temperature * 2)) > 0.1


def with_logprobs(t, sampled):
    """The tree with the log-probs of its actions looked up by (ids before, id)."""
    branches = []
    for branch in t.branches:
        ids = [*t.prompt_ids]
        for ancestor in t.lineage(branch.path)[:-1]:
            for turn in ancestor.turns:
                ids += turn.action_ids + turn.observation_ids
        turns = []
        for turn in branch.turns:
            found = []
            for action_id in turn.action_ids:
                found.append(sampled[tuple(ids), action_id])
                ids.append(action_id)
            ids += turn.observation_ids
            turns.append(dataclasses.replace(turn, logprobs=tuple(found)))
        branches.append(dataclasses.replace(branch, turns=tuple(turns)))
    return dataclasses.replace(t, branches=tuple(branches))


def test_complaint_22_a_flat_batch_sends_no_gradient():
    flat = tree([1], leaf((0,), turn([5, 6])), leaf((1,), turn([6])), task="flat")
    (pack,) = pack_trees([flat], advantages_of([flat]), reduction="token_mean", buckets=BUCKETS).packs

    @jax.jit
    def gradients(params):
        return jax.grad(lambda p: tree_loss(nnx.merge(GRAPH, p), pack, Objective(kl_coef=0.0), 1.0)[0])(params)

    assert all(not np.any(x) for x in jax.tree.leaves(gradients(PARAMS)))


def test_complaint_35_entropy_and_kl_cover_sampled_tokens_only():
    # One prompt token, one sampled, two observed, one sampled: two places count.
    t = tree([9], leaf((0,), turn([12], [3, 4], [-4.0]), turn([21], [], [-4.0]), reward=1.0))
    metrics, _ = on_trees([t], "token_mean")

    @jax.jit
    def by_hand(params):
        every = plain_logprobs(nnx.merge(GRAPH, params), jnp.array([[9, 12, 3, 4, 21]]), TEMPERATURE)
        return every[0, jnp.array([0, 3])]

    ours, theirs = np.asarray(by_hand(PARAMS)), np.asarray(by_hand(REF_PARAMS))
    towards = (theirs - ours)[[0, 1], [12, 21]]
    assert metrics["entropy"] == pytest.approx(-(np.exp(ours) * ours).sum(axis=1).mean(), rel=1e-5)
    assert 0 < metrics["entropy"] < math.log(61)
    # Log-probs good to 1e-6 enter through exp.
    assert metrics["kl"] == pytest.approx((np.exp(towards) - towards - 1).mean(), rel=1e-5)


def test_complaint_13_a_broken_state_in_an_unsampled_place_stays_there():
    """Hidden states after token 3 are NaN; it is observed last, so nothing is predicted from it."""
    t = tree([9], leaf((0,), turn([12, 14], [3], [-4.0, -4.1]), reward=1.0))
    batch = flat_batch([t], [[1.0]], reduction="token_mean")

    class Broken:
        """Stands in for a Qwen: hidden states are embeddings, scaled by `scale` after token 3."""

        def __init__(self, table, scale):
            self.table, self.scale = table, scale

        def __call__(self, tokens, positions, attend):
            return self.table[tokens] * jnp.where(tokens == 3, self.scale, 1.0)[..., None]

        def logits(self, hidden):
            return hidden @ self.table.T

    def loss(table, scale):
        return flat_loss(Broken(table, scale), batch, Objective(kl_coef=0.0), 1.0)[0]

    table = jnp.array(np.random.default_rng(0).normal(size=(16, 4)), jnp.float32)
    value, gradient = jax.value_and_grad(loss)(table, jnp.nan)
    expected, expected_gradient = jax.value_and_grad(loss)(table, 1.0)
    assert float(value) == float(expected)
    # Nothing but the embedding of the broken place itself, which NaN * 0 reaches below the loss.
    others = np.arange(16) != 3
    np.testing.assert_array_equal(gradient[others], expected_gradient[others])


def test_imitation_loss_is_the_mean_over_trained_tokens():
    group = [forked(), lonely()]
    packed = pack_trees(group, None, reduction="token_mean", buckets=BUCKETS)
    (pack,) = packed.packs
    loss, metrics = jax.jit(lambda pack: imitation_loss(nnx.merge(GRAPH, PARAMS), pack))(pack)
    batch = flat_batch(group, advantages_of(group), reduction="token_mean")
    logprobs = jax.jit(lambda batch: flat_logprobs(nnx.merge(GRAPH, PARAMS), batch, 1.0))(batch)
    expected = -np.asarray(logprobs)[batch.mask].mean()
    assert float(metrics["loss"].value) == pytest.approx(expected, rel=1e-5)
    assert float(loss) == pytest.approx(expected * packed.denominator, rel=1e-5)
