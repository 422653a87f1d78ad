"""Write batches in threads, so that no disk ever holds up the event loop.

    the event loop   collects what is to be written, and hands it over as one batch when none is being written
    a thread         writes the batch (`daemon_threads`)

At most one batch is being written. What comes meanwhile is collected by the owner (`BatchSource`), which also bounds it. A
failure is logged when it begins, and the batch is given back to its owner, which may try again; serving goes on in any case.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from maitred.files.daemon_threads import DAEMON_THREADS

FLUSH_SECS: Final = 0.25
"""Seconds between two batches, and so the longest time for which a change is only in memory."""
_CLOSE_SECS: Final = 5.0
"""Longest time for which the end of the gateway waits for a disk."""
log = logging.getLogger("maitred.gateway")
Batch = TypeVar("Batch")


class BatchSource(Protocol[Batch]):
    """What is written."""

    def take_batch(self) -> Batch | None:
        """Return the entries that came since the last call, at most one batch of them, or None if there are none.
        Called in the event loop."""
        ...

    def write_batch(self, batch: Batch) -> None:
        """Write a batch. Called in the thread; may raise anything."""
        ...

    def give_back(self, batch: Batch) -> None:
        """Take back a batch that could not be written. Called in the event loop."""
        ...


class BackgroundWriter(Generic[Batch]):
    """Writes what one source has."""

    def __init__(self, source: BatchSource[Batch], what: str) -> None:
        """`what` says for the log what is written."""
        self.failed = False
        """Whether the last batch could not be written."""
        self._source = source
        self._what = what
        self._writing: asyncio.Future[None] | None = None
        """Done when the batch that was handed over last is written."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_idle(self) -> bool:
        """Whether no batch is being written."""
        return self._idle.is_set()

    def start(self) -> None:
        """Write a batch every `FLUSH_SECS` from now on, inside this event loop."""
        self._on_timer()

    async def close(self) -> None:
        """Write what is left. Gives up after `_CLOSE_SECS`."""
        if self._timer is None:  # It was never started.
            return
        self._timer.cancel()
        try:
            async with asyncio.timeout(_CLOSE_SECS):
                await self._idle.wait()
                while self._hand_over():
                    await self._idle.wait()
                    if self.failed:
                        break
        except TimeoutError:
            log.error("%s: the last changes could not be written within %g s", self._what, _CLOSE_SECS)
            if self._writing is not None:
                self._writing.cancel()  # Nobody waits for it any more.

    def _on_timer(self) -> None:
        if self._idle.is_set():
            self._hand_over()
        self._timer = asyncio.get_running_loop().call_later(FLUSH_SECS, self._on_timer)

    def _hand_over(self) -> bool:
        """Give the thread what has collected, and return whether there was anything."""
        batch = self._source.take_batch()
        if batch is None:
            return False
        self._idle.clear()
        self._writing = asyncio.get_running_loop().run_in_executor(DAEMON_THREADS, self._source.write_batch, batch)
        self._writing.add_done_callback(partial(self._on_written, batch))
        return True

    def _on_written(self, batch: Batch, written: asyncio.Future[None]) -> None:
        if written.cancelled():
            return
        self._idle.set()
        failure = written.exception()  # A disk and a database may fail in any way.
        if failure is not None:
            self._source.give_back(batch)
            if not self.failed:
                log.error("%s cannot be written: %s", self._what, failure)
        elif self.failed:
            log.warning("%s can be written again", self._what)
        self.failed = failure is not None
