"""Write the policy of a workdir as a Hugging Face directory, which transformers and vLLM load.

python launch/export_hf.py --workdir=runs/tiny --out=exports/tiny
python launch/export_hf.py --workdir=runs/tiny --out=exports/tiny50 --step=50 --dtype=float32
"""

import cli
from absl import flags

_WORKDIR = flags.DEFINE_string("workdir", None, "The workdir of a training run.")
_OUT = flags.DEFINE_string("out", None, "The directory to write; new or empty.")
_STEP = cli.define_step("Checkpoint to export: a number, or 'best'; the newest if not given.")
_DTYPE = flags.DEFINE_enum("dtype", "bfloat16", ["bfloat16", "float32"], "Of the tensors written.")
flags.mark_flags_as_required(["workdir", "out"])


def main():
    from pathlib import Path

    from patr.training.export import export_workdir

    step = export_workdir(Path(_WORKDIR.value), Path(_OUT.value), _STEP.value, _DTYPE.value)
    print(f"{_OUT.value}: the policy of {_WORKDIR.value} after step {step}, in {_DTYPE.value}")


if __name__ == "__main__":
    cli.run(main)
