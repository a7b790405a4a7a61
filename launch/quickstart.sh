#!/usr/bin/env bash
# From a fresh clone to a trained agent: install, train the tiny run, evaluate it, draw its curves.
# Run again, it resumes. Arguments go to launch/train.py (--config.seed=1 and the like).
set -euo pipefail
cd "$(dirname "$0")/.."
./launch/install.sh
workdir="${WORKDIR:-runs/quickstart}"
.venv/bin/python launch/train.py --config=configs/frozen_lake.py:tiny --workdir="$workdir" "$@"
.venv/bin/python launch/evaluate.py --workdir="$workdir" --json="$workdir/evaluation.json"
.venv/bin/python -m patr.analysis.curves "$workdir" --out="$workdir/curves.png"
