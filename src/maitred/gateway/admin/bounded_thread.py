"""Work that may hang, such as reading a file from a disk that does: done in a thread, and given up after a time.

The thread is a daemon, so that it does not keep the process from ending. Python cannot stop a thread; while one hangs, no
further work is begun.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from maitred.core.errors import ConfigError

T = TypeVar("T")


class BoundedThread:
    """Runs one piece of work at a time."""

    def __init__(self, what: str, limit_secs: float) -> None:
        """`what` is read, for messages, within `limit_secs`."""
        self._what, self._limit_secs = what, limit_secs
        self._thread: threading.Thread | None = None

    async def run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, or raise what it raises. Raises ConfigError if it takes too long, and at once while
        earlier work hangs."""
        if self._thread is not None and self._thread.is_alive():
            raise ConfigError(f"{self._what} are still being read for an earlier reload", hint="does a disk hang?")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        self._thread = threading.Thread(target=_run, args=(work, loop, done), daemon=True, name=f"reads {self._what}")
        self._thread.start()
        try:
            async with asyncio.timeout(self._limit_secs):
                return await done
        except TimeoutError as error:
            raise ConfigError(
                f"{self._what} could not be read within {self._limit_secs:g} s", hint="does a disk hang?"
            ) from error


def _run(work: Callable[[], T], loop: asyncio.AbstractEventLoop, done: asyncio.Future[T]) -> None:
    result: T | None = None
    failure: Exception | None = None
    try:
        result = work()
    except Exception as error:  # It is raised where the result is awaited.
        failure = error

    def tell() -> None:
        if done.done():  # nobody waits any more
            return
        if failure is not None:
            done.set_exception(failure)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    with suppress(RuntimeError):  # The loop was closed meanwhile.
        loop.call_soon_threadsafe(tell)
