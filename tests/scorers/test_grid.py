"""Grid progress: closed-form values on a small map."""

import asyncio

import pytest

from patr.rollouts.patr import Patr
from patr.rollouts.rules import Candidate
from patr.scorers.grid import GridProgress
from patr.types import Task, Turn

MAP = ["SFF", "HHF", "GFF"]  # six moves from S to G around the holes


def turn(row, column, reward=0.0):
    return Turn((1,), (0.0,), (), "right", reward, "stop", info={"map": MAP, "row": row, "column": column})


def score(*history, **weights):
    return asyncio.run(GridProgress(**weights).score(Task("t"), [history]))[0]


@pytest.mark.parametrize(
    ("cell", "reward", "expected"),
    [
        ((0, 0), 0.0, 1 - 6 / 7),
        ((0, 2), 0.0, 1 - 4 / 7),
        ((2, 1), 0.0, 1 - 1 / 7),
        ((2, 0), 1.0, 1.0),
        ((1, 0), 0.0, 0.0),
    ],
)
def test_values(cell, reward, expected):
    assert score(turn(0, 1), turn(*cell, reward)) == pytest.approx(expected)


def test_by_default_a_walk_gone_astray_can_fall_below_the_papers_margin():
    near, nearer, astray = turn(2, 2), turn(2, 1), turn(1, 0)
    scores = [score(near), score(nearer), score(astray)]
    candidates = [Candidate((i,), ("up",), s) for i, s in enumerate(scores)]
    decisions = Patr(top_k=1).decide(candidates, leaves=3)
    assert [(d.kind, d.rule) for d in decisions] == [("survive", "none"), ("expand", "top_k"), ("prune", "margin")]


def test_weights_choose_between_reward_and_distance():
    here = turn(2, 1)
    assert score(here, reward_weight=0.0, distance_weight=1.0) == pytest.approx(6 / 7)
    assert score(here, reward_weight=1.0, distance_weight=0.0) == 0.0
    assert score(turn(2, 0, 1.0), reward_weight=0.5, distance_weight=0.5) == 1.0
    with pytest.raises(ValueError, match=r"reward_weight=0.9"):
        GridProgress(reward_weight=0.9, distance_weight=0.5)


def test_closer_is_never_worse_along_the_path():
    cells = [(0, 0), (0, 1), (0, 2), (1, 2), (2, 2), (2, 1)]
    values = [score(turn(*cell)) for cell in cells]
    assert values == sorted(values) and values[0] > 0


def test_a_branch_without_a_turn_cannot_be_scored():
    with pytest.raises(ValueError, match="score branches that have taken one"):
        score()
