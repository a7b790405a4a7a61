"""Run every notebook from top to bottom and fail at the first error. Their files are left as they are.

`python notebooks/run_all.py` runs all, `python notebooks/run_all.py 02_inspect_trees.ipynb` one.
"""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

FOLDER = Path(__file__).parent
CELL_SECONDS = 600


def main(names: list[str]) -> None:
    for file in [FOLDER / name for name in names] or sorted(FOLDER.glob("*.ipynb")):
        notebook = nbformat.read(file, as_version=4)
        # Relative paths in a notebook start at its own folder.
        client = NotebookClient(notebook, timeout=CELL_SECONDS, resources={"metadata": {"path": str(FOLDER)}})
        try:
            client.execute()
        except CellExecutionError as error:
            raise SystemExit(f"{file.name} failed:\n{error}") from None
        print(f"{file.name}: ran")


if __name__ == "__main__":
    main(sys.argv[1:])
