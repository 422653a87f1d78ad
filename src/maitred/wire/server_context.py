"""What the connections of a server share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import chain
from typing import Final, Protocol

from maitred.wire.client_limits import KEEP_ALIVE_SECS
from maitred.wire.descriptors import DescriptorRoom, choose_idlest
from maitred.wire.known_heads import KnownHeads
from maitred.wire.loop_clock import clock_of
from maitred.wire.machine import Machine
from maitred.wire.messages import RequestHead

SEND_TIMEOUT_SECS: Final = 60.0
"""Default of `send_timeout_secs`: as long as the rate of an upload is measured (`BODY_SECS`)."""
_WATCH_SECS: Final = 1.0
"""Seconds after which a connection that has no request sets a timer, at the latest."""
_TELL_SECS: Final = 60.0
"""Seconds between two lines of the log about a shortage that lasts."""
log = logging.getLogger("maitred.wire")


def _no_server() -> None:
    """Raise RuntimeError, in place of what a server sets: connections are there without one in tests alone."""
    raise RuntimeError("no server has been started with this context, so none can end")


class Closable(Protocol):
    """An acceptor of connections."""

    def close(self) -> None:
        """Accept no more."""
        ...


class DescriptorOwner(Protocol):
    """The owner of the descriptor of a connection from a client."""

    def abort(self) -> None:
        """Close the connection at once."""
        ...

    @property
    def idle_since(self) -> float | None:
        """Since when it has no request, in seconds of the clock of deadlines, or None while one is answered."""
        ...


class OpenConnection(DescriptorOwner, Protocol):
    """A connection from a client, made."""

    def drain(self) -> None:
        """End the connection with the response under way if that can still say so, else with the next one. Close it now if it
        is idle and the context `closes_idle`."""
        ...

    def watch(self) -> None:
        """Have a timer for what is due next, unless there is one."""
        ...

    def drop_parked(self) -> None:
        """Drop what waits behind the request that is being answered, if anything does: the connection ends with its answer."""
        ...


class ServerContext:
    """The common state of all connections of a server, on whichever of its ports they came."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        send_timeout_secs: float = SEND_TIMEOUT_SECS,
        machine: Machine | None = None,
        keep_alive_secs: float = KEEP_ALIVE_SECS,
    ) -> None:
        """`send_timeout_secs` is the time over which the rate of a slow client is measured, `keep_alive_secs` that for which a
        connection without a request is kept."""
        self.loop = loop
        self.keep_alive_secs = keep_alive_secs
        self.request_stop: Callable[[], object] = _no_server
        """Begins the end of the server, as SIGTERM does; further calls do nothing."""
        self.leave_ports: Callable[[], object] = _no_server
        """Begins the end of the server with its second phase, or ends the first one: the ports are another process's now."""
        machine = machine or Machine()
        self.clock = clock_of(loop, machine.clock)
        self.send_timeout_secs = send_timeout_secs
        # Dictionaries, which keep their order, rather than sets, whose order is that of addresses in memory: what the gateway
        # does must follow from what it was told.
        self.connections: dict[OpenConnection, None] = {}
        self.acceptors: list[Closable] = []
        """The acceptors of its ports, until the server stops."""
        self.handshakes: dict[DescriptorOwner, None] = {}
        """Connections over TLS that are not made yet."""
        self._unwatched: dict[OpenConnection, None] = {}
        """Those that are to have a timer soon."""
        self._watch_timer: asyncio.TimerHandle | None = None
        self.tasks: dict[asyncio.Task[None], None] = {}
        """The handlers that run."""
        self.parked_bytes = 0
        """Bytes of requests that wait behind others."""
        self.known_heads: KnownHeads[RequestHead] = KnownHeads()
        self.sockets = machine.watch_sockets(loop)
        self.is_draining = False
        """Whether each connection ends with its next response."""
        self.closes_idle = False
        """Whether a connection that has no request, nor the first bytes of one, is closed, too."""
        self.all_closed = asyncio.Event()
        """Set each time the last connection has ended."""
        self.descriptors = DescriptorRoom(machine.descriptor_limit())
        self.num_evicted = 0
        """Idle connections that were closed because descriptors were short."""
        self._tells_next = 0.0
        self._evicted: set[DescriptorOwner] = set()
        """Those of them that are not gone yet."""

    def watch_soon(self, connection: OpenConnection) -> None:
        """Have a connection `watch` within a second. Most of those that ask once are closed before, and a timer is a twentieth
        of what they cost."""
        if self._watch_timer is None:
            self._watch_timer = self.loop.call_later(_WATCH_SECS, self._watch_all)
        self._unwatched[connection] = None

    def _watch_all(self) -> None:
        self._watch_timer = None
        unwatched, self._unwatched = self._unwatched, {}
        for connection in unwatched:
            connection.watch()

    def close(self) -> None:
        """Watch no connection any more: all are closed, or told to."""
        if self._watch_timer is not None:
            self._watch_timer.cancel()
            self._watch_timer = None
        self.sockets.close()

    def on_closed(self, connection: OpenConnection) -> None:
        """Forget a connection that is closed."""
        self.connections.pop(connection, None)
        self._unwatched.pop(connection, None)
        self._evicted.discard(connection)
        if not self.connections:
            self.all_closed.set()

    def on_handshake_end(self, handshake: DescriptorOwner) -> None:
        """Forget a handshake: its connection is made, or closed."""
        self.handshakes.pop(handshake, None)
        self._evicted.discard(handshake)

    def make_room(self, descriptor: int) -> bool:
        """Close idle connections if this new descriptor has a number so high that few are left (`descriptors`). Return whether
        it may be that of a client."""
        count = self.descriptors.num_missing(descriptor, len(self._evicted))
        if count:
            self._tell_shortage()
            others = (each for each in chain(self.handshakes, self.connections) if each not in self._evicted)
            idle = ((since, each) for each in others if (since := each.idle_since) is not None)
            for connection in choose_idlest(idle, count):
                self._evicted.add(connection)
                connection.abort()
                self.num_evicted += 1
        return descriptor < self.descriptors.last or bool(self._evicted)

    def _tell_shortage(self) -> None:
        """Say in the log that descriptors are short, now and then."""
        now = self.clock.time()
        if now >= self._tells_next:
            self._tells_next = now + _TELL_SECS
            message = "file descriptors are short (limit %d): the connections of clients that are idle for longest are closed"
            log.warning(message, self.descriptors.limit)

    def drop_parked(self) -> None:
        """Drop the requests that wait behind others: their memory is needed."""
        for connection in list(self.connections):
            connection.drop_parked()
