"""Checkpoints: everything a run needs to go on from a step, and nothing else.

Data and randomness follow from the step, so a checkpoint is the parameters, the
optimizer state, and a small JSON of totals. orbax writes it in the background
and renames it into place, so that a kill leaves either a whole checkpoint or none;
a digest of the parameters tells a damaged one from a whole one.
"""

import hashlib
import logging
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, BestN, CustomSteps, LatestN

from patr.training.state import TrainState


class Checkpoints:
    """The checkpoints of one workdir: the last few, the best one, and step 0 (the reference policy)."""

    def __init__(self, directory: Path, keep: int = 2):
        self.directory = Path(directory).absolute()
        keep_policy = AnyPreservationPolicy(
            [
                CustomSteps([0]),
                LatestN(keep),
                BestN(
                    get_metric_fn=lambda metrics: metrics["success_rate"], n=1, keep_checkpoints_without_metrics=False
                ),
            ]
        )
        self._manager = ocp.CheckpointManager(
            self.directory, options=ocp.CheckpointManagerOptions(preservation_policy=keep_policy)
        )

    def save(self, state: TrainState, totals: dict[str, Any], success_rate: float | None = None) -> None:
        """Write in the background. `totals` must be JSON-serialisable; success_rate ranks the best."""
        meta = {"totals": totals, "params_sha256": digest(state.params)}
        self._manager.save(
            state.step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(_arrays(state)),
                meta=ocp.args.JsonSave(meta),
            ),
            metrics=None if success_rate is None else {"success_rate": success_rate},
        )

    def restore(self, like: TrainState, step: int | None = None) -> tuple[TrainState, dict[str, Any]] | None:
        """The newest whole checkpoint (or the one of `step`) and its totals; None if there is none.

        like: a state of the same structure (arrays or shapes). A damaged checkpoint is skipped with a warning;
        if `step` was asked for, or none of several is whole, ValueError names them.
        """
        steps = sorted(self._manager.all_steps(), reverse=True) if step is None else [step]
        for candidate in steps:
            try:
                return self._restore(like, candidate)
            except Exception as error:  # whatever orbax or the digest finds wrong with it
                logging.warning("checkpoint %s is damaged and skipped: %s", self.directory / str(candidate), error)
        if steps:
            raise ValueError(
                f"no whole checkpoint under {self.directory} (tried steps {steps}); "
                "delete the workdir to start over, or restore one from a copy"
            )
        return None

    def _restore(self, like: TrainState, step: int) -> tuple[TrainState, dict[str, Any]]:
        shapes = jax.tree.map(ocp.utils.to_shape_dtype_struct, _arrays(like))
        restored = self._manager.restore(
            step,
            args=ocp.args.Composite(state=ocp.args.StandardRestore(shapes), meta=ocp.args.JsonRestore()),
        )
        state = like.replace(step=step, **restored.state)
        if digest(state.params) != restored.meta["params_sha256"]:
            raise ValueError("its parameters do not have the digest they were saved with")
        return state, restored.meta["totals"]

    def steps(self) -> list[int]:
        """Steps there are checkpoints of, ascending."""
        return sorted(self._manager.all_steps())

    def wait(self) -> None:
        """Block until the last save is on disk."""
        self._manager.wait_until_finished()

    def forget_after(self, step: int) -> None:
        """Delete checkpoints of later steps: they were found damaged."""
        for later in self._manager.all_steps():
            if later > step:
                self._manager.delete(later)

    def close(self) -> None:
        self._manager.close()


def _arrays(state: TrainState) -> dict[str, Any]:
    return {"params": state.params, "opt_state": state.opt_state}


def digest(params) -> str:
    """sha256 of all parameters, in the order of their paths."""
    total = hashlib.sha256()
    for path, leaf in sorted(jax.tree_util.tree_leaves_with_path(params), key=lambda item: str(item[0])):
        array = np.asarray(leaf)
        total.update(f"{jax.tree_util.keystr(path)}{array.dtype}{array.shape}".encode())
        total.update(array.tobytes())
    return total.hexdigest()
