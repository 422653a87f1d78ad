"""Stream: one direction of a connection in memory.

    write    bytes are under way, and arrive after a delay, in order
    read     what has arrived, in pieces as the seed draws; nothing while the reader has paused, or the stream is held
    end      comes behind the bytes
    reset    comes in place of bytes: those that the writer's system has not taken are lost, and those under way may be

A stream has one event at a time: the arrival of its first bytes, or else of its end.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from random import Random
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from maitred.core.units import MILLISECOND, Micros, to_seconds
from maitred.testing.world.draws import Draws

if TYPE_CHECKING:
    from maitred.testing.world.loop import VirtualLoop

MAX_READ_BYTES: Final = 262_144
"""What one read brings at most."""
_LOSES_WAY_SHARE: Final = 0.5
"""Share of resets that overtake the bytes under way."""


class LinkConfig(msgspec.Struct, kw_only=True, frozen=True):
    """The network between two machines."""

    delay: Micros = MILLISECOND // 5
    """Mean time for which bytes are under way."""
    split_share: float = 0.1
    """Share of reads that bring less than has arrived."""
    min_kernel_bytes: int = 4_096
    max_kernel_bytes: int = 262_144
    """Bounds of what the systems of both ends keep of one stream. Each stream draws its own size."""


class Link:
    """What streams draw from: delays, splits, sizes of buffers."""

    def __init__(self, config: LinkConfig, draws: Draws) -> None:
        self.config = config
        self.resets = draws.of("resets")
        self._delays, self._splits, self._sizes = draws.of("delays"), draws.of("splits"), draws.of("kernel buffers")
        self._mean_delay = to_seconds(config.delay)

    def delay(self) -> float:
        """Return for how many seconds the next bytes are under way."""
        return (0.5 + self._delays.random()) * self._mean_delay

    def kernel_bytes(self) -> int:
        """Return how much the systems keep of the next stream."""
        return self._sizes.randint(self.config.min_kernel_bytes, self.config.max_kernel_bytes)

    def split(self, size: int) -> int:
        """Return how many of `size` bytes the next read brings."""
        splits: Random = self._splits
        return splits.randint(1, size) if splits.random() < self.config.split_share else size


class StreamReader(Protocol):
    """The end that reads a stream."""

    context: contextvars.Context
    """Where its callbacks run."""

    @property
    def reads_now(self) -> bool:
        """Whether it takes what arrives."""
        ...

    def on_data(self, data: bytes) -> None: ...
    def on_end(self) -> None: ...
    def on_reset(self) -> None: ...
    def on_hangup(self) -> None:
        """Take note that the end or a reset has arrived, whether it can be read or not."""


class StreamWriter(Protocol):
    """The end that writes a stream."""

    def on_taken(self) -> None:
        """Take note that bytes have been read."""


class Stream:
    """One direction of a connection."""

    def __init__(self, loop: VirtualLoop, link: Link, is_forth: bool) -> None:
        """`is_forth` says whether the end writes that has made the connection."""
        self.is_forth = is_forth
        self.writer: StreamWriter | None = None
        self.reader: StreamReader | None = None
        """The end that reads; None until it is there."""
        self.kernel_bytes = link.kernel_bytes()
        self.num_bytes = 0
        """Bytes that are written and not read."""
        self.num_read = 0
        """Bytes that have been read."""
        self.is_held = False
        """Whether nothing arrives, as if the network between lost everything."""
        self.is_ended = False
        """Whether no more may be written."""
        self.is_closed = False
        """Whether the reader is gone: whoever writes gets a reset."""
        self.is_reset = False
        """Whether the end is a reset."""
        self._is_end_read = False
        self._loop, self._link = loop, link
        self._pieces: deque[tuple[Micros, bytes]] = deque()
        """What is written and not read, each piece with the instant at which it arrives."""
        self._ends_at: Micros = 0
        """When the end of the stream, or the reset, arrives."""
        self._event: asyncio.TimerHandle | None = None

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the writer's system has not taken."""
        return max(0, self.num_bytes - self.kernel_bytes)

    @property
    def has_arrived_bytes(self) -> bool:
        """Whether bytes have arrived that are not read."""
        return bool(self._pieces) and not self.is_held and self._pieces[0][0] <= self._loop.micros

    @property
    def has_arrived_end(self) -> bool:
        """Whether the end or a reset has arrived, even if it cannot be read yet."""
        return self.is_ended and not self.is_held and self._ends_at <= self._loop.micros

    def write(self, data: bytes) -> None:
        """Send bytes. Behind a reset, or to a reader that is gone, they fill the buffer of the system, and go nowhere."""
        self.num_bytes += len(data)
        if self.is_closed or self.is_reset:
            return
        self._pieces.append((self._next_arrival(), data))
        if self._event is None:
            self._wait_until(self._pieces[0][0])

    def end(self) -> None:
        """Send the end of the stream."""
        if not self.is_ended:
            self.is_ended, self._ends_at = True, self._next_arrival()
            self._announce_end()

    def reset(self) -> None:
        """Send a reset."""
        if self.is_reset:
            return
        overtakes = self._link.resets.random() < _LOSES_WAY_SHARE
        self._drop_last(self.num_bytes if overtakes else self.unsent_bytes)
        self.is_ended = self.is_reset = True
        self._is_end_read = False
        self._ends_at = self._next_arrival()
        self._announce_end()

    def lose_unsent(self) -> None:
        """Lose what the writer's system has not taken: the program that had it is gone."""
        self._drop_last(self.unsent_bytes)

    def release(self) -> None:
        """Deliver what was held, if anything was."""
        if self.is_held:
            self.is_held = False
            self._announce_end()

    def look(self) -> None:
        """Read what has arrived: the reader is there, reads on, or the stream is not held any more."""
        if self._event is None and (self._pieces or self.is_ended) and not self._is_end_read:
            self._wait_until(self._pieces[0][0] if self._pieces else self._ends_at)

    def close_reader(self) -> None:
        """Deliver nothing more: the reader is gone."""
        if self._event is not None:
            self._event.cancel()
            self._event = None
        self._pieces.clear()
        self.num_bytes = 0
        self.reader = None
        self.is_closed = True

    def _next_arrival(self) -> Micros:
        arrival = self._loop.micros + int(self._link.delay() * 1e6)
        return max(arrival, self._pieces[-1][0]) if self._pieces else arrival  # Bytes keep their order.

    def _announce_end(self) -> None:
        """See to the end of the stream: a reader that has paused does not read it, and may have asked to be told."""
        self.look()
        if self.is_ended and self.reader is not None and not self.reader.reads_now:
            self._loop.call_at(to_seconds(self._ends_at), self._tell_hangup, context=self.reader.context)

    def _tell_hangup(self) -> None:
        if self.reader is not None and self.has_arrived_end:
            self.reader.on_hangup()

    def _wait_until(self, instant: Micros) -> None:
        if self.reader is not None:
            self._event = self._loop.call_at(to_seconds(instant), self._on_event, context=self.reader.context)

    def _on_event(self) -> None:
        """Give the reader what has arrived."""
        self._event = None
        reader = self.reader
        if reader is None or self.is_held or not reader.reads_now:
            return
        if self.has_arrived_bytes:
            reader.on_data(self._take())
        elif self.has_arrived_end and not self._pieces:
            if self.is_reset:
                reader.on_reset()
            else:
                self._is_end_read = True
                reader.on_end()
            return
        self.look()

    def _take(self) -> bytes:
        """Return a piece of what has arrived: all of it or, as the seed draws, less."""
        pieces, now = self._pieces, self._loop.micros
        size, taken = 0, list[bytes]()
        while pieces and pieces[0][0] <= now and size < MAX_READ_BYTES:
            taken.append(pieces.popleft()[1])
            size += len(taken[-1])
        data = taken[0] if len(taken) == 1 else b"".join(taken)
        count = self._link.split(size)
        if count < size:
            pieces.appendleft((now, data[count:]))
            data = data[:count]
        self.num_bytes -= count
        self.num_read += count
        if self.writer is not None:
            self.writer.on_taken()
        return data

    def _drop_last(self, count: int) -> None:
        """Lose the last `count` bytes that are written and not read."""
        while count > 0 and self._pieces:
            instant, piece = self._pieces.pop()
            lost = min(count, len(piece))
            count -= lost
            self.num_bytes -= lost
            if lost < len(piece):
                self._pieces.append((instant, piece[:-lost]))
