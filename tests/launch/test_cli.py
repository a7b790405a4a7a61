"""What the launchers answer to a mistake: one line that says what to do, and nothing written."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(script, *arguments):
    command = [sys.executable, str(ROOT / "launch" / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


@pytest.mark.parametrize(
    ("flag", "answer"),
    [
        ("--config.optimizer.learning_rat=1", "'learning_rat'; did you mean 'learning_rate'?"),
        ("--config.optimize.learning_rate=1", "'optimize'; did you mean 'optimizer'?"),
        ("--config.training.steps=many", "invalid literal for int() with base 10: 'many'"),
        ("--config.rollout=beam", "error: rollout='beam': allowed are 'flat', 'patr', 'tree_random'"),
        ("rollout=flat", "error: rollout=flat: only flags are expected, as --name=value"),
        ("--workdri=x", "Did you mean: workdir ?"),
    ],
)
def test_a_mistyped_flag_is_answered_without_a_traceback(flag, answer, tmp_path):
    done = run("train.py", "--config=configs/frozen_lake.py:smoke", f"--workdir={tmp_path / 'run'}", flag)
    assert done.returncode != 0
    assert answer in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("script", ["train.py", "evaluate.py"])
def test_help_fits_a_screen_and_shows_a_command(script):
    answer = run(script, "--help").stdout
    assert len(answer.splitlines()) <= 24
    assert f"python launch/{script} --" in answer


def test_a_folder_that_is_no_workdir_is_named(tmp_path):
    done = run("evaluate.py", f"--workdir={tmp_path}")
    assert done.returncode == 1
    assert done.stderr.strip() == (
        f"error: {tmp_path}/config.json does not exist: {tmp_path} is not the workdir of a run"
    )
