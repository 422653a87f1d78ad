"""One request on a connection of its own, and exactly what came back: also nothing at all, or half an answer.

Written by hand, because a client library would correct what is to be seen: repeated headers, spaces around a value, one latin-1
byte, a connection that is closed without a byte. Answers are parsed by httptools.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from urllib.parse import urlsplit

import httptools
import msgspec

ANSWER_SECS = 30.0
"""That a single question may take, asked outside of any timeline."""


class Exchange:
    """Times are those of the loop, in seconds; None: it did not happen."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sent_at = 0.0
        self.first_data_at: float | None = None
        self.ended_at: float | None = None
        """When the answer was whole, the connection was closed or the client left."""
        self.status: int | None = None
        self.headers: list[tuple[str, str]] = []
        self.body = b""
        self.complete = False
        """Whether the answer came to its end as HTTP frames it."""
        self.received = 0
        """Bytes, head included."""
        self.left = False
        """The client closed the connection by itself."""
        self.first_data = asyncio.Event()
        self.over = asyncio.Event()

    @property
    def wall(self) -> float:
        """Seconds from the request to the end of its answer. Raises ValueError before that."""
        if self.ended_at is None:
            raise ValueError(f"{self.name} has not ended")
        return self.ended_at - self.sent_at

    def header(self, name: str) -> str | None:
        """The first of that name, in any case."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    @property
    def json(self) -> object:
        """Of the body; None if it is none."""
        with contextlib.suppress(msgspec.DecodeError):
            return msgspec.json.decode(self.body)
        return None

    @property
    def data_lines(self) -> list[bytes]:
        """Of a body of server-sent events."""
        return [line for line in self.body.splitlines() if line.startswith(b"data:")]

    def __str__(self) -> str:
        if self.left:
            return "its client left"
        if self.status is None:
            return f"no answer, connection closed after {self.received} bytes" if self.over.is_set() else "no answer"
        cut = "" if self.complete else f", cut off after {len(self.body)} bytes of body"
        return f"{self.status}{cut}"


class Wanted(msgspec.Struct, frozen=True):
    """What is sent."""

    method: str
    path: str
    headers: Iterable[tuple[str, str]] = ()
    body: bytes = b""

    def encode(self, host: str) -> bytes:
        """Header values go out as latin-1, one byte each."""
        head = [f"{self.method} {self.path} HTTP/1.1", f"host: {host}", f"content-length: {len(self.body)}"]
        head += [f"{name}: {value}" for name, value in self.headers]
        return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + self.body


async def begin(exchange: Exchange, url: str, wanted: Wanted) -> asyncio.Task[None]:
    """Send a request. The task ends with its answer. Raises OSError if the port does not listen."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    exchange.sent_at = asyncio.get_running_loop().time()
    writer.write(wanted.encode(parts.netloc))
    receiving = asyncio.create_task(_receive(exchange, reader, writer))
    receiving.add_done_callback(lambda _: writer.close())  # also if it is cancelled before it has begun
    return receiving


async def ask(url: str, wanted: Wanted, name: str = "") -> Exchange:
    """Send a request and wait for the end. Raises OSError if the port does not listen, TimeoutError."""
    exchange = Exchange(name)
    async with asyncio.timeout(ANSWER_SECS):
        await (await begin(exchange, url, wanted))
    return exchange


async def leave(exchange: Exchange, receiving: asyncio.Task[None]) -> None:
    """The client closes the connection, if the answer has not come."""
    if not exchange.over.is_set():
        exchange.left = True
        receiving.cancel()
        await asyncio.wait({receiving})


async def _receive(exchange: Exchange, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    answer = _Answer(exchange)
    parser = answer.parser = httptools.HttpResponseParser(answer)
    try:
        while not exchange.complete and (data := await reader.read(65_536)):
            exchange.received += len(data)
            parser.feed_data(data)
    except OSError:  # reset: an end like any other
        pass
    finally:
        exchange.ended_at = asyncio.get_running_loop().time()
        exchange.over.set()
        writer.close()
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await writer.wait_closed()


class _Answer:
    """httptools tells it what it finds."""

    parser: httptools.HttpResponseParser

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def on_header(self, name: bytes, value: bytes) -> None:
        self._exchange.headers.append((name.decode("latin-1"), value.decode("latin-1")))

    def on_headers_complete(self) -> None:
        self._exchange.status = self.parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        if self._exchange.first_data_at is None:
            self._exchange.first_data_at = asyncio.get_running_loop().time()
            self._exchange.first_data.set()
        self._exchange.body += data

    def on_message_complete(self) -> None:
        self._exchange.complete = True
