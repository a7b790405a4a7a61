"""The warm start's lessons go from easy to hard."""

import pytest

from patr.training.imitation import Lessons
from patr.types import Task

TASKS = [Task(id=f"size-{size}", data={"size": size}) for size in range(100)]


def sizes(lesson, ramp=0.7, lessons=100, count=400):
    return [task.data["size"] for task in Lessons(TASKS, ramp).draw(0, lesson, lessons, count)]


def test_the_first_lesson_is_easy_and_the_share_grows_until_all_is_taught():
    assert max(sizes(0)) == 14
    assert max(sizes(35)) < 60
    assert max(sizes(70)) == max(sizes(99)) == 99
    assert min(sizes(99)) == 0


def test_without_a_ramp_everything_is_taught_from_the_start():
    assert max(sizes(0, ramp=0)) == 99


def test_a_lesson_is_the_same_whenever_it_is_drawn():
    assert sizes(50) == sizes(50) != sizes(51)


def test_a_ramp_is_a_share():
    for ramp in (-0.1, 1.5):
        with pytest.raises(ValueError, match=r"warm_start.ramp=.*0 to 1"):
            Lessons(TASKS, ramp)
