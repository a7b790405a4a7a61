"""Training curves of one run or several, from their metrics.jsonl.

python -m patr.analysis.curves runs/patr runs/grpo --out=curves.png
"""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, MaxNLocator

from patr.records import read_metrics

_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe and Ito, safe for the color blind


@dataclasses.dataclass(frozen=True)
class Run:
    """The metrics of a workdir."""

    name: str
    lines: tuple[dict[str, Any], ...]

    def series(self, *keys: str) -> list[np.ndarray]:
        """One array a key [lines], of the lines in which none of the keys is missing or null."""
        rows = [[line[key] for key in keys] for line in self.lines if all(line.get(key) is not None for key in keys)]
        return list(np.array(rows, np.float64).reshape(len(rows), len(keys)).T)


def read_run(workdir: str | Path) -> Run:
    """Raises FileNotFoundError for a workdir without metrics."""
    file = Path(workdir) / "metrics.jsonl"
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist: give the --workdir of a run that has taken a step")
    return Run(Path(workdir).resolve().name, tuple(read_metrics(file)))


def smooth(values: Sequence[float], width: int) -> np.ndarray:
    """Mean over a centred window of `width` values, cut where it overhangs. Raises ValueError for an even width."""
    if width < 1 or width % 2 == 0:
        raise ValueError(f"width={width}: a centred window has an odd number of values")
    sums = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    at, half = np.arange(len(values)), width // 2
    low, high = np.maximum(at - half, 0), np.minimum(at + half + 1, len(values))
    return (sums[high] - sums[low]) / (high - low)


def plot_curves(workdirs: Sequence[str | Path], path: str | Path | None = None, smoothing: int = 9) -> Figure:
    """Success by step, success by sampled tokens, lengths, and entropy; saved as an image if a path is given.

    Evaluations carry their 95% interval over tasks as a band. What a run did not record is left out.
    smoothing: width in steps of the running mean over training values.
    """
    if isinstance(workdirs, str | Path):
        workdirs = [workdirs]
    runs = [read_run(workdir) for workdir in workdirs]
    figure = Figure(figsize=(10, 6.4), layout="constrained")
    panels = figure.subplots(2, 2)
    turns = panels[1, 0].twinx()
    for run, color in zip(runs, _cycle(len(runs)), strict=True):
        _training(panels[0, 0], run, "success", color, smoothing, alpha=0.55)
        _evaluation(panels[0, 0], run, "step", color)
        _evaluation(panels[0, 1], run, "total_sampled_tokens", color)
        _training(panels[1, 0], run, "response_length", color, smoothing)
        _training(turns, run, "turns", color, smoothing, linestyle=":")
        _training(panels[1, 1], run, "entropy", color, smoothing)
    _label(panels[0, 0], "success: test (points, 95% band) and training (line)", "training step", "success rate")
    _label(panels[0, 1], "test success at equal sampling cost", "sampled tokens", "success rate")
    _label(panels[1, 0], "length: tokens (solid) and turns (dotted)", "training step", "response tokens")
    _label(panels[1, 1], "policy entropy", "training step", "nats per token")
    panels[0, 1].xaxis.set_major_formatter(EngFormatter(sep=""))
    for panel in panels[0]:
        panel.set_ylim(-0.03, 1.03)
    turns.set_ylabel("turns")
    for panel in (panels[1, 0], turns, panels[1, 1]):
        panel.set_ylim(bottom=0)
    turns.spines[["top", "left"]].set_visible(False)
    if len(runs) > 1:
        handles = [Line2D([], [], color=c, label=r.name) for r, c in zip(runs, _cycle(len(runs)), strict=True)]
        figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(runs)), frameon=False)
    else:
        figure.suptitle(runs[0].name, fontsize=11)
    if path is not None:
        figure.savefig(path, dpi=130)
    return figure


def _cycle(count: int) -> list[str]:
    return [_COLORS[i % len(_COLORS)] for i in range(count)]


def _training(axes: Axes, run: Run, key: str, color: str, smoothing: int, **style) -> None:
    steps, values = run.series("step", key)
    axes.plot(steps, smooth(values, smoothing), color=color, linewidth=1.5, **style)


def _evaluation(axes: Axes, run: Run, key: str, color: str) -> None:
    x, rate = run.series(key, "eval/success_rate")
    axes.plot(x, rate, color=color, marker="o", markersize=4, linewidth=1.2)
    x, low, high = run.series(key, "eval/success_low", "eval/success_high")
    axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)


def _label(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    if not any(line.get_xdata().size for line in axes.lines):
        axes.text(0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center", va="center", color="gray")


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the training curves of runs.")
    parser.add_argument("workdirs", nargs="+", help="--workdir of each run")
    parser.add_argument("--out", required=True, help="the image to write; its ending decides the format")
    parser.add_argument("--smoothing", type=int, default=9, help="steps averaged over in training curves, odd")
    args = parser.parse_args()
    try:
        plot_curves(args.workdirs, args.out, args.smoothing)
    except (FileNotFoundError, ValueError) as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
