"""The in-process sampler: many branches of many tasks in a few fixed shapes.

Requests are whole trajectories. The sampler finds the longest prefix it still
holds, prefills the rest once however many requests share it, and decodes all
together. What a request gets depends on its tokens, seed and temperature only.
"""

import concurrent.futures
import dataclasses
import logging
import os
import time
from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from patr.models.qwen import Qwen, split
from patr.samplers import decoding
from patr.samplers.base import Sample, SampleRequest, SamplerError
from patr.samplers.queueing import RequestQueue
from patr.samplers.rows import Placement, RowTable


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplerShapes:
    """The shapes compiled for. Each is an ascending tuple; the smallest that fits is used."""

    rows: int  # of the pool: at least the branches active at once
    batches: tuple[int, ...]  # requests served together
    prefills: tuple[int, ...]  # new tokens a row per prefill
    contexts: tuple[int, ...]  # tokens a row is read to; the last is the capacity
    max_new_tokens: int  # longest turn
    num_stop_ids: int = 1

    def __post_init__(self):
        for name in ("batches", "prefills", "contexts"):
            sizes = getattr(self, name)
            if not sizes or list(sizes) != sorted(set(sizes)) or sizes[0] < 1:
                raise ValueError(f"sampler {name}={sizes}: expected ascending positive sizes")
        if self.rows < self.batches[-1]:
            raise ValueError(f"sampler rows={self.rows} must be at least its largest batch, {self.batches[-1]}")


@dataclasses.dataclass
class _Job:
    request: SampleRequest
    ids: np.ndarray  # [n]
    placement: Placement | None = None
    leader: "_Job | None" = None  # the job with the same ids that prefills for this one
    sample: Sample | None = None


class JaxSampler:
    """Implements `patr.samplers.base.Sampler` on the local devices."""

    def __init__(self, model: Qwen, shapes: SamplerShapes, *, version: int = 0):
        self.max_context = shapes.contexts[-1]
        self.shapes = shapes
        self.compiled_seconds = 0.0  # time spent inside compiled functions
        self.compilations = 0
        self.late_compilations = 0  # after warm_up: should stay 0
        self._warm = False
        self._graph, self._params = split(model)
        self._version = version
        self._pool = decoding.Pool.empty(model.config, shapes.rows, self.max_context)
        self._table = RowTable(shapes.rows, self.max_context)
        self._queue = RequestQueue(self.serve)
        self._executables = {}

    async def sample(self, request: SampleRequest) -> Sample:
        return await self._queue.submit(request)

    def update_weights(self, params: dict, version: int) -> None:
        """Sample with new parameters from now on. All cached keys and values are dropped."""
        self._params, self._version = params, version
        self._table.forget()

    def warm_up(self) -> None:
        """Compile every shape, so that sampling never waits for the compiler again."""
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda key: self._executable(*key), self._all_shapes()))
        self._warm = True

    def serve(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        """Answer requests together, in their order. Raises SamplerError for one that cannot fit."""
        for request in requests:
            self._check(request)
        jobs = [_Job(request, np.asarray(request.prompt_ids, np.int32)) for request in requests]
        waiting = jobs
        while waiting:
            placed, waiting = self._place(waiting)
            self._prefill(placed)
            self._decode(placed)
        return [job.sample for job in jobs]

    def _check(self, request: SampleRequest) -> None:
        if len(request.prompt_ids) + request.max_tokens > self.max_context:
            raise SamplerError(
                f"{len(request.prompt_ids)} prompt tokens and max_tokens={request.max_tokens} exceed the sampler's "
                f"context of {self.max_context}"
            )
        if request.max_tokens > self.shapes.max_new_tokens or len(request.stop_ids) != self.shapes.num_stop_ids:
            raise SamplerError(
                f"max_tokens={request.max_tokens} with {len(request.stop_ids)} stop ids; this sampler was built for "
                f"at most {self.shapes.max_new_tokens} with {self.shapes.num_stop_ids}"
            )

    def _place(self, jobs: list[_Job]) -> tuple[list[_Job], list[_Job]]:
        """Give rows to as many jobs as there are rows; the others wait for the next round."""
        self._table.begin_round()
        leaders: dict[bytes, _Job] = {}
        for i, job in enumerate(jobs):
            key = job.ids.tobytes()
            if key in leaders:
                job.leader = leaders[key]
                row = self._table.place_copy()
                job.placement = None if row is None else Placement(row, job.leader.placement.row, len(job.ids))
            else:
                job.placement = self._table.place(job.ids)
                leaders[key] = job
            if job.placement is None:
                job.leader = None
                return jobs[:i], jobs[i:]
        return jobs, []

    def _prefill(self, jobs: list[_Job]) -> None:
        leaders = [job for job in jobs if job.leader is None]
        self._fork([job for job in leaders if job.placement.source != job.placement.row])
        for (context, width), batch in self._batches(leaders, self._context, self._prefill_width):
            done = np.array([job.placement.cached for job in batch])
            goal = np.array([len(job.ids) for job in batch])
            while (done < goal).any():
                counts = np.minimum(goal - done, width)
                busy = counts > 0
                tokens = np.zeros((len(batch), width), np.int32)
                for i, job in enumerate(batch):
                    tokens[i, : counts[i]] = job.ids[done[i] : done[i] + counts[i]]
                rows = np.where(busy, [job.placement.row for job in batch], self.shapes.rows)
                size = _fit(len(batch), self.shapes.batches)
                self._pool = self._call(
                    ("prefill", size, width, context),
                    _pad(rows, size, self.shapes.rows), _pad(tokens, size), _pad(done, size), _pad(counts, size),
                )  # fmt: skip
                done = done + counts
        self._fork([job for job in jobs if job.leader is not None])

    def _fork(self, jobs: list[_Job]) -> None:
        for (context,), batch in self._batches(jobs, self._context):
            size = _fit(len(batch), self.shapes.batches)
            sources = _pad(np.array([job.placement.source for job in batch]), size)
            rows = _pad(np.array([job.placement.row for job in batch]), size, self.shapes.rows)
            self._pool = self._call(("fork", size, context), sources, rows)

    def _decode(self, jobs: list[_Job]) -> None:
        for (context,), batch in self._batches(jobs, self._context):
            size = _fit(len(batch), self.shapes.batches)
            requests = [job.request for job in batch]
            seeds = np.array([[r.seed >> 32, r.seed & 0xFFFFFFFF] for r in requests], np.uint32)
            self._pool, ids, logprobs, counts = self._call(
                ("decode", size, context),
                _pad(np.array([job.placement.row for job in batch]), size, self.shapes.rows),
                _pad(np.array([len(job.ids) for job in batch]), size),
                _pad(seeds, size),
                _pad(np.array([r.temperature for r in requests], np.float32), size),
                _pad(np.array([r.max_tokens for r in requests]), size),
                _pad(np.array([r.stop_ids for r in requests]), size),
            )
            ids, logprobs, counts = np.asarray(ids), np.asarray(logprobs), np.asarray(counts)
            for i, job in enumerate(batch):
                self._finish(job, ids[i, : counts[i]], logprobs[i, : counts[i]])

    def _finish(self, job: _Job, ids: np.ndarray, logprobs: np.ndarray) -> None:
        if not np.isfinite(logprobs).all():
            raise SamplerError("the policy gave non-finite log-probs: its parameters are damaged")
        self._table.commit(job.placement.row, np.concatenate([job.ids, ids[:-1]]))
        job.sample = Sample(
            ids=tuple(ids.tolist()),
            logprobs=tuple(logprobs.tolist()),
            finish_reason="stop" if ids[-1] in job.request.stop_ids else "length",
            weight_version=self._version,
            prefilled_tokens=len(job.ids) - job.placement.cached,
            cached_tokens=job.placement.cached,
        )

    def _context(self, job: _Job) -> int:
        return _fit(len(job.ids) + job.request.max_tokens, self.shapes.contexts)

    def _prefill_width(self, job: _Job) -> int:
        widths = self.shapes.prefills
        return _fit(min(len(job.ids) - job.placement.cached, widths[-1]), widths)

    def _batches(self, jobs: list[_Job], *keys) -> Iterable[tuple[tuple[int, ...], list[_Job]]]:
        """Jobs that need the same shapes, at most the largest batch together, smallest shapes first."""
        groups: dict[tuple, list[_Job]] = {}
        for job in jobs:
            groups.setdefault(tuple(key(job) for key in keys), []).append(job)
        for shape in sorted(groups):
            for start in range(0, len(groups[shape]), self.shapes.batches[-1]):
                yield shape, groups[shape][start : start + self.shapes.batches[-1]]

    def _call(self, shape: tuple, *arguments):
        run = self._executable(*shape)
        start = time.perf_counter()
        result = jax.block_until_ready(run(self._params, self._pool, *arguments))
        self.compiled_seconds += time.perf_counter() - start
        return result

    def _executable(self, kind: str, batch: int, *sizes: int):
        shape = (kind, batch, *sizes)
        if shape not in self._executables:
            if self._warm:
                self.late_compilations += 1
                logging.warning("sampler compiles %s after warm-up", shape)
            self.compilations += 1
            self._executables[shape] = self._compile(kind, batch, *sizes)
        return self._executables[shape]

    def _compile(self, kind: str, batch: int, *sizes: int):
        """One ahead-of-time compiled function of (params, pool, arguments), the pool donated."""

        def array(*shape, dtype=jnp.int32):
            return jax.ShapeDtypeStruct((batch, *shape), dtype)

        length = sizes[-1]
        if kind == "fork":
            arguments = array(), array()
        elif kind == "prefill":
            arguments = array(), array(sizes[0]), array(), array()
        else:
            seeds, stops = array(2, dtype=jnp.uint32), array(self.shapes.num_stop_ids)
            arguments = array(), array(), seeds, array(dtype=jnp.float32), array(), stops

        def run(params, pool, *arguments):
            if kind == "fork":
                return decoding.fork(pool, *arguments, length=length)
            model = nnx.merge(self._graph, params)
            if kind == "prefill":
                return decoding.prefill(model, pool, *arguments, length=length)
            return decoding.decode(model, pool, *arguments, length=length, steps=self.shapes.max_new_tokens)

        return jax.jit(run, donate_argnums=1).lower(self._params, self._pool, *arguments).compile()

    def _all_shapes(self) -> Iterable[tuple]:
        for batch in self.shapes.batches:
            for context in self.shapes.contexts:
                yield "fork", batch, context
                yield "decode", batch, context
                for width in self.shapes.prefills:
                    yield "prefill", batch, width, context


def _fit(size: int, buckets: tuple[int, ...]) -> int:
    """The smallest bucket that holds `size`."""
    return next(bucket for bucket in buckets if bucket >= size)


def _pad(array: np.ndarray, size: int, fill: int = 0) -> np.ndarray:
    """Pad the first axis to `size`; integers become int32."""
    padded = np.full((size, *array.shape[1:]), fill, np.int32 if array.dtype == np.int64 else array.dtype)
    padded[: len(array)] = array
    return padded
