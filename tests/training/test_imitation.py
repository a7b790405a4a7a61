"""The warm start's lessons go from easy to hard, and its demonstrations follow the expert as far as noise allows."""

import dataclasses
import types

import pytest

from patr.envs.frozen_lake import FrozenLake
from patr.rollouts.base import Limits
from patr.testing import ToyChat, ToyEnv
from patr.training import build
from patr.training.imitation import Demonstrator, Lessons
from patr.types import Status, Task

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


class Chat(ToyChat):
    """Its own tokenizer."""

    @property
    def tokenizer(self):
        return self


LIMITS = Limits(max_turns=10, max_turn_tokens=9, max_response_tokens=9000, max_context=9000)


def walk(goal, noise, expert=lambda env: "R", replies=("W",), index=0, **limits):
    """A demonstration in the corridor, where the expert goes right."""
    limits = dataclasses.replace(LIMITS, **limits)
    demonstrator = Demonstrator(
        make_env=ToyEnv, chat=Chat(), limits=limits, expert=expert, replies=replies, noise=noise
    )
    return demonstrator.demonstrate(Task("t", {"goal": goal}), seed=0, index=index)


def moves(tree):
    return [turn.action for turn in tree.branches[0].turns]


def test_without_noise_the_expert_s_moves_are_taken_and_rendered_as_the_chat_would():
    tree = walk(goal=3, noise=0.0)
    assert moves(tree) == ["right"] * 3
    (trajectory,) = tree.trajectories()
    stop = "\0"
    assert "".join(map(chr, trajectory.ids)) == f"to 3:R{stop}1R{stop}2R{stop}"
    assert trajectory.mask == (0,) * 5 + (1, 1, 0) * 2 + (1, 1)  # what is said and its stop, not what is seen
    assert (tree.branches[0].status, trajectory.reward) == (Status.DONE, 1.0)


def test_with_nothing_but_noise_the_expert_is_not_asked():
    def expert(env):
        raise AssertionError

    assert moves(walk(goal=3, noise=1.0, expert=expert)) == ["wait"] * 10
    some = {move for index in range(5) for move in moves(walk(9, 1.0, expert=expert, replies="RLW", index=index))}
    assert some == {"right", "left", "wait"}


def test_noise_is_the_share_of_random_moves():
    taken = moves(walk(goal=1000, noise=0.25, max_turns=900))
    # Three standard deviations of a share of 900 draws: 3 * sqrt(0.25 * 0.75 / 900).
    assert taken.count("wait") / 900 == pytest.approx(0.25, abs=0.044)


def test_a_demonstration_ends_where_another_turn_might_not_fit():
    """A prompt of 5, then 2 said and 1 seen a turn: after four, 6 of 23 are left, and a turn may take 9."""
    (branch,) = walk(goal=9, noise=0.0, max_context=23).branches
    assert (len(branch.turns), branch.status) == (4, Status.LENGTH)


def test_a_demonstration_depends_on_its_address_only():
    same, again, other = (moves(walk(goal=1000, noise=0.5, index=index)) for index in (3, 3, 4))
    assert same == again != other


def test_the_expert_of_frozen_lake_goes_a_shortest_path():
    settings = types.SimpleNamespace(warm_start=types.SimpleNamespace(noise=0.0))
    parts = types.SimpleNamespace(make_env=FrozenLake, limits=LIMITS, config=settings)
    demonstrator = build.make_demonstrator(parts, Chat())
    tree = demonstrator.demonstrate(Task("t", {"map": ["SFF", "HHF", "GFF"]}), seed=0, index=0)
    assert moves(tree) == ["right", "right", "down", "down", "left", "left"]
    assert tree.branches[0].reward == 1.0
