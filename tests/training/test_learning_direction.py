"""What a run's step does to its policy: rewarded branches become likelier, and KL is measured from where it began."""

import itertools

import numpy as np
import pytest
from flax import nnx
from run_configs import smoke

from patr import records
from patr.batching.flat import flat_batch
from patr.envs.frozen_lake import FrozenLake
from patr.training import build
from patr.training.loop import Run, train
from patr.training.losses import flat_logprobs


@pytest.fixture(scope="module")
def rewarded(tmp_path_factory):
    """The workdir of a run of two steps that rewards every other branch, whatever it did, and its config."""
    workdir = tmp_path_factory.mktemp("rewarded")
    config = smoke(**{
        "objective.kl_coef": 0.1, "training.steps": 2, "training.checkpoint_every": 1, "warm_start.steps": 0,
        "evaluation.tasks": 1, "evaluation.samples": 1, "packing.sizes": ((192, 640, 512),),
    })  # fmt: skip
    outcomes = itertools.cycle([1.0, 0.0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FrozenLake, "outcome", lambda env: next(outcomes))
        train(config, workdir)
    return workdir, config


def test_a_step_makes_rewarded_branches_likelier_than_the_others(rewarded):
    workdir, config = rewarded
    trees = [tree for tree in records.read_trees(workdir / "trees.jsonl") if tree.step == 1]
    rewards = [[t.reward for t in tree.trajectories()] for tree in trees]
    assert all(0 < np.mean(group) < 1 for group in rewards)
    rows = flat_batch(trees, [np.zeros(len(group)) for group in rewards], reduction="seq_mean_token_mean")
    run = Run(build.build(config), workdir)
    means = []
    for step in (0, 1):
        run.restore(step)
        logprobs = np.asarray(flat_logprobs(nnx.merge(run.graph, run.state.params), rows, temperature=1.0))
        means.append((logprobs * rows.mask).sum(axis=1) / rows.mask.sum(axis=1))
    run.checkpoints.close()
    change = np.split(means[1] - means[0], np.cumsum([len(group) for group in rewards])[:-1])
    for group, of_leaves in zip(rewards, change, strict=True):
        won = np.array(group) == 1
        assert of_leaves[won].mean() > of_leaves[~won].mean()


def test_kl_is_measured_from_the_policy_before_the_first_step(rewarded):
    lines = [line for line in records.read_metrics(rewarded[0] / "metrics.jsonl") if "kl" in line]
    assert [line["step"] for line in lines] == [1, 2]
    # A float32 log-prob is good to 1e-6, and KL is quadratic in its error.
    assert lines[0]["kl"] == pytest.approx(0, abs=1e-9)
    assert 1e-6 < lines[1]["kl"] < 0.1
