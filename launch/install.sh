#!/usr/bin/env bash
# Make .venv with patr and the extras given (setup.py names them), once for every state of setup.py and constraints.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
extras="${1:-notebooks}"
stamp=".venv/.installed-${extras//,/-}"
wanted="$(cat setup.py constraints.txt | cksum)"
if [ "$(cat "$stamp" 2>/dev/null || true)" = "$wanted" ]; then exit 0; fi
python="${PYTHON:-python3}"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "patr needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2
  exit 1
}
echo "installing into .venv ..."
"$python" -m venv .venv
.venv/bin/python -m pip install -q --upgrade pip setuptools wheel
.venv/bin/python -m pip install -q -c constraints.txt -e ".[$extras]"
echo "$wanted" > "$stamp"
