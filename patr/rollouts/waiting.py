"""How a rollout waits: for several things at once, and for environments that block."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Iterable
from typing import Any


async def together(coroutines: Iterable[Coroutine]) -> list[Any]:
    """Results in the order given. The first failure cancels the rest, waits for them to end, and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


class EnvCalls:
    """Calls environments: in the event loop, or in threads when they block on containers or servers.

    threads: calls at once; 0 calls in the event loop, which is fastest for environments that only compute.
    timeout: seconds one call may take once it runs; TimeoutError then, and its thread is left behind.
    """

    def __init__(self, threads: int, timeout: float | None):
        if threads < 0:
            raise ValueError(f"env_threads={threads}: expected 0 (call in the event loop) or more")
        if timeout is not None and (timeout <= 0 or not threads):
            raise ValueError(f"env_timeout={timeout}: expected a positive number of seconds, with env_threads >= 1")
        self._slots = asyncio.Semaphore(threads) if threads else None
        self._timeout = timeout

    async def __call__(self, call: Callable, *args, undo: Callable[[Any], None] | None = None) -> Any:
        """call(*args). undo: what to do with a result that comes after the caller gave up."""
        if self._slots is None:
            return call(*args)
        async with self._slots:
            answer = _in_thread(call, args, undo)
            try:
                return await asyncio.wait_for(asyncio.wrap_future(answer), self._timeout)
            except (asyncio.CancelledError, TimeoutError):
                # A call still running sees the cancellation and undoes its own result. One that
                # answered just before the caller gave up has to be undone here.
                if not answer.cancel() and undo and answer.exception() is None:
                    undo(answer.result())
                raise


def _in_thread(call: Callable, args: tuple, undo: Callable[[Any], None] | None) -> concurrent.futures.Future:
    answer = concurrent.futures.Future()

    def work():
        try:
            result = call(*args)
        except BaseException as error:
            if answer.set_running_or_notify_cancel():
                answer.set_exception(error)
        else:
            if answer.set_running_or_notify_cancel():
                answer.set_result(result)
            elif undo:
                undo(result)

    # Not a pool: a hung call would keep its worker, and would be waited for at exit.
    threading.Thread(target=work, daemon=True).start()
    return answer
