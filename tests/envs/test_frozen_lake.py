"""Text, parsing, dynamics, forks and Gymnasium's view of FrozenLake."""

import json
import warnings
from collections import Counter

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

import patr.envs
from patr.envs.frozen_lake import FrozenLake
from patr.envs.frozen_lake_corpus import frozen_lake_corpus
from patr.envs.frozen_lake_maps import reference_tasks
from patr.envs.frozen_lake_text import parse_action, parse_actions, system_prompt
from patr.envs.grid_paths import MOVES
from patr.types import Task

TASK = Task("t", {"map": ["SFH", "FHF", "FFG"]})


def started(task=TASK, **options) -> FrozenLake:
    env = FrozenLake(**options)
    env.reset(task)
    return env


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("go up", None),
        ("", None),
        ("``````", None),
        ("```left``` no, ```down```", "down"),
        ("```left``` no, ```jump```", None),
        ("```UP```", "up"),
        ("``` up ```", "up"),
        ("```\nright\n```", "right"),
        ("```python\nup```", None),
        ("```Up and Left```", None),
        ("```up || left```", None),
        ("```1```", "left"),
        ("```2```", "down"),
        ("```3```", "right"),
        ("```4```", "up"),
        ("```0```", None),
        ("```5```", None),
        ("```up", None),
        ("<think>```up```</think>", None),
        ("<think>```up```", None),
        ("```left``` <think>```up```", "left"),
        ("<think>```up```</think>```down```", "down"),
        ("perhaps ```up```</think>\n```down```", "down"),
    ],
)
def test_the_last_span_outside_thoughts_is_the_move(text, action):
    assert parse_action(text) == action


def test_several_moves_are_split_cut_and_cleaned():
    assert parse_actions("```Up || hop || 2 || left```", 5) == ("up", "down", "left")
    assert parse_actions("```up||up||down```", 2) == ("up", "up")
    assert parse_actions("```hop```", 5) == ()


def test_prompt_shows_grid_and_turns():
    system, user = FrozenLake().reset(TASK)
    assert (system.role, user.role) == ("system", "user")
    assert user.content == "P _ O\n_ O _\n_ _ G\nTurns left: 10."
    assert "slippery" not in system.content


@pytest.mark.parametrize("is_slippery", [False, True])
@pytest.mark.parametrize("actions", [1, 5])
def test_system_prompt_is_short_and_its_example_parses(is_slippery, actions):
    prompt = system_prompt(is_slippery, actions)
    assert len(prompt.split()) <= 90
    assert ("slippery" in prompt) == is_slippery
    assert parse_actions(prompt, actions) == (("left",) if actions == 1 else ("left", "up"))


def test_an_episode_by_hand():
    env = started()
    assert env.state() == {"map": ["SFH", "FHF", "FFG"], "row": 0, "column": 0}
    wall = env.step("```up```", 0)
    assert wall.observation == "You did not move.\nP _ O\n_ O _\n_ _ G\nTurns left: 9."
    assert (wall.action, wall.reward, wall.done) == ("up", 0.0, False)
    invalid = env.step("up", 0)
    assert invalid.observation == "No valid move in your reply.\nP _ O\n_ O _\n_ _ G\nTurns left: 8."
    assert (invalid.action, invalid.info["valid"], invalid.info["effective"]) == ("invalid", False, False)
    for move in ("down", "down", "right"):
        assert env.step(f"```{move}```", 0).reward == 0.0
    assert env.outcome() == 0.0
    won = env.step("```right```", 0)
    assert (won.reward, won.done, env.outcome()) == (1.0, True, 1.0)
    assert won.observation == "_ _ O\n_ O _\n_ _ √\nTurns left: 4."
    assert json.loads(json.dumps(won.info)) == env.state() | {"valid": True, "effective": True}
    with pytest.raises(RuntimeError, match="has ended"):
        env.step("```left```", 0)


def test_a_hole_ends_the_episode_without_reward():
    env = started()
    env.step("```down```", 0)
    lost = env.step("```right```", 0)
    assert (lost.reward, lost.done, env.outcome()) == (0.0, True, 0.0)
    assert lost.observation.startswith("_ _ O\n_ X _\n_ _ G\n")


def test_several_moves_stop_at_the_end():
    env = started(max_actions_per_turn=5)
    won = env.step("```down || down || right || right || up```", 0)
    assert (won.action, won.done, won.reward) == ("down down right right", True, 1.0)


def test_hints_tell_position_and_surroundings():
    env = FrozenLake(hints=("position", "surroundings"))
    assert env.reset(TASK)[1].content.splitlines()[3:] == [
        "You: row 0, column 0. Goal: row 2, column 2.",
        "Left edge, down free, right free, up edge.",
        "Turns left: 10.",
    ]
    for move in ("down", "down", "right"):
        last = env.step(f"```{move}```", 0)
    assert "Left free, down edge, right goal, up hole." in last.observation


@pytest.mark.parametrize("hints", ["position", ("compass",)])
def test_unknown_hints_are_refused(hints):
    with pytest.raises(ValueError, match="'position', 'surroundings'"):
        FrozenLake(hints=hints)


def test_limits_are_checked():
    with pytest.raises(ValueError, match="max_turns 0"):
        FrozenLake(max_turns=0)
    with pytest.raises(RuntimeError, match="reset"):
        FrozenLake().step("```up```", 0)
    env = started(max_turns=1)
    assert not env.step("", 0).done
    with pytest.raises(RuntimeError, match="all 1 turns"):
        env.step("", 0)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(MOVES)), max_size=4),
    st.lists(st.sampled_from(sorted(MOVES)), min_size=1, max_size=4),
    st.lists(st.sampled_from(sorted(MOVES)), min_size=1, max_size=4),
)
def test_parent_and_fork_never_influence_each_other(prefix, parents, childs):
    def play(env, moves, seed):
        results = []
        for turn, move in enumerate(moves):
            if results and results[-1].done:
                break
            results.append(env.step(f"```{move}```", seed + turn))
        return results

    parent, twin = started(is_slippery=True), started(is_slippery=True)
    start = play(parent, prefix, 0)
    play(twin, prefix, 0)
    if start and start[-1].done:
        return
    child = parent.fork()
    of_child = play(child, childs, 50)
    assert play(parent, parents, 70) == play(twin.fork(), parents, 70)
    assert of_child == play(twin, childs, 50)


def test_slippery_ice_follows_the_seed_and_its_odds():
    task = Task("t", {"map": ["FFF", "FSF", "FFG"]})
    ends = Counter()
    for seed in range(600):
        env = started(task, is_slippery=True)
        result = env.step("```left```", seed)
        assert result == started(task, is_slippery=True).step("```left```", seed)
        ends[result.info["row"], result.info["column"]] += 1
    assert set(ends) == {(1, 0), (0, 1), (2, 1)}
    # A third of 600 is 200; 5 standard deviations of the binomial are 58.
    assert all(abs(count - 200) < 58 for count in ends.values())


def test_reset_starts_over_and_keeps_a_literal_map():
    env = started()
    env.step("```down```", 0)
    assert env.reset(TASK)[1].content.startswith("P _ O\n")
    env.close()
    env.close()


def test_gymnasium_accepts_it_without_a_warning():
    patr.envs.register()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make("patr/FrozenLake-v0").unwrapped)
        check_env(gymnasium.make("patr/FrozenLake-v0", is_slippery=True, render_mode="ansi").unwrapped)


def test_gymnasium_episode_by_hand():
    env = gymnasium.make("patr/FrozenLake-v0", max_turns=4, max_size=4, render_mode="ansi")
    cells, info = env.reset(seed=0, options={"task": TASK})
    assert cells.tolist() == [[4, 1, 2, 0], [1, 2, 1, 0], [1, 1, 3, 0], [0, 0, 0, 0]]
    assert info == {"map": ["SFH", "FHF", "FFG"], "row": 0, "column": 0}
    assert env.render() == "P _ O\n_ O _\n_ _ G"
    steps = [env.step(action) for action in (1, 1, 2, 2)]
    assert [(reward, done, cut) for _, reward, done, cut, _ in steps] == [(0, False, False)] * 3 + [(1, True, False)]
    assert steps[-1][0][2].tolist() == [1, 1, 6, 0]
    env.reset(options={"task": TASK})
    assert [env.step(0)[3] for _ in range(4)] == [False, False, False, True]


def test_gymnasium_seeds_draw_tasks():
    env = gymnasium.make("patr/FrozenLake-v0")
    first, again, other = (env.reset(seed=seed)[0] for seed in (3, 3, 4))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    small = gymnasium.make("patr/FrozenLake-v0", max_size=3)
    with pytest.raises(ValueError, match="max_size 3"):
        small.reset(options={"task": reference_tasks("test")[0]})


def test_corpus_is_the_environments_own_text():
    texts = frozen_lake_corpus(3, 0, hints=("position",))
    assert texts == frozen_lake_corpus(3, 0, hints=("position",))
    assert texts != frozen_lake_corpus(3, 1, hints=("position",))
    assert texts[0] == f"system\n{system_prompt(False, 1)}"
    assert texts[1].startswith("user\n") and "You: row" in texts[1]
    assert {text.split("\n")[0] for text in texts} == {"system", "user", "assistant"}
