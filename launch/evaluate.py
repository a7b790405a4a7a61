"""Evaluate the policy of a workdir by the paper's protocol: every test task sampled four times.

python launch/evaluate.py --workdir=runs/tiny
python launch/evaluate.py --workdir=runs/tiny --step=best --temperature=0.7 --json=report.json
"""

import cli
from absl import flags

_WORKDIR = flags.DEFINE_string("workdir", None, "The workdir of a training run.")
_STEP = cli.define_step("Checkpoint to evaluate: a number, or 'best'; the newest if not given.")
_TEMPERATURE = flags.DEFINE_float("temperature", None, "Sampling temperature; the run's own if not given.")
_SAMPLES = flags.DEFINE_integer("samples", None, "Samples a task; the run's own if not given.", lower_bound=1)
_JSON = flags.DEFINE_string("json", None, "Also write the report to this file.")
flags.mark_flag_as_required("workdir")


def main():
    from pathlib import Path

    from rich.console import Console

    from patr.analysis.tables import evaluation_table
    from patr.training.loop import evaluate_workdir
    from patr.training.workdirs import write_json

    report = evaluate_workdir(
        Path(_WORKDIR.value), step=_STEP.value, temperature=_TEMPERATURE.value, samples=_SAMPLES.value
    )
    Console().print(evaluation_table(report.to_json()))
    if _JSON.value:
        Path(_JSON.value).parent.mkdir(parents=True, exist_ok=True)
        write_json(Path(_JSON.value), report.to_json())


if __name__ == "__main__":
    cli.run(main)
