"""One write, three places to read it."""

import importlib.machinery
import shutil
import struct
import sys
import types

import pytest
from ml_collections import ConfigDict
from tensorboardX.proto.event_pb2 import Event

from patr import records
from patr.training import metrics_log
from patr.training.metrics_log import MetricsLog


def config(tensorboard=True, wandb_project=""):
    return ConfigDict({"seed": 3, "logging": {"tensorboard": tensorboard, "wandb_project": wandb_project}})


def board(workdir):
    """The scalars TensorBoard shows: (name, step) -> value, those before a restart's purge left out."""
    shown = {}
    for file in sorted((workdir / "tensorboard").iterdir()):
        data, at = file.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            event = Event.FromString(data[at + 12 : at + 12 + length])
            at += length + 16
            if event.HasField("session_log"):  # a restart: later steps of before are void
                shown = {key: value for key, value in shown.items() if key[1] < event.step}
            shown |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
    return shown


def test_numbers_reach_the_file_and_the_board_and_text_the_file_only(tmp_path):
    log = MetricsLog(tmp_path, config(), step=-1)
    log.write(1, {"loss": 0.5, "note": "first", "missing": None})
    log.close()
    assert records.read_metrics(tmp_path / "metrics.jsonl") == [
        {"step": 1, "loss": 0.5, "note": "first", "missing": None}
    ]
    assert board(tmp_path) == {("loss", 1): 0.5}


def test_a_resumed_run_hides_the_steps_after_its_checkpoint(tmp_path):
    log = MetricsLog(tmp_path, config(), step=-1)
    for step in (1, 2, 3):
        log.write(step, {"loss": float(step)})
    log.close()
    log = MetricsLog(tmp_path, config(), step=1)
    log.write(2, {"loss": 20.0})
    log.close()
    assert [line["loss"] for line in records.read_metrics(tmp_path / "metrics.jsonl")] == [1.0, 20.0]
    assert board(tmp_path) == {("loss", 1): 1.0, ("loss", 2): 20.0}


def test_without_tensorboard_there_is_no_folder(tmp_path):
    MetricsLog(tmp_path, config(tensorboard=False), step=-1).close()
    assert not (tmp_path / "tensorboard").exists()


@pytest.fixture
def wandb_calls(monkeypatch):
    """What a stand-in for wandb is told."""
    calls = []
    run = types.SimpleNamespace(
        log=lambda values, step: calls.append((step, values)), finish=lambda: calls.append("finish")
    )
    wandb = types.ModuleType("wandb")
    wandb.__spec__ = importlib.machinery.ModuleSpec("wandb", None)
    wandb.init = lambda **given: calls.append(given) or run
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    return calls


def test_wandb_is_told_when_asked_for(tmp_path, wandb_calls):
    metrics_log.check(config(wandb_project="lake").logging)
    log = MetricsLog(tmp_path, config(wandb_project="lake"), step=-1)
    log.write(1, {"loss": 0.5, "note": "first"})
    log.close()
    given, *told = wandb_calls
    assert (given["project"], given["resume"], given["config"]["seed"]) == ("lake", "allow", 3)
    assert (given["name"], given["dir"]) == (tmp_path.name, str(tmp_path))
    assert told == [(1, {"loss": 0.5}), "finish"]


def test_wandb_takes_a_resumed_run_for_the_same_and_others_of_its_name_for_others(tmp_path, wandb_calls):
    a, b = tmp_path / "a" / "seed0", tmp_path / "b" / "seed0"
    for workdir in (a, b):
        workdir.mkdir(parents=True)
    for workdir, step in ((a, -1), (a, 1), (b, -1)):
        MetricsLog(workdir, config(tensorboard=False, wandb_project="lake"), step)
    shutil.rmtree(a)
    a.mkdir()
    MetricsLog(a, config(tensorboard=False, wandb_project="lake"), -1)  # deleted and started over
    first, resumed, elsewhere, afresh = (given["id"] for given in wandb_calls)
    assert first == resumed
    assert len({first, elsewhere, afresh}) == 3


def test_wandb_that_is_not_installed_is_an_error_before_the_run(monkeypatch):
    monkeypatch.setattr(metrics_log.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"logging.wandb_project='lake': wandb is not installed"):
        metrics_log.check(config(wandb_project="lake").logging)
