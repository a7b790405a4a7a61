"""Whole scripted trees against the committed ones, and against a replay of their own records."""

import dataclasses
import difflib
import json
import random

import pytest
from make_golden import CASES, GOLDEN, as_text

from patr.records import tree_from_json, tree_to_json
from patr.rollouts import Flat, Patr
from patr.rollouts.replay import replay
from patr.types import Status

BRANCHING = [name for name, case in CASES.items() if not isinstance(case.controller, Flat)]


def golden(name):
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


def golden_tree(name):
    return tree_from_json(golden(name))


@pytest.mark.parametrize("name", CASES)
def test_tree_is_the_golden_one(name):
    got = tree_to_json(CASES[name].tree())
    if got != golden(name):
        lines = [as_text(tree).splitlines() for tree in (golden(name), got)]
        pytest.fail("\n".join(difflib.unified_diff(*lines, "golden", "got", lineterm="", n=1)))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("order", range(3))
def test_order_of_answers_changes_nothing(name, order):
    shuffled = CASES[name].tree(passes=lambda seed: random.Random(seed + order).randrange(6))
    assert tree_to_json(shuffled) == golden(name)


@pytest.mark.parametrize("name", BRANCHING)
def test_replay_agrees_with_record(name):
    tree = golden_tree(name)
    assert replay(tree, CASES[name].controller) == tree.decisions


def swap_decision(tree, index, **changes):
    decisions = list(tree.decisions)
    decisions[index] = dataclasses.replace(decisions[index], **changes)
    return dataclasses.replace(tree, decisions=tuple(decisions))


def swap_branch(tree, index, **changes):
    branches = list(tree.branches)
    branches[index] = dataclasses.replace(branches[index], **changes)
    return dataclasses.replace(tree, branches=tuple(branches))


@pytest.mark.parametrize(
    "forged",
    [
        pytest.param(lambda tree: swap_decision(tree, 0, score=0.3), id="another score"),
        pytest.param(lambda tree: swap_decision(tree, 1, kind="prune", rule="margin"), id="survivor said to be pruned"),
        pytest.param(lambda tree: swap_decision(tree, 3, threshold=0.2), id="another threshold"),
        pytest.param(lambda tree: dataclasses.replace(tree, decisions=tree.decisions[:-1]), id="decision missing"),
        pytest.param(lambda tree: swap_branch(tree, 3, status=Status.DONE), id="pruned branch said to be done"),
        pytest.param(lambda tree: swap_branch(tree, 1, status=Status.PRUNED), id="finished branch said to be pruned"),
        pytest.param(lambda tree: dataclasses.replace(tree, branches=tree.branches[:-1]), id="child missing"),
    ],
)
def test_replay_finds_forgery(forged):
    with pytest.raises(ValueError, match=r"replaying gives|last decision"):
        replay(forged(golden_tree("prune_margin")), CASES["prune_margin"].controller)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("prune_margin", Patr(initial_branches=4, score_every=2, top_k=1, prune_margin=0.5)),
        ("prune_margin", Patr(initial_branches=4, score_every=2, top_k=2, prune_margin=0.25)),
        ("prune_margin", Patr(initial_branches=4, score_every=3, top_k=1, prune_margin=0.25)),
        ("repeat_each_turn", Patr(initial_branches=3, top_k=1, repeat_limit=4)),
        ("repeat_each_turn", Patr(initial_branches=3, top_k=1, repeat_limit=3, repeat_check="checkpoint")),
        ("expand_twice", Patr(initial_branches=3, score_every=2, max_leaves=4)),
    ],
)
def test_replay_finds_another_controller(name, other):
    with pytest.raises(ValueError, match=r"replaying gives|last decision"):
        replay(golden_tree(name), other)


def test_group_leaves_errors_out_and_best_n_pruned_too():
    assert [t.path for t in golden_tree("environment_error").trajectories()] == [(2,), (0, 0), (0, 1)]
    kept = golden_tree("prune_margin")
    best = dataclasses.replace(kept, group="best_n")
    assert {t.path for t in kept.trajectories()} - {t.path for t in best.trajectories()} == {(3,)}


@pytest.mark.parametrize("name", CASES)
def test_no_trajectory_ends_in_an_observation(name):
    tree = golden_tree(name)
    for trajectory in tree.trajectories():
        assert trajectory.mask[-1] == 1
        sampled = sum(len(turn.action_ids) for turn in tree.lineage_turns(trajectory.path))
        assert sum(trajectory.mask) == sampled > 0
