"""Every task once a pass, in an order that follows from the seed; prompts too long are found before the run."""

import pytest

from patr.rollouts.base import Limits
from patr.testing import ToyChat, ToyEnv
from patr.training.tasks import draw_tasks, find_overlong
from patr.types import Task

TASKS = [Task(f"t{i}", {"goal": 10**i}) for i in range(7)]
LIMITS = Limits(max_turns=4, max_turn_tokens=2, max_response_tokens=100, max_context=10)


def test_a_pass_holds_every_task_once_and_the_next_has_another_order():
    drawn = [task.id for step in range(14) for task in draw_tasks(TASKS, 0, step, 1)]
    assert sorted(drawn[:7]) == sorted(drawn[7:]) == [task.id for task in TASKS]
    assert drawn[:7] != drawn[7:]


def test_no_step_draws_a_task_twice():
    assert all(len({task.id for task in draw_tasks(TASKS, 0, step, 3)}) == 3 for step in range(50))


def test_a_step_draws_the_same_whichever_steps_came_before():
    assert draw_tasks(TASKS, 0, 5, 3) == draw_tasks(TASKS, 0, 5, 3) != draw_tasks(TASKS, 1, 5, 3)


def longest(overlong, tasks=TASKS):
    return find_overlong(tasks, ToyEnv, ToyChat(), LIMITS, overlong)


def test_what_fits_is_left_alone():
    # "to 1000:" is eight tokens, and two more are a turn.
    assert longest("error", TASKS[:4]) == frozenset()


def test_overlong_tasks_are_refused_by_name():
    with pytest.raises(ValueError, match=r"3 of 7 tasks .* more than 8 tokens: t4 \(9 tokens\), t5 .*overlong='skip'"):
        longest("error")


def test_or_skipped_with_a_warning(caplog):
    assert longest("skip") == {"t4", "t5", "t6"}
    assert "t4 (9 tokens)" in caplog.text


def test_skipping_must_leave_something():
    with pytest.raises(ValueError, match="2 of 2 tasks"):
        longest("skip", TASKS[5:])
