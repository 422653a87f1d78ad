"""Network: the names, addresses, listeners and connections of a world.

    look up    a name leads to the addresses in `hosts`; the look-up of another one fails
    connect    takes a round trip. Where nothing listens it is refused; a machine in `silent` never answers
    ways       from one address to another; one that is cut delivers nothing until it is mended
    backlog    a listener keeps that many connections which its program has not accepted. While it is full, a client asks again
               after 1, 2, 4, ... seconds, as TCP does

The connecting end of a connection is there before the program has accepted it, and may send and close meanwhile.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import itertools
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from maitred.testing.world.place import ELSEWHERE, Place, here
from maitred.testing.world.streams import Link, LinkConfig
from maitred.testing.world.transport import Address, Connection, MemoryTransport, Tap

if TYPE_CHECKING:
    from maitred.testing.world.loop import VirtualLoop

GIVE_UP_SECS: Final = 127.0
"""Seconds after which the system gives up to connect to a machine that is silent (Linux)."""
_FIRST_EPHEMERAL_PORT: Final = 32_768


class AcceptedConnection:
    """A connection that was taken out of a backlog, and has no transport yet."""

    def __init__(self, place: Place, connection: Connection, descriptor: int) -> None:
        self._place, self._connection, self._descriptor = place, connection, descriptor

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def open(self, protocol: asyncio.BaseProtocol) -> MemoryTransport:
        """Return the transport, and tell the protocol."""
        return self._connection.open_target(protocol, self._descriptor, self._place.add)


class MemoryListener:
    """A listening socket in memory."""

    def __init__(self, network: Network, place: Place, address: Address, backlog: int) -> None:
        self.address, self.backlog = address, backlog
        self.place = place
        self._network = network
        self._waiting: deque[Connection] = deque()
        """Connections that are not accepted yet."""
        self._context: contextvars.Context | None = None
        self._make_protocol: Callable[[], asyncio.BaseProtocol] | None = None
        self._event: asyncio.Handle | None = None
        self._descriptor = place.descriptors.take()
        self._is_closed = False

    @property
    def is_full(self) -> bool:
        """Whether the backlog takes no further connection."""
        return len(self._waiting) >= self.backlog

    def getsockname(self) -> Address:
        """Return the address that it listens at."""
        return self.address

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def listen(self, make_protocol: Callable[[], asyncio.BaseProtocol], backlog: int) -> None:
        """Accept connections from now on, in this context."""
        self._make_protocol, self._context, self.backlog = make_protocol, contextvars.copy_context(), backlog
        self._accept_soon()

    def offer(self, connection: Connection) -> None:
        """Put a connection into the backlog."""
        self._waiting.append(connection)
        self._accept_soon()

    def accept_waiting(self) -> AcceptedConnection | None:
        """Take the first connection out of the backlog, with a descriptor, or return None if there is none of either."""
        if not self._waiting:
            return None
        try:
            descriptor = self.place.descriptors.take()
        except OSError:
            return None
        return AcceptedConnection(self.place, self._waiting.popleft(), descriptor)

    def close(self) -> None:
        """Listen no more. Connections in the backlog are reset."""
        if self._is_closed:
            return
        self._is_closed = True
        self._network.forget(self)
        self.place.descriptors.give_back(self._descriptor)
        if self._event is not None:
            self._event.cancel()
        for connection in self._waiting:
            connection.reset()
            if not connection.is_open and connection.on_closed is not None:
                connection.on_closed()
        self._waiting.clear()

    def _accept_soon(self) -> None:
        if self._event is None and self._waiting and self._make_protocol is not None:
            loop = self._network.loop
            self._event = loop.call_at(loop.time(), self._accept, context=self._context)

    def _accept(self) -> None:
        """Accept one connection, as libuv does in a turn; one for which there is no descriptor is closed at once."""
        self._event = None
        accepted = self.accept_waiting()
        if accepted is not None and self._make_protocol is not None:
            accepted.open(self._make_protocol())
        elif self._waiting:
            self._waiting.popleft().reset()
        self._accept_soon()


class MemoryServer:
    """What `create_server` returns."""

    def __init__(self, listener: MemoryListener) -> None:
        self._listener = listener
        self._is_serving = True

    @property
    def sockets(self) -> tuple[MemoryListener, ...]:
        """The listening socket."""
        return (self._listener,) if self._is_serving else ()

    def close(self) -> None:
        """Accept no more connections."""
        self._is_serving = False
        self._listener.close()

    def is_serving(self) -> bool:
        """Return whether connections are accepted."""
        return self._is_serving

    async def wait_closed(self) -> None:
        """Return at once."""


class Network:
    """All that machines can reach of one another."""

    def __init__(self, loop: VirtualLoop, config: LinkConfig | None = None, tap: Tap | None = None) -> None:
        self.loop = loop
        loop.network = self
        self.link = Link(config or LinkConfig(), loop.draws)
        self.tap = tap or Tap()
        self.hosts: dict[str, list[str]] = {"localhost": ["127.0.0.1"]}
        """The addresses of each name."""
        self.silent: set[str] = set()
        """Addresses of machines that answer nothing, and refuse nothing."""
        self.connections: dict[int, Connection] = {}
        """Connections that are open, by number."""
        self.cut_ways: set[tuple[str, str]] = set()
        """Ways, each from one address to another, on which nothing arrives."""
        self._listeners: dict[Address, MemoryListener] = {}
        self._numbers = itertools.count()
        self._ports = itertools.count(_FIRST_EPHEMERAL_PORT)

    def addresses_of(self, name: str) -> list[str]:
        """Return the addresses of a name. Raises `socket.gaierror` for one that is not known."""
        if name in self.hosts:
            return list(self.hosts[name])
        if name.replace(".", "").isdigit() or ":" in name:
            return [name]
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    def listen(self, host: str, port: int, place: Place, backlog: int = 128) -> MemoryListener:
        """Return a listening socket; port 0 takes a free one. Raises OSError."""
        address = (self.addresses_of(host)[0], port or next(self._ports))
        if address in self._listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        listener = self._listeners[address] = MemoryListener(self, place, address, backlog)
        return listener

    def cut_way(self, source: str, target: str) -> None:
        """Deliver nothing from one address to another, until `mend_way`. Nobody is told."""
        self.cut_ways.add((source, target))
        for connection in self.connections.values():
            ends = connection.source[0], connection.target[0]
            if ends == (source, target):
                connection.cut(back=False)
            elif ends == (target, source):
                connection.cut(forth=False)

    def mend_way(self, source: str, target: str) -> None:
        """Deliver what was held up on a way, and what follows."""
        self.cut_ways.discard((source, target))
        for connection in self.connections.values():
            ends = connection.source[0], connection.target[0]
            if ends == (source, target):
                connection.forth.release()
            elif ends == (target, source):
                connection.back.release()

    def _is_cut(self, one: str, other: str) -> bool:
        """Return whether one of the ways between two addresses is cut, so that no connection can be made."""
        return bool(self.cut_ways) and ((one, other) in self.cut_ways or (other, one) in self.cut_ways)

    def close_listeners(self, place: Place) -> None:
        """Listen no more at a place."""
        for listener in [each for each in self._listeners.values() if each.place is place]:
            listener.close()

    def reset_half_made(self, place: Place) -> None:
        """Reset the connections that a program was about to make."""
        for connection in list(self.connections.values()):
            if connection.source[0] == place.address and connection.forth.writer is None:
                connection.reset()

    def forget(self, listener: MemoryListener) -> None:
        """Take a listener out that is closed."""
        self._listeners.pop(listener.address, None)

    async def serve(self, make_protocol: Callable[[], asyncio.BaseProtocol], options: Mapping[str, Any]) -> MemoryServer:
        """Accept connections at `host` and `port`, or on `sock`, as `create_server` does. Raises OSError."""
        _refuse_tls(options)
        backlog = options.get("backlog", 100)
        listener = options.get("sock") or self.listen(options["host"] or ELSEWHERE, options["port"] or 0, here(), backlog)
        listener.listen(make_protocol, backlog)
        return MemoryServer(listener)

    def open_accepted(
        self, make_protocol: Callable[[], asyncio.BaseProtocol], accepted: AcceptedConnection, options: Mapping[str, Any]
    ) -> tuple[MemoryTransport, asyncio.BaseProtocol]:
        """Open the accepting end of a connection."""
        _refuse_tls(options)
        protocol = make_protocol()
        return accepted.open(protocol), protocol

    async def connect(
        self, make_protocol: Callable[[], asyncio.BaseProtocol], host: str, port: int, options: Mapping[str, Any]
    ) -> tuple[MemoryTransport, asyncio.BaseProtocol]:
        """Connect to an address, as `create_connection` does. Raises OSError."""
        _refuse_tls(options)
        place, address = here(), self.addresses_of(host)[0]
        descriptor = place.descriptors.take()
        try:
            connection = await self._offer_connection(place, (address, port))
            try:
                await asyncio.sleep(self.link.delay())  # the way back
            except BaseException:
                connection.forth.reset()
                raise
        except BaseException:
            place.descriptors.give_back(descriptor)
            raise
        protocol = make_protocol()
        return connection.open_source(protocol, descriptor, place.add), protocol

    async def _offer_connection(self, place: Place, target: Address) -> Connection:
        """Return a connection that is in the backlog of its target, after as many tries as that takes. Raises OSError."""
        waits = 1.0
        began_at = self.loop.time()
        while True:
            await asyncio.sleep(self.link.delay())
            listener = self._listeners.get(target)
            is_silent = target[0] in self.silent or self._is_cut(place.address, target[0])
            is_silent |= listener is not None and listener.is_full
            if not is_silent:
                break
            if self.loop.time() + waits > began_at + GIVE_UP_SECS:
                raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            await asyncio.sleep(waits)
            waits *= 2
        if listener is None:
            await asyncio.sleep(self.link.delay())
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        number = next(self._numbers)
        connection = Connection(self.loop, self.link, number, (place.address, next(self._ports)), target, self.tap)
        self.connections[number] = connection
        connection.on_closed = partial(self.connections.pop, number, None)
        listener.offer(connection)
        return connection


def _refuse_tls(options: Mapping[str, Any]) -> None:
    if options.get("ssl") is not None:
        raise NotImplementedError("connections of a world are not encrypted")
