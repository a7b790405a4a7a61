"""The paper's evaluation: every test task sampled several times (PaTR section 5.1)."""

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from patr.evaluation.pass_at_k import bootstrap_interval, pass_at_k
from patr.rollouts.engine import Engine
from patr.rollouts.flat import Flat
from patr.types import Task, Trajectory, Tree

# Evaluation rolls out at a step no training run reaches, so that it shares no random choice with training.
EVALUATION_STEP = -1


@dataclasses.dataclass(frozen=True)
class Report:
    """What an evaluation found. Rates are fractions; lengths are tokens after the prompt."""

    step: int  # of the policy's weights
    tasks: int
    samples: int  # a task
    errors: int  # samples without an outcome, left out
    temperature: float
    success_rate: float
    success_interval: tuple[float, float]  # 95%, over tasks
    pass_at_4: float  # pass@samples if there are fewer than 4
    response_length: float
    turns: float
    by_size: dict[str, dict[str, float]]  # map size -> tasks, success_rate

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def evaluate(make_engine: Callable[[], Engine], tasks: Sequence[Task], samples: int) -> Report:
    """Sample every task `samples` times and report. Raises ValueError if not one sample has an outcome."""
    engine = make_engine()
    trees = asyncio.run(engine.run(tasks, Flat(group_size=samples)))
    return report(trees, samples, engine.limits.temperature)


def report(trees: Sequence[Tree], samples: int, temperature: float) -> Report:
    """The report of evaluation trees, one a task."""
    groups = [group for group in (tree.trajectories() for tree in trees) if group]
    if not groups:
        raise ValueError("no evaluation rollout has an outcome: see the environment errors above")
    sizes: dict[str, list[float]] = {}
    for tree in trees:
        if group := tree.trajectories():
            sizes.setdefault(str(tree.task.data.get("size", "all")), []).append(_success(group))
    rates = [_success(group) for group in groups]
    everything = [t for group in groups for t in group]
    return Report(
        step=max(turn.weight_version for tree in trees for branch in tree.branches for turn in branch.turns),
        tasks=len(trees),
        samples=samples,
        errors=samples * len(trees) - len(everything),
        temperature=temperature,
        success_rate=float(np.mean(rates)),
        success_interval=bootstrap_interval(rates),
        pass_at_4=float(np.mean([_pass(group) for group in groups])),
        response_length=float(np.mean([t.response_length for t in everything])),
        turns=float(np.mean([t.turns for t in everything])),
        by_size={
            size: {"tasks": len(sizes[size]), "success_rate": float(np.mean(sizes[size]))} for size in sorted(sizes)
        },
    )


def _success(group: Sequence[Trajectory]) -> float:
    return float(np.mean([t.reward >= 1 for t in group]))


def _pass(group: Sequence[Trajectory]) -> float:
    return pass_at_k(sum(t.reward >= 1 for t in group), len(group), min(4, len(group)))
