"""The connections to one origin: idle ones are used again, the most recent first, so that the others age and are closed.

At most `max_connections` are open; who comes later waits in order of arrival for one that is free or closed.

The upstream client: HTTP/1.1 over kept connections, for whoever must stream, cancel and hold back without waste.

A request is sent again, once and over a new connection, in one case only: it went out on a connection that had been idle, and
that was closed before a single byte of an answer. Most likely the upstream closed it for its age at the moment we used it. It
may also have died of the request: then it is asked a second time, and no more. Every other failure is the caller's to judge.

`https://` origins go through aiohttp's client, behind the same `UpstreamResponse`.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from maitred.core.errors import ConfigError
from maitred.wire.connection import UpstreamConnection
from maitred.wire.errors import ConnectError, Disconnected, UpstreamLimits, UpstreamTimeout, connect_error
from maitred.wire.response import UpstreamResponse

if TYPE_CHECKING:
    from maitred.wire.tls import TlsClient


class ConnectionPool:
    def __init__(self, host: str, port: int, authority: str, limits: UpstreamLimits) -> None:
        self.authority = authority
        """For the Host header."""
        self._host, self._port, self._limits = host, port, limits
        self._loop = asyncio.get_running_loop()
        self._idle: list[UpstreamConnection] = []
        self._open: set[UpstreamConnection] = set()
        self._free_places = limits.max_connections
        """How many more may be made."""
        self._waiters: deque[asyncio.Future[UpstreamConnection | None]] = deque()
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def num_open(self) -> int:
        """Connections that are open, idle or not."""
        return len(self._open)

    def pop_idle(self) -> UpstreamConnection | None:
        """An idle connection, if there is one. It has been used before, and so may turn out to be closed."""
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                return connection
        return None

    async def acquire(self) -> UpstreamConnection:
        """An idle connection, or else one made now. Raises ConnectError, LocalError or UpstreamTimeout."""
        connection = self.pop_idle()
        if connection is not None:
            return connection
        if self._free_places:
            self._free_places -= 1
            return await self._connect()
        return await self._wait_for_connection()

    def close_idle(self) -> None:
        """Close the idle ones: one of them proved to be closed at the other end, so the rest are under suspicion."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def close(self) -> None:
        """Close what is idle now, and everything else when its response has ended."""
        self._closed = True
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
            self._expiry_timer = None
        self.close_idle()

    async def _connect(self) -> UpstreamConnection:
        """Use up a place that was taken for it."""
        try:
            async with asyncio.timeout(self._limits.connect_secs):
                _, connection = await self._loop.create_connection(self._make_connection, self._host, self._port)
            if not connection.is_usable:
                raise ConnectError(f"{self._host}:{self._port} closed the connection as soon as it was made")
        except BaseException as error:
            self._release_place()
            if isinstance(error, TimeoutError):
                raise self._connect_timeout() from None
            if isinstance(error, OSError):
                raise connect_error(
                    error, f"cannot connect to {self._host}:{self._port}: {_describe_os_error(error)}"
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
            if waiter.done() and not waiter.cancelled():
                self._return_unused(waiter.result())
            if isinstance(error, TimeoutError):
                raise self._connect_timeout() from None
            raise
        if connection is None:
            return await self._connect()
        return connection if connection.is_usable else await self.acquire()

    def _make_connection(self) -> UpstreamConnection:
        return UpstreamConnection(self._limits, self._loop, self._on_idle, self._on_closed)

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
        """What a waiter got and cannot use any more."""
        if given is None:
            self._release_place()
        elif given.is_usable:
            self._on_idle(given)

    def _hand_to_waiter(self, connection: UpstreamConnection | None) -> bool:
        """To the first who waits, if anyone does. None: a place to make one."""
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


def _describe_os_error(error: OSError) -> str:
    return error.strerror.lower() if error.strerror else str(error)


_HOST = re.compile(r"[a-z0-9_-][a-z0-9._-]*")


class Origin(msgspec.Struct, frozen=True):
    """Scheme, host and port: what a connection belongs to."""

    host: str
    port: int
    tls: bool = False

    @classmethod
    def parse(cls, url: str, *, where: str = "") -> Origin:
        """From `http://host:port` or `https://...`. Raises ConfigError for anything else, a path included."""
        hint = "write it as http://host:port"
        if not url.isprintable() or " " in url:  # urlsplit would drop some of them silently
            raise ConfigError(f"{url!r} has a space or control character in it", where=where, hint=hint)
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"{url!r} is no URL: {error}", where=where, hint=hint) from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{url!r} is no http or https URL", where=where, hint=hint)
        if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username:
            raise ConfigError(f"{url!r} has more than a host and a port", where=where, hint=hint)
        if port == 0:
            raise ConfigError(f"{url!r} has port 0, on which nothing can listen", where=where, hint=hint)
        host = _ascii_host(parts.hostname)
        if host is None:
            raise ConfigError(f"{url!r} has no valid host name", where=where, hint=hint)
        tls = parts.scheme == "https"
        return cls(host, port or (443 if tls else 80), tls)

    @property
    def authority(self) -> str:
        """As in a Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}"


class UpstreamClient:
    """Used inside one event loop."""

    def __init__(self, limits: UpstreamLimits | None = None) -> None:
        self.limits = limits or UpstreamLimits()
        self._pools: dict[Origin, ConnectionPool] = {}
        self._tls: TlsClient | None = None

    async def request(
        self,
        origin: Origin,
        method: str,
        target: str,
        headers: Iterable[tuple[bytes, bytes]] = (),
        body: bytes = b"",
    ) -> UpstreamResponse:
        """Send a request and return its response when the head is there.

        `headers` must have neither Host nor anything about framing or the connection. If this is cancelled the connection is
        closed at once; afterwards `UpstreamResponse.close_idle` does that. Raises UpstreamError, and ValueError if a header
        has a line end.
        """
        if origin.tls:
            return await self._tls_client().request(str(origin), method, target, headers, body)
        pool = self.pool(origin)
        head = _encode_head(pool.authority, method, target, headers, body)
        bodiless = method == "HEAD"
        connection = pool.pop_idle() or await pool.acquire()
        try:
            return await connection.send_request(head, body, bodiless=bodiless).wait_for_head()
        except Disconnected:
            if not connection.was_used or connection.has_received:
                raise
        pool.close_idle()
        connection = await pool.acquire()
        return await connection.send_request(head, body, bodiless=bodiless).wait_for_head()

    def pool(self, origin: Origin) -> ConnectionPool:
        pool = self._pools.get(origin)
        if pool is None:
            pool = self._pools[origin] = ConnectionPool(origin.host, origin.port, origin.authority, self.limits)
        return pool

    async def close(self) -> None:
        """Close idle connections; those in use close when their response has ended."""
        for pool in self._pools.values():
            pool.close()
        if self._tls is not None:
            await self._tls.close()

    def _tls_client(self) -> TlsClient:
        if self._tls is None:
            from maitred.wire.tls import TlsClient

            self._tls = TlsClient(self.limits)
        return self._tls


def _ascii_host(host: str) -> str | None:
    """As DNS and the Host header have it; None if it cannot be one, as with an empty label."""
    try:
        named = host.encode("idna").decode()
    except UnicodeError:
        return None
    return named if ":" in host or _HOST.fullmatch(named) else None


def _encode_head(authority: str, method: str, target: str, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bytes:
    lines = [f"{method} {target} HTTP/1.1\r\nhost: {authority}".encode("latin-1")]
    lines += [b"%b: %b" % header for header in headers]
    if body or method not in ("GET", "HEAD"):
        lines.append(b"content-length: %d" % len(body))
    head = b"\r\n".join(lines)
    if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines):
        raise ValueError("a header with a line end in it")
    return head + b"\r\n\r\n"
