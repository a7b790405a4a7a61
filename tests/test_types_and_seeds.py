"""Nouns check themselves; seeds are functions of their address."""

import subprocess
import sys

import pytest

from patr.seeds import generator_for, seed_for
from patr.types import Branch, Ledger, Status, Task, Tree, Turn


def turn(ids=(5, 6), observation=(7,)):
    return Turn(tuple(ids), (-0.5,) * len(ids), tuple(observation), "up", 0.0, "stop")


def test_a_trajectory_is_its_root_path_joined():
    tree = Tree(
        Task("t"),
        (1, 2),
        (
            Branch((0,), (turn(), turn((8,), (9, 9))), Status.EXPANDED),
            Branch((0, 0), (turn((3,), ()),), Status.DONE, 1.0),
            Branch((0, 1), (turn((4, 4), ()),), Status.PRUNED, 0.0),
            Branch((1,), (turn((0,), ()),), Status.ERROR, None, "broken"),
        ),
    )
    first, second = tree.trajectories()
    assert first.ids == (1, 2, 5, 6, 7, 8, 9, 9, 3)
    assert first.mask == (0, 0, 1, 1, 0, 1, 0, 0, 1)
    assert first.logprobs == (0, 0, -0.5, -0.5, 0, -0.5, 0, 0, -0.5)
    assert (first.reward, first.response_length, first.turns) == (1.0, 7, 3)
    assert second.path == (0, 1) and second.status is Status.PRUNED


def test_nonsense_is_refused_where_it_is_made():
    with pytest.raises(ValueError, match="2 sampled ids but 1 log-probs"):
        Turn((1, 2), (0.0,), (), "up", 0.0, "stop")
    with pytest.raises(ValueError, match="nothing to train on"):
        Turn((), (), (), "up", 0.0, "stop")
    with pytest.raises(ValueError, match="finish_reason"):
        Turn((1,), (0.0,), (), "up", 0.0, "done")
    with pytest.raises(ValueError, match="no expanded parent"):
        Tree(Task("t"), (1,), (Branch((0, 1), (turn(),), Status.DONE, 0.0),))
    with pytest.raises(ValueError, match="twice"):
        Tree(Task("t"), (1,), (Branch((0,), (turn(),), Status.DONE, 0.0),) * 2)
    with pytest.raises(ValueError, match="non-empty id"):
        Task("")


def test_ledgers_add_up():
    assert Ledger(sampled_tokens=2, wall_seconds=0.5) + Ledger(sampled_tokens=3) == Ledger(5, wall_seconds=0.5)


def test_seeds_tell_addresses_apart_and_repeat_in_another_process():
    seeds = {
        seed_for(run, purpose, step, task, path, turn)
        for run in (0, 1)
        for purpose in ("sample", "env")
        for step in (0, 1)
        for task in ("a", "b")
        for path in ((), (0,), (0, 1), (1, 0))
        for turn in (0, 1)
    }
    assert len(seeds) == 2**4 * 4 * 2
    code = "from patr.seeds import seed_for; print(seed_for(3, 'sample', 1, 'task', (0, 2), 5))"
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert int(printed) == seed_for(3, "sample", 1, "task", (0, 2), 5)
    assert generator_for(1, "x").integers(10**9) == generator_for(1, "x").integers(10**9)


def test_addresses_that_differ_between_processes_are_refused():
    with pytest.raises(TypeError, match="object"):
        seed_for(0, "sample", object())
