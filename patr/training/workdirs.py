"""A workdir belongs to one config and to one process at a time."""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict


@contextlib.contextmanager
def claimed(workdir: Path, config: ConfigDict) -> Iterator[Path]:
    """The workdir, made if missing, locked against other processes.

    Raises ValueError if another process holds it, or if it was started with another config (only training.steps may
    differ, and only under a constant schedule: nothing before the old end depends on it then).
    """
    workdir = workdir.absolute()
    workdir.mkdir(parents=True, exist_ok=True)
    with open(workdir / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(
                f"{workdir} is in use by another process; wait for it or choose another --workdir"
            ) from None
        _check_same(workdir, config)
        yield workdir


def read_config(workdir: Path) -> ConfigDict:
    """The config a workdir was started with. Raises ValueError if it is no workdir."""
    file = Path(workdir) / "config.json"
    if not file.is_file():
        raise ValueError(f"{file} does not exist: {workdir} is not the workdir of a run")
    return ConfigDict(_with_tuples(json.loads(file.read_text())))


def write_json(path: Path, value: Any) -> None:
    """Write all or nothing."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(value, indent=2) + "\n")
    os.replace(temporary, path)


def _check_same(workdir: Path, config: ConfigDict) -> None:
    new = json.loads(config.to_json())
    file = workdir / "config.json"
    if not file.is_file():
        write_json(file, new)
        return
    old, wanted = _flatten(json.loads(file.read_text())), _flatten(new)
    differing = sorted(key for key in old.keys() | wanted.keys() if old.get(key) != wanted.get(key))
    if differing == ["training.steps"] and config.optimizer.schedule == "constant":
        write_json(file, new)
        return
    if differing:
        lines = "\n".join(f"  {key}: {old.get(key)!r} there, {wanted.get(key)!r} asked for" for key in differing)
        raise ValueError(
            f"{workdir} holds a run of another config:\n{lines}\nChoose another --workdir, or the old values."
        )


def _with_tuples(value: Any) -> Any:
    """JSON knows lists only; configs hold tuples only."""
    if isinstance(value, dict):
        return {key: _with_tuples(item) for key, item in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def _flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for key, value in tree.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
