"""The run: warm start, then rollouts, update, new weights to the sampler, step after step.

What a step does is a function of (config, step, parameters). A run killed at any
moment goes on from its last checkpoint to the same bits.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from patr import records
from patr.batching.tree import pack_trees
from patr.evaluation.evaluate import EVALUATION_STEP, Report, evaluate
from patr.models.qwen import split
from patr.objectives.advantages import group_advantages
from patr.objectives.metrics import Metrics, joined
from patr.samplers.base import SamplerError
from patr.samplers.jax_sampler import JaxSampler
from patr.training import build, rollout_metrics, workdirs
from patr.training.checkpoint import Checkpoints, digest
from patr.training.losses import imitation_loss, pack_logprobs, tree_loss
from patr.training.metrics_log import MetricsLog
from patr.training.optimizer import make_optimizer
from patr.training.progress import Progress
from patr.training.state import TrainState
from patr.training.step import Updater
from patr.training.tasks import draw_tasks
from patr.types import Tree


def train(config: ConfigDict, workdir: str | Path) -> dict[str, Any]:
    """Train to config.training.steps and return the summary, also written to workdir/summary.json.

    Called again on the same workdir it resumes. Raises ValueError for a config that cannot be run or is not the
    workdir's; FloatingPointError for a non-finite update; SamplerError if sampling fails.
    """
    parts = build.build(config)
    with workdirs.claimed(Path(workdir), config) as directory:
        return Run(parts, directory).train()


def evaluate_workdir(
    workdir: Path, step: int | str | None = None, temperature: float | None = None, samples: int | None = None
) -> Report:
    """Evaluate a checkpoint of a workdir; what is not given is as in its config.

    step: a number, 'best' by success rate of those kept, or None for the newest. Raises ValueError if there is none.
    """
    config = workdirs.read_config(workdir)
    if temperature is not None:
        config.evaluation.temperature = temperature
    if samples is not None:
        config.evaluation.samples = samples
    run = Run(build.build(config), workdir.absolute())
    try:
        run.restore(step)
        return run.evaluate()
    finally:
        run.checkpoints.close()


class Run:
    """A policy, its sampler and its records in one workdir."""

    def __init__(self, parts: build.Parts, workdir: Path):
        self.config, self.workdir = parts.config, workdir
        self.chat = build.make_chat(self.config, workdir)
        self.parts = build.without_overlong(parts, self.chat)
        model = build.make_policy(self.config, self.chat)
        self.model_config = model.config
        self.graph, params = split(model)
        updates = self.config.training.steps * self.config.training.minibatches
        self.optimizer = make_optimizer(parts.optimizer, updates)
        self.state = TrainState(params, self.optimizer.init(params))
        self.totals = {"sampled_tokens": 0, "environment_steps": 0, "wall_seconds": 0.0}
        self.checkpoints = Checkpoints(workdir / "checkpoints", self.config.training.keep_checkpoints)
        self.sampler = JaxSampler(model, parts.shapes)
        self.reference = None  # parameters of the policy before RL, if the objective asks for them
        self.report: Report | None = None
        self.log: MetricsLog | None = None  # while training

    def train(self) -> dict[str, Any]:
        try:
            self._restore_or_warm_start()
            self._reinforce()
            self.checkpoints.wait()
            return self._write_summary()
        finally:
            self.checkpoints.close()
            if self.log is not None:
                self.log.close()

    def restore(self, step: int | str | None = None) -> None:
        """Take up a checkpoint, the newest if not told which. Raises ValueError if there is none."""
        restored = self.checkpoints.restore(self.state, step)
        if restored is None:
            raise ValueError(f"{self.workdir} holds no checkpoint yet")
        self.state = restored[0]
        self.give_weights()

    def _restore_or_warm_start(self) -> None:
        restored = self.checkpoints.restore(self.state)
        if restored is not None:
            self.state, self.totals = restored
            self.checkpoints.set_aside_after(self.state.step)
            self.give_weights()
        self.log = MetricsLog(self.workdir, self.config, -1 if restored is None else self.state.step)
        records.truncate_after(self.workdir / "trees.jsonl", self.state.step)
        if restored is None:
            self._warm_start()
            self._save(self._evaluate(step=0))
        if self.parts.objective.kl_coef:
            first = self.state if self.state.step == 0 else self.checkpoints.restore(self.state, step=0)[0]
            self.reference = first.params

    def _warm_start(self) -> None:
        """Imitate noisy shortest paths: the tiny policy starts from nothing."""
        settings = self.config.warm_start
        demonstrator = build.make_demonstrator(self.parts, self.chat)
        optimizer = make_optimizer(self.parts.warm_optimizer, settings.steps)
        update = Updater(lambda params, pack, _: imitation_loss(nnx.merge(self.graph, params), pack), optimizer)
        state = TrainState(self.state.params, optimizer.init(self.state.params))
        started = time.perf_counter()
        with Progress("warm start", settings.steps) as progress:
            for step in range(settings.steps):
                count = settings.episodes_per_step
                tasks = self.parts.lessons.draw(self.config.seed, step, settings.steps, count)
                trees = [
                    demonstrator.demonstrate(task, self.config.seed, step * count + i) for i, task in enumerate(tasks)
                ]
                batch = pack_trees(trees, None, reduction="token_mean", buckets=self.parts.buckets)
                state, measured = update(state, batch.packs, batch.denominator)
                metrics = _values(measured)
                self._check_finite(f"warm start step {step + 1}", metrics)
                progress.advance(step + 1, loss=metrics["loss"])
        self.totals["wall_seconds"] += time.perf_counter() - started
        self.state = self.state.replace(params=state.params, opt_state=self.optimizer.init(state.params))
        self.give_weights()

    def _reinforce(self) -> None:
        settings = self.config.training
        if self.state.step < settings.steps:
            self.sampler.warm_up()
        update = Updater(self.loss, self.optimizer)
        with Progress("training", settings.steps, self.state.step) as progress:
            while self.state.step < settings.steps:
                started = time.perf_counter()
                step = self.state.step + 1
                trees, metrics = self._roll_out(step)
                records.append_trees(self.workdir / "trees.jsonl", trees)
                metrics |= self._update(update, trees)
                metrics |= self._time(started, metrics)
                self.log.write(step, metrics)
                self._check_finite(f"step {step}", metrics)
                last = step == settings.steps
                report = self._evaluate(step) if last or step % settings.evaluate_every == 0 else None
                if last or step % settings.checkpoint_every == 0:
                    self._save(report)
                progress.advance(step, success=metrics["success"], tokens=metrics["tokens_per_second"])

    def _roll_out(self, step: int) -> tuple[list[Tree], dict[str, float]]:
        tasks = draw_tasks(self.parts.tasks, self.config.seed, step - 1, self.config.training.tasks_per_step)
        engine = build.make_engine(self.parts, self.sampler, self.chat, step, self.parts.limits)
        compiled = self.sampler.compiled_seconds
        started = time.perf_counter()
        try:
            trees = asyncio.run(engine.run(tasks, self.parts.controller))
        except SamplerError as error:
            raise SamplerError(f"step {step}: {error}. {self._last_good()}") from error
        seconds = time.perf_counter() - started
        metrics = rollout_metrics.of_trees(trees)
        metrics["rollout_seconds"] = seconds
        metrics["sampler_seconds"] = self.sampler.compiled_seconds - compiled
        metrics["sampler_late_compilations"] = self.sampler.late_compilations
        return trees, metrics

    def _update(self, update: Updater, trees: Sequence[Tree]) -> dict[str, float]:
        objective = self.parts.objective
        started, compiled = time.perf_counter(), 0.0
        batches, measured = [], {}
        for part in np.array_split(np.arange(len(trees)), self.config.training.minibatches):
            groups = [trees[i] for i in part]
            batch = pack_trees(
                groups,
                [group_advantages([t.reward for t in tree.trajectories()]) for tree in groups],
                reduction=objective.reduction,
                buckets=self.parts.buckets,
                skip_zero_variance=not objective.learns_from_equal_rewards,
            )
            begun = time.perf_counter()
            self.state, new = update(self.state, batch.packs, batch.denominator, self.reference)
            batches.append(batch)
            measured = joined(measured, new)
            metrics = _values(measured)  # waits for the device
            compiled += time.perf_counter() - begun
        self.state = self.state.replace(step=self.state.step + 1)
        self.give_weights()
        return metrics | {
            "zero_variance_groups": sum(batch.zero_variance_groups for batch in batches)
            / max(1, sum(batch.groups for batch in batches)),
            "unique_tokens": sum(batch.unique_tokens for batch in batches),
            "flat_tokens": sum(batch.flat_tokens for batch in batches),
            "update_seconds": time.perf_counter() - started,
            "trainer_seconds": compiled,
        }

    def loss(self, params, pack, reference):
        """The run's `Loss` for an `Updater`; reference: parameters if the objective has a KL term, else None."""
        model, temperature = nnx.merge(self.graph, params), self.parts.limits.temperature
        ref_logprobs = None
        if reference is not None:
            ref_logprobs = pack_logprobs(nnx.merge(self.graph, reference), pack, temperature)
        return tree_loss(model, pack, self.parts.objective, temperature, ref_logprobs=ref_logprobs)

    def give_weights(self) -> None:
        self.sampler.update_weights(self.state.params, self.state.step)

    def _evaluate(self, step: int) -> Report:
        started = time.perf_counter()
        self.report = self.evaluate()
        metrics = rollout_metrics.of_report(self.report)
        metrics["evaluation_seconds"] = time.perf_counter() - started
        metrics["total_sampled_tokens"] = self.totals["sampled_tokens"]
        self.log.write(step, metrics)
        Progress.say(
            f"step {step}: {100 * self.report.success_rate:.1f}% success on {self.report.tasks} test tasks, "
            f"pass@{min(4, self.report.samples)} {100 * self.report.pass_at_4:.1f}%"
        )
        return self.report

    def evaluate(self) -> Report:
        """The paper's protocol with the current policy."""

        def engine():
            return build.make_engine(
                self.parts, self.sampler, self.chat, EVALUATION_STEP, self.parts.evaluation_limits
            )  # fmt: skip

        self.sampler.warm_up()
        try:
            return evaluate(engine, self.parts.evaluation_tasks, self.config.evaluation.samples)
        finally:
            self.give_weights()  # drops the cache: what the next step finds in it must not depend on evaluations

    def _save(self, report: Report | None) -> None:
        self.checkpoints.save(self.state, dict(self.totals), report and report.success_rate)

    def _time(self, started: float, metrics: dict[str, float]) -> dict[str, float]:
        """Add the step to the run's totals, which live in the checkpoints."""
        seconds = time.perf_counter() - started
        self.totals["wall_seconds"] += seconds
        self.totals["sampled_tokens"] += int(metrics["sampled_tokens"])
        self.totals["environment_steps"] += int(metrics["environment_steps"])
        return {
            "step_seconds": seconds,
            "tokens_per_second": metrics["sampled_tokens"] / seconds,
            "total_sampled_tokens": self.totals["sampled_tokens"],
            "total_environment_steps": self.totals["environment_steps"],
        }

    def _check_finite(self, when: str, metrics: dict[str, float]) -> None:
        bad = [name for name, value in metrics.items() if not np.isfinite(value)]
        if bad:
            raise FloatingPointError(f"{when}: {', '.join(bad)} not finite. {self._last_good()}")

    def _last_good(self) -> str:
        steps = self.checkpoints.steps()
        return (
            f"Its trees are in {self.workdir / 'trees.jsonl'}; last good checkpoint: {steps[-1] if steps else 'none'}. "
            "Start in a new workdir with a lower learning_rate or max_grad_norm of the optimizer."
        )

    def _write_summary(self) -> dict[str, Any]:
        if self.report is None:  # a finished run was started again
            self.give_weights()
            self.report = self.evaluate()
        summary = {
            "step": self.state.step,
            "params_sha256": digest(self.state.params),
            "rollout": self.config.rollout,
            "seed": self.config.seed,
            **self.report.to_json(),
            **self.totals,
            "devices": [str(device) for device in jax.devices()],
        }
        workdirs.write_json(self.workdir / "summary.json", summary)
        return json.loads((self.workdir / "summary.json").read_text())


def _values(metrics: Metrics) -> dict[str, float]:
    return {name: float(metric.value) for name, metric in metrics.items()}
