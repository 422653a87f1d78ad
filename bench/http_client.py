"""A client that costs little, trusts nothing, and may leave: one keep-alive connection, one request at a time.

What an answer has to look like is known beforehand, byte for byte in length, so one that was cut short cannot pass for whole.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, and how long its client stays."""

    request: bytes
    body_bytes: int
    """Of a whole answer."""
    stay_secs: float | None = None
    """Leave so long after asking, wherever it is then."""
    stay_bytes: int | None = None
    """Leave when so much of the body has come."""


@dataclass(slots=True)
class Answer:
    """What the client saw. Times are seconds since it asked."""

    status: int = 0
    """0: not even a head came."""
    headers: dict[bytes, bytes] = field(default_factory=dict)
    size: int = 0
    """Bytes of the body."""
    error: bytes = b""
    """The body, if it is no success."""
    left: bool = False
    """The client went away before it was complete."""
    complete: bool = False
    """HTTP says that it is all there."""
    first_byte: float = 0.0
    took: float = 0.0

    @property
    def code(self) -> str:
        """Of the error object; empty if it is none."""
        try:
            return str(json.loads(self.error)["error"]["code"])
        except (ValueError, KeyError, TypeError):
            return ""


async def connect(url: str) -> Connection:
    """Raises OSError."""
    parts = urlsplit(url)
    return (await asyncio.get_running_loop().create_connection(Connection, parts.hostname or "", parts.port or 80))[1]


def request(path: str, body: bytes, **headers: str) -> bytes:
    """The bytes of a POST."""
    named = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = (
        f"POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{named}\r\n"
    )
    return head.encode() + body


class Connection(asyncio.Protocol):
    """Call `ask` when `open` and no other answer is awaited."""

    def __init__(self) -> None:
        self.open = False
        self._answered: Callable[[Answer], None] | None = None
        self._leaving: asyncio.TimerHandle | None = None

    def ask(self, ask: Ask, answered: Callable[[Answer], None]) -> None:
        """`answered` is called once, with whatever comes of it."""
        self._ask, self._answered, self._answer = ask, answered, Answer()
        self._parser = httptools.HttpResponseParser(self)
        self._began = time.monotonic()
        self._transport.write(ask.request)
        if ask.stay_secs is not None:
            self._leaving = asyncio.get_running_loop().call_later(ask.stay_secs, self._leave)

    def close(self) -> None:
        self.open = False
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.open = True

    def data_received(self, data: bytes) -> None:
        if self._answered is None:
            self.close()  # nobody asked
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()
            self._end()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._answer.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._answer.status = self._parser.get_status_code()

    def on_body(self, piece: bytes) -> None:
        answer = self._answer
        if not answer.size:
            answer.first_byte = time.monotonic() - self._began
        answer.size += len(piece)
        if answer.status != 200:
            answer.error += piece
        elif self._ask.stay_bytes is not None and answer.size >= self._ask.stay_bytes:
            self._leave()

    def on_message_complete(self) -> None:
        self._answer.complete = True
        if not self._parser.should_keep_alive():
            self.close()
        self._end()

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        self._end()

    def _leave(self) -> None:
        if self._answered is not None:
            self._answer.left = True
            self.close()
            self._end()

    def _end(self) -> None:
        """Whoever comes first, the answer or the client's leaving, is what counts."""
        answered, self._answered = self._answered, None
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None
        if answered is not None:
            self._answer.took = time.monotonic() - self._began
            answered(self._answer)
