"""The stream of the dashboard: server-sent events, one look in a second for all who watch, and none while nobody does.

    event: whole     the state, to who has just come, or has missed something
    event: changes   a merge patch of it (`changes`), every second

A look is made by `look`: in steps by this process, or by the process that schedules for it. A viewer that reads slowly misses
events instead of having them kept for it, and gets the whole once it has read what it has. A look that fails, as while a
worker has no link, is told (`event: problem`), and the next one is tried a second later. All streams end when the gateway
drains.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from maitred.gateway.dashboard.changes import changes
from maitred.wire.exchange import ApiError, Exchange
from maitred.wire.tasks import end_tasks

log = logging.getLogger("maitred.gateway")
MAX_VIEWERS: Final = 32
"""Streams at once. Each costs what it is sent; the looks are shared."""
_EVERY_SECS: Final = 1.0
_HEAD: Final = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]


class _Viewer:
    """One stream."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.busy: asyncio.Future[None] | None = None
        """Not done while the client reads more slowly than it is written to."""
        self.needs_whole = True

    def end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def send(self, event: bytes) -> None:
        self.busy = self.exchange.send_piece(event, True)


class LiveFeed:
    """All streams of one process."""

    def __init__(self, look: Callable[[], Awaitable[bytes]], is_draining: Callable[[], bool]) -> None:
        """`look` returns the state in JSON, or raises ApiError."""
        self.look = look
        """Makes a look; another process may."""
        self._is_draining = is_draining
        self._viewers: set[_Viewer] = set()
        self._task: asyncio.Task[None] | None = None
        """Looks, while somebody watches."""
        self._shown: dict[str, Any] = {}
        """The state that all have been sent who have missed nothing."""

    @property
    def num_viewers(self) -> int:
        """Streams that are open."""
        return len(self._viewers)

    async def stream(self, exchange: Exchange) -> None:
        """Send events until the client leaves or the gateway drains. Raises ApiError 503 if too many watch."""
        if len(self._viewers) >= MAX_VIEWERS:
            message = f"{MAX_VIEWERS} dashboards are open, and there may be no more at once"
            raise ApiError(503, message, kind="server_error", code="too_many_viewers", headers=[(b"retry-after", b"10")])
        viewer = _Viewer(exchange)
        exchange.start_response(200, _HEAD, b"retry: 2000\n\n", True)
        exchange.watch_disconnect(viewer.end)
        self._viewers.add(viewer)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        try:
            await viewer.ended
        finally:
            exchange.stop_watching()
            self._viewers.discard(viewer)
        exchange.send_piece(b"", False)

    async def close(self) -> None:
        """End all streams."""
        self._end_all()
        await end_tasks(self._task)

    def _end_all(self) -> None:
        for viewer in self._viewers:
            viewer.end()

    async def _run(self) -> None:
        try:
            while self._viewers:
                try:
                    await self._show(msgspec.json.decode(await self.look()))
                except ApiError as error:
                    self._tell_problem(error)
                # A stream keeps a gateway from ending, so draining is looked for more often than there is news.
                for _ in range(4):
                    await asyncio.sleep(_EVERY_SECS / 4)
                    if self._is_draining():
                        self._end_all()
        except Exception:  # A look may fail as no ApiError says; browsers ask again, and nobody looks at what is old.
            log.exception("the dashboard cannot be shown")
            self._end_all()
        finally:
            self._task = None
            self._shown = {}

    async def _show(self, state: dict[str, Any]) -> None:
        patch: dict[str, Any] = {}
        for name, value in state.items():  # in steps: with hundreds of models it takes milliseconds
            patch |= changes({name: self._shown.get(name)}, {name: value})
            await asyncio.sleep(0)
        self._shown = state
        event, whole = _event(b"changes", patch), b""
        for viewer in [*self._viewers]:
            if viewer.busy is not None and not viewer.busy.done():
                viewer.needs_whole = True
            elif viewer.needs_whole:
                whole = whole or _event(b"whole", state)
                viewer.needs_whole = False
                viewer.send(whole)
            else:
                viewer.send(event)

    def _tell_problem(self, error: ApiError) -> None:
        for viewer in self._viewers:
            if viewer.busy is None or viewer.busy.done():
                viewer.send(_event(b"problem", {"message": error.message}))


def _event(name: bytes, data: object) -> bytes:
    return b"event: " + name + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"
