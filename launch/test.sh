#!/usr/bin/env bash
# Run the tests, installing first if needed. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
./launch/install.sh dev,notebooks
exec .venv/bin/python -m pytest -n 2 "$@"
