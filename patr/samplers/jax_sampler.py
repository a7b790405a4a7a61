"""The in-process sampler: many branches of many tasks in a few fixed shapes.

Requests are whole trajectories. The sampler finds the longest prefix it still
holds, prefills the rest once however many requests share it, and decodes all
together. What a request draws depends on its tokens, seed and temperature only;
the shape it is computed in moves log-probs by float rounding.
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

from patr.models.attention import NOWHERE, TILE_KEYS
from patr.models.cache import KVCache
from patr.models.qwen import Qwen, split
from patr.samplers import decoding
from patr.samplers.base import Sample, SampleRequest, SamplerError
from patr.samplers.blocks import BlockTable, Placement
from patr.samplers.queueing import RequestQueue


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplerShapes:
    """The shapes compiled for. Sizes ascend; the smallest that fits is used.

    Raises ValueError for shapes that do not fit each other.
    """

    blocks: int  # of the pool
    block_size: int  # tokens a block
    prefills: tuple[tuple[int, int], ...]  # blocks computed together, attention tiles they need
    batches: tuple[int, ...]  # requests decoded together
    contexts: tuple[int, ...]  # tokens a path is read to; the last is the capacity
    max_new_tokens: int  # longest turn
    num_stop_ids: int = 1

    def __post_init__(self):
        for name in ("prefills", "batches", "contexts"):
            sizes = getattr(self, name)
            if not sizes or list(sizes) != sorted(set(sizes)) or min(np.ravel(sizes)) < 1:
                raise ValueError(f"jax_sampler.{name}={sizes}: expected ascending positive sizes")
        if self.block_size < 1 or any(context % self.block_size for context in self.contexts):
            raise ValueError(
                f"jax_sampler.contexts={self.contexts}: expected multiples of block_size={self.block_size}"
            )
        longest = self.contexts[-1] // self.block_size
        if self.blocks <= longest:
            raise ValueError(f"jax_sampler.blocks={self.blocks}: one path alone may take {longest + 1}")
        if self.prefills[-1][1] < _tiles(longest):
            raise ValueError(
                f"jax_sampler.prefills={self.prefills}: the last one needs at least {_tiles(longest)} tiles"
            )

    @property
    def max_context(self) -> int:
        """Tokens of the longest path."""
        return self.contexts[-1]


@dataclasses.dataclass
class _Job:
    request: SampleRequest
    ids: np.ndarray  # [n]
    placement: Placement | None = None
    leader: "_Job | None" = None  # the job with the same ids that prefills for this one
    end: np.ndarray | None = None  # [E] hidden state of the last id
    sample: Sample | None = None


@dataclasses.dataclass(frozen=True)
class _Row:
    """A block to compute."""

    job: _Job
    depth: int  # its place on the job's path
    source: int  # the block that holds what is not computed of it


class JaxSampler:
    """Implements `patr.samplers.base.Sampler` on the local devices."""

    def __init__(self, model: Qwen, shapes: SamplerShapes, *, version: int = 0):
        self.max_context = shapes.max_context
        self.shapes = shapes
        self.compiled_seconds = 0.0  # time spent inside compiled functions
        self.compilations = 0
        self.late_compilations = 0  # after warm_up: should stay 0
        self._warm = False
        self._config = model.config
        self._graph, self._params = split(model)
        self._version = version
        self._table = BlockTable(shapes.blocks, shapes.block_size)
        self._pool = self._empty_pool()
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
        try:
            waiting = jobs
            while waiting:
                placed, waiting = self._place(waiting)
                self._prefill(placed)
                self._decode(placed)
        except BaseException:
            # What was planned is not in the pool, and what is may be damaged.
            self._table.forget()
            self._pool = self._empty_pool()
            raise
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
        """Give blocks to as many jobs as there are blocks for; the others wait for the next round."""
        self._table.begin_round()
        leaders: dict[tuple[int, ...], _Job] = {}
        for i, job in enumerate(jobs):
            ids, room = job.request.prompt_ids, len(job.ids) + job.request.max_tokens - 1
            leader = leaders.get(ids)
            if leader is None:
                job.placement = self._table.place(ids, room)
            else:
                job.placement = self._table.place_copy(leader.placement, len(ids), room)
            if job.placement is None:
                return jobs[:i], jobs[i:]
            job.leader = leader
            leaders.setdefault(ids, job)
        return jobs, []

    def _prefill(self, jobs: list[_Job]) -> None:
        rows = [row for job in jobs if job.leader is None for row in self._new_rows(job)]
        most_rows, most_tiles = self.shapes.prefills[-1]
        while rows:
            tiles = np.cumsum([_tiles(row.depth + 1) for row in rows[:most_rows]])
            count = int(np.searchsorted(tiles, most_tiles, side="right"))
            self._compute(
                rows[:count], next(s for s in self.shapes.prefills if count <= s[0] and tiles[count - 1] <= s[1])
            )
            rows = rows[count:]
        for job in jobs:
            if job.leader is not None:
                job.end = job.leader.end

    def _new_rows(self, job: _Job) -> Iterable[_Row]:
        S, placement = self.shapes.block_size, job.placement
        first = placement.cached // S
        for depth in range(first, -(-len(job.ids) // S)):
            copied = depth == first and placement.source is not None
            yield _Row(job, depth, (placement.source if copied else placement.blocks[depth]).number)

    def _compute(self, rows: Sequence[_Row], size: tuple[int, int]) -> None:
        """Prefill some blocks in one call."""
        S, nowhere = self.shapes.block_size, self.shapes.blocks
        tokens = np.zeros((len(rows), S), np.int32)
        tile_query, tile_blocks, tile_starts = [], [], []
        for r, row in enumerate(rows):
            piece = row.job.ids[row.depth * S : (row.depth + 1) * S]
            tokens[r, : len(piece)] = piece
            path = [block.number for block in row.job.placement.blocks[: row.depth + 1]]
            for start in range(0, len(path), TILE_KEYS):
                tile_query.append(r)
                tile_blocks.append((path[start : start + TILE_KEYS] + [nowhere] * TILE_KEYS)[:TILE_KEYS])
                tile_starts.append(start * S)
        starts = np.array([row.depth * S for row in rows])
        begins = np.maximum([row.job.placement.cached for row in rows] - starts, 0)
        ends = np.minimum([len(row.job.ids) for row in rows] - starts, S)
        blocks = np.array([row.job.placement.blocks[row.depth].number for row in rows])
        self._pool, hidden = self._call(
            ("prefill", *size),
            _pad(blocks, size[0], nowhere), _pad(np.array([row.source for row in rows]), size[0]),
            _pad(starts, size[0]), _pad(tokens, size[0]), _pad(begins, size[0]), _pad(ends, size[0]),
            _pad(np.array(tile_query), size[1], size[0]), _pad(np.array(tile_blocks), size[1], nowhere),
            _pad(np.array(tile_starts), size[1], NOWHERE + 1),
        )  # fmt: skip
        for row, end in zip(rows, np.asarray(hidden), strict=False):
            row.job.end = end  # that of its last row stays

    def _decode(self, jobs: list[_Job]) -> None:
        for context, batch in self._batches(jobs):
            size = _fit(len(batch), self.shapes.batches)
            requests = [job.request for job in batch]
            seeds = np.array([[r.seed >> 32, r.seed & 0xFFFFFFFF] for r in requests], np.uint32)
            reads, tables = self._block_numbers(batch, context)
            self._pool, ids, logprobs, counts = self._call(
                ("decode", size, context),
                _pad(np.stack([job.end for job in batch]), size),
                _pad(reads, size, self.shapes.blocks),
                _pad(tables, size, self.shapes.blocks),
                _pad(np.array([len(job.ids) for job in batch]), size),
                _pad(seeds, size),
                _pad(np.array([r.temperature for r in requests], np.float32), size),
                _pad(np.array([r.max_tokens for r in requests]), size),
                _pad(np.array([r.stop_ids for r in requests]), size),
            )
            ids, logprobs, counts = np.asarray(ids), np.asarray(logprobs), np.asarray(counts)
            for i, job in enumerate(batch):
                self._finish(job, ids[i, : counts[i]], logprobs[i, : counts[i]])

    def _block_numbers(self, jobs: list[_Job], context: int) -> tuple[np.ndarray, np.ndarray]:
        """The blocks [B, n] each path is read from and written to."""
        S = self.shapes.block_size
        tables = np.full((len(jobs), context // S), self.shapes.blocks)
        for row, job in zip(tables, jobs, strict=True):
            row[: len(job.placement.blocks)] = [block.number for block in job.placement.blocks]
        reads = tables.copy()
        for row, job in zip(reads, jobs, strict=True):
            if job.leader is not None and job.placement.source is not None:
                row[job.placement.cached // S] = job.placement.source.number
        return reads, tables

    def _finish(self, job: _Job, ids: np.ndarray, logprobs: np.ndarray) -> None:
        if not np.isfinite(logprobs).all():
            raise SamplerError("the policy gave non-finite log-probs: its parameters are damaged")
        self._table.commit(job.placement, job.request.prompt_ids + tuple(ids[:-1].tolist()))
        job.sample = Sample(
            ids=tuple(ids.tolist()),
            logprobs=tuple(logprobs.tolist()),
            finish_reason="stop" if ids[-1] in job.request.stop_ids else "length",
            weight_version=self._version,
            prefilled_tokens=len(job.ids) - job.placement.cached,
            cached_tokens=job.placement.cached,
        )

    def _batches(self, jobs: list[_Job]) -> Iterable[tuple[int, list[_Job]]]:
        """Jobs that are read to the same context, at most the largest batch together, the shortest first."""
        groups: dict[int, list[_Job]] = {}
        for job in jobs:
            groups.setdefault(_fit(len(job.ids) + job.request.max_tokens, self.shapes.contexts), []).append(job)
        for context in sorted(groups):
            for start in range(0, len(groups[context]), self.shapes.batches[-1]):
                yield context, groups[context][start : start + self.shapes.batches[-1]]

    def _empty_pool(self) -> KVCache:
        return KVCache.empty(self._config, self.shapes.blocks, self.shapes.block_size)

    def _call(self, shape: tuple, *arguments):
        run = self._executable(*shape)
        start = time.perf_counter()
        result = jax.block_until_ready(run(self._params, self._pool, *arguments))
        self.compiled_seconds += time.perf_counter() - start
        return result

    def _executable(self, *shape):
        if shape not in self._executables:
            if self._warm:
                self.late_compilations += 1
                logging.warning("sampler compiles %s after warm-up", shape)
            self.compilations += 1
            self._executables[shape] = self._compile(*shape)
        return self._executables[shape]

    def _compile(self, kind: str, count: int, size: int):
        """One ahead-of-time compiled function of (params, pool, arguments), the pool donated."""

        def array(*shape, dtype=jnp.int32):
            return jax.ShapeDtypeStruct(shape, dtype)

        if kind == "prefill":
            R, S, N = count, self.shapes.block_size, size
            tiles = array(N), array(N, TILE_KEYS), array(N)
            arguments = array(R), array(R), array(R), array(R, S), array(R), array(R), *tiles
        else:
            B, n = count, size // self.shapes.block_size
            ends, stops = array(B, self._config.embed_dim, dtype=self._config.dtype), array(B, self.shapes.num_stop_ids)
            seeds, temperatures = array(B, 2, dtype=jnp.uint32), array(B, dtype=jnp.float32)
            arguments = ends, array(B, n), array(B, n), array(B), seeds, temperatures, array(B), stops

        def run(params, pool, *arguments):
            model = nnx.merge(self._graph, params)
            if kind == "prefill":
                return decoding.prefill(model, pool, *arguments)
            return decoding.decode(model, pool, *arguments, steps=self.shapes.max_new_tokens)

        return jax.jit(run, donate_argnums=1).lower(self._params, self._pool, *arguments).compile()

    def _all_shapes(self) -> Iterable[tuple]:
        for rows, tiles in self.shapes.prefills:
            yield "prefill", rows, tiles
        for batch in self.shapes.batches:
            for context in self.shapes.contexts:
                yield "decode", batch, context


def _tiles(blocks: int) -> int:
    """Attention tiles of a row whose path has this many blocks."""
    return -(-blocks // TILE_KEYS)


def _fit(size: int, buckets: tuple[int, ...]) -> int:
    """The smallest bucket that holds `size`."""
    return next(bucket for bucket in buckets if bucket >= size)


def _pad(array: np.ndarray, size: int, fill: int = 0) -> np.ndarray:
    """Pad the first axis to `size`; integers become int32."""
    padded = np.full((size, *array.shape[1:]), fill, np.int32 if array.dtype == np.int64 else array.dtype)
    padded[: len(array)] = array
    return padded
