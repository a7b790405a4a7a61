"""The benchmark's numbers, from records made by hand."""

import pytest
from run_configs import smoke

from patr.benchmarks.frozen_lake import (
    against_rows,
    given_tokens,
    interleaved_ratio,
    main,
    tokens_to_reach,
    update_rows,
)
from patr.records import append_metrics, append_trees
from patr.training.workdirs import claimed
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


def evaluated(workdir, *rates):
    """A workdir that holds nothing but evaluations: (thousands of sampled tokens, success rate)."""
    workdir.mkdir()
    for step, (tokens, rate) in enumerate(rates):
        metrics = {"total_sampled_tokens": tokens * 1000, "eval/success_rate": rate}
        append_metrics(workdir / "metrics.jsonl", step, metrics)
    return workdir


def test_runs_are_compared_at_the_best_rate_both_reach(tmp_path):
    patr = evaluated(tmp_path / "patr", (0, 0.3), (100, 0.7))
    grpo = evaluated(tmp_path / "grpo", (0, 0.3), (500, 0.5))
    assert against_rows(patr, grpo) == [("sampled tokens to 50.0%, patr / grpo", "50k / 500k = 0.10")]


def test_a_run_that_never_beats_its_warm_start_leaves_no_ratio(tmp_path):
    patr = evaluated(tmp_path / "patr", (0, 0.3), (100, 0.5))
    grpo = evaluated(tmp_path / "grpo", (0, 0.3), (500, 0.2))
    head_start = evaluated(tmp_path / "head_start", (0, 0.4), (500, 0.8))
    assert against_rows(patr, grpo) == [
        ("sampled tokens to 30.0%, patr / grpo", "0k / 0k (no ratio: reached before training)")
    ]
    assert against_rows(evaluated(tmp_path / "late", (0, 0.2), (100, 0.4)), head_start) == [
        ("sampled tokens to 40.0%, late / head_start", "100k / 0k (no ratio: reached before training)")
    ]


def test_what_is_not_a_finished_run_ends_in_one_line(tmp_path, monkeypatch):
    unfinished = evaluated(tmp_path / "unfinished", (0, 0.3))
    unevaluated = tmp_path / "unevaluated"
    unevaluated.mkdir()
    append_metrics(unevaluated / "metrics.jsonl", 1, {"loss": 0.5})
    for workdir, message in (
        (tmp_path / "nowhere", "nowhere/metrics.jsonl'; the benchmark reads the workdir of a finished run"),
        (unfinished, "unfinished/summary.json'; the benchmark reads the workdir of a finished run"),
        (unevaluated, "unevaluated/metrics.jsonl holds no evaluation$"),
    ):
        monkeypatch.setattr("sys.argv", ["frozen_lake", str(workdir)])
        with pytest.raises(SystemExit, match=f"^error: .*{message}"):
            main()


def rolled_out(directory, rewards, **overrides):
    """A workdir as a run of one step leaves it, with a tree whose branches fork after a prompt of 2 and a turn of 5."""
    with claimed(directory, smoke(**overrides)):
        parent = Branch((0,), (turn((5, 6), (7, 8, 9)),), Status.EXPANDED)
        children = [Branch((0, i), (turn((5, 6 + i), ()),), Status.DONE, reward=r) for i, r in enumerate(rewards)]
        append_trees(directory / "trees.jsonl", [Tree(Task("t", {}), (1, 2), (parent, *children), step=1)])
    return directory


@pytest.mark.parametrize(("kl_coef", "rewards"), [(0.1, (0.0, 0.0)), (0.0, (1.0, 0.0))])
def test_updates_are_timed_with_the_run_s_own_loss(tmp_path, kl_coef, rewards):
    """A KL term needs its reference, and is the one that learns from equal rewards."""
    (_, tokens), (_, times) = update_rows(rolled_out(tmp_path, rewards, **{"objective.kl_coef": kl_coef}), rounds=1)
    assert tokens == "11 / 18 = 0.61"  # 2 + 5 + 2 * 2 against 2 * (2 + 5 + 2)
    assert float(times.split()[0]) > 0


def test_a_last_step_without_an_update_says_so(tmp_path):
    [(measured, value)] = update_rows(rolled_out(tmp_path, (1.0, 1.0), **{"objective.entropy_coef": 0.0}))
    assert (measured, value) == ("update of step 1", "none: within each group all rewards are the same")


def test_a_ratio_of_times_is_taken_in_rounds():
    ran = []
    interleaved_ratio(lambda: ran.append("a"), lambda: ran.append("b"), rounds=2)
    assert ran == ["a", "b"] * 3  # the first round compiles
