"""What the system knows of a socket and asyncio does not say: that its peer has hung up, and what it has not taken.

**Hangups.** Sockets whose reading is paused are in an epoll set of their own, itself a file that the loop watches.

Example: a client has sent more requests than are kept, is read no more, and waits for its first answer. It closes. The set gets
readable, and its connection is closed within the same turn of the loop, so that its answer is no longer worked on.

Where there is no epoll, a hangup is noticed when the socket is read again.
Compiled (`tools/compile.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import select
import struct
import sys
import termios
from collections.abc import Callable
from typing import Final

MAX_JOINED_BYTES: Final = 16_384
"""Size up to which a body is copied behind its head: cheaper than a vector of two. Either way is one system call."""


class SystemSocketWatch:
    """The sockets of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        self._on_hangup: dict[int, Callable[[], object]] = {}
        if self._epoll is not None:
            loop.add_reader(self._epoll.fileno(), self._on_readable)

    def watch(self, descriptor: int, on_hangup: Callable[[], object]) -> None:
        """Call `on_hangup` once if the peer of this socket hangs up. A negative number is no socket."""
        if self._epoll is not None and descriptor >= 0 and descriptor not in self._on_hangup:
            # A socket that is not read reports no end, which is behind the bytes that are not taken. Linux tells of it apart.
            self._epoll.register(descriptor, select.EPOLLRDHUP | select.EPOLLONESHOT)
            self._on_hangup[descriptor] = on_hangup

    def stop_watching(self, descriptor: int) -> None:
        """Watch this socket no more. Idempotent."""
        if self._on_hangup.pop(descriptor, None) is not None and self._epoll is not None:
            with contextlib.suppress(OSError):  # A socket that is closed has left the set.
                self._epoll.unregister(descriptor)

    def num_queued_bytes(self, descriptor: int) -> int:
        """Return how many bytes the system keeps for the peer of this socket; 0 where it does not say."""
        try:
            (size,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)))
        except (OSError, ValueError):  # no socket, or one that is closed
            return 0
        return int(size)

    def close(self) -> None:
        """Watch nothing more."""
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None

    def _on_readable(self) -> None:
        assert self._epoll is not None
        for descriptor, _ in self._epoll.poll(0):
            on_hangup = self._on_hangup.get(descriptor)
            self.stop_watching(descriptor)
            if on_hangup is not None:
                on_hangup()


def peer_of(transport: asyncio.BaseTransport) -> tuple[str, int] | None:
    """Return the address and port of the peer, or None where it has none: at a Unix socket."""
    peer = transport.get_extra_info("peername")
    return peer[:2] if isinstance(peer, tuple) and len(peer) >= 2 else None


def descriptor_of(transport: asyncio.BaseTransport) -> int:
    """Return the descriptor of its socket, or -1 if it has none."""
    socket = transport.get_extra_info("socket")
    return -1 if socket is None else int(socket.fileno())


def write_message(transport: asyncio.WriteTransport, head: bytes, body: bytes) -> None:
    """Write a head and a body at once."""
    if len(body) <= MAX_JOINED_BYTES:
        transport.write(head + body)
    else:
        transport.writelines((head, body))


def descriptor_limit() -> int:
    """Return how many descriptors this process may have."""
    try:
        import resource
    except ImportError:  # not on Windows
        return sys.maxsize
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit
