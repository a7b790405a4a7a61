"""Turns single awaited requests into batches."""

import asyncio
from collections.abc import Callable, Sequence

from patr.samplers.base import Sample, SampleRequest

# Passes of the event loop without a new request before the batch is closed:
# a woken rollout needs a few to get through its gathers to its next request.
_QUIET_PASSES = 8


class RequestQueue:
    """Collects requests until every rollout waits for one, then serves them together."""

    def __init__(self, serve: Callable[[Sequence[SampleRequest]], Sequence[Sample]]):
        self._serve = serve
        self._waiting: list[tuple[SampleRequest, asyncio.Future]] = []

    async def submit(self, request: SampleRequest) -> Sample:
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._waiting.append((request, future))
        if len(self._waiting) == 1:
            loop.call_soon(self._settle, loop, 1, _QUIET_PASSES)
        return await future

    def _settle(self, loop: asyncio.AbstractEventLoop, seen: int, passes: int) -> None:
        if len(self._waiting) > seen:
            passes = _QUIET_PASSES
        if passes:
            loop.call_soon(self._settle, loop, len(self._waiting), passes - 1)
        else:
            self._flush()

    def _flush(self) -> None:
        waiting = [(request, future) for request, future in self._waiting if not future.cancelled()]
        self._waiting = []
        try:
            samples = self._serve([request for request, _ in waiting])
        except Exception as error:  # every waiting rollout must hear of it
            for _, future in waiting:
                future.set_exception(error)
            return
        for (_, future), sample in zip(waiting, samples, strict=True):
            future.set_result(sample)
