"""The upstream client: HTTP/1.1 over kept connections, for callers that must stream, cancel and hold back without waste.

**Retry.** A request is sent again, once and over a new connection, in one case only: it went out on a kept connection that was
dead before (`UpstreamConnection.was_dead`). Every other failure is for the caller to judge.

**The pool.** Each origin has its connections. At most `max_connections` are open; further requests wait, in order of arrival,
for one that becomes idle or is closed. For example, with `max_connections: 2` and two requests in flight, the third waits, and
gets the connection of the one that has its response first.

**A new connection** is tried at one address of the upstream after the other (`resolver`). `https://` origins differ in that the
event loop encrypts (`tls`). Compiled (`tools/compile.py`).
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Collection, Sequence

from maitred.wire.client_framing import NO_BLOCK, HeaderBlock
from maitred.wire.connection import UpstreamConnection
from maitred.wire.errors import (
    ConnectError,
    ConnectTimeout,
    Disconnected,
    LocalError,
    PoolTimeout,
    UpstreamError,
    UpstreamLimits,
    Withheld,
    connect_error,
)
from maitred.wire.known_heads import KnownHeads
from maitred.wire.loop_clock import clock_of
from maitred.wire.machine import Machine
from maitred.wire.messages import ResponseHead
from maitred.wire.origin import Origin
from maitred.wire.resolver import HostAddresses
from maitred.wire.response import UpstreamResponse
from maitred.wire.timeouts import timeout
from maitred.wire.tls import ClientContext, describe_failure


class ConnectionPool:
    """The connections to one origin."""

    def __init__(
        self,
        origin: Origin,
        limits: UpstreamLimits,
        tls: ClientContext | None,
        machine: Machine,
        on_descriptor: Callable[[int], object],
    ) -> None:
        """`tls` is what connections are encrypted with, or None if they are not. `on_descriptor` is told the descriptor of each
        connection."""
        self.authority = origin.authority
        """The value of the Host header."""
        self._port, self._limits, self._tls = origin.port, limits, tls
        self._where, self._on_descriptor = f"{origin.host}:{origin.port}", on_descriptor
        self._tls_host = None if tls is None else origin.host.rstrip(".")
        """The name that the certificate must have."""
        self._host = HostAddresses(origin.host, limits.dns_ttl_secs, limits.connect_secs, machine.look_up, self._leave)
        self._loop = asyncio.get_running_loop()
        self._idle: list[UpstreamConnection] = []
        self._open: dict[UpstreamConnection, None] = {}
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
        # The most recent one first, so that the others age and are closed.
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable():
                return connection
        return None

    async def acquire(self) -> UpstreamConnection:
        """Return an idle connection, or else a new one. Raises ConnectError, LocalError or PoolTimeout."""
        return self.pop_idle() or await self.acquire_new()

    async def acquire_new(self) -> UpstreamConnection:
        """Return a new connection, or one that becomes idle while all places are taken. Raises as `acquire` does."""
        if self._free_places:
            self._free_places -= 1
            return await self._connect()
        self._close_oldest_idle()
        return await self._wait_for_connection()

    def send_request(
        self,
        connection: UpstreamConnection,
        method: str,
        target: str,
        headers: Sequence[tuple[bytes, bytes]],
        body: bytes,
        block: HeaderBlock,
    ) -> UpstreamResponse:
        """Send a request over a connection that was acquired. Raises ValueError if a header contains a line end."""
        try:
            return connection.send_request(method, target, self.authority, headers, body, block)
        except ValueError:
            self._return_unused(connection)
            raise

    def withhold(self, connection: UpstreamConnection) -> Withheld:
        """Release the connection of a request that may not be sent any more, and return the error that this is."""
        self._return_unused(connection)
        return Withheld(f"the request may not be sent to {self._where} any more")

    def close_idle(self, since: float = math.inf) -> None:
        """Close the connections that have been idle since `since`, in seconds of the event loop, or for longer."""
        kept = [connection for connection in self._idle if connection.idle_since > since]
        for connection in self._idle:
            if connection.idle_since <= since:
                connection.close()
        self._idle = kept

    def close(self) -> None:
        """Close the idle connections now, and every other one when its response has ended."""
        self._closed = True
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
            self._expiry_timer = None
        self._host.close()
        self.close_idle()

    def _leave(self, addresses: Collection[str]) -> None:
        """Use the connections to these addresses no more."""
        for connection in list(self._open):
            if connection.address in addresses:
                connection.retire()

    async def _connect(self) -> UpstreamConnection:
        """Make a connection; its place has been taken already, and is released if this fails."""
        try:
            connection = await self._connect_to_any(await self._host.addresses())
            if not connection.is_usable():
                raise ConnectError(f"{self._where} closed the connection as soon as it was made")
        except BaseException:
            # Also if this call is cancelled: a place that is not released here would be lost for good.
            self._release_place()
            raise
        self._open[connection] = None
        return connection

    async def _connect_to_any(self, addresses: Sequence[str]) -> UpstreamConnection:
        """Return a connection to the first of `addresses` to which one can be made. Raises ConnectError or LocalError."""
        if not addresses:
            raise ConnectError(f"cannot connect to {self._where}: {self._host.problem}")
        clock = clock_of(self._loop)
        due = clock.time() + self._limits.connect_secs
        failures: list[ConnectError | LocalError] = []
        for num_left, address in zip(range(len(addresses), 0, -1), addresses, strict=True):
            try:
                # An equal share of the time that is left: an address that swallows packets must leave some for the next one.
                connection = await self._connect_to(address, (due - clock.time()) / num_left)
            except (ConnectError, LocalError) as error:
                failures.append(error)
                self._host.note_failure(address)
            else:
                self._host.note_success(address)
                connection.address = address
                return connection
        # A machine without IPv6 has no port for such an address, and that says nothing of the upstream.
        failure = next((error for error in reversed(failures) if isinstance(error, ConnectError)), failures[-1])
        try:
            raise failure
        finally:  # Its traceback refers to this frame, and so to the request with its body.
            failures.clear()
            del failure

    async def _connect_to(self, address: str, secs: float) -> UpstreamConnection:
        tls = None if self._tls is None else self._tls.ssl
        try:
            async with timeout(secs):
                transport, connection = await self._loop.create_connection(
                    self._make_connection, address, self._port, ssl=tls, server_hostname=self._tls_host
                )
        except TimeoutError as error:
            raise ConnectTimeout(f"no connection to {self._where} within {self._limits.connect_secs:g} s") from error
        except OSError as error:
            raise connect_error(error, f"cannot connect to {self._where}: {describe_failure(error)}") from error
        self._on_descriptor(transport.get_extra_info("socket").fileno())
        return connection

    async def _wait_for_connection(self) -> UpstreamConnection:
        waiter: asyncio.Future[UpstreamConnection | None] = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            async with timeout(self._limits.connect_secs):
                connection = await waiter
        except BaseException as error:
            # The waiter may have been given a connection, or a place for one, just before it was cancelled or timed out.
            if waiter.done() and not waiter.cancelled():
                self._return_unused(waiter.result())
            if isinstance(error, TimeoutError):
                raise PoolTimeout(
                    f"no connection to {self._where} became free within {self._limits.connect_secs:g} s"
                ) from None
            raise
        if connection is None:
            return await self._connect()
        # It may have been closed between being handed over and now. `_on_closed` has released its place, so this is a new wait.
        return connection if connection.is_usable() else await self.acquire()

    def _make_connection(self) -> UpstreamConnection:
        return UpstreamConnection(self._limits, self._loop, self._on_idle, self._on_closed, self._known_heads)

    def _on_idle(self, connection: UpstreamConnection) -> None:
        if self._closed:
            connection.close()
        elif not (self._waiters and self._hand_to_waiter(connection)):
            self._idle.append(connection)
            if self._expiry_timer is None:
                self._expiry_timer = self._loop.call_later(self._limits.keep_alive_secs, self._close_expired)

    def _on_closed(self, connection: UpstreamConnection) -> None:
        if connection in self._open:
            del self._open[connection]
            self._release_place()

    def _release_place(self) -> None:
        if not self._hand_to_waiter(None):
            self._free_places += 1

    def _return_unused(self, given: UpstreamConnection | None) -> None:
        """Release what a waiter was given and cannot use any more: a connection, or the place for one (None)."""
        if given is None:
            self._release_place()
        elif given.is_usable():
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

    def _close_oldest_idle(self) -> None:
        """Make a place for a new connection, if one is idle. The place is free when the connection is closed."""
        while self._idle:
            connection = self._idle.pop(0)
            if connection.is_usable():
                connection.close()
                return

    def _close_expired(self) -> None:
        self._expiry_timer = None
        now, kept_secs = self._loop.time(), self._limits.keep_alive_secs
        for connection in self._idle:
            # The sum for which the timer is set: a difference may round to a time before it, and the timer rings for nothing.
            if connection.idle_since + kept_secs <= now:
                connection.close()
        self._idle = [connection for connection in self._idle if connection.is_usable()]
        if self._idle:
            self._expiry_timer = self._loop.call_at(self._idle[0].idle_since + kept_secs, self._close_expired)


def _ignore(descriptor: int) -> None:
    """Do nothing."""


class UpstreamClient:
    """Sends requests to any number of origins. Used inside one event loop."""

    def __init__(self, limits: UpstreamLimits | None = None, machine: Machine | None = None) -> None:
        self.machine = machine or Machine()
        """Where it runs."""
        self.limits = limits or UpstreamLimits()
        self.on_descriptor: Callable[[int], object] = _ignore
        """Told the descriptor of each connection that is made, which may have to make room for the next."""
        self._pools: dict[Origin, ConnectionPool] = {}
        self._tls: ClientContext | None = None

    async def request(
        self,
        origin: Origin,
        method: str,
        target: str,
        headers: Sequence[tuple[bytes, bytes]] = (),
        body: bytes = b"",
        block: HeaderBlock = NO_BLOCK,
        may_send: Callable[[], bool] | None = None,
    ) -> UpstreamResponse:
        """Send a request, and return its response when its head has arrived. It is sent twice at most (see above).

        `block` are further headers. None may be Host, or about framing or the connection. `may_send` is asked each time there
        is a connection, before anything is sent. If this call is cancelled, the connection is closed at once; afterwards
        `UpstreamResponse.close` does that. Raises UpstreamError, Withheld among others if it may not be sent, and ValueError
        if a header contains a line end.
        """
        pool = self._pools.get(origin) or self.pool(origin)
        connection = pool.pop_idle() or await pool.acquire_new()
        if may_send is not None and not may_send():
            raise pool.withhold(connection)
        response = pool.send_request(connection, method, target, headers, body, block)
        try:
            await response.head  # as `wait_for_head` does, without a coroutine for each request
        except asyncio.CancelledError:
            response.close()
            raise
        if response.status:
            return response
        if not (isinstance(response.error, Disconnected) and connection.was_dead):
            raise response.take_error()
        response.error = None  # It refers to the frames that refer to the request.
        pool.close_idle(connection.idle_since)  # what has been idle for longer is dead as well, most likely
        try:
            connection = await pool.acquire_new()
        except UpstreamError as error:
            error.was_sent = True  # the upstream may have died of this request, so the caller must know that it got it
            raise
        if may_send is not None and not may_send():
            raise pool.withhold(connection)
        return await pool.send_request(connection, method, target, headers, body, block).wait_for_head()

    def pool(self, origin: Origin) -> ConnectionPool:
        """Return the connections to `origin`."""
        pool = self._pools.get(origin)
        if pool is None:
            tls = self._client_context() if origin.tls else None
            pool = self._pools[origin] = ConnectionPool(origin, self.limits, tls, self.machine, self._note_descriptor)
        return pool

    def load_authorities(self) -> None:
        """Load the authorities that connections over TLS trust; otherwise the first of these does. Raises ConfigError."""
        self._client_context()

    def num_connections(self, origin: Origin) -> int:
        """Return how many connections to `origin` are open."""
        return self._pools[origin].num_open if origin in self._pools else 0

    def forget(self, origin: Origin) -> None:
        """Close the idle connections to `origin`, and those in use when their response has ended."""
        pool = self._pools.pop(origin, None)
        if pool is not None:
            pool.close()

    async def close(self) -> None:
        """Close all idle connections; connections in use close when their response has ended."""
        for pool in self._pools.values():
            pool.close()

    def _note_descriptor(self, descriptor: int) -> None:
        self.on_descriptor(descriptor)

    def _client_context(self) -> ClientContext:
        # To load the authorities that the system trusts takes many milliseconds, for which most clients have no use.
        if self._tls is None:
            self._tls = ClientContext()
        return self._tls
