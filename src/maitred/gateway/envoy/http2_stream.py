"""One call of gRPC in HTTP/2 (`http2`): messages that have come, and what waits for room.

A message is taken up to `max_message` bytes. What waits to be read is bounded by the window of the stream: room is given back
when the messages that are there have been read, and at once to a message of which a part is missing.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

STREAM_WINDOW: Final = 1024 * 1024
"""Bytes of a stream that the peer may send before they are read."""


class StreamListener(Protocol):
    """What a stream tells."""

    def on_readable(self) -> None:
        """A message has come, or none will come any more."""
        ...

    def on_writable(self) -> None:
        """What waited for room has been sent, or will never be."""
        ...


class Http2Stream:
    """One call of gRPC."""

    __slots__ = (
        "_debt",
        "_part",
        "has_head",
        "id",
        "inbox",
        "is_dead",
        "is_ended",
        "listener",
        "pending",
        "trailers",
        "window",
    )

    def __init__(self, number: int, window: int) -> None:
        self.id = number
        self.inbox: deque[bytes] = deque()
        """Messages that have come and are not read."""
        self.is_ended = False
        """Whether no more will come."""
        self.is_dead = False
        """Whether nothing that is said is sent any more: it was reset, its connection is lost, or its trailers are sent."""
        self.listener: StreamListener | None = None
        self.pending = bytearray()
        """What waits for room."""
        self.trailers: bytes | None = None
        """What is to be sent behind that."""
        self.window = window
        """Bytes that the peer takes."""
        self.has_head = False
        self._part = bytearray()
        self._debt = 0  # bytes that have come, and of which the peer does not know that there is room for as many more

    def take(self, data: bytes, max_message: int) -> bool:
        """Take over a piece, and return whether there are whole messages. Raises ValueError for one that is too large or
        compressed."""
        self._debt += len(data)
        if not self._part and len(data) >= 5 and data[0] == 0 and int.from_bytes(data[1:5], "big") == len(data) - 5:
            self.inbox.append(data[5:])
            return True
        part = self._part
        part += data
        at, is_whole = 0, False
        while len(part) - at >= 5:
            size = int.from_bytes(part[at + 1 : at + 5], "big")
            if part[at] or size > max_message:
                raise ValueError("it is compressed" if part[at] else f"it has {size} bytes, and {max_message} are the most")
            if len(part) - at < 5 + size:
                break
            with memoryview(part) as whole:
                self.inbox.append(bytes(whole[at + 5 : at + 5 + size]))
            at, is_whole = at + 5 + size, True
        del part[:at]
        return is_whole

    @property
    def is_over_window(self) -> bool:
        """Whether the peer has sent more than it may before it is given room again."""
        return self._debt > STREAM_WINDOW

    def take_credit(self) -> int:
        """Return how much room is to be given back now: half of a window at least, or nothing."""
        if self.inbox or self._debt < STREAM_WINDOW // 2:
            return 0
        credit, self._debt = self._debt, 0
        return credit

    def die(self) -> None:
        """Say and take nothing more."""
        self.is_dead = self.is_ended = True
        self.pending.clear()
        if self.listener is not None:
            self.listener.on_readable()
            self.listener.on_writable()
