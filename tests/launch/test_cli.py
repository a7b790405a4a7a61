"""What the launchers answer to a mistake: one line that says what to do, and nothing written."""

import os
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
        (
            "--config=configs/frozen_lake.py:tinny",
            "error: configs/frozen_lake.py:tinny does not exist; there are smoke",
        ),
        ("--config=configs/frozen_cake.py:tiny", "error: --config: [Errno 2] No such file"),
    ],
)
def test_a_mistyped_flag_is_answered_without_a_traceback(flag, answer, tmp_path):
    done = run("train.py", "--config=configs/frozen_lake.py:smoke", f"--workdir={tmp_path / 'run'}", flag)
    assert done.returncode != 0
    assert answer in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("script", ["train.py", "evaluate.py", "export_hf.py"])
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


CONFIG = """
from ml_collections import ConfigDict

def get_config():
    config = ConfigDict({"optimizer": {"learning_rate": 1.0}})
    STATEMENT
    return config
"""


@pytest.mark.parametrize(
    "statement",
    ["config.optimizer.learning_rat += 1", "len(3)", "config.optimizer['rate']", "int('many')"],
)
def test_an_error_inside_a_config_file_shows_where_it_is(statement, tmp_path):
    (tmp_path / "mine.py").write_text(CONFIG.replace("STATEMENT", statement))
    done = run("train.py", f"--config={tmp_path / 'mine.py'}", f"--workdir={tmp_path / 'run'}")
    assert done.returncode != 0
    assert f'{tmp_path / "mine.py"}", line 6, in get_config' in done.stderr
    assert "as a --config flag names" not in done.stderr


def ended_with(statement, tmp_path, *flags):
    """What a launcher says whose main does this."""
    script = tmp_path / "launcher.py"
    script.write_text(f"import cli\n\ndef main():\n    {statement}\n\ncli.run(main)\n")
    path = os.pathsep.join([str(ROOT / "launch"), str(ROOT)])
    command = [sys.executable, str(script), *flags]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})
    assert done.returncode == 1
    return done.stderr


LIMITS = "max_turn_tokens=8, max_response_tokens=64, max_context=64"


@pytest.mark.parametrize(
    ("statement", "answer"),
    [
        (f"from patr.rollouts.base import Limits; Limits(max_turns=0, {LIMITS})", "limits: max_turns=0: expected"),
        ("from patr.samplers.base import Sample; Sample((), (), 'stop', 0, 0, 0)", "sampler returned 0 ids"),
    ],
)
def test_checks_of_the_input_are_answered_in_one_line(statement, answer, tmp_path):
    said = ended_with(statement, tmp_path)
    assert said.startswith(f"error: {answer}") and len(said.splitlines()) == 1
    assert "Traceback" in ended_with(statement, tmp_path, "--verbosity=1")


@pytest.mark.parametrize(
    "statement",
    [
        "import json; json.loads('{')",
        "from patr.objectives.advantages import group_advantages; group_advantages(['many'])",  # fails inside numpy
        "open('/nowhere/at/all')",
    ],
)
def test_errors_of_libraries_keep_their_traceback(statement, tmp_path):
    assert "Traceback" in ended_with(statement, tmp_path)


@pytest.mark.parametrize(
    ("flag", "answer"),
    [
        ("--step=last", "flag --step=last: expected the number of a step, or 'best'"),
        ("--samples=0", "flag --samples=0"),
    ],
)
def test_flags_of_evaluation_are_checked(flag, answer, tmp_path):
    done = run("evaluate.py", f"--workdir={tmp_path}", flag)
    assert done.returncode != 0 and answer in done.stderr and "Traceback" not in done.stderr
