"""What a FrozenLake run reached and what it cost, as a Markdown table.

python -m patr.benchmarks.frozen_lake runs/patr --against=runs/grpo

`--against` names a run from the same warm start: the sampled tokens each needed for a success rate both have reached.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import jax

from patr.batching.tree import PackedBatch, pack_trees
from patr.objectives.advantages import group_advantages
from patr.records import read_metrics, read_trees
from patr.training import build
from patr.training.loop import Run
from patr.training.step import Updater
from patr.training.workdirs import read_config
from patr.types import Tree

Rows = list[tuple[str, str]]


def learning_rows(workdir: Path) -> Rows:
    """Success on the test tasks after the warm start and at the end, and the time of training."""
    rates = _evaluations(workdir)
    summary = json.loads((workdir / "summary.json").read_text())
    first, last = rates[0][1], rates[-1][1]
    return [
        ("success after the warm start", f"{100 * first:.1f}%"),
        ("success at the end", f"{100 * last:.1f}% ({100 * (last - first):+.1f} points)"),
        ("training, evaluations left out", f"{summary['wall_seconds'] / 60:.1f} min"),
    ]


def cost_rows(workdir: Path) -> Rows:
    """Medians over the second half of the steps: by then every shape has been compiled."""
    trees = _by_step(read_trees(workdir / "trees.jsonl"))
    lines = [line for line in read_metrics(workdir / "metrics.jsonl") if "step_seconds" in line]
    lines = lines[len(lines) // 2 :]
    outside = [1 - (line["sampler_seconds"] + line["trainer_seconds"]) / line["step_seconds"] for line in lines]
    prefilled = [line["prefilled_tokens"] / sum(map(given_tokens, trees[line["step"]])) for line in lines]
    return [
        ("step", f"{statistics.median(line['step_seconds'] for line in lines):.2f} s"),
        ("time outside compiled functions", f"{100 * statistics.median(outside):.1f}% of a step"),
        ("prefilled / unique prompt and observation tokens", f"{statistics.median(prefilled):.3f}"),
    ]


def given_tokens(tree: Tree) -> int:
    """Prompt and observation tokens of a tree, each counted once."""
    return len(tree.prompt_ids) + sum(len(t.observation_ids) for b in tree.branches for t in b.turns)


def update_rows(workdir: Path, rounds: int = 5) -> Rows:
    """The update on the last step's trees, with shared tokens computed once or for every leaf, turn by turn.

    Raises ValueError if the run took no step.
    """
    by_step = _by_step(read_trees(workdir / "trees.jsonl"))
    if not by_step:
        raise ValueError(f"{workdir / 'trees.jsonl'} holds no trees")
    trees = by_step[max(by_step)]
    run = Run(build.build(read_config(workdir)), workdir.absolute())
    run.checkpoints.close()
    objective = run.parts.objective
    rewards = [[t.reward for t in tree.trajectories()] for tree in trees]
    tree_batch, flat_batch = (
        pack_trees(
            trees,
            [group_advantages(r) for r in rewards],
            reduction=objective.reduction,
            buckets=run.parts.buckets,
            share_prefixes=share,
            skip_zero_variance=not objective.learns_from_equal_rewards,
        )
        for share in (True, False)
    )
    if not tree_batch.packs:
        return [(f"update of step {max(by_step)}", "none: within each group all rewards are the same")]

    # A KL term costs the same whatever the reference is.
    reference = run.state.params if objective.kl_coef else None
    update = Updater(run.loss, run.optimizer)

    def timed(batch: PackedBatch) -> Callable[[], None]:
        def once() -> None:
            run.state, _ = update(run.state, batch.packs, batch.denominator, reference)
            jax.block_until_ready(run.state.params)

        return once

    ratio = interleaved_ratio(timed(tree_batch), timed(flat_batch), rounds)
    tokens = tree_batch.unique_tokens / flat_batch.unique_tokens
    return [
        ("unique / flat tokens", f"{tree_batch.unique_tokens} / {flat_batch.unique_tokens} = {tokens:.2f}"),
        ("update time, tree / flat", f"{ratio:.2f} ({ratio / tokens:.2f} of the token ratio)"),
    ]


def interleaved_ratio(first: Callable[[], None], second: Callable[[], None], rounds: int) -> float:
    """Median of time(first) / time(second) over rounds that run both; one round before them compiles."""
    ratios = []
    for _ in range(rounds + 1):
        begun = time.perf_counter()
        first()
        between = time.perf_counter()
        second()
        ratios.append((between - begun) / (time.perf_counter() - between))
    return statistics.median(ratios[1:])


def against_rows(workdir: Path, other: Path) -> Rows:
    """Sampled tokens of both runs up to the highest success rate that both reach, between evaluations linearly."""
    mine, theirs = _evaluations(workdir), _evaluations(other)
    level = min(max(rate for _, rate in rates) for rates in (mine, theirs))
    a, b = tokens_to_reach(level, mine), tokens_to_reach(level, theirs)
    # A run that training never made better has reached its best at no token.
    ratio = f"= {a / b:.2f}" if a and b else "(no ratio: reached before training)"
    names = f"{workdir.name} / {other.name}"
    return [(f"sampled tokens to {100 * level:.1f}%, {names}", f"{a / 1e3:.0f}k / {b / 1e3:.0f}k {ratio}")]


def tokens_to_reach(level: float, rates: Sequence[tuple[int, float]]) -> float:
    """Sampled tokens at which the success rate first reaches `level`. Raises ValueError if it never does."""
    before = rates[0]
    for at in rates:
        if at[1] >= level:
            rise = at[1] - before[1]
            return at[0] if not rise else before[0] + (at[0] - before[0]) * (level - before[1]) / rise
        before = at
    raise ValueError(f"a success rate of {level} is never reached; the highest is {max(rate for _, rate in rates)}")


def _evaluations(workdir: Path) -> list[tuple[int, float]]:
    """(sampled tokens of training so far, success rate) of each evaluation. Raises ValueError if there is none."""
    file = workdir / "metrics.jsonl"
    lines = [line for line in read_metrics(file) if "eval/success_rate" in line]
    if not lines:
        raise ValueError(f"{file} holds no evaluation")
    return [(line["total_sampled_tokens"], line["eval/success_rate"]) for line in lines]


def _by_step(trees: Iterable[Tree]) -> dict[int, list[Tree]]:
    steps: dict[int, list[Tree]] = {}
    for tree in trees:
        steps.setdefault(tree.step, []).append(tree)
    return steps


def main() -> None:
    parser = argparse.ArgumentParser(description="What a finished FrozenLake run reached and what it cost.")
    parser.add_argument("workdir", type=Path)
    parser.add_argument("--against", type=Path, help="workdir of a run to compare with")
    args = parser.parse_args()
    try:
        rows = [*learning_rows(args.workdir), *cost_rows(args.workdir), *update_rows(args.workdir)]
        rows += against_rows(args.workdir, args.against) if args.against else []
    except FileNotFoundError as error:
        raise SystemExit(f"error: {error}; the benchmark reads the workdir of a finished run") from error
    except (OSError, ValueError) as error:
        raise SystemExit(f"error: {error}") from error
    print("| measured | value |\n|:--|--:|")
    for name, value in rows:
        print(f"| {name} | {value} |")


if __name__ == "__main__":
    main()
