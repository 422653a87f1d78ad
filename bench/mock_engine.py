"""An engine that costs almost nothing and does what each request says, where `maitred engine` would be the bottleneck.

    python bench/mock_engine.py --step-secs 0.06 --engine MODEL:SLOTS [--engine MODEL:SLOTS ...]

One process; each `--engine` has a port of its own, and the first line on stdout lists their URLs as JSON. Per engine:

    POST /v1/...       a response of `max_tokens` steps: whole after the last step, or streamed with one event per step
    GET  /server_info  `max_running_requests`; POST /slots with a number as its body changes it
    GET  /v1/models, /health
    GET  /counts       how many requests were received, are running, were answered, and were cut off by the gateway
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable
from functools import partial

import httptools
import msgspec
import uvloop

EVENT = b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"token "}}]}\n\n'
DONE = b"data: [DONE]\n\n"
OPENING = b'{"id":"c","object":"chat.completion","choices":[{"message":{"role":"assistant","content":"'
CLOSING = b'"}}]}'

STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"


class EngineRequest(msgspec.Struct):
    max_tokens: int
    stream: bool = False


def streamed(tokens: int) -> bytes:
    """Return the body of a whole streamed response."""
    return EVENT * tokens + DONE


def whole(tokens: int) -> bytes:
    """Return the body of a whole response that is not streamed."""
    return OPENING + b"token " * tokens + CLOSING


class Engine:
    """One engine: its model, its slots, and the counts of its requests."""

    def __init__(self, model: str, slots: int, step_secs: float) -> None:
        self.model, self.slots, self.step_secs = model, slots, step_secs
        self.received = self.answered = self.left = 0

    @property
    def running(self) -> int:
        return self.received - self.answered - self.left

    def page(self, path: bytes) -> object:
        match path:
            case b"/v1/models":
                return {"object": "list", "data": [{"id": self.model, "object": "model", "created": 0, "owned_by": "bench"}]}
            case b"/server_info" | b"/get_server_info":
                return {"max_running_requests": self.slots}
            case b"/counts":
                counted = ("received", "running", "answered", "left")
                return {name: getattr(self, name) for name in counted}
            case _:
                return {}


class Connection(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.step: asyncio.TimerHandle | None = None
        """The next step of the current response."""
        self.parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.loop = asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_begin(self) -> None:
        self.path, self.body = b"", b""

    def on_url(self, url: bytes) -> None:
        self.path += url

    def on_body(self, piece: bytes) -> None:
        self.body += piece

    def on_message_complete(self) -> None:
        if self.path.startswith(b"/v1/") and self.body:
            self.start_answer(msgspec.json.decode(self.body, type=EngineRequest))
            return
        if self.path == b"/slots":
            self.engine.slots = int(self.body)
        page = json.dumps(self.engine.page(self.path)).encode()
        self.transport.write(JSON_HEAD % len(page) + page)

    def start_answer(self, request: EngineRequest) -> None:
        self.engine.received += 1
        if request.stream:
            self.transport.write(STREAM_HEAD)  # long before the first event, so that the gateway can still preempt the request
            self.after(self.engine.step_secs, partial(self.emit, request.max_tokens))
        else:
            self.after(self.engine.step_secs * request.max_tokens, partial(self.finish, whole(request.max_tokens)))

    def after(self, secs: float, then: Callable[[], None]) -> None:
        self.step = self.loop.call_later(secs, then)

    def emit(self, left: int) -> None:
        if left > 1:
            self.transport.write(b"%x\r\n%b\r\n" % (len(EVENT), EVENT))
            self.after(self.engine.step_secs, partial(self.emit, left - 1))
        else:
            last = EVENT + DONE
            self.end(b"%x\r\n%b\r\n0\r\n\r\n" % (len(last), last))

    def finish(self, body: bytes) -> None:
        self.end(JSON_HEAD % len(body) + body)

    def end(self, last: bytes) -> None:
        self.step = None
        self.engine.answered += 1
        self.transport.write(last)

    def connection_lost(self, error: Exception | None) -> None:
        if self.step is not None:
            self.step.cancel()
            self.engine.left += 1


async def serve(engines: list[Engine]) -> None:
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(partial(Connection, engine), "127.0.0.1", 0, backlog=4096) for engine in engines]
    print(json.dumps([f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers]), flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step-secs", type=float, required=True)
    parser.add_argument("--engine", action="append", required=True, metavar="MODEL:SLOTS")
    options = parser.parse_args()
    named = [(model, int(slots)) for model, slots in (text.split(":") for text in options.engine)]
    try:
        uvloop.run(serve([Engine(model, slots, options.step_secs) for model, slots in named]))
    except KeyboardInterrupt:
        sys.exit(130)
