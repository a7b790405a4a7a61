"""Training on trees is training on their leaves: the same loss, metrics and gradients."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_models import small_model
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
BUCKETS = Buckets(row_length=4, sizes=(Size(66, 264, 168),))  # holds any of its trees; two or three small ones too
EVERYTHING = Objective(clip_low=0.2, clip_high=0.28, dual_clip=2.0, kl_coef=0.3, entropy_coef=0.2)
TEMPERATURE = 0.7

# These programs are small and run a few times: half the time to compile counts for more than how fast they run.
jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})

GRAPH, PARAMS = nnx.split(small_model())
# Near the policy, as a reference is: far from it the terms of KL are large, cancel, and leave the rounding of float32.
REF_PARAMS = jax.tree.map(lambda x, y: 0.8 * x + 0.2 * y, PARAMS, nnx.state(small_model(seed=1)))


def with_gradients(loss, logprobs):
    """Metrics and gradients of a batch, with the reference's log-probs taken on the way."""

    @jit
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


def assert_same(found, expected, tokens=1):
    """tokens: how many tokens' terms the loss adds up without averaging them."""
    (found_metrics, found_gradients), (metrics, gradients) = found, expected
    # To 1e-6 of the terms a loss adds up, which may cancel; a float32 log-prob of size ten is no better.
    terms = tokens * (metrics["ratio"] + metrics["kl"] + metrics["entropy"])
    assert found_metrics == pytest.approx(metrics, rel=2e-6, abs=1e-6 * max(1, terms))
    largest = max(float(jnp.abs(x).max()) for x in jax.tree.leaves(gradients))
    for a, b in zip(jax.tree.leaves(found_gradients), jax.tree.leaves(gradients), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * largest)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(group=st.lists(trees(), min_size=1, max_size=3).filter(lambda group: any(t.trajectories() for t in group)))
def test_tree_equals_flat(reduction, group):
    longest = max(sum(t.mask) for tree in group for t in tree.trajectories())
    tokens = longest if reduction == "seq_mean_token_sum" else 1
    expected = on_leaves(group, reduction)
    assert_same(on_trees(group, reduction), expected, tokens)
    assert_same(on_trees(group[::-1], reduction), expected, tokens)


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
def test_order_and_split_of_micro_batches_do_not_matter(reduction):
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


@jit
def plain_logits(params, tokens):
    """Next-token logits [B, T - 1, V] at every place of rows of tokens but the last."""
    model, positions = nnx.merge(GRAPH, params), jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    return model.logits(model(tokens, positions, CausalRows(positions)))[:, :-1]


def log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def test_and_35_sampled_tokens_count_whatever_their_id_and_no_others_do():
    """By hand, on rows without padding; the batches are padded with 0, which is sampled and observed here too."""
    t = tree(
        [9],
        leaf((0,), turn([0], [3, 4], [-4.0]), turn([21], [], [-4.2])),
        leaf((1,), turn([12, 0], [0], [-3.9, -4.4]), turn([7], [], [-3.8])),
    )
    rows, sampled = np.array([[9, 0, 3, 4, 21], [9, 12, 0, 0, 7]]), np.array([[1, 0, 0, 1], [1, 1, 0, 1]], bool)
    places, targets = np.nonzero(sampled), rows[:, 1:][sampled]
    ours, theirs = (log_softmax(np.asarray(plain_logits(p, rows)) / TEMPERATURE)[places] for p in (PARAMS, REF_PARAMS))
    one_each = np.arange(5), targets
    entropy = -(np.exp(ours) * ours).sum(axis=1)
    kl = np.exp((theirs - ours)[one_each]) - (theirs - ours)[one_each] - 1
    ratio = np.exp(ours[one_each] - [-4.0, -4.2, -3.9, -4.4, -3.8])
    assert 0 < entropy.mean() < math.log(61)
    expected = {
        "loss": EVERYTHING.kl_coef * kl.mean() - EVERYTHING.entropy_coef * entropy.mean(),
        "policy_loss": 0.0,
        "kl": kl.mean(),
        "entropy": entropy.mean(),
        "ratio": ratio.mean(),
        "ratio_max_deviation": np.abs(ratio - 1).max(),
        "approx_kl": (ratio - 1 - np.log(ratio)).mean(),
        "clip_low": 0.0,
        "clip_high": 0.0,
    }
    for metrics, _ in (on_leaves([t], "token_mean"), on_trees([t], "token_mean")):
        # Log-probs good to 1e-6 enter through exp; the loss is a difference of terms near 1.
        assert metrics == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
def test_and_31_the_ratio_of_the_first_update_is_1(temperature):
    """Leaves of several lengths, with the log-probs of a plain softmax at the temperature they were sampled at."""
    group = [forked(), lonely()]
    rows = flat_batch(group, advantages_of(group), reduction="token_mean")
    logprobs = log_softmax(np.asarray(plain_logits(PARAMS, rows.tokens)) / temperature)
    old = {}  # (ids before, id) -> log-prob
    for row, t in enumerate(t for rolled_out in group for t in rolled_out.trajectories()):
        old |= {(t.ids[:at], t.ids[at]): float(logprobs[row, at - 1, t.ids[at]]) for at in np.flatnonzero(t.mask)}
    fresh = [with_logprobs(t, old) for t in group]
    (pack,) = pack_trees(fresh, advantages_of(fresh), reduction="token_mean", buckets=BUCKETS).packs

    @jit
    def deviation(pack):
        _, metrics = tree_loss(nnx.merge(GRAPH, PARAMS), pack, Objective(kl_coef=0.0), temperature)
        return metrics["ratio_max_deviation"].value

    # A float32 log-prob of size ten is good to 1e-6; two layers of sums in another order add some.
    assert deviation(pack) < 3e-5


def with_logprobs(t, old):
    """The tree with the log-probs of its actions looked up by (ids before, id)."""
    branches, ids_at = [], {(): t.prompt_ids}
    for branch in t.branches:
        ids, turns = ids_at[branch.path[:-1]], []
        for was in branch.turns:
            actions = was.action_ids
            found = tuple(old[ids + actions[:i], actions[i]] for i in range(len(actions)))
            turns.append(dataclasses.replace(was, logprobs=found))
            ids += actions + was.observation_ids
        branches.append(dataclasses.replace(branch, turns=tuple(turns)))
        ids_at[branch.path] = ids
    return dataclasses.replace(t, branches=tuple(branches))


def test_a_broken_state_in_an_unsampled_place_stays_there():
    """Hidden states after token 3 are NaN; it is observed last, so nothing is predicted from it."""
    t = tree([9], leaf((0,), turn([12, 14], [3], [-4.0, -4.1]), reward=1.0))
    batch = flat_batch([t], [[1.0]], reduction="token_mean")

    class Broken:
        """Stands in for a Qwen: hidden states are embeddings, scaled by `scale` after token 3."""

        def __init__(self, table, scale):
            self.table, self.scale = table, scale

        def __call__(self, tokens, positions, attend, training):
            return self.table[tokens] * jnp.where(tokens == 3, self.scale, 1.0)[..., None]

        def logits(self, hidden):
            return hidden @ self.table.T

    @jit
    @jax.value_and_grad
    def step(table, scale):
        return flat_loss(Broken(table, scale), batch, Objective(kl_coef=0.0), 1.0, chunk=8)[0]

    table = jnp.array(np.random.default_rng(0).normal(size=(16, 4)), jnp.float32)
    value, gradient = step(table, jnp.nan)
    expected, expected_gradient = step(table, 1.0)
    assert float(value) == float(expected)
    # Nothing but the embedding of the broken place itself, which NaN * 0 reaches below the loss.
    others = np.arange(16) != 3
    np.testing.assert_array_equal(gradient[others], expected_gradient[others])


def test_imitation_loss_is_the_mean_over_trained_tokens():
    group = [forked(), lonely()]
    packed = pack_trees(group, None, reduction="token_mean", buckets=BUCKETS)
    (pack,) = packed.packs
    loss, metrics = jit(lambda pack: imitation_loss(nnx.merge(GRAPH, PARAMS), pack))(pack)
    rows = flat_batch(group, advantages_of(group), reduction="token_mean")
    logprobs = log_softmax(np.asarray(plain_logits(PARAMS, rows.tokens)))
    logprobs = np.take_along_axis(logprobs, rows.tokens[:, 1:, None], axis=2)[..., 0]
    expected = -logprobs[rows.mask[:, 1:]].mean()
    assert float(metrics["loss"].value) == pytest.approx(expected, rel=1e-5)
    assert float(loss) == pytest.approx(expected * packed.denominator, rel=1e-5)
