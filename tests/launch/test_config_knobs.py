"""Every knob there is stands in the config, and can be set from the command line."""

import dataclasses
import inspect
from pathlib import Path

import pytest
from absl import flags
from ml_collections import config_flags

from patr.objectives.policy_losses import Objective
from patr.rollouts import ROLLOUTS
from patr.rollouts.base import Limits
from patr.rollouts.engine import Engine
from patr.samplers.jax_sampler import SamplerShapes
from patr.scorers.grid import GridProgress
from patr.training import build
from patr.training.optimizer import OptimizerConfig

FILE = Path(__file__).parents[2] / "configs" / "frozen_lake.py"


def parsed(*arguments):
    """The smoke config as a command line makes it."""
    command = ["train.py", f"--config={FILE}:smoke", *arguments]
    values = flags.FlagValues()
    config = config_flags.DEFINE_config_file("config", flag_values=values, sys_argv=command)
    values(command)
    return config.value


def knobs(make):
    return {f.name for f in dataclasses.fields(make)}


def test_every_knob_stands_in_the_config():
    config = parsed()
    for name, controller in ROLLOUTS.items():
        assert set(config[name]) == knobs(controller)
    assert set(config.objective) == knobs(Objective)
    assert set(config.optimizer) == knobs(OptimizerConfig)
    assert set(config.limits) == knobs(Limits)
    assert set(config.scorer) - {"name"} == knobs(GridProgress)
    assert set(config.jax_sampler) == knobs(SamplerShapes) - {"num_stop_ids"}  # the chat template's
    only_keywords = [p for p in inspect.signature(Engine).parameters.values() if p.kind is p.KEYWORD_ONLY]
    assert set(config.engine) == {p.name for p in only_keywords} - {"clock"}  # of tests


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("objective.dual_clip", "3", 3.0),
        ("patr.repeat_limit", "None", None),
        ("patr.repeat_limit", "4", 4),
        ("patr.max_leaves", "6", 6),
        ("tree_random.repeat_limit", "None", None),
        ("tree_random.repeat_check", "checkpoint", "checkpoint"),
        ("tree_random.pruned_reward", "zero", "zero"),
        ("tree_random.group", "best_n", "best_n"),
        ("tree_random.max_leaves", "6", 6),
        ("optimizer.b1", "0.8", 0.8),
        ("optimizer.b2", "0.99", 0.99),
        ("optimizer.eps", "1e-6", 1e-6),
        ("engine.env_threads", "2", 2),
    ],
)
@pytest.mark.parametrize("rollout", ["patr", "tree_random"])
def test_knobs_are_set_from_the_command_line(key, text, value, rollout):
    section, name = key.split(".")
    config = parsed(f"--config.rollout={rollout}", f"--config.{key}={text}")
    assert config[section][name] == value
    parts = build.build(config)
    if section in ("objective", "optimizer", rollout):
        made = parts.controller if section == rollout else getattr(parts, section)
        assert getattr(made, name) == value


def test_a_timeout_goes_with_threads():
    build.build(parsed("--config.engine.env_threads=2", "--config.engine.env_timeout=1.5"))
    with pytest.raises(ValueError, match=r"engine: env_timeout=1\.5: .* with env_threads >= 1"):
        build.build(parsed("--config.engine.env_timeout=1.5"))


def test_what_is_no_number_is_refused():
    with pytest.raises(ValueError, match="patr: repeat_limit='often': expected a whole number"):
        build.build(parsed("--config.patr.repeat_limit=often"))
