"""The connections to one origin: idle ones are used again, the most recent first, so that the others age and are closed.

At most `max_connections` are open; who comes later waits in order of arrival for one that is free or closed.
"""

from __future__ import annotations

import asyncio
from collections import deque

from maitred.wire.connection import Connection
from maitred.wire.failures import ConnectError, UpstreamTimeout, not_connected
from maitred.wire.limits import Limits


class Pool:
    def __init__(self, host: str, port: int, authority: str, limits: Limits) -> None:
        self.authority = authority
        """For the Host header."""
        self._host, self._port, self._limits = host, port, limits
        self._loop = asyncio.get_running_loop()
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._places = limits.max_connections
        """How many more may be made."""
        self._waiters: deque[asyncio.Future[Connection | None]] = deque()
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def open(self) -> int:
        """Connections that are open, idle or not."""
        return len(self._open)

    def take_idle(self) -> Connection | None:
        """An idle connection, if there is one. It has been used before, and so may turn out to be closed."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def take(self) -> Connection:
        """An idle connection, or else one made now. Raises ConnectError, LocalError or UpstreamTimeout."""
        connection = self.take_idle()
        if connection is not None:
            return connection
        if self._places:
            self._places -= 1
            return await self._connect()
        return await self._in_turn()

    def drop_idle(self) -> None:
        """Close the idle ones: one of them proved to be closed at the other end, so the rest are under suspicion."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def close(self) -> None:
        """Close what is idle now, and everything else when its response has ended."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        self.drop_idle()

    async def _connect(self) -> Connection:
        """Use up a place that was taken for it."""
        try:
            async with asyncio.timeout(self._limits.connect_secs):
                _, connection = await self._loop.create_connection(self._made, self._host, self._port)
            if not connection.usable:
                raise ConnectError(f"{self._host}:{self._port} closed the connection as soon as it was made")
        except BaseException as error:
            self._give_up_place()
            if isinstance(error, TimeoutError):
                raise self._timed_out() from None
            if isinstance(error, OSError):
                raise not_connected(error, f"cannot connect to {self._host}:{self._port}: {_words(error)}") from error
            if isinstance(error, UnicodeError):
                raise ConnectError(f"{self._host!r} is no host name: {error}") from error
            raise
        self._open.add(connection)
        return connection

    async def _in_turn(self) -> Connection:
        waiter: asyncio.Future[Connection | None] = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(self._limits.connect_secs):
                connection = await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled():
                self._give_back(waiter.result())
            if isinstance(error, TimeoutError):
                raise self._timed_out() from None
            raise
        if connection is None:
            return await self._connect()
        return connection if connection.usable else await self.take()

    def _made(self) -> Connection:
        return Connection(self._limits, self._loop, self._freed, self._lost)

    def _freed(self, connection: Connection) -> None:
        if self._closed:
            connection.close()
        elif not self._pass_on(connection):
            self._idle.append(connection)
            if self._sweep is None:
                self._sweep = self._loop.call_later(self._limits.keep_alive_secs, self._close_old)

    def _lost(self, connection: Connection) -> None:
        if connection in self._open:
            self._open.remove(connection)
            self._give_up_place()

    def _give_up_place(self) -> None:
        if not self._pass_on(None):
            self._places += 1

    def _give_back(self, given: Connection | None) -> None:
        """What a waiter got and cannot use any more."""
        if given is None:
            self._give_up_place()
        elif given.usable:
            self._freed(given)

    def _pass_on(self, connection: Connection | None) -> bool:
        """To the first who waits, if anyone does. None: a place to make one."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return True
        return False

    def _close_old(self) -> None:
        self._sweep = None
        oldest_kept = self._loop.time() - self._limits.keep_alive_secs
        for connection in self._idle:
            if connection.idle_since <= oldest_kept:
                connection.close()
        self._idle = [connection for connection in self._idle if connection.usable]
        if self._idle:
            due = self._idle[0].idle_since + self._limits.keep_alive_secs
            self._sweep = self._loop.call_at(due, self._close_old)

    def _timed_out(self) -> UpstreamTimeout:
        return UpstreamTimeout(f"no connection to {self._host}:{self._port} within {self._limits.connect_secs:g} s")


def _words(error: OSError) -> str:
    return error.strerror.lower() if error.strerror else str(error)
