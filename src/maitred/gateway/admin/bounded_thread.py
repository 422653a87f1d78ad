"""Work that may hang, such as reading a file from a disk that does: done in a thread, and given up after a time.

Nothing can stop it. While it hangs, no further work is begun.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from maitred.core.errors import ConfigError
from maitred.files.daemon_threads import DAEMON_THREADS

T = TypeVar("T")


class BoundedThread:
    """Runs one piece of work at a time."""

    def __init__(self, what: str, limit_secs: float) -> None:
        """`what` is read, for messages, within `limit_secs`."""
        self._what, self._limit_secs = what, limit_secs
        self._is_at_work = False

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread, and return or raise its result. Raises ConfigError if it takes too long, and at once while
        earlier work hangs."""
        if self._is_at_work:
            raise ConfigError(f"{self._what} are still being read for an earlier reload", hint="does a disk hang?")
        self._is_at_work = True
        try:
            async with asyncio.timeout(self._limit_secs):
                return await asyncio.get_running_loop().run_in_executor(DAEMON_THREADS, self._run, work)
        except TimeoutError as error:
            raise ConfigError(
                f"{self._what} could not be read within {self._limit_secs:g} s", hint="does a disk hang?"
            ) from error

    def _run(self, work: Callable[[], T]) -> T:
        try:
            return work()
        finally:
            self._is_at_work = False
