"""Whole runs of a few steps: reproducible to the bit, resumable after a kill, and safe against the wrong workdir."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from run_configs import smoke
from transformers import AutoConfig, AutoTokenizer

from patr import records
from patr.text.tokenizer import END_OF_TEXT, TURN_END, Tokenizer
from patr.training.export import export_workdir
from patr.training.loop import Run, evaluate_workdir, train
from patr.training.workdirs import claimed

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run: its workdir and its summary."""
    workdir = tmp_path_factory.mktemp("finished")
    return workdir, train(smoke(), workdir)


def without_times(metrics):
    timed = ("seconds", "per_second")
    return [{k: v for k, v in line.items() if not k.endswith(timed)} for line in metrics]


def same_outcome(a, b):
    keys = set(a) - {"wall_seconds"}
    return {k: a[k] for k in keys} == {k: b[k] for k in keys}


def test_summary_and_records_hold_what_users_look_for(finished):
    workdir, summary = finished
    for key in ("step", "params_sha256", "success_rate", "pass_at_4", "response_length", "turns"):
        assert key in summary
    lines = records.read_metrics(workdir / "metrics.jsonl")
    training = [line for line in lines if "loss" in line or "success" in line]
    assert [line["step"] for line in training] == [1, 2, 3, 4]
    assert summary["step"] == 4
    assert summary["sampled_tokens"] == sum(line["sampled_tokens"] for line in training) > 0
    assert summary["environment_steps"] == sum(line["environment_steps"] for line in training) > 0
    trees = list(records.read_trees(workdir / "trees.jsonl"))
    assert len(trees) == 4 * 4
    assert all(line["sampler_late_compilations"] == 0 for line in training)


def test_the_first_ratio_is_one(finished):
    for line in records.read_metrics(finished[0] / "metrics.jsonl"):
        if "ratio_max_deviation" in line:
            # The sampler's cached sums and the trainer's packed ones differ in float32 rounding only.
            assert line["ratio_max_deviation"] < 1e-4


def test_each_shared_token_is_prefilled_once(finished):
    for tree in records.read_trees(finished[0] / "trees.jsonl"):
        unique = len(tree.prompt_ids) + sum(
            len(turn.action_ids) + len(turn.observation_ids) for branch in tree.branches for turn in branch.turns
        )
        assert tree.ledger.prefilled_tokens <= unique


def test_one_seed_is_one_run_and_another_is_another(finished, tmp_path):
    workdir, summary = finished
    again = train(smoke(), tmp_path / "again")
    assert same_outcome(summary, again)
    assert (workdir / "trees.jsonl").exists()
    first, second = (without_times(records.read_metrics(d / "metrics.jsonl")) for d in (workdir, tmp_path / "again"))
    assert first == second
    other = train(smoke(seed=1), tmp_path / "other")
    assert other["params_sha256"] != summary["params_sha256"]


def test_killed_runs_resume_to_the_same_bits(finished, tmp_path):
    """SIGKILL at whatever the run is doing, over and over, until it gets through."""
    command = [
        sys.executable, str(ROOT / "launch/train.py"), f"--config={ROOT / 'configs/frozen_lake.py'}:smoke",
        f"--workdir={tmp_path / 'killed'}",
    ]  # fmt: skip
    summary = tmp_path / "killed" / "summary.json"
    checkpoints, metrics = tmp_path / "killed" / "checkpoints", tmp_path / "killed" / "metrics.jsonl"
    # While the first checkpoint is being written, and after a step that no checkpoint holds yet.
    for moment in (lambda: checkpoints.is_dir() and any(checkpoints.iterdir()), lambda: _last_step(metrics) >= 3):
        process = subprocess.Popen(command, env=os.environ | {"JAX_PLATFORMS": "cpu"}, stderr=subprocess.DEVNULL)
        while process.poll() is None and not moment():
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL and not summary.exists()
    subprocess.run(command, check=True, env=os.environ | {"JAX_PLATFORMS": "cpu"}, capture_output=True)
    assert same_outcome(json.loads(summary.read_text()), finished[1])
    first, second = (without_times(records.read_metrics(d)) for d in (finished[0] / "metrics.jsonl", metrics))
    assert first == second
    assert trees(finished[0]) == trees(tmp_path / "killed")


def test_checkpoints_between_evaluations_are_gone_on_from(finished, tmp_path, monkeypatch):
    config = smoke(**{"training.evaluate_every": 4, "training.checkpoint_every": 1})
    roll_out = Run._roll_out

    def interrupted(run, step):
        if step == 3:
            raise KeyboardInterrupt
        return roll_out(run, step)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Run, "_roll_out", interrupted)
        train(config, tmp_path)
    assert train(config, tmp_path)["params_sha256"] == finished[1]["params_sha256"]


def test_an_exported_policy_is_where_another_run_starts(finished, tmp_path):
    out = tmp_path / "export"
    assert export_workdir(finished[0], out, dtype="float32") == 4
    with pytest.raises(ValueError, match="is not empty"):
        export_workdir(finished[0], out)
    config = smoke(**{"model.path": str(out), "model.preset": "", "warm_start.steps": 0, "training.steps": 0})
    summary = train(config, tmp_path / "run")
    lines = records.read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert lines[0]["eval/success_rate"] == finished[1]["success_rate"]
    assert lines[0]["eval/response_length"] == finished[1]["response_length"]
    assert summary["params_sha256"] == finished[1]["params_sha256"]


def test_transformers_reads_the_export_as_we_do(finished, tmp_path):
    out = tmp_path / "export"
    export_workdir(finished[0], out)
    theirs, ours = AutoTokenizer.from_pretrained(out), Tokenizer.load(finished[0] / "tokenizer")
    text = "Legend: P you, _ ice.\nP _ O\n_ _ G\nTurns left: 10.\n```left```"
    assert tuple(theirs.encode(text)) == ours.encode(text)
    config = AutoConfig.from_pretrained(out)
    assert (config.eos_token_id, config.pad_token_id) == (ours.token_id(TURN_END), ours.token_id(END_OF_TEXT))


def trees(workdir):
    lines = [records.tree_to_json(tree) for tree in records.read_trees(workdir / "trees.jsonl")]
    for line in lines:
        del line["ledger"]["wall_seconds"]
    return lines


def _last_step(metrics: Path) -> int:
    if not metrics.exists():
        return -1
    whole = [line for line in metrics.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return max((json.loads(line)["step"] for line in whole), default=-1)


def test_a_damaged_checkpoint_is_skipped(finished, tmp_path, caplog):
    workdir, summary = finished
    copy = tmp_path / "damaged"
    shutil.copytree(workdir, copy)
    newest = copy / "checkpoints" / "4" / "state"
    data = max((f for f in newest.rglob("*") if f.is_file()), key=lambda f: f.stat().st_size)
    data.write_bytes(data.read_bytes()[: data.stat().st_size // 2])
    again = train(smoke(), copy)
    assert "damaged and skipped" in caplog.text
    assert again["params_sha256"] == summary["params_sha256"]


def test_a_workdir_keeps_its_config(finished):
    workdir, _ = finished
    with pytest.raises(ValueError, match=r"optimizer\.learning_rate: 0\.0006 there, 0.1 asked for"):
        train(smoke(**{"optimizer.learning_rate": 0.1}), workdir)


def test_a_workdir_has_one_process(tmp_path):
    with claimed(tmp_path, smoke()), pytest.raises(ValueError, match="in use by another process"):
        train(smoke(), tmp_path)


def test_evaluation_reads_a_workdir_and_repeats(finished):
    workdir, summary = finished
    report = evaluate_workdir(workdir)
    assert report.success_rate == summary["success_rate"] and report.turns == summary["turns"]
    assert sum(size["tasks"] for size in report.by_size.values()) == 6
    assert report.step == summary["step"] == 4
    with pytest.raises(ValueError, match=r"no checkpoint of step 3 .*; there are 0, 2, 4"):
        evaluate_workdir(workdir, step=3)


def test_the_best_checkpoint_can_be_evaluated(finished):
    workdir, _ = finished
    lines = records.read_metrics(workdir / "metrics.jsonl")
    rates = {line["step"]: line["eval/success_rate"] for line in lines if "eval/success_rate" in line}
    report = evaluate_workdir(workdir, step="best")
    assert report.success_rate == max(rates.values())
    assert report.step == max(step for step, rate in rates.items() if rate == report.success_rate)


def test_a_broken_update_stops_the_run_and_its_step_is_in_the_records(tmp_path):
    with pytest.raises(FloatingPointError, match=r"^step 1: param_norm not finite.*checkpoint: 0"):
        train(smoke(**{"optimizer.learning_rate": 1e30, "optimizer.warmup_steps": 0}), tmp_path)
    assert {tree.step for tree in records.read_trees(tmp_path / "trees.jsonl")} == {1}
    last = records.read_metrics(tmp_path / "metrics.jsonl")[-1]
    assert last["step"] == 1 and last["param_norm"] is None and last["loss"] is not None


def test_updates_change_the_policy(finished, tmp_path):
    before = train(smoke(**{"training.steps": 0}), tmp_path)
    assert before["params_sha256"] != finished[1]["params_sha256"]
    norms = [line["grad_norm"] for line in records.read_metrics(finished[0] / "metrics.jsonl") if "loss" in line]
    assert len(norms) == 4 and min(norms) > 0


def test_minibatches_are_measured_together(finished, tmp_path):
    """Two updates a step see the same groups as one does."""
    one = records.read_metrics(finished[0] / "metrics.jsonl")
    train(smoke(**{"training.minibatches": 2, "training.steps": 1}), tmp_path)
    two = records.read_metrics(tmp_path / "metrics.jsonl")
    first = [next(line for line in lines if "unique_tokens" in line) for lines in (one, two)]
    for name in ("unique_tokens", "flat_tokens", "zero_variance_groups", "sampled_tokens"):
        assert first[0][name] == first[1][name], name
    assert first[0]["unique_tokens"] > 0


def test_the_reference_is_the_policy_before_rl_also_after_a_restart(tmp_path, monkeypatch):
    config = smoke(**{"objective.kl_coef": 0.1, "training.steps": 2, "training.checkpoint_every": 1})
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Run, "_time", interrupted_at_second_call())
        train(config, tmp_path / "halved")
    train(config, tmp_path / "halved")
    train(config, tmp_path / "whole")
    kl = [line["kl"] for line in records.read_metrics(tmp_path / "whole" / "metrics.jsonl") if "kl" in line]
    assert kl[0] == pytest.approx(0, abs=1e-6) and kl[1] > 1e-6
    assert kl == [line["kl"] for line in records.read_metrics(tmp_path / "halved" / "metrics.jsonl") if "kl" in line]


def interrupted_at_second_call():
    calls, time_of = [], Run._time

    def time_or_stop(run, *args):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return time_of(run, *args)

    return time_or_stop


def test_a_warm_start_gone_wrong_stops_the_run_and_is_named(tmp_path):
    with pytest.raises(FloatingPointError, match=r"warm start step 1: .*param_norm not finite.*checkpoint: none"):
        train(smoke(**{"warm_start.optimizer.learning_rate": 1e30}), tmp_path)
    # It has left nothing that a second try would go on from.
    with pytest.raises(FloatingPointError, match="warm start step 1"):
        train(smoke(**{"warm_start.optimizer.learning_rate": 1e30}), tmp_path)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("rollout", "beam", "rollout='beam': allowed are 'flat', 'patr', 'tree_random'"),
        ("patr.score_every", 11, "score_every"),
        ("limits.temperature", 0.0, "limits.temperature"),
        ("objective.clip_low", 2.0, "clip_low=2.0"),
        ("training.minibatches", 3, "training.minibatches=3"),
        ("scorer.reward_weight", 0.9, "reward_weight=0.9"),
        ("optimizer.schedule", "sqrt", "optimizer: schedule='sqrt': allowed are constant, cosine, linear"),
        ("optimizer.weight_decay", -0.1, "optimizer: weight_decay=-0.1: allowed is a finite number >= 0"),
        ("optimizer.learning_rate", float("nan"), "optimizer: learning_rate=nan"),
        ("warm_start.optimizer.learning_rate", -1.0, r"warm_start\.optimizer: learning_rate=-1.0"),
        ("warm_start.noise", 2.0, "warm_start.noise=2.0"),
        ("warm_start.ramp", -0.1, "warm_start.ramp=-0.1"),
        ("warm_start.steps", -1, "warm_start.steps=-1: must be at least 0"),
        ("training.steps", -1, "training.steps=-1: must be at least 0"),
        ("evaluation.tasks", 0, "evaluation.tasks=0: must be at least 1"),
        ("evaluation.samples", 0, "evaluation.samples=0: must be at least 1"),
        ("evaluation.temperature", -1.0, "evaluation: .*temperature=-1.0"),
        ("engine.env_retries", -1, "engine: env_retries=-1"),
        ("limits.max_context", 1000, r"limits.max_context=1000: .*jax_sampler.contexts=\(704,\)"),
        ("limits.max_turn_tokens", 16, "limits.max_turn_tokens=16: .*jax_sampler.max_new_tokens=8"),
        ("packing.sizes", ((21, 160, 256),), r"packing.sizes=\(\(21, 160, 256\),\): .*rows=22, tiles=72, trained=32"),
        ("packing.sizes", ((192, 71, 512),), "packing.sizes"),
        ("packing.sizes", ((192, 640, 31),), "packing.sizes"),
        ("model.preset", "huge", "model.preset='huge': allowed are 'tiny'"),
        ("overlong", "cut", "overlong='cut': allowed are 'error', 'skip'"),
        ("tokenizer.path", "/nowhere", "tokenizer.json"),
    ],
)
def test_bad_configs_are_refused_before_anything_starts(key, value, message, tmp_path):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        train(smoke(**{key: value}), tmp_path / "never")
    assert not (tmp_path / "never").exists()  # above all no config.json, which would refuse the corrected one


def test_tasks_too_long_are_refused_before_anything_is_saved(tmp_path):
    with pytest.raises(ValueError, match="overlong='skip'"):
        train(smoke(**{"limits.max_context": 140}), tmp_path)
    assert not (tmp_path / "checkpoints").exists()


def test_a_mistyped_key_names_the_near_one():
    with pytest.raises(KeyError, match="learning_rate"):
        smoke(**{"optimizer.learning_rat": 0.1})
