"""What the engine promises whatever the controller: addresses, appended tokens, limits, and failures kept apart."""

import asyncio
import dataclasses
import math
import random
import threading
import time

import pytest

from patr.records import tree_to_json
from patr.rollouts import Flat, Patr, TreeRandom
from patr.rollouts.base import Limits
from patr.rollouts.engine import Engine
from patr.rollouts.waiting import EnvCalls
from patr.samplers.base import SamplerError
from patr.samplers.queueing import RequestQueue
from patr.seeds import seed_for
from patr.testing import ScriptedSampler, ScriptedScorer, ToyChat, ToyEnv, script
from patr.types import Decision, Status, Task

LIMITS = Limits(max_turns=10, max_turn_tokens=4, max_response_tokens=200, max_context=300)
TASKS = [Task(f"walk-{i}", {"goal": 6 + i, "slip": 0.3}) for i in range(4)]


class Fleet:
    """Makes toy environments and remembers them, forks included."""

    def __init__(self, before_step=lambda task, steps, text: None, reset=None):
        self.made = []
        fleet = self

        class Watched(ToyEnv):
            def __init__(self):
                super().__init__(before_step)
                fleet.made.append(self)

            def reset(self, task):
                if reset:
                    reset(len(fleet.made))
                return super().reset(task)

            def fork(self):
                fleet.made.append(super().fork())
                return fleet.made[-1]

        self.make = Watched

    def all_closed(self):
        return all(env.closed for env in self.made)


def sensible(ids, seed):
    """A policy that goes right more often than not, by seed."""
    return "RRRWL"[seed % 5]


def distance(history):
    return history[-1].info["cell"] / 20


def engine(answer=sensible, make_env=ToyEnv, limits=LIMITS, score=distance, passes=lambda seed: 0, **options):
    chat = ToyChat()
    sampler = ScriptedSampler(answer, chat, passes=passes)
    scorer = ScriptedScorer(score)
    return Engine(sampler, make_env, chat, scorer, limits, 11, 2, **({"clock": lambda: 0.0} | options))


def roll(controller, tasks=TASKS, **options):
    return asyncio.run(engine(**options).run(tasks, controller))


def as_json(trees):
    return [tree_to_json(tree) for tree in trees]


# A tree is a function of its address


@pytest.mark.parametrize("controller", [Flat(), Patr(score_every=3), TreeRandom(score_every=3)])
def test_tree_depends_on_its_address_only(controller):
    together = as_json(roll(controller))
    shuffled = as_json(roll(controller, passes=lambda seed: random.Random(seed).randrange(9)))
    threaded = as_json(roll(controller, env_threads=3))
    alone = [as_json(roll(controller, [task]))[0] for task in reversed(TASKS)][::-1]
    assert together == shuffled == threaded == alone
    assert len({tuple(map(str, tree["branches"])) for tree in together}) == len(TASKS)


def test_seeds_are_addresses():
    env_seeds = set()

    class Recording(ToyEnv):
        def step(self, text, seed):
            env_seeds.add(seed)
            return super().step(text, seed)

    chat = ToyChat()
    sampler = ScriptedSampler(lambda ids, seed: "W", chat)
    used = Engine(sampler, Recording, chat, ScriptedScorer(lambda history: 0.5), LIMITS, 11, 2)
    patr = Patr(initial_branches=1, top_k=1, repeat_limit=None)
    asyncio.run(used.run([Task("walk", {"goal": 9})], patr))
    addresses = [((0,), turn) for turn in range(5)] + [((0, child), turn) for child in (0, 1) for turn in range(5, 10)]
    for purpose, seeds in (("sample", {request.seed for request in sampler.requests}), ("env", env_seeds)):
        assert seeds == {seed_for(11, purpose, 2, "walk", path, turn) for path, turn in addresses}


# Tokens are only ever appended


def test_every_request_extends_the_one_before():
    used = engine(lambda ids, seed: "WWWWWW" if seed % 2 else "R")
    [tree] = asyncio.run(used.run([TASKS[0]], Patr(score_every=3, repeat_limit=None)))
    asked = {request.prompt_ids for request in used.sampler.requests}
    for trajectory in tree.trajectories():
        ids, turns = tree.prompt_ids, tree.lineage_turns(trajectory.path)
        for turn in turns:
            assert ids in asked
            after = ToyChat().observation(turn.observation, turn.finish_reason)
            assert turn.observation_ids == (() if turn is turns[-1] else after)
            ids += turn.action_ids + turn.observation_ids
        assert ids == trajectory.ids


def test_request_asks_for_what_is_left():
    limits = dataclasses.replace(LIMITS, max_response_tokens=11)
    used = engine(lambda ids, seed: "R", limits=limits)
    [tree] = asyncio.run(used.run([Task("t", {"goal": 9})], Flat(group_size=1)))
    # a turn is 2 tokens and an observation 1: 11, 8, 5 and 2 are left before the turns
    assert [request.max_tokens for request in used.sampler.requests] == [4, 4, 4, 2]
    [leaf] = tree.branches
    assert (leaf.status, leaf.reward, leaf.turns[-1].observation_ids) == (Status.LENGTH, 4 / 9, ())


def test_context_ends_a_trajectory_too():
    prompt = len("to 9:")
    [tree] = roll(
        Flat(group_size=1),
        [Task("t", {"goal": 9})],
        answer=lambda ids, seed: "R",
        limits=dataclasses.replace(LIMITS, max_context=prompt + 5),
    )
    [trajectory] = tree.trajectories()
    assert (trajectory.status, trajectory.response_length, trajectory.turns) == (Status.LENGTH, 5, 2)


def test_prompt_that_fills_the_context_takes_no_turn_and_stops_nobody_else(caplog):
    limits = dataclasses.replace(LIMITS, max_context=6)
    long, short = roll(Flat(group_size=2), [Task("long", {"goal": 10}), Task("short", {"goal": 9})], limits=limits)
    assert [branch.status for branch in long.branches] == [Status.LENGTH] * 2
    assert long.trajectories() == ()
    assert len(short.trajectories()) == 2
    assert "task long: its prompt of 6 tokens fills the context" in caplog.text


def test_done_on_the_last_turn_is_done():
    table = script({(0,): "R" * 10}, run_seed=11, step=2, task_id="t")
    [tree] = roll(Flat(group_size=1), [Task("t", {"goal": 10})], answer=table)
    assert tree.branches[0].status is Status.DONE


# Branches do not influence each other


def test_siblings_go_on_from_the_parents_state_alone():
    table = {(0,): "RR", (0, 0): "RRRR", (0, 1): "LLLL"}
    patr = Patr(initial_branches=1, score_every=2, top_k=1, repeat_limit=None, max_leaves=2)
    limits = dataclasses.replace(LIMITS, max_turns=6)
    answer = script(table, run_seed=11, step=2, task_id="t")
    [tree] = roll(patr, [Task("t", {"goal": 9})], answer=answer, limits=limits)
    cells = {branch.path: [turn.info["cell"] for turn in branch.turns] for branch in tree.branches}
    assert cells == {(0,): [1, 2], (0, 0): [3, 4, 5, 6], (0, 1): [1, 0, 0, 0]}


# Environments that break


def fails_for(task_id, times):
    left = [times]

    def before_step(task, steps, text):
        if task.id == task_id and steps == 3 and left[0]:
            left[0] -= 1
            raise ConnectionError("container gone")

    return before_step


def test_failure_that_a_fresh_environment_survives_leaves_no_trace():
    fleet = Fleet(fails_for("walk-1", times=2))
    repaired, plain = roll(Flat(), make_env=fleet.make), roll(Flat())
    assert [tree.branches for tree in repaired] == [tree.branches for tree in plain]
    assert repaired[1].ledger.environment_errors == 2
    # each retry replays the three steps before the failing one
    assert repaired[1].ledger.environment_steps == plain[1].ledger.environment_steps + 2 * 3
    assert [repaired[i].ledger for i in (0, 2, 3)] == [plain[i].ledger for i in (0, 2, 3)]
    assert fleet.all_closed()


def test_one_broken_branch_of_eight_is_an_error_and_the_rest_go_on():
    def before_step(task, steps, text):
        if text == "X":
            raise ConnectionError("container gone")

    broken = seed_for(11, "sample", 2, "walk-1", (5,), 2)
    fleet = Fleet(before_step)
    trees = roll(Flat(), answer=lambda ids, seed: "X" if seed == broken else sensible(ids, seed), make_env=fleet.make)
    plain = roll(Flat())
    bad = trees[1].branches[5]
    assert (bad.status, bad.reward, len(bad.turns)) == (Status.ERROR, None, 2)
    assert bad.error == "ConnectionError: container gone"
    assert trees[1].ledger.environment_errors == 3  # the first try and two more
    assert [t.path for t in trees[1].trajectories()] == [(i,) for i in range(8) if i != 5]
    assert [b for b in trees[1].branches if b is not bad] == [b for b in plain[1].branches if b.path != (5,)]
    assert [trees[i] for i in (0, 2, 3)] == [plain[i] for i in (0, 2, 3)]
    assert fleet.all_closed()


def test_environment_that_never_starts_fails_its_task_only():
    without_goal = Task("bad", {})  # ToyEnv.reset raises KeyError
    trees = roll(Patr(score_every=3), [TASKS[0], without_goal, TASKS[1]])
    assert [(b.status, b.error) for b in trees[1].branches] == [(Status.ERROR, "KeyError: 'goal'")] * 4
    assert trees[1].trajectories() == ()
    assert as_json(trees[::2]) == as_json(roll(Patr(score_every=3), TASKS[:2]))


def test_reset_is_retried_in_a_fresh_environment():
    def reset(made):
        if made <= 2:
            raise TimeoutError("registry slow")

    fleet = Fleet(reset=reset)
    [tree] = roll(Flat(), TASKS[:1], make_env=fleet.make)
    assert tree.ledger.environment_errors == 2
    assert tree.branches == roll(Flat(), TASKS[:1])[0].branches
    assert fleet.all_closed()


def test_failed_fork_is_replayed():
    class NoFork(ToyEnv):
        def fork(self):
            raise OSError("snapshot failed")

    forked, replayed = (roll(Patr(score_every=3), make_env=make) for make in (ToyEnv, NoFork))
    assert [tree.branches for tree in replayed] == [tree.branches for tree in forked]
    assert all(tree.ledger.environment_errors for tree in replayed)


@pytest.mark.parametrize("returned", [math.nan, "won"])
def test_outcome_that_is_no_number_is_an_error(returned):
    class Odd(ToyEnv):
        def outcome(self):
            return returned

    [tree] = roll(Flat(group_size=1), TASKS[:1], make_env=Odd)
    assert (tree.branches[0].status, tree.branches[0].reward) == (Status.ERROR, None)


def test_environment_that_replays_differently_is_an_error():
    attempts = []

    class Drifting(ToyEnv):
        def reset(self, task):
            attempts.append(task)
            messages = super().reset(task)
            self._cell = task.data["goal"] - 1 if len(attempts) > 1 else 0
            return messages

        def step(self, text, seed):
            if self._steps == 3:
                raise OSError("gone")
            return super().step(text, seed)

    [tree] = roll(Flat(group_size=1), [Task("t", {"goal": 9})], make_env=Drifting, answer=lambda ids, seed: "R")
    assert tree.branches[0].status is Status.ERROR
    assert "at turn 1, not StepResult" in tree.branches[0].error


def test_environment_that_loses_a_replayed_step_is_an_error():
    lives = []

    class Forgetful(ToyEnv):
        def reset(self, task):
            lives.append(self)
            return super().reset(task)

        def step(self, text, seed):
            if len(lives) == 1 and self._steps == 2:
                raise OSError("gone")
            if len(lives) > 1 and self._steps == 0:
                self._cell -= 1  # a step of the episode goes on, but nobody walks
            return super().step(text, seed)

    [tree] = roll(Flat(group_size=1), [Task("t", {"goal": 9})], make_env=Forgetful, answer=lambda ids, seed: "R")
    assert tree.branches[0].status is Status.ERROR
    assert "at turn 1, not StepResult" in tree.branches[0].error


@pytest.mark.parametrize("stuck_in", ["reset", "step"])
def test_hung_environment_is_given_up_and_the_rest_go_on(stuck_in):
    release = threading.Event()

    class Hanging(ToyEnv):
        def reset(self, task):
            if task.id == "walk-2" and stuck_in == "reset":
                release.wait(30)
            return super().reset(task)

    def before_step(task, steps, text):
        if task.id == "walk-2" and stuck_in == "step":
            release.wait(30)

    trees = roll(
        Flat(group_size=2),
        make_env=lambda: Hanging(before_step),
        env_threads=2,
        env_timeout=0.5,
        env_retries=1,
    )
    release.set()
    assert [b.status for b in trees[2].branches] == [Status.ERROR] * 2
    assert trees[2].branches[0].error.startswith("TimeoutError")
    assert all(b.status is not Status.ERROR for i in (0, 1, 3) for b in trees[i].branches)


def test_environment_that_arrives_after_the_time_limit_is_closed():
    release, closed = threading.Event(), threading.Event()

    class Late(ToyEnv):
        def __init__(self):
            release.wait(30)
            super().__init__()

        def close(self):
            closed.set()

    roll(Flat(group_size=1), TASKS[:1], make_env=Late, env_threads=1, env_timeout=0.02, env_retries=0)
    release.set()
    assert closed.wait(30)


# Samplers that batch


def test_queueing_sampler_gets_every_active_branch_in_one_batch():
    batches = []

    class Queueing:
        max_context = 1000

        def __init__(self):
            self._scripted = ScriptedSampler(lambda ids, seed: "W", ToyChat())
            self._queue = RequestQueue(self._serve)

        def sample(self, request):
            return self._queue.submit(request)

        def _serve(self, requests):
            batches.append(len(requests))
            return [self._scripted.answer(request) for request in requests]

    used = Engine(Queueing(), ToyEnv, ToyChat(), ScriptedScorer(lambda history: 0.5), LIMITS, 0, 0)
    asyncio.run(used.run(TASKS, Patr(repeat_limit=None)))
    assert batches == [4 * len(TASKS)] * 5 + [6 * len(TASKS)] * 5


# Samplers that break


def test_sampler_error_stops_all_and_closes_every_environment():
    calls = []

    def answer(ids, seed):
        calls.append(seed)
        if len(calls) == 40:
            raise SamplerError("server gone")
        return "W"

    fleet = Fleet()
    with pytest.raises(SamplerError, match="server gone"):
        roll(Patr(score_every=3, repeat_limit=None), answer=answer, make_env=fleet.make, passes=lambda seed: seed % 5)
    assert 40 <= len(calls) < 80  # those already on their way; 256 to the end
    assert fleet.made
    assert fleet.all_closed()


def test_cancelled_run_closes_every_environment():
    fleet = Fleet()

    async def cancel_midway():
        run = asyncio.create_task(
            engine(make_env=fleet.make, passes=lambda seed: 3, env_threads=2).run(TASKS, Patr(score_every=3))
        )
        await asyncio.sleep(0.02)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run

    asyncio.run(cancel_midway())
    assert fleet.made
    # A call that was running in its thread closes what it made once it returns.
    deadline = time.monotonic() + 10
    while not fleet.all_closed() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert fleet.all_closed()


def test_an_answer_the_caller_no_longer_waits_for_is_undone():
    undone = []

    async def give_up_at_the_moment_of_the_answer():
        calls, answered = EnvCalls(1, None), threading.Event()
        waiting = asyncio.create_task(calls(lambda: answered.set() or "made", undo=undone.append))
        await asyncio.sleep(0)
        answered.wait()
        time.sleep(0.05)  # the answer is in, but the event loop has not handed it over
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(give_up_at_the_moment_of_the_answer())
    assert undone == ["made"]


def test_sampler_that_overruns_is_refused():
    class Long(ScriptedSampler):
        async def sample(self, request):
            return await super().sample(dataclasses.replace(request, max_tokens=50))

    chat = ToyChat()
    used = Engine(Long(lambda ids, seed: "W" * 20, chat), ToyEnv, chat, None, LIMITS, 0, 0)
    with pytest.raises(SamplerError, match="returned 21 ids, 4 were asked for"):
        asyncio.run(used.run(TASKS[:1], Flat()))


# Scorers that break


@pytest.mark.parametrize(
    "scores", [[0.5], [0.5, math.nan], [0.5, 1.2], [-0.1, 0.5], [0.5, "0.5"], [0.5, None], [True, 0.5]]
)
def test_bad_scores_are_no_scores(scores):
    class Odd:
        async def score(self, task, histories):
            return scores

    chat = ToyChat()
    used = Engine(ScriptedSampler(sensible, chat), ToyEnv, chat, Odd(), LIMITS, 0, 0, scorer_retries=2)
    [tree] = asyncio.run(used.run(TASKS[:1], Patr(initial_branches=2)))
    checkpoint = [d for d in tree.decisions if d.turn == 5]
    assert [(d.kind, d.score) for d in checkpoint] == [("survive", None)] * 2
    assert (tree.ledger.scorer_calls, tree.ledger.scorer_failures) == (3, 3)
    assert all(b.status is not Status.ERROR for b in tree.branches)


def test_scorer_that_recovers_is_asked_again():
    failures = [OSError("503"), OSError("503")]

    def score(history):
        if failures:
            raise failures.pop()
        return distance(history)

    [tree], [plain] = roll(Patr(), TASKS[:1], score=score), roll(Patr(), TASKS[:1])
    assert (tree.branches, tree.decisions) == (plain.branches, plain.decisions)
    assert tree.ledger.scorer_failures == 2


def test_sampler_error_inside_a_scorer_is_not_swallowed():
    def score(history):
        raise SamplerError("server gone")

    with pytest.raises(SamplerError):
        roll(Patr(), TASKS[:1], score=score)


# The session's own contract, for those who write controllers


def test_tree_of_active_branches_is_refused():
    async def unfinished():
        async with engine().session(TASKS[0]) as session:
            await session.start(2)
            session.tree("mine")

    with pytest.raises(ValueError, match=r"branch \(0,\) is still active; finish it first"):
        asyncio.run(unfinished())


def test_pruned_branch_loses_its_last_observation_and_survivors_keep_theirs():
    async def prune_first():
        async with engine(lambda ids, seed: "R").session(TASKS[0]) as session:
            branches = await session.advance(await session.start(2), 1)
            decisions = [Decision(1, (0,), "prune", "margin"), Decision(1, (1,), "survive", "none")]
            active = await session.carry_out(branches, decisions, children=2)
            await session.advance(active, 99)
            return session.tree("mine")

    tree = asyncio.run(prune_first())
    assert tree.branches[0].turns[0].observation_ids == ()
    assert tree.branches[1].turns[0].observation_ids != ()


def test_ledger_counts_what_was_asked():
    used = engine(clock=time.perf_counter)
    [tree] = asyncio.run(used.run(TASKS[:1], Patr(score_every=3)))
    requests = used.sampler.requests
    own_turns = [turn for branch in tree.branches for turn in branch.turns]
    assert tree.ledger.sampled_tokens == sum(len(turn.action_ids) for turn in own_turns)
    assert tree.ledger.prefilled_tokens == sum(len(request.prompt_ids) for request in requests)
    assert tree.ledger.environment_steps == len(own_turns) == len(requests)
    assert tree.ledger.wall_seconds > 0


# Bad settings


@pytest.mark.parametrize("name", ["max_turns", "max_turn_tokens", "max_response_tokens", "max_context"])
def test_limits_below_one_are_refused(name):
    with pytest.raises(ValueError, match=f"limits: {name}=0: expected at least 1"):
        dataclasses.replace(LIMITS, **{name: 0})


@pytest.mark.parametrize("temperature", [-1.0, math.inf, math.nan])
def test_temperature_must_be_finite(temperature):
    with pytest.raises(ValueError, match="expected a finite number >= 0"):
        dataclasses.replace(LIMITS, temperature=temperature)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(limits=dataclasses.replace(LIMITS, max_context=2000)), "max_context=2000: the sampler holds 1000"),
        (dict(env_retries=-1), "env_retries=-1"),
        (dict(env_timeout=3.0), "with env_threads >= 1"),
        (dict(env_threads=-1), "env_threads=-1"),
    ],
)
def test_engine_settings_without_meaning_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        engine(**options)
