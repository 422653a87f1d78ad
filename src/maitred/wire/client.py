"""The upstream client: HTTP/1.1 over kept connections, for callers that must stream, cancel and hold back without waste.

**Retry.** A request is sent again, once and over a new connection, in one case only: it went out on a connection that had been
idle, and the connection was closed before a single byte of a response. Most likely the upstream closed it for its age at the
moment of use. The upstream may also have died of the request; then it gets the request a second time, and no more. A caller
that counts how often a request is sent says `resends=False`, and learns of this case from `Disconnected.was_kept`. Every other
failure is for the caller to judge.

**The pool.** Each origin has its connections. Idle ones are used again, the most recent first, so that the others age and are
closed. At most `max_connections` are open; further requests wait, in order of arrival, for one that becomes idle or is closed.
For example, with `max_connections: 2` and two requests in flight, the third waits, and gets the connection of the one that
has its response first.

`https://` origins go through aiohttp's client (`tls`), behind the same `UpstreamResponse`. Compiled (`tools/compile.py`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from maitred.core.errors import describe_os_error
from maitred.wire.client_framing import NO_BLOCK, HeaderBlock
from maitred.wire.connection import UpstreamConnection
from maitred.wire.errors import ConnectError, Disconnected, UpstreamLimits, UpstreamTimeout, connect_error
from maitred.wire.known_heads import KnownHeads
from maitred.wire.messages import ResponseHead
from maitred.wire.origin import Origin
from maitred.wire.response import UpstreamResponse

if TYPE_CHECKING:
    from maitred.wire.tls import TlsClient


UpstreamRequest: TypeAlias = tuple[str, str, str, Sequence[tuple[bytes, bytes]], bytes, HeaderBlock]
"""Method, target, authority, headers, body and further headers."""


class ConnectionPool:
    """The connections to one origin."""

    def __init__(self, host: str, port: int, authority: str, limits: UpstreamLimits) -> None:
        self.authority = authority
        """The value of the Host header."""
        self._host, self._port, self._limits = host, port, limits
        self._loop = asyncio.get_running_loop()
        self._idle: list[UpstreamConnection] = []
        self._open: set[UpstreamConnection] = set()
        self._free_places = limits.max_connections
        """Connections that may still be made."""
        self._waiters: deque[asyncio.Future[UpstreamConnection | None]] = deque()
        self._known_heads: KnownHeads[ResponseHead] = KnownHeads()
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def num_open(self) -> int:
        """Number of open connections, idle or not."""
        return len(self._open)

    def pop_idle(self) -> UpstreamConnection | None:
        """Return an idle connection, or None. It has been used before, and may turn out to be closed."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                return connection
        return None

    async def acquire(self) -> UpstreamConnection:
        """Return an idle connection, or else a new one. Raises ConnectError, LocalError or UpstreamTimeout."""
        connection = self.pop_idle()
        if connection is not None:
            return connection
        if self._free_places:
            self._free_places -= 1
            return await self._connect()
        return await self._wait_for_connection()

    def send_request(self, connection: UpstreamConnection, request: UpstreamRequest) -> UpstreamResponse:
        """Send a request over a connection that was acquired. Raises ValueError if a header contains a line end."""
        try:
            return connection.send_request(*request)
        except ValueError:
            self._return_unused(connection)
            raise

    def close_idle(self) -> None:
        """Close the idle connections: one of them was closed by the upstream, so the others may be closed as well."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def close(self) -> None:
        """Close the idle connections now, and every other one when its response has ended."""
        self._closed = True
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
            self._expiry_timer = None
        self.close_idle()

    async def _connect(self) -> UpstreamConnection:
        """Make a connection; its place has been taken already, and is released if this fails."""
        try:
            async with asyncio.timeout(self._limits.connect_secs):
                _, connection = await self._loop.create_connection(self._make_connection, self._host, self._port)
            if not connection.is_usable:
                raise ConnectError(f"{self._host}:{self._port} closed the connection as soon as it was made")
        except BaseException as error:
            # Also if this call is cancelled: a place that is not released here would be lost for good.
            self._release_place()
            if isinstance(error, TimeoutError):
                raise self._connect_timeout() from None
            if isinstance(error, OSError):
                raise connect_error(
                    error, f"cannot connect to {self._host}:{self._port}: {describe_os_error(error)}"
                ) from error
            if isinstance(error, UnicodeError):
                raise ConnectError(f"{self._host!r} is no host name: {error}") from error
            raise
        self._open.add(connection)
        return connection

    async def _wait_for_connection(self) -> UpstreamConnection:
        waiter: asyncio.Future[UpstreamConnection | None] = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(self._limits.connect_secs):
                connection = await waiter
        except BaseException as error:
            # The waiter may have been given a connection, or a place for one, just before it was cancelled or timed out.
            if waiter.done() and not waiter.cancelled():
                self._return_unused(waiter.result())
            if isinstance(error, TimeoutError):
                raise self._connect_timeout() from None
            raise
        if connection is None:
            return await self._connect()
        # It may have been closed between being handed over and now. `_on_closed` has released its place, so this is a new wait.
        return connection if connection.is_usable else await self.acquire()

    def _make_connection(self) -> UpstreamConnection:
        return UpstreamConnection(self._limits, self._loop, self._on_idle, self._on_closed, self._known_heads)

    def _on_idle(self, connection: UpstreamConnection) -> None:
        if self._closed:
            connection.close()
        elif not self._hand_to_waiter(connection):
            self._idle.append(connection)
            if self._expiry_timer is None:
                self._expiry_timer = self._loop.call_later(self._limits.keep_alive_secs, self._close_expired)

    def _on_closed(self, connection: UpstreamConnection) -> None:
        if connection in self._open:
            self._open.remove(connection)
            self._release_place()

    def _release_place(self) -> None:
        if not self._hand_to_waiter(None):
            self._free_places += 1

    def _return_unused(self, given: UpstreamConnection | None) -> None:
        """Release what a waiter was given and cannot use any more: a connection, or the place for one (None)."""
        if given is None:
            self._release_place()
        elif given.is_usable:
            self._on_idle(given)

    def _hand_to_waiter(self, connection: UpstreamConnection | None) -> bool:
        """Give `connection`, or a place to make one (None), to the first waiter. Return whether there was one."""
        # A waiter that has timed out or was cancelled is still in the queue, with its future done.
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return True
        return False

    def _close_expired(self) -> None:
        self._expiry_timer = None
        oldest_kept = self._loop.time() - self._limits.keep_alive_secs
        for connection in self._idle:
            if connection.idle_since <= oldest_kept:
                connection.close()
        self._idle = [connection for connection in self._idle if connection.is_usable]
        if self._idle:
            due = self._idle[0].idle_since + self._limits.keep_alive_secs
            self._expiry_timer = self._loop.call_at(due, self._close_expired)

    def _connect_timeout(self) -> UpstreamTimeout:
        return UpstreamTimeout(f"no connection to {self._host}:{self._port} within {self._limits.connect_secs:g} s")


class UpstreamClient:
    """Sends requests to any number of origins. Used inside one event loop."""

    def __init__(self, limits: UpstreamLimits | None = None) -> None:
        self.limits = limits or UpstreamLimits()
        self._pools: dict[Origin, ConnectionPool] = {}
        self._tls: TlsClient | None = None

    async def request(
        self,
        origin: Origin,
        method: str,
        target: str,
        headers: Sequence[tuple[bytes, bytes]] = (),
        body: bytes = b"",
        *,
        block: HeaderBlock = NO_BLOCK,
        resends: bool = True,
    ) -> UpstreamResponse:
        """Send a request, and return its response when its head has arrived. It is sent twice at most, and once if not
        `resends` (see above).

        `block` are further headers. None may be Host, or about framing or the connection. If this call is cancelled, the
        connection is closed at once; afterwards `UpstreamResponse.close` does that. Raises UpstreamError, and ValueError if a
        header contains a line end.
        """
        if origin.tls:
            return await self._tls_client().request(str(origin), method, target, [*headers, *block.headers], body)
        pool = self.pool(origin)
        connection = pool.pop_idle() or await pool.acquire()
        request = method, target, pool.authority, headers, body, block
        try:
            return await pool.send_request(connection, request).wait_for_head()
        except Disconnected as error:
            # On a fresh connection, or after a first byte, age cannot be the reason, and the caller decides what to do.
            if not connection.was_used or connection.has_received:
                raise
            pool.close_idle()
            if not resends:
                error.was_kept = True
                raise
        connection = await pool.acquire()
        return await pool.send_request(connection, request).wait_for_head()

    def pool(self, origin: Origin) -> ConnectionPool:
        """Return the connections to `origin`."""
        pool = self._pools.get(origin)
        if pool is None:
            pool = self._pools[origin] = ConnectionPool(origin.host, origin.port, origin.authority, self.limits)
        return pool

    def num_connections(self, origin: Origin) -> int:
        """Return how many connections to `origin` are open; those of TLS are not counted."""
        return self._pools[origin].num_open if origin in self._pools else 0

    async def close(self) -> None:
        """Close all idle connections; connections in use close when their response has ended."""
        for pool in self._pools.values():
            pool.close()
        if self._tls is not None:
            await self._tls.close()

    def _tls_client(self) -> TlsClient:
        if self._tls is None:
            from maitred.wire.tls import TlsClient

            self._tls = TlsClient(self.limits)
        return self._tls
