"""Packs against a tree laid out by hand, and what no layout may lose."""

import collections
import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from tree_cases import fork, leaf, tree, trees, turn

from patr.batching.buckets import Buckets, Size
from patr.batching.tree import pack_trees, trajectory_size
from patr.models.attention import NOWHERE
from patr.objectives.advantages import group_advantages
from patr.objectives.reductions import REDUCTIONS
from patr.types import Status

WIDE = Buckets(row_length=4, sizes=(Size(64, 256, 160),))

# The tree of the module's docstring, and a failed child that must leave no trace. Mask of `a b c d e`: 1 1 0 1 0.
DRAWN = tree(
    [1, 2],
    fork((0,), turn([11, 12], [13], [-0.1, -0.2]), turn([14], [15], [-0.3])),
    leaf((0, 0), turn([21, 22], logprobs=[-0.4, -0.5]), reward=1.0),
    leaf((0, 1), turn([23], logprobs=[-0.6])),
    leaf((0, 2), turn([24, 25, 26]), status=Status.ERROR),
)


def advantages_of(batch_of_trees):
    return [group_advantages([t.reward for t in tree.trajectories()]) for tree in batch_of_trees]


def test_layout_of_a_drawn_tree():
    buckets = Buckets(row_length=4, sizes=(Size(6, 6, 8),))
    batch = pack_trees([DRAWN], [[3.0, -2.0]], reduction="seq_mean_token_sum", buckets=buckets)
    (pack,) = batch.packs
    X = NOWHERE
    assert pack.tokens.tolist() == [
        [1, 2, 0, 0], [11, 12, 13, 14], [15, 0, 0, 0], [21, 22, 0, 0], [23, 0, 0, 0], [0, 0, 0, 0],
    ]  # fmt: skip
    assert pack.positions.tolist() == [
        [0, 1, X, X], [2, 3, 4, 5], [6, X, X, X], [7, 8, X, X], [7, X, X, X], [X, X, X, X],
    ]  # fmt: skip
    assert pack.tile_query.tolist() == [0, 1, 2, 3, 4, 6]
    assert pack.tile_keys.tolist() == [
        [0, 6, 6, 6], [0, 1, 6, 6], [0, 1, 2, 6], [0, 1, 2, 3], [0, 1, 2, 4], [6, 6, 6, 6],
    ]  # fmt: skip
    # a, b, d of the branch; x and z both from e; y from x; then padding.
    assert pack.source.tolist() == [1, 4, 6, 8, 12, 8, 0, 0]
    assert pack.target.tolist() == [11, 12, 14, 21, 22, 23, 0, 0]
    np.testing.assert_array_equal(pack.old_logprobs, np.float32([-0.1, -0.2, -0.3, -0.4, -0.5, -0.6, 0, 0]))
    assert {name: value.tolist() for name, value in dataclasses.asdict(pack.weights).items()} == {
        "positive": [1.5, 1.5, 1.5, 1.5, 1.5, 0, 0, 0],
        "negative": [-1, -1, -1, 0, 0, -1, 0, 0],
        "share": [1, 1, 1, 0.5, 0.5, 0.5, 0, 0],
        "count": [2, 2, 2, 1, 1, 1, 0, 0],
        "positive_count": [1, 1, 1, 1, 1, 0, 0, 0],
        "negative_count": [1, 1, 1, 0, 0, 1, 0, 0],
    }
    assert (batch.denominator, batch.groups, batch.zero_variance_groups, batch.skipped_groups) == (1, 1, 0, 0)
    assert (batch.unique_tokens, batch.flat_tokens, batch.padding_tokens) == (10, 17, 14)


def test_layout_of_the_same_tree_written_out():
    buckets = Buckets(row_length=4, sizes=(Size(5, 5, 9),))
    batch = pack_trees([DRAWN], [[3.0, -2.0]], reduction="seq_mean_token_sum", buckets=buckets, share_prefixes=False)
    (pack,) = batch.packs
    assert pack.tokens.tolist() == [
        [1, 2, 11, 12], [13, 14, 15, 21], [22, 0, 0, 0], [1, 2, 11, 12], [13, 14, 15, 23],
    ]  # fmt: skip
    assert pack.tile_keys.tolist() == [[0, 5, 5, 5], [0, 1, 5, 5], [0, 1, 2, 5], [3, 5, 5, 5], [3, 4, 5, 5]]
    assert pack.source.tolist() == [1, 2, 4, 6, 7, 13, 14, 16, 18]
    assert pack.target.tolist() == [11, 12, 14, 21, 22, 11, 12, 14, 23]
    assert pack.weights.positive.tolist() == [1.5] * 5 + [0] * 4
    assert pack.weights.count.tolist() == [1] * 9
    assert (batch.unique_tokens, batch.flat_tokens, batch.padding_tokens) == (17, 17, 3)


def entries(pack):
    """(ids from the root to the target, old log-prob) -> leaves that hold it, read through the pack's own indices."""
    T, tokens = pack.tokens.shape[1], pack.tokens.reshape(-1)
    positions = pack.positions.reshape(-1)
    found = collections.Counter()
    for source, target, logprob, count in zip(
        pack.source, pack.target, pack.old_logprobs, pack.weights.count, strict=True
    ):
        rows = pack.tile_keys[pack.tile_query == source // T].reshape(-1)
        seen = (rows[rows < len(pack.tokens), None] * T + np.arange(T)).reshape(-1)
        root_path = seen[positions[seen] <= positions[source]]
        if count:
            assert root_path[-1] == source
            assert positions[root_path].tolist() == list(range(len(root_path)))
            found[(*tokens[root_path].tolist(), int(target)), float(logprob)] += int(count)
    return found


@settings(max_examples=50, deadline=None)
@given(trees())
def test_every_sampled_token_is_trained_once_a_leaf_and_no_other(t):
    expected = collections.Counter(
        (trajectory.ids[: at + 1], float(np.float32(trajectory.logprobs[at])))
        for trajectory in t.trajectories()
        for at in np.flatnonzero(trajectory.mask)
    )
    for share_prefixes in (True, False):
        batch = pack_trees([t], advantages_of([t]), reduction="token_mean", buckets=WIDE, share_prefixes=share_prefixes)
        assert sum((entries(pack) for pack in batch.packs), start=collections.Counter()) == expected
        assert batch.denominator == sum(expected.values())
        assert batch.flat_tokens == sum(len(trajectory.ids) for trajectory in t.trajectories())


def test_equal_samples_of_two_children_stay_two_entries():
    twins = tree([1], fork((0,), turn([2])), leaf((0, 0), turn([7]), reward=1.0), leaf((0, 1), turn([7])))
    (pack,) = pack_trees([twins], [[1.0, -1.0]], reduction="token_mean", buckets=WIDE).packs
    assert pack.source[:3].tolist() == [0, 4, 4] and pack.target[:3].tolist() == [2, 7, 7]
    assert pack.weights.positive[:3].tolist() == [1, 1, 0]


def test_the_sampled_end_of_turn_is_trained_and_none_is_invented():
    END = 60
    stopped = leaf((0,), turn([5, END], [40]), turn([6, END]), reward=1.0)
    cut = leaf((1,), dataclasses.replace(turn([7, 8]), finish_reason="length"))
    (pack,) = pack_trees([tree([1], stopped, cut)], [[1.0, -1.0]], reduction="token_mean", buckets=WIDE).packs
    assert pack.target[pack.weights.count > 0].tolist() == [5, END, 6, END, 7, 8]


def test_failed_and_excluded_leaves_leave_no_trace():
    kept = [leaf((0,), turn([5]), reward=1.0), leaf((1,), turn([6, 7]))]
    dropped = [leaf((2,), turn([8]), status=Status.PRUNED), leaf((3,), turn([9]), status=Status.ERROR)]
    with_dropped, without = tree([1, 2], *kept, *dropped, group="best_n"), tree([1, 2], *kept)
    packs = [
        pack_trees([t], advantages_of([t]), reduction="seq_mean_token_mean", buckets=WIDE).packs[0]
        for t in (with_dropped, without)
    ]
    for a, b in zip(*(dataclasses.asdict(pack).values() for pack in packs), strict=True):
        np.testing.assert_equal(a, b)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_zero_variance_groups_are_counted_and_may_be_skipped(reduction):
    mixed = tree([1], leaf((0,), turn([5]), reward=1.0), leaf((1,), turn([6])), task="mixed")
    even = tree([1], leaf((0,), turn([5, 6])), leaf((1,), turn([6])), task="even")
    failed = tree([1], leaf((0,), turn([5]), status=Status.ERROR), task="failed")
    group = [even, mixed, failed]
    settings = dict(reduction=reduction, buckets=WIDE)
    kept, skipped = (
        pack_trees(group, advantages_of(group), **settings, skip_zero_variance=skip) for skip in (False, True)
    )
    assert (kept.groups, kept.zero_variance_groups, kept.skipped_groups) == (2, 1, 0)
    assert (skipped.groups, skipped.zero_variance_groups, skipped.skipped_groups) == (2, 1, 1)
    assert kept.denominator == skipped.denominator == {"token_mean": 5}.get(reduction, 2)
    for batch in (kept, skipped):
        assert sum(float(pack.denominator) for pack in batch.packs) == batch.denominator
    assert skipped.unique_tokens == 3 and kept.unique_tokens == 7
    nothing = pack_trees([even], advantages_of([even]), **settings, skip_zero_variance=True)
    assert nothing.packs == () and nothing.denominator > 0


def test_groups_of_one_leaf():
    lonely = tree([1], leaf((0,), turn([5]), reward=1.0), leaf((1,), turn([6]), status=Status.PRUNED), group="best_n")
    batch = pack_trees([lonely], advantages_of([lonely]), reduction="seq_mean_token_mean", buckets=WIDE)
    weights = batch.packs[0].weights
    assert (batch.groups, batch.zero_variance_groups) == (1, 1)
    assert weights.positive.sum() == weights.negative.sum() == 0 and weights.share.sum() == 1


@pytest.mark.parametrize("length", [3, 4, 17, 40])
def test_a_lone_trajectory_needs_its_size_and_no_less(length):
    lonely = tree([1], leaf((0,), turn(range(length - 1))))
    needed = trajectory_size(length, length - 1, row_length=4)

    def pack(size):
        buckets = Buckets(4, (size,))
        return pack_trees([lonely], None, reduction="token_mean", buckets=buckets, share_prefixes=False)

    assert pack(needed).unique_tokens == length
    for name in ("rows", "tiles", "trained"):
        with pytest.raises(ValueError, match=r"needs|at least one size"):
            pack(dataclasses.replace(needed, **{name: getattr(needed, name) - 1}))


def test_trees_are_never_split_and_the_largest_come_first():
    def chain(task, tokens):
        return tree([1], leaf((0,), turn([2] * tokens)), task=task)

    small, large = Size(3, 3, 16), Size(5, 5, 16)
    batch = pack_trees(
        [chain("a", 3), chain("b", 7), chain("c", 12)],  # 2, 3 and 4 rows, the prompt's included
        None,
        reduction="token_mean",
        buckets=Buckets(4, (small, large)),
    )
    assert [pack.tokens.shape for pack in batch.packs] == [(5, 4), (3, 4), (3, 4)]
    assert [int(pack.denominator) for pack in batch.packs] == [12, 7, 3]
    with pytest.raises(ValueError, match=r"task long needs Size\(rows=6, tiles=8, trained=17\) in rows of 4 tokens"):
        pack_trees([chain("long", 17)], None, reduction="token_mean", buckets=Buckets(4, (small, large)))


@pytest.mark.parametrize("advantages", [[1.0], [1.0, 2.0, 3.0], [1.0, float("nan")]])
def test_advantages_that_do_not_match_the_leaves_are_refused(advantages):
    with pytest.raises(ValueError, match="task t: its 2 leaves need one finite advantage each"):
        pack_trees([DRAWN], [advantages], reduction="token_mean", buckets=WIDE)
