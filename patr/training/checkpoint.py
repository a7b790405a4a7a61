"""Checkpoints: everything a run needs to go on from a step, and nothing else.

Data and randomness follow from the step, so a checkpoint is the parameters, the
optimizer state, and a small JSON of totals. orbax writes it in the background
and renames it into place, so that a kill leaves either a whole checkpoint or none;
a digest of all that is restored tells a damaged one from a whole one.
"""

import hashlib
import itertools
import json
import logging
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, BestN, CustomSteps, LatestN

from patr.training.state import TrainState


class DamagedCheckpoint(ValueError):
    """What is on disk is not what was saved."""


class Checkpoints:
    """The checkpoints of one workdir: the last few, the best one, and step 0 (the reference policy)."""

    def __init__(self, directory: Path, keep: int = 2):
        self.directory = Path(directory).absolute()
        keep_policy = AnyPreservationPolicy([CustomSteps([0]), LatestN(keep), BestN(get_metric_fn=_rank, n=1)])
        # Without best_fn orbax does not write metrics, and a resumed run would not know which one was the best.
        options = ocp.CheckpointManagerOptions(preservation_policy=keep_policy, best_fn=_rank)
        try:
            self._manager = ocp.CheckpointManager(self.directory, options=options)
        except ValueError as error:
            raise DamagedCheckpoint(
                f"a file metrics/metrics under {self.directory} is damaged: {error}; delete the folder metrics of that "
                "checkpoint: it only says how good it was"
            ) from error

    def save(self, state: TrainState, totals: dict[str, Any], success_rate: float | None = None) -> None:
        """Write in the background. `totals` must be JSON-serialisable; success_rate ranks the best."""
        self._manager.save(
            state.step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(_arrays(state)),
                meta=ocp.args.JsonSave({"totals": totals, "sha256": _seal(state, totals)}),
            ),
            metrics={} if success_rate is None else {"success_rate": success_rate},
        )

    def restore(self, like: TrainState, step: int | str | None = None) -> tuple[TrainState, dict[str, Any]] | None:
        """The newest whole checkpoint (or the one of `step`) and its totals; None if there is none.

        like: a state of the same structure (arrays or shapes).
        step: a number, or 'best' for the highest success rate of those kept, the latest of equal ones.
        A damaged checkpoint is skipped with a warning; if it was asked for, or none of several is whole,
        DamagedCheckpoint names them. Raises ValueError if there is none of `step`. Errors that do not come from what
        is on disk, such as a file that may not be read, are raised as they are.
        """
        steps = self.steps()
        if step == "best":
            step = self._best()
        elif step is not None and step not in steps:
            there = f"there are {', '.join(map(str, steps))}" if steps else "there is none yet"
            raise ValueError(f"no checkpoint of step {step} under {self.directory}; {there}")
        tried = steps[::-1] if step is None else [step]
        for candidate in tried:
            try:
                return self._restore(like, candidate)
            except DamagedCheckpoint as error:
                logging.warning("checkpoint %s is damaged and skipped: %s", self.directory / str(candidate), error)
        if tried:
            raise DamagedCheckpoint(
                f"no whole checkpoint under {self.directory} (tried steps {tried}); "
                "delete the workdir to start over, or restore one from a copy"
            )
        return None

    def _restore(self, like: TrainState, step: int) -> tuple[TrainState, dict[str, Any]]:
        shapes = jax.tree.map(ocp.utils.to_shape_dtype_struct, _arrays(like))
        try:
            restored = self._manager.restore(
                step,
                args=ocp.args.Composite(state=ocp.args.StandardRestore(shapes), meta=ocp.args.JsonRestore()),
            )
            totals, seal = restored.meta["totals"], restored.meta["sha256"]
        except Exception as error:  # orbax wraps some of what it meets in plain Exceptions
            if (cause := _damage(error)) is None:
                raise
            raise DamagedCheckpoint(f"{type(cause).__name__}: {cause}") from error
        state = like.replace(step=step, **restored.state)
        if seal != _seal(state, totals):
            raise DamagedCheckpoint("it does not have the digest it was saved with")
        return state, totals

    def _best(self) -> int:
        best = self._manager.best_step()
        if best is None:
            raise ValueError(f"no checkpoint under {self.directory} has a success rate, so none is the best")
        return best

    def steps(self) -> list[int]:
        """Steps there are checkpoints of, ascending."""
        return sorted(self._manager.all_steps())

    def wait(self) -> None:
        """Block until the last save is on disk."""
        self._manager.wait_until_finished()

    def set_aside_after(self, step: int) -> None:
        """Rename the checkpoints of later steps, which were found damaged: `4` to `4.damaged`, then `4.damaged2`."""
        for later in [s for s in self.steps() if s > step]:
            folder = self.directory / str(later)
            names = itertools.chain([f"{later}.damaged"], (f"{later}.damaged{n}" for n in itertools.count(2)))
            folder.rename(next(path for path in map(self.directory.joinpath, names) if not path.exists()))
        self._manager.reload()

    def close(self) -> None:
        self._manager.close()


def _rank(metrics: dict[str, float]) -> float:
    """The success rate; one that was not evaluated ranks below all that were."""
    return metrics.get("success_rate", -1.0)


def _damage(error: Exception) -> Exception | None:
    """What was found wrong with the data, if that is what the error says; None for errors that may pass."""
    while error.__cause__ is not None:
        error = error.__cause__
    if not isinstance(error, (ValueError, KeyError, FileNotFoundError)):
        return None
    return None if _MAY_PASS.match(str(error)) else error


# tensorstore raises ValueError for these too.
_MAY_PASS = re.compile(
    "PERMISSION_DENIED|UNAUTHENTICATED|RESOURCE_EXHAUSTED|UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED"
)


def _arrays(state: TrainState) -> dict[str, Any]:
    return {"params": state.params, "opt_state": state.opt_state}


def _seal(state: TrainState, totals: dict[str, Any]) -> str:
    """sha256 of all a checkpoint restores."""
    rest = json.dumps([state.step, totals], sort_keys=True)
    return hashlib.sha256(f"{digest(_arrays(state))} {rest}".encode()).hexdigest()


def digest(tree: Any) -> str:
    """sha256 of all arrays of a pytree, in the order of their paths."""
    total = hashlib.sha256()
    for path, leaf in sorted(jax.tree_util.tree_leaves_with_path(tree), key=lambda item: str(item[0])):
        array = np.asarray(leaf)
        total.update(f"{jax.tree_util.keystr(path)}{array.dtype}{array.shape}".encode())
        total.update(array.tobytes())
    return total.hexdigest()
