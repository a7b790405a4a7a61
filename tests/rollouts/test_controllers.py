"""Branching decisions against Algorithm 1, and the sizes of the groups they lead to."""

import asyncio
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from patr.rollouts import ROLLOUTS, Flat, Patr, TreeRandom
from patr.rollouts.base import Limits
from patr.rollouts.engine import Engine
from patr.rollouts.rules import Candidate, repeats
from patr.testing import ScriptedSampler, ScriptedScorer, ToyChat, ToyEnv
from patr.types import Status, Task


def candidates(*scores):
    return [Candidate((i,), ("right", "left"), score) for i, score in enumerate(scores)]


def kinds(decisions):
    return " ".join(decision.kind for decision in decisions)


def test_table_names_the_classes():
    assert {"flat": Flat, "patr": Patr, "tree_random": TreeRandom} == ROLLOUTS


def test_best_two_are_expanded_and_the_far_below_median_pruned():
    decisions = Patr().decide(candidates(0.8, 0.1, 0.9, 0.7), leaves=4)
    assert kinds(decisions) == "expand prune expand survive"
    # median(0.8, 0.1, 0.9, 0.7) = 0.75; minus 0.5
    assert [(d.rank, d.threshold) for d in decisions] == [(1, 2), (3, 0.25), (0, 2), (2, 0.25)]


def test_score_at_the_threshold_survives():
    assert kinds(Patr(top_k=0).decide(candidates(0.75, 0.75, 0.25), leaves=3)) == "survive survive survive"


def test_ties_go_to_the_older_branch():
    assert kinds(Patr().decide(candidates(0.5, 0.5, 0.5, 0.5), leaves=4)) == "expand expand survive survive"


def test_failed_scorer_lets_all_survive():
    decisions = Patr().decide(candidates(None, None), leaves=2)
    assert [(d.kind, d.rule, d.score, d.rank) for d in decisions] == [("survive", "unscored", None, None)] * 2


def test_repeat_rule_applies_without_a_score_but_not_to_an_expanded_branch():
    patr = Patr(repeat_check="checkpoint", repeat_limit=2, top_k=1)
    same = [Candidate((i,), ("wait", "wait"), score) for i, score in enumerate((0.9, 0.8, None))]
    assert kinds(patr.decide(same, leaves=3)) == "expand prune prune"
    assert [d.rule for d in patr.decide(same, leaves=3)] == ["top_k", "repeat", "repeat"]


@settings(deadline=None)
@given(st.lists(st.none() | st.floats(0, 1), min_size=1, max_size=10), st.integers(0, 4), st.floats(0, 1))
def test_decisions_follow_algorithm_1(scores, top_k, margin):
    decisions = Patr(top_k=top_k, prune_margin=margin).decide(candidates(*scores), leaves=len(scores))
    scored = [score for score in scores if score is not None]
    expanded = [d.score for d in decisions if d.kind == "expand"]
    assert sorted(expanded) == sorted(sorted(scored, reverse=True)[:top_k])[: len(expanded)]
    assert len(expanded) == min(top_k, len(scored))
    for decision in decisions:
        low = decision.score is not None and decision.score < statistics.median(scored) - margin
        assert decision.kind == "expand" or (decision.kind == "prune") == low


@settings(deadline=None)
@given(st.integers(4, 12), st.integers(2, 4), st.integers(1, 6), st.integers(4, 20))
def test_max_leaves_is_never_exceeded(active, children, top_k, max_leaves):
    patr = Patr(children=children, top_k=top_k, max_leaves=max_leaves)
    leaves = min(active, max_leaves)
    decisions = patr.decide(candidates(*([0.5] * leaves)), leaves)
    expanded = kinds(decisions).split().count("expand")
    assert leaves + expanded * (children - 1) <= max_leaves
    assert expanded == min(top_k, leaves) or leaves + (expanded + 1) * (children - 1) > max_leaves


def test_repeats():
    assert repeats(["a", "b", "b"], 2)
    assert not repeats(["b", "b", "a"], 2)
    assert not repeats(["b"], 2)
    assert not repeats(["b"] * 9, None)


def engine_for(limits, answer, goal_score, **options):
    chat = ToyChat()
    sampler = ScriptedSampler(answer, chat)
    return Engine(sampler, ToyEnv, chat, ScriptedScorer(goal_score), Limits(**limits), 0, 0, **options)


def walk(controller, max_turns, answer=lambda ids, seed: "RWL"[seed % 3], goal=99, score=lambda history: 0.5):
    limits = dict(max_turns=max_turns, max_turn_tokens=4, max_response_tokens=900, max_context=1000)
    engine = engine_for(limits, answer, score)
    [tree] = asyncio.run(engine.run([Task("walk", {"goal": goal})], controller))
    return tree


@pytest.mark.parametrize(
    ("controller", "max_turns", "leaves"),
    [
        (Patr(score_every=13, repeat_limit=None), 50, 4 + 2 + 2 + 2),  # SWE: checkpoints at turns 13, 26 and 39
        (Patr(repeat_limit=None), 10, 4 + 2),  # FrozenLake: at turn 10 nothing is active any more
        (Patr(score_every=13, repeat_limit=None, max_leaves=7), 50, 7),
        (TreeRandom(score_every=13, repeat_limit=None), 50, 10),
        (TreeRandom(repeat_limit=None), 10, 6),
        (Patr(score_every=10, repeat_limit=None), 10, 4),
        (Flat(group_size=5), 10, 5),
    ],
)
def test_group_sizes(controller, max_turns, leaves):
    tree = walk(controller, max_turns)
    trajectories = tree.trajectories()
    assert len(trajectories) == leaves
    assert {t.turns for t in trajectories} == {max_turns}
    assert len({t.ids[: t.prompt_length] for t in trajectories}) == 1


def test_turns_taken_on_frozen_lake_settings():
    # 4 branches of 5 turns, 6 of the other 5: 50 where a flat group of 8 takes 80 (facts of the paper's settings).
    assert walk(Patr(repeat_limit=None), 10).ledger.environment_steps == 50
    assert walk(Flat(), 10).ledger.environment_steps == 80


@pytest.mark.parametrize(("pruned_reward", "reward"), [("outcome", 0.5), ("zero", 0.0)])
def test_pruned_reward(pruned_reward, reward):
    patr = Patr(initial_branches=1, score_every=9, repeat_limit=2, pruned_reward=pruned_reward)
    tree = walk(patr, 10, answer=lambda ids, seed: "R", goal=4)
    assert [(b.status, b.reward) for b in tree.branches] == [(Status.PRUNED, reward)]


def test_tree_random_never_asks_the_scorer():
    def score(history):
        raise AssertionError("asked for a score")

    assert walk(TreeRandom(), 10, score=score).ledger.scorer_calls == 0


def test_controller_without_scorer_is_told_so():
    chat = ToyChat()
    limits = Limits(max_turns=10, max_turn_tokens=4, max_response_tokens=900, max_context=1000)
    engine = Engine(ScriptedSampler(lambda ids, seed: "R", chat), ToyEnv, chat, None, limits, 0, 0)
    with pytest.raises(ValueError, match="give the engine a scorer"):
        asyncio.run(engine.run([Task("walk", {"goal": 99})], Patr()))


@pytest.mark.parametrize("controller", [Patr, TreeRandom])
@pytest.mark.parametrize(
    ("knob", "value", "allowed"),
    [
        ("initial_branches", 0, "at least 1"),
        ("initial_branches", 2.0, "whole number"),
        ("score_every", 0, "at least 1"),
        ("children", 1, "at least 2"),
        ("top_k", -1, "at least 0"),
        ("top_k", True, "whole number"),
        ("repeat_limit", 1, "at least 2"),
        ("repeat_check", "never", "'turn', 'checkpoint'"),
        ("pruned_reward", "half", "'outcome', 'zero'"),
        ("group", "all", "'keep_all', 'best_n'"),
        ("max_leaves", 3, "at least 4"),
    ],
)
def test_knobs_without_meaning_are_refused(controller, knob, value, allowed):
    with pytest.raises(ValueError, match=rf"{knob}={value!r}.*{allowed}"):
        controller(**{knob: value})


def test_margin_and_group_size_without_meaning_are_refused():
    with pytest.raises(ValueError, match=r"prune_margin=1.5: expected a number in \[0, 1\]"):
        Patr(prune_margin=1.5)
    with pytest.raises(ValueError, match="group_size=0: expected a whole number, at least 1"):
        Flat(group_size=0)


@pytest.mark.parametrize("controller", [Patr(score_every=11), TreeRandom(score_every=11)])
def test_interval_longer_than_an_episode_is_refused_before_anything_starts(controller):
    with pytest.raises(ValueError, match=r"score_every=11 exceeds max_turns=10.*expected 1 to 10"):
        walk(controller, 10)
