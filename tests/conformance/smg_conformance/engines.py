"""Mock engines: small HTTP servers in this process that do with each request what its sender asked for.

What is asked for travels in the body (`metadata`), so an engine needs to know nothing of the timeline. All engines of a world
write into one journal, in the order in which requests come.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import weakref
from collections.abc import Callable
from typing import Any, Literal

import httptools
import msgspec

from maitred.testing.world import Network, VirtualLoop
from maitred.testing.world.network import here

from .scenario import EngineSpec


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine is to do with one request."""

    name: str = "?"
    hold: int | None = None
    """Not to answer before so many releases."""
    delay_s: float = 0.0
    """Before the answer, or the first chunk of it."""
    head_delay_s: float | None = None
    """Before the head of a stream, if it goes out earlier."""
    chunks: int = 1
    gap_s: float = 0.0
    """Between two chunks."""
    status: int = 200


class Body(msgspec.Struct, frozen=True):
    """As much of a request as an engine looks at."""

    model: str = "mock"
    stream: bool = False
    metadata: Orders = Orders()


class Visit(msgspec.Struct):
    """One request at an engine. Times are those of the loop, in seconds."""

    name: str
    engine: int
    at: float
    headers: dict[str, str]
    body: dict[str, Any]
    ended_at: float | None = None
    end: Literal["running", "answered", "disconnected"] = "running"


class Journal:
    """What all engines of one world have seen."""

    def __init__(self) -> None:
        self.visits: list[Visit] = []
        self.releases = 0
        self._changed = asyncio.Event()

    def change(self) -> None:
        """Wake all tasks that wait for something."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def until(self, true: Callable[[], bool]) -> None:
        while not true():
            await self._changed.wait()

    def release_held(self) -> None:
        self.releases += 1
        self.change()

    def visited_by(self, name: str) -> Visit | None:
        return next((visit for visit in self.visits if visit.name == name), None)


class MockServer:
    """An HTTP server. It is a backend's address from the start, and answers from `listen` to `deaf`."""

    def __init__(self) -> None:
        self.port = self._take_port()
        self._server: asyncio.Server | None = None
        self._idle: set[asyncio.StreamWriter] = set()
        self._connections: dict[asyncio.Task[Any], asyncio.StreamWriter] = {}

    def _take_port(self) -> int:
        """Return a port that is no other program's while the server is deaf."""
        loop = asyncio.get_running_loop()
        if isinstance(loop, VirtualLoop) and isinstance(loop.network, Network):
            listener = loop.network.listen("127.0.0.1", 0, here())  # Each free port of a network in memory is given once.
            listener.close()
            return listener.address[1]
        place = socket.socket()
        place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        place.bind(("127.0.0.1", 0))  # Bound and not listening, it refuses connections.
        weakref.finalize(self, place.close)
        return int(place.getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def listening(self) -> bool:
        return self._server is not None

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", self.port, reuse_address=True)

    def deaf(self) -> None:
        """Take no more connections and no more requests; what is in flight ends."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._idle:
            writer.close()

    async def close(self) -> None:
        """Break every connection off."""
        self.deaf()
        for writer in self._connections.values():
            writer.transport.abort()
        await asyncio.gather(*self._connections)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        inbox = _Inbox()
        parser = inbox.parser = httptools.HttpRequestParser(inbox)
        answering: asyncio.Task[None] | None = None
        self._idle.add(writer)
        try:
            while data := await reader.read(65_536):
                parser.feed_data(data)
                while inbox.requests:
                    self._idle.discard(writer)
                    answering = asyncio.create_task(self._answer(inbox.requests.pop(0), writer))
        except OSError:
            pass
        finally:
            if answering is not None:
                answering.cancel()
                await asyncio.wait({answering})
            self._idle.discard(writer)
            del self._connections[task]
            writer.close()

    async def _answer(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await self.respond(asked, writer)
            await writer.drain()
        if self.listening:
            self._idle.add(writer)
        else:
            writer.close()

    async def respond(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        """Write the whole answer to one request."""
        raise NotImplementedError


class Engine(MockServer):
    """One mock engine."""

    def __init__(self, index: int, spec: EngineSpec, journal: Journal) -> None:
        super().__init__()
        self.spec = spec
        self._index = index
        self._journal = journal

    async def respond(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        page = self._pages().get(asked.path)
        if page is not None:
            writer.write(whole_answer(*page))
        else:
            await self._work(asked, writer)

    def _pages(self) -> dict[str, tuple[int, object]]:
        info = {"max_running_requests": self.spec.max_running_requests}
        reported = (200, info) if info["max_running_requests"] is not None else (404, {"error": "not found"})
        listed = [{"id": self.spec.model, "object": "model", "created": 1, "owned_by": "mock"}]
        return {
            "/health": (200, {}),
            "/v1/models": (200, {"object": "list", "data": listed}),
            "/server_info": reported,
            "/get_server_info": reported,
        }

    async def _work(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        body = msgspec.json.decode(asked.body, type=Body)
        now = asyncio.get_running_loop().time
        visit = Visit(body.metadata.name, self._index, now(), asked.headers, msgspec.json.decode(asked.body))
        self._journal.visits.append(visit)
        self._journal.change()
        visit.end = "disconnected"
        try:
            await self._obey(body, writer)
            visit.end = "answered"
        finally:
            visit.ended_at = now()
            self._journal.change()

    async def _obey(self, body: Body, writer: asyncio.StreamWriter) -> None:
        orders = body.metadata
        if orders.hold is not None:
            hold = orders.hold
            await self._journal.until(lambda: self._journal.releases >= hold)
        if orders.status != 200 or not body.stream:
            await asyncio.sleep(orders.delay_s)
            writer.write(whole_answer(orders.status, answer_of(orders)))
            return
        head_delay = orders.delay_s if orders.head_delay_s is None else orders.head_delay_s
        await asyncio.sleep(head_delay)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        await asyncio.sleep(orders.delay_s - head_delay)
        for n in range(orders.chunks):
            if n:
                await asyncio.sleep(orders.gap_s)
            writer.write(event_chunk(msgspec.json.encode(answer_of(orders))))
        writer.write(event_chunk(b"[DONE]") + b"0\r\n\r\n")


def answer_of(orders: Orders) -> dict[str, Any]:
    """Return the answer of an engine; it says that it comes from an engine, and for which request."""
    if orders.status != 200:
        return {"error": {"type": "engine_error", "code": "mock", "message": f"as {orders.name} asked", "param": None}}
    message = {"role": "assistant", "content": orders.name}
    return {"id": orders.name, "object": "chat.completion", "choices": [{"index": 0, "message": message}]}


class Asked(msgspec.Struct):
    path: str
    headers: dict[str, str]
    body: bytes = b""


class _Inbox:
    """httptools tells it what it finds."""

    parser: httptools.HttpRequestParser

    def __init__(self) -> None:
        self.requests: list[Asked] = []
        self._current = Asked("", {})

    def on_message_begin(self) -> None:
        self._current = Asked("", {})

    def on_url(self, url: bytes) -> None:
        self._current.path += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._current.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        self._current.body += data

    def on_message_complete(self) -> None:
        self.requests.append(self._current)


def whole_answer(status: int, content: object) -> bytes:
    """Return an answer whose body is JSON."""
    body = msgspec.json.encode(content)
    return b"HTTP/1.1 %d Mock\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


def event_chunk(data: bytes) -> bytes:
    """Return a server-sent event as a chunk."""
    event = b"data: %b\n\n" % data
    return b"%x\r\n%b\r\n" % (len(event), event)
