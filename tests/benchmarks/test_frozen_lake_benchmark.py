"""The benchmark's numbers, from records made by hand."""

import pytest

from patr.benchmarks.frozen_lake import against_rows, given_tokens, interleaved_ratio, tokens_to_reach
from patr.records import append_metrics
from patr.types import Branch, Status, Task, Tree, Turn


def turn(action, observation):
    return Turn(action, (0.0,) * len(action), observation, "right", 0.0, "stop")


def test_given_tokens_count_a_shared_prefix_once():
    parent = Branch((0,), (turn((5, 0), (7, 8, 9)),), Status.EXPANDED)
    children = [Branch((0, child), (turn((5, 0), ()),), Status.DONE, reward=1.0) for child in range(2)]
    assert given_tokens(Tree(Task("t", {}), (1, 2), (parent, *children), method="patr")) == 2 + 3


def test_tokens_to_a_success_rate_lie_between_evaluations_on_a_line():
    rates = [(0, 0.3), (100, 0.5), (200, 0.4), (300, 0.8)]
    assert tokens_to_reach(0.3, rates) == 0
    assert tokens_to_reach(0.4, rates) == pytest.approx(50)
    assert tokens_to_reach(0.5, rates) == 100
    assert tokens_to_reach(0.7, rates) == pytest.approx(275)
    with pytest.raises(ValueError, match=r"0\.9 is never reached; the highest is 0\.8"):
        tokens_to_reach(0.9, rates)


def test_runs_are_compared_at_the_best_rate_both_reach(tmp_path):
    for name, rates in {"patr": [(0, 0.3), (100, 0.7)], "grpo": [(0, 0.3), (500, 0.5)]}.items():
        (tmp_path / name).mkdir()
        for step, (tokens, rate) in enumerate(rates):
            metrics = {"total_sampled_tokens": tokens * 1000, "eval/success_rate": rate}
            append_metrics(tmp_path / name / "metrics.jsonl", step, metrics)
    [(measured, value)] = against_rows(tmp_path / "patr", tmp_path / "grpo")
    assert (measured, value) == ("sampled tokens to 50.0%, patr / grpo", "50k / 500k = 0.10")


def test_a_ratio_of_times_is_taken_in_rounds():
    ran = []
    interleaved_ratio(lambda: ran.append("a"), lambda: ran.append("b"), rounds=2)
    assert ran == ["a", "b"] * 3  # the first round compiles
