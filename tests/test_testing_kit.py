"""The test kit keeps the contracts of the protocols it stands in for."""

import asyncio

import pytest

from patr.envs.base import Message
from patr.samplers.base import SampleRequest, SamplerError
from patr.seeds import seed_for
from patr.testing import ScriptedSampler, ToyChat, ToyEnv, script
from patr.types import Task


def test_chat_text_and_ids():
    chat = ToyChat()
    assert chat.prompt([Message("system", "a"), Message("user", "b")]) == (97, 98)
    assert chat.decode_turn((82, 0)) == "R"
    assert chat.observation("1", "stop") == (49,)
    assert chat.observation("1", "length") == (0, 49)


def test_corridor():
    env = ToyEnv()
    assert env.reset(Task("t", {"goal": 2})) == [Message("user", "to 2:")]
    steps = [env.step(text, seed=0) for text in ("L", "R", "hop", " W ", "R")]
    assert [step.action for step in steps] == ["left", "right", "invalid", "wait", "right"]
    assert [step.info["cell"] for step in steps] == [0, 1, 1, 1, 2]
    assert [(step.reward, step.done) for step in steps] == [(0.0, False)] * 4 + [(1.0, True)]
    assert env.outcome() == 1.0


def test_fork_is_independent_both_ways():
    parent = ToyEnv()
    parent.reset(Task("t", {"goal": 9}))
    parent.step("R", 0)
    child = parent.fork()
    parent.step("R", 0)
    assert (parent.outcome(), child.outcome()) == (2 / 9, 1 / 9)
    child.step("L", 0)
    child.close()
    assert (parent.outcome(), child.outcome(), parent.closed) == (2 / 9, 0.0, False)


def test_slip_is_a_function_of_the_seed():
    def cells(seeds):
        env = ToyEnv()
        env.reset(Task("t", {"goal": 99, "slip": 0.5}))
        return [env.step("R", seed).info["cell"] for seed in seeds]

    assert cells(range(40)) == cells(range(40)) != cells(range(40, 80))
    assert 8 < cells(range(40))[-1] < 32  # 20 expected, 3.8 standard deviations to either side


def test_script_counts_turns_from_the_root():
    table = script({(0,): "RW", (0, 1): ["LL"]}, run_seed=1, step=2, task_id="t")
    address = [((0,), 0, "R"), ((0,), 1, "W"), ((0, 1), 2, "LL")]
    assert table == {seed_for(1, "sample", 2, "t", path, turn): text for path, turn, text in address}


def test_sampler_cuts_and_complains():
    sampler = ScriptedSampler({5: "RRR"}, ToyChat())

    def ask(seed, max_tokens):
        return asyncio.run(sampler.sample(SampleRequest((1,), seed, max_tokens, (0,))))

    assert (ask(5, 4).ids, ask(5, 4).finish_reason) == ((82, 82, 82, 0), "stop")
    assert (ask(5, 3).ids, ask(5, 3).finish_reason) == ((82, 82, 82), "length")
    with pytest.raises(SamplerError, match="the script has no answer"):
        ask(6, 4)
