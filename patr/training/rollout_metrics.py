"""Numbers of a step's trees and of an evaluation, for the records."""

import dataclasses
import statistics
from collections.abc import Sequence

from patr.evaluation.evaluate import Report
from patr.types import Ledger, Status, Tree


def of_trees(trees: Sequence[Tree]) -> dict[str, float]:
    """Means over trajectories, counts a tree, and the summed ledger of one step."""
    trajectories = [t for tree in trees for t in tree.trajectories()]
    branches = [branch for tree in trees for branch in tree.branches]
    decisions = [decision.kind for tree in trees for decision in tree.decisions]
    ledger = sum((tree.ledger for tree in trees), start=Ledger())
    count = max(1, len(trees))
    return {
        "success": _mean([t.reward >= 1 for t in trajectories]),
        "reward": _mean([t.reward for t in trajectories]),
        "response_length": _mean([t.response_length for t in trajectories]),
        "turns": _mean([t.turns for t in trajectories]),
        "leaves": len(trajectories) / count,
        "expanded": decisions.count("expand") / count,
        "survived": decisions.count("survive") / count,
        "pruned": sum(branch.status is Status.PRUNED for branch in branches) / count,
        "errors": sum(branch.status is Status.ERROR for branch in branches) / count,
        **{k: v for k, v in dataclasses.asdict(ledger).items() if k != "wall_seconds"},
    }


def of_report(report: Report) -> dict[str, float]:
    low, high = report.success_interval
    return {
        "eval/success_rate": report.success_rate,
        "eval/success_low": low,
        "eval/success_high": high,
        "eval/pass_at_4": report.pass_at_4,
        "eval/response_length": report.response_length,
        "eval/turns": report.turns,
        "eval/errors": report.errors,
    }


def _mean(values: Sequence[float]) -> float:
    return float(statistics.fmean(values)) if values else 0.0
