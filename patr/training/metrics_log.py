"""Where a run's numbers go: metrics.jsonl always; TensorBoard and Weights & Biases if the config asks for them."""

import importlib.util
import numbers
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict
from tensorboardX import SummaryWriter

from patr import records


def check(settings: ConfigDict) -> None:
    """Raise ValueError if Weights & Biases is asked for and not installed."""
    if settings.wandb_project and importlib.util.find_spec("wandb") is None:
        raise ValueError(
            f"logging.wandb_project={settings.wandb_project!r}: wandb is not installed; "
            "pip install wandb, or leave the project empty"
        )


class MetricsLog:
    """Goes on after `step`: what an earlier process logged of later steps is dropped or hidden."""

    def __init__(self, workdir: Path, config: ConfigDict, step: int):
        self._path = workdir / "metrics.jsonl"
        records.truncate_after(self._path, step)
        self._board = self._wandb = None
        if config.logging.tensorboard:
            # The suffix, since a file is named by the second, and a restart must not take the name of the one before.
            directory, suffix = str(workdir / "tensorboard"), f".after{step}"
            self._board = SummaryWriter(directory, purge_step=step + 1, flush_secs=10, filename_suffix=suffix)
        if config.logging.wandb_project:
            import wandb

            self._wandb = wandb.init(
                project=config.logging.wandb_project,
                name=workdir.name,
                id=_wandb_id(workdir),
                resume="allow",
                dir=str(workdir),
                config=config.to_dict(),
            )

    def write(self, step: int, metrics: Mapping[str, Any]) -> None:
        """One line of metrics.jsonl; the numbers of it to the others. Raises as `records.append_metrics`."""
        records.append_metrics(self._path, step, metrics)
        values = {name: float(value) for name, value in metrics.items() if isinstance(value, numbers.Real)}
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log(values, step=step)

    def close(self) -> None:
        if self._board is not None:
            self._board.close()
        if self._wandb is not None:
            self._wandb.finish()


def _wandb_id(workdir: Path) -> str:
    """Drawn when the run starts and kept beside it: workdirs of one name are runs apart, a resumed run is one."""
    file = workdir / "wandb_id"
    if not file.is_file():
        # Whole or not at all: a kill must not leave half an id.
        temporary = file.with_suffix(".tmp")
        temporary.write_text(secrets.token_hex(8) + "\n")
        os.replace(temporary, file)
    return file.read_text().strip()
