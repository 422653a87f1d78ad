"""MemoryTransport: one end of a connection that exists in memory only, and behaves as TCP does under Linux.

Each direction is a `Stream`. What its `kernel_bytes` cannot hold is the write buffer of the transport, which pauses its
protocol above the high-water mark and resumes it at the low one.

    close    what is in the write buffer goes first, then the end of the stream
    abort    the write buffer is lost, and the other end learns of a reset

An end that is closed while it has unread bytes, or gets bytes afterwards, sends a reset: so the other end may lose the last
bytes of an answer. An end whose reading is paused learns of neither an end nor a reset, unless its descriptor is watched.

A connection can be disturbed from outside: `cut` holds what is under way in one direction or both, and nobody is told; `heal`
delivers it; `reset` resets both ends.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from maitred.core.units import Micros
from maitred.testing.world.streams import Link, Stream

if TYPE_CHECKING:
    from maitred.testing.world.loop import VirtualLoop

HIGH_WATER: Final = 65_536
Address: TypeAlias = tuple[str, int]


class Tap:
    """Sees the bytes of all connections as they are sent and read. A subclass does something with them."""

    def on_read(self, connection: Connection, is_forth: bool, data: bytes) -> None:
        """Take note of what one read has brought; `is_forth` says whether it comes from the end that connected."""

    def on_write(self, connection: Connection, is_forth: bool, data: bytes) -> None:
        """Take note of what one end sends, before any of it arrives."""

    def on_lost(self, connection: Connection, is_forth: bool, error: Exception | None) -> None:
        """Take note that an end is closed; `is_forth` says whether it is the one that connected."""


class Connection:
    """A connection: two streams, and what can be done to it from outside."""

    def __init__(self, loop: VirtualLoop, link: Link, number: int, source: Address, target: Address, tap: Tap) -> None:
        """`source` is the address of the end that connects."""
        self.loop, self.link, self.number, self.tap = loop, link, number, tap
        self.source, self.target = source, target
        self.made_at: Micros = loop.micros
        self.forth, self.back = Stream(loop, link, is_forth=True), Stream(loop, link, is_forth=False)
        self.is_disturbed = False
        """Whether it was cut or reset from outside."""
        self.ends: list[MemoryTransport] = []
        self.on_closed: Callable[[], object] | None = None
        """Called when both ends are closed."""

    def open_source(
        self, protocol: asyncio.BaseProtocol, descriptor: int, on_open: Callable[[MemoryTransport], object]
    ) -> MemoryTransport:
        """Return the transport of the end that connects. `on_open` is called with it before its protocol is told."""
        transport = MemoryTransport(self, protocol, self.back, self.forth, descriptor)
        on_open(transport)
        transport.begin()
        return transport

    def open_target(
        self, protocol: asyncio.BaseProtocol, descriptor: int, on_open: Callable[[MemoryTransport], object]
    ) -> MemoryTransport:
        """Return the transport of the end that accepts. `on_open` is called with it before its protocol is told."""
        transport = MemoryTransport(self, protocol, self.forth, self.back, descriptor)
        on_open(transport)
        transport.begin()
        return transport

    @property
    def is_open(self) -> bool:
        """Whether one of the ends is open."""
        return any(not end.is_lost for end in self.ends)

    def cut(self, *, forth: bool = True, back: bool = True) -> None:
        """Hold what is under way and what is sent from now on: `forth`, from the end that connected, `back`, or both."""
        self.is_disturbed = True
        self.forth.is_held |= forth
        self.back.is_held |= back

    def heal(self) -> None:
        """Deliver what is held."""
        self.forth.release()
        self.back.release()

    def reset(self) -> None:
        """Reset both ends, as a machine between them does that has forgotten the connection."""
        self.is_disturbed = True
        for stream in (self.forth, self.back):
            stream.reset()
            stream.release()


class MemorySocket:
    """What a transport shows as its socket: a number."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        """Return the descriptor; negative if there is none."""
        return self._descriptor


class MemoryTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(
        self, connection: Connection, protocol: asyncio.BaseProtocol, incoming: Stream, outgoing: Stream, descriptor: int
    ) -> None:
        super().__init__()
        self.connection = connection
        self.descriptor = descriptor
        self.context = contextvars.copy_context()
        self.is_lost = False
        """Whether this end is closed, and its protocol has been told or will be in this turn."""
        self.on_close: Callable[[], object] | None = None
        """Called when this end is closed, to give its descriptor back."""
        self._loop = connection.loop
        self._protocol = cast(asyncio.Protocol, protocol)
        self._incoming, self._outgoing = incoming, outgoing
        self._high, self._low = HIGH_WATER, HIGH_WATER // 4
        self._is_reading = True
        self._is_closing = self._wants_eof = self._is_write_paused = False
        self._room_event: asyncio.Handle | None = None
        self._on_hangup: Callable[[], object] | None = None
        connection.ends.append(self)
        outgoing.writer = self

    def begin(self) -> None:
        """Tell the protocol, and read from now on."""
        self._protocol.connection_made(self)
        if not self.is_lost:
            self._incoming.reader = self
            self._incoming.look()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the value of `peername`, `sockname` or `socket`, or the default."""
        connection, is_source = self.connection, self._outgoing.is_forth
        if name == "peername":
            return connection.target if is_source else connection.source
        if name == "sockname":
            return connection.source if is_source else connection.target
        return MemorySocket(self.descriptor) if name == "socket" else default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Call `protocol` from now on."""
        self._protocol = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol whose methods this transport calls."""
        return self._protocol

    @property
    def reads_now(self) -> bool:
        """Whether this end takes what arrives."""
        return self._is_reading and not self._is_closing

    def is_reading(self) -> bool:
        """Return whether this end takes what arrives."""
        return self.reads_now

    def pause_reading(self) -> None:
        """Read nothing until `resume_reading`."""
        self._is_reading = False

    def resume_reading(self) -> None:
        """Read again."""
        if not self._is_reading:
            self._is_reading = True
            self._incoming.look()

    def watch_hangup(self, on_hangup: Callable[[], object] | None) -> None:
        """Call `on_hangup` once if the other end closes the connection, even while reading is paused; None: do not."""
        self._on_hangup = on_hangup
        if on_hangup is not None and self._incoming.has_arrived_end:
            self._loop.call_soon(self.on_hangup, context=self.context)

    def write(self, data: Any) -> None:
        """Send bytes. Raises RuntimeError after `write_eof`."""
        if self._wants_eof:
            raise RuntimeError("cannot write after the end of the stream")
        if self._is_closing or not data:
            return
        if self._outgoing.is_closed:  # The other end answers with a reset; until that comes, the system takes what fits.
            self._incoming.reset()
        self.connection.tap.on_write(self.connection, self._outgoing.is_forth, data)
        self._outgoing.write(bytes(data))
        if not self._is_write_paused and self._outgoing.unsent_bytes > self._high:
            self._is_write_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        """Send several pieces of bytes as one."""
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        """Send the end of the stream when the write buffer is empty."""
        if not self._wants_eof and not self._is_closing:
            self._wants_eof = True
            self._on_room()

    def can_write_eof(self) -> bool:
        """Return True."""
        return True

    def get_write_buffer_size(self) -> int:
        """Return how many bytes the system has not taken."""
        return 0 if self.is_lost else self._outgoing.unsent_bytes

    def num_queued_bytes(self) -> int:
        """Return how many bytes the system has taken, and the other end has not read."""
        return min(self._outgoing.num_bytes, self._outgoing.kernel_bytes)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the water marks, in bytes."""
        self._high = high if high is not None else (HIGH_WATER if low is None else 4 * low)
        self._low = low if low is not None else self._high // 4

    def get_write_buffer_limits(self) -> tuple[int, int]:
        """Return the low and the high water mark, in bytes."""
        return self._low, self._high

    def is_closing(self) -> bool:
        """Return whether this end is closed, or will be when the write buffer is empty."""
        return self._is_closing

    def close(self) -> None:
        """Read no more, and close this end when the write buffer is empty."""
        if not self._is_closing:
            self._is_closing = True
            self._on_room()

    def abort(self) -> None:
        """Close this end at once. What is in the write buffer is lost, and the other end learns of a reset."""
        if not self.is_lost:
            self._finish(None)
            self._outgoing.reset()

    def vanish(self) -> None:
        """Close this end as the system does for a program that was killed: what the system has taken goes on its way, and the
        protocol is told nothing."""
        if not self.is_lost:
            self._protocol, self.connection.is_disturbed = asyncio.Protocol(), True
            self._outgoing.lose_unsent()
            self._close_now()

    def on_taken(self) -> None:
        """Take note that the other end has read; the news that the system may take more is under way."""
        if self._room_event is None and (self._is_write_paused or self._is_closing or self._wants_eof) and not self.is_lost:
            self._room_event = self._loop.call_later(self.connection.link.delay(), self._on_room, context=self.context)

    def on_data(self, data: bytes) -> None:
        """Give the protocol what was read."""
        self.connection.tap.on_read(self.connection, self._incoming.is_forth, data)
        self._protocol.data_received(data)

    def on_end(self) -> None:
        """Tell the protocol that the other end sends no more, and close this end unless the protocol goes on."""
        if not self._protocol.eof_received():
            self.close()

    def on_reset(self) -> None:
        """Close this end: the other one is gone."""
        if not self.is_lost:
            self._finish(ConnectionResetError("reset by the other end"))

    def on_hangup(self) -> None:
        """Tell who watches this end that the other one is closed, or is being closed."""
        on_hangup, self._on_hangup = self._on_hangup, None
        if on_hangup is not None:
            on_hangup()
        if self._incoming.is_reset and self._is_write_paused:  # What is left to be sent fails, even if nothing is read.
            self.on_reset()

    def _on_room(self) -> None:
        """Go on when the system may have taken more."""
        self._room_event = None
        unsent = self._outgoing.unsent_bytes
        if not unsent and self._wants_eof:
            self._outgoing.end()
        if self._is_write_paused and unsent <= self._low:
            self._is_write_paused = False
            self._protocol.resume_writing()
        if self._is_closing and not unsent and not self.is_lost:
            self._close_now()

    def _close_now(self) -> None:
        """Close this end, of which all was sent. The other one learns of a reset if something that it has sent is not read."""
        has_unread = self._incoming.num_bytes > 0
        self._finish(None)
        if has_unread:
            self._outgoing.reset()
        else:
            self._outgoing.end()

    def _finish(self, error: Exception | None) -> None:
        """Close this end, and tell the protocol in a callback of its own."""
        self.is_lost = self._is_closing = True
        if self._room_event is not None:
            self._room_event.cancel()
            self._room_event = None
        self._on_hangup = None
        self._incoming.close_reader()
        self._loop.call_soon(self._tell_lost, error, context=self.context)

    def _tell_lost(self, error: Exception | None) -> None:
        if self.on_close is not None:
            self.on_close()
        connection = self.connection
        connection.tap.on_lost(connection, self._outgoing.is_forth, error)
        if connection.on_closed is not None and not connection.is_open:
            connection.on_closed()
        protocol, self._protocol = self._protocol, asyncio.Protocol()
        protocol.connection_lost(error)
