"""Success and pass@k from repeated samples, with intervals over tasks."""

import math
from collections.abc import Sequence

import numpy as np


def pass_at_k(successes: int, samples: int, k: int) -> float:
    """Chance that k of the samples, drawn without replacement, hold a success (Chen et al. 2021, eq. 1)."""
    if not 0 <= successes <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {successes} successes in {samples} samples is not defined")
    return 1.0 - math.comb(samples - successes, k) / math.comb(samples, k)


def bootstrap_interval(values: Sequence[float], level: float = 0.95, draws: int = 2000) -> tuple[float, float]:
    """Percentile interval of the mean of independent values (one a task), by a fixed-seed bootstrap."""
    values = np.asarray(values, np.float64)
    picks = np.random.default_rng(0).integers(0, len(values), (draws, len(values)))
    low, high = np.quantile(values[picks].mean(axis=1), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
