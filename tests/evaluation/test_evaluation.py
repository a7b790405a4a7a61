"""Evaluation numbers against closed forms."""

import numpy as np
import pytest

from patr.evaluation.evaluate import report
from patr.evaluation.pass_at_k import bootstrap_interval, pass_at_k
from patr.types import Branch, Status, Task, Tree, Turn


def test_pass_at_k_is_the_chance_of_a_success_in_a_draw():
    assert pass_at_k(1, 4, 1) == pytest.approx(0.25)
    assert pass_at_k(2, 4, 2) == pytest.approx(1 - 1 / 6)
    assert pass_at_k(0, 4, 4) == 0.0 and pass_at_k(1, 4, 4) == 1.0
    with pytest.raises(ValueError, match="pass@5"):
        pass_at_k(1, 4, 5)


def test_interval_of_a_mean():
    values = np.r_[np.ones(50), np.zeros(50)]
    low, high = bootstrap_interval(values)
    # Normal approximation: 0.5 -+ 1.96 * 0.5 / sqrt(100); a percentile of 2,000 draws is good to 0.01.
    assert low == pytest.approx(0.402, abs=0.02) and high == pytest.approx(0.598, abs=0.02)
    assert bootstrap_interval([1.0] * 7) == (1.0, 1.0)


def tree(name, size, outcomes):
    def branch(i, outcome):
        turns = tuple(Turn((5, 6), (-1.0, -1.0), (7, 8, 9), "up", 0.0, "stop", weight_version=14) for _ in range(i + 1))
        if outcome is None:
            return Branch((i,), turns, Status.ERROR, None, "broken")
        return Branch((i,), turns, Status.DONE, outcome)

    return Tree(Task(name, {"size": size}), (1, 2), tuple(branch(i, o) for i, o in enumerate(outcomes)))


def test_report_counts_errors_apart_and_groups_by_size():
    found = report([tree("a", 2, (1.0, 0.0)), tree("b", 3, (None, 1.0)), tree("c", 3, (0.0, 0.0))], 2, 0.7)
    assert found.step == 14
    assert found.success_rate == pytest.approx((0.5 + 1.0 + 0.0) / 3)
    assert found.pass_at_4 == pytest.approx((1 + 1 + 0) / 3)
    assert (found.tasks, found.errors, found.temperature) == (3, 1, 0.7)
    assert found.by_size == {
        "2": {"tasks": 1, "success_rate": 0.5},
        "3": {"tasks": 2, "success_rate": 0.5},
    }
    assert found.turns == pytest.approx((1 + 2 + 2 + 1 + 2) / 5)
    assert found.response_length == pytest.approx(5 * (1 + 2 + 2 + 1 + 2) / 5)


def test_nothing_but_errors_is_an_error():
    with pytest.raises(ValueError, match="no evaluation rollout"):
        report([tree("a", 2, (None,))], 1, 1.0)
