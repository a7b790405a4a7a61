"""Train an agent. The same command again resumes.

    python launch/train.py --config=configs/frozen_lake.py:tiny --workdir=runs/tiny
    python launch/train.py --config=configs/frozen_lake.py:tiny --workdir=runs/grpo --config.rollout=flat

Any value of the config is a flag, --config.training.steps=50 for one.
"""

import cli
from absl import flags
from ml_collections import config_flags

_CONFIG = config_flags.DEFINE_config_file("config", None, "Config file, with its variant after a colon.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Where checkpoints and records go.")
flags.mark_flags_as_required(["config", "workdir"])


def main():
    from patr.training.loop import train

    summary = train(_CONFIG.value, _WORKDIR.value)
    print(f"{_WORKDIR.value}: {100 * summary['success_rate']:.1f}% success after {summary['step']} steps")


if __name__ == "__main__":
    cli.run(main)
