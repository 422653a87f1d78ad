"""An engine that can be made faulty while it serves: the mock engine with a fault that the soak sets.

    python bench/soak_engine.py --port 8001 --slots 16 --step-secs 0.02

`POST /fault` with one of `FAULTS` as its body sets the fault, and `none` ends it:

    fail       every generation is answered at once with 500, as by an engine whose core has died
    busy       every generation is answered with 503 and Retry-After: 1, as by an engine whose queue is full
    broken     every generation gets 200, and an error event in place of the first token
    reset      the connection of every generation is reset
    hang       no generation begins until the fault ends, as in an engine whose core has stalled
    stall      pages (health, models, metrics, slots) get no answer, while generations are served

Each answer consists of the mark that its request named (`user`), so that a client sees whether the answer is its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import struct
import sys
from collections.abc import Callable
from functools import partial

import msgspec
import uvloop

import mock_engine

FAULTS = ("fail", "busy", "broken", "reset", "hang", "stall")
MODEL = "soak"
STREAM_HEAD = mock_engine.STREAM_HEAD
DONE = mock_engine.DONE
EVENT = b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"%b "}}]}\n\n'
WHOLE = b'{"id":"c","object":"chat.completion","choices":[{"message":{"role":"assistant","content":"%b"}}],"usage":%b}'
ERROR = b'{"error":{"message":"EngineCore encountered an issue","type":"InternalServerError","code":%d}}'
ANSWER = b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\n%bcontent-length: %d\r\n\r\n%b"


class MarkedRequest(msgspec.Struct):
    """What the engine reads of a request."""

    max_tokens: int
    user: str
    stream: bool = False


def usage(tokens: int) -> bytes:
    return json.dumps({"prompt_tokens": 64, "completion_tokens": tokens, "total_tokens": 64 + tokens}).encode()


def streamed(mark: bytes, tokens: int) -> bytes:
    """Return the body of a whole streamed response to the request with this mark."""
    return EVENT % mark * tokens + DONE


def whole(mark: bytes, tokens: int) -> bytes:
    """Return the body of a whole response that is not streamed."""
    return WHOLE % ((mark + b" ") * tokens, usage(tokens))


class FaultyEngine(mock_engine.Engine):
    """A mock engine, and its fault."""

    def __init__(self, model: str, slots: int, step_secs: float) -> None:
        super().__init__(model, slots, step_secs)
        self.fault = "none"
        self.held: list[Callable[[], None]] = []
        """What begins the generations that wait for the end of a fault."""

    def set_fault(self, fault: str) -> None:
        self.fault = fault
        held, self.held = self.held, []
        for begin in held:
            begin()


class FaultyConnection(mock_engine.Connection):
    """One connection to a faulty engine."""

    engine: FaultyEngine

    def on_message_complete(self) -> None:
        if self.path == b"/fault":
            self.engine.set_fault(self.body.decode())
            self.transport.write(ANSWER % (200, b"OK", b"", 2, b"{}"))
        elif self.path.startswith(b"/v1/") and self.body:
            self.generate(msgspec.json.decode(self.body, type=MarkedRequest))
        elif self.engine.fault != "stall":
            super().on_message_complete()

    def generate(self, request: MarkedRequest) -> None:
        match self.engine.fault:
            case "fail":
                error = ERROR % 500
                self.transport.write(ANSWER % (500, b"Internal Server Error", b"", len(error), error))
            case "busy":
                error = ERROR % 503
                self.transport.write(ANSWER % (503, b"Service Unavailable", b"retry-after: 1\r\n", len(error), error))
            case "broken" if request.stream:
                event = b"data: " + ERROR % 500 + b"\n\n" + DONE
                self.transport.write(STREAM_HEAD + b"%x\r\n%b\r\n0\r\n\r\n" % (len(event), event))
            case "broken":
                error = ERROR % 500
                self.transport.write(ANSWER % (200, b"OK", b"", len(error), error))
            case "reset":
                connection: socket.socket = self.transport.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.transport.abort()
            case "hang":
                self.engine.held.append(partial(self.start_marked, request))
            case _:
                self.start_marked(request)

    def start_marked(self, request: MarkedRequest) -> None:
        if self.transport.is_closing():
            return
        self.engine.received += 1
        mark = request.user.encode()
        if request.stream:
            self.transport.write(STREAM_HEAD)
            self.after(self.engine.step_secs, partial(self.emit_marked, EVENT % mark, request.max_tokens))
        else:
            body = whole(mark, request.max_tokens)
            self.after(self.engine.step_secs * request.max_tokens, partial(self.finish, body))

    def emit_marked(self, event: bytes, left: int) -> None:
        if left > 1:
            self.transport.write(b"%x\r\n%b\r\n" % (len(event), event))
            self.after(self.engine.step_secs, partial(self.emit_marked, event, left - 1))
        else:
            last = event + DONE
            self.end(b"%x\r\n%b\r\n0\r\n\r\n" % (len(last), last))


async def serve(port: int, engine: FaultyEngine) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(partial(FaultyConnection, engine), "127.0.0.1", port, backlog=4096)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--step-secs", type=float, required=True)
    options = parser.parse_args()
    try:
        uvloop.run(serve(options.port, FaultyEngine(MODEL, options.slots, options.step_secs)))
    except KeyboardInterrupt:
        sys.exit(130)
