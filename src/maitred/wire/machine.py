"""Machine: what a process that serves asks of its machine past the event loop.

The event loop is asked for everything that it offers: timers, connections, signals, and threads by `run_in_executor`. The rest
is here, in one object that is made where a process is put together, and given to the server, the upstream client and the
gateway. So all of them run, as they are, on an event loop that makes up its time and its network, with a machine to match.
"""

from __future__ import annotations

import asyncio
import os
import random
import select
import socket
from collections.abc import Callable
from typing import Any, Final, Protocol

from maitred.wire.clock import Clock
from maitred.wire.service_manager import ServiceManager
from maitred.wire.sockets import SystemSocketWatch, descriptor_limit

BACKLOG: Final = 2048
"""Connections that the system keeps in the queue (as far as `net.core.somaxconn` allows); it ignores further clients."""


class ListeningSocket(Protocol):
    """A socket that listens. The event loop accepts from it (`create_server`)."""

    def getsockname(self) -> Any:
        """Return host and port, and for IPv6 more."""
        ...

    def accept_waiting(self) -> socket.socket | None:
        """Return the connection that has waited for longest, or None if there is none that can be accepted. Never waits."""
        ...

    def close(self) -> None:
        """Listen no more."""
        ...


class SocketWatch(Protocol):
    """What the system knows of the sockets of one event loop, and asyncio does not say (`sockets`)."""

    def watch(self, descriptor: int, on_hangup: Callable[[], object]) -> None:
        """Call `on_hangup` once if the peer of this socket hangs up. A negative number is no socket."""
        ...

    def stop_watching(self, descriptor: int) -> None:
        """Watch this socket no more. Idempotent."""
        ...

    def num_queued_bytes(self, descriptor: int) -> int:
        """Return how many bytes the system keeps for the peer of this socket; 0 where it does not say."""
        ...

    def close(self) -> None:
        """Watch nothing more."""
        ...


class Machine:
    """The machine on which this process runs."""

    def __init__(self, clock: Clock | None = None, service_manager: ServiceManager | None = None) -> None:
        self.clock = clock or Clock()
        """The clock of all parts."""
        self.service_manager = service_manager or ServiceManager()
        """The service manager that has started this process."""
        self.random: random.Random = random.SystemRandom()
        """Draws what no other process may draw as well."""

    def listen(self, host: str, port: int) -> ListeningSocket:
        """Return a socket that listens; port 0 takes any free port. Raises OSError, also for an unknown host, and OverflowError
        for a number that is no port. A socket that the service manager has passed for this port is used as it is."""
        passed = self.service_manager.take(port)
        return _listen(host, port) if passed is None else SystemListener(passed)

    def listen_often(self, host: str, port: int, number: int) -> list[SystemListener]:
        """Return so many sockets that listen on one port, among which the system spreads connections; one alone where it cannot
        (no SO_REUSEPORT), and where the service manager has passed one. Raises as `listen`, also if another process listens
        there, whatever it allows."""
        passed = self.service_manager.take(port)
        if passed is not None:
            return [SystemListener(passed)]
        # Without SO_REUSEPORT, by which another process that listens there, and allows it, would not be noticed.
        first = _listen(host, port)
        if number == 1 or not hasattr(socket, "SO_REUSEPORT"):
            return [first]
        address = first.getsockname()
        first.close()
        family = socket.AF_INET6 if len(address) > 2 else socket.AF_INET
        return [
            SystemListener(socket.create_server(address, family=family, backlog=BACKLOG, reuse_port=True))
            for _ in range(number)
        ]

    def adopt_listener(self, descriptor: int) -> SystemListener:
        """Return the socket that listens under a descriptor which this process has inherited."""
        return SystemListener(socket.socket(fileno=descriptor))

    def look_up(self, host: str) -> list[str]:
        """Return the addresses of a host, those to be tried first at the front. Waits for name servers. Raises OSError, and
        UnicodeError for what is no name."""
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(_address_text(family, address) for family, _, _, _, address in found))

    def watch_sockets(self, loop: asyncio.AbstractEventLoop) -> SocketWatch:
        """Return the watch over the sockets of `loop`."""
        return SystemSocketWatch(loop)

    def descriptor_limit(self) -> int:
        """Return how many descriptors this process may have."""
        return descriptor_limit()

    def lowest_free_descriptor(self) -> int:
        """Return the number that the next descriptor will have. Raises OSError if none is left."""
        descriptor = os.open(os.devnull, os.O_RDONLY)
        os.close(descriptor)
        return descriptor


class _AcceptedSocket(socket.socket):
    """A socket whose family and type are plain numbers. `socket.socket` makes members of enums of them each time that the loop
    asks, which is a tenth of what a connection costs."""

    family = socket.SocketType.family  # type: ignore[assignment]
    type = socket.SocketType.type  # type: ignore[assignment]


class SystemListener(socket.socket):
    """A listening socket of the system."""

    def __init__(self, listener: socket.socket) -> None:
        """Take over the descriptor of a listening socket."""
        super().__init__(fileno=listener.detach())
        self._kind = (self.family, self.type, self.proto)
        self._queue = select.poll()
        """Tells whether a connection waits."""
        self._queue.register(self, select.POLLIN)

    def twin(self) -> SystemListener:
        """Return the same socket under another descriptor, which is closed by itself."""
        return SystemListener(socket.socket(fileno=os.dup(self.fileno())))

    def accept_waiting(self) -> socket.socket | None:
        if not self._queue.poll(0):  # To accept in vain is 15 times as dear: the system makes a socket first.
            return None
        try:
            descriptor, _address = self._accept()  # type: ignore[attr-defined]  # as `socket.accept` does
        except OSError:
            # The first client has left the queue, or no descriptor or memory is left. Then the loop sees to the queue: libuv
            # keeps a descriptor in reserve, accepts one connection per turn with it, and closes it at once.
            return None
        return _AcceptedSocket(*self._kind, descriptor)


def _listen(host: str, port: int) -> SystemListener:
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
    return SystemListener(socket.create_server((host, port), family=family, backlog=BACKLOG))


def _address_text(family: int, address: tuple[object, ...]) -> str:
    """Return an address as text; a link-local one of IPv6 with its interface."""
    text = str(address[0])
    scope = address[3] if family == socket.AF_INET6 and len(address) > 3 else 0
    return f"{text}%{scope}" if scope and "%" not in text else text
