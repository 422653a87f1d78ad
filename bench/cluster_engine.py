"""The engine of `cluster.py`: it runs 8 sequences at once, in the order in which they came, and more wait in it.

    python bench/cluster_engine.py [--tells]

It says on /metrics how many run and wait, with `--tells` on /server_info how many may run, and on /most how many there were at
once, and how many of these at most whose gateway had not let them go. It prints its port.

A victim of a preemption is let go by its gateway before the request that has its slot is sent, over another connection. An
engine serves its sockets in any order, so it may find the second one while the end of the first lies in its socket. Whether
it does is asked of the system as each request comes: a connection that its peer has closed is not established any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import sys
from collections import deque
from typing import Any

SEQUENCES = 8
STEP_SECS = 0.02
ESTABLISHED = 1
"""The state of a TCP connection, as Linux has it."""
MODELS = b'{"object":"list","data":[{"id":"m","object":"model","created":0,"owned_by":"bench"}]}'
EVENT = b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"token "}}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


class Engine:
    """One engine."""

    def __init__(self, tells: bool) -> None:
        self.tells = tells
        self.running = self.most = self.most_held = 0
        self.connections = set[asyncio.StreamWriter]()
        """Those of the requests that are here."""
        self.waiting: deque[asyncio.Future[None]] = deque()

    @property
    def present(self) -> int:
        return self.running + len(self.waiting)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
                body = await reader.readexactly(int(size[1])) if size else b""
                if head.startswith(b"POST"):
                    await self._generate(json.loads(body)["max_tokens"], reader, writer)
                else:
                    writer.write(self._page(head.split(b" ", 2)[1].partition(b"?")[0]))
        writer.close()

    def _page(self, path: bytes) -> bytes:
        if path.startswith(b"/metrics"):
            counts = f"vllm:num_requests_running {self.running}\nvllm:num_requests_waiting {len(self.waiting)}\n"
            return whole(counts.encode())
        if path == b"/server_info":
            return whole(b'{"max_running_requests": %d}' % SEQUENCES) if self.tells else whole(b"", 404)
        if path == b"/most":
            most = b"%d %d" % (self.most, self.most_held)
            self.most = self.most_held = 0
            self._count()
            return whole(most)
        return whole(MODELS)

    async def _generate(self, tokens: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        self._begin_next()
        self.connections.add(writer)
        self._count()
        gone = asyncio.ensure_future(reader.read(1))
        try:
            either: set[asyncio.Future[Any]] = {turn, gone}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                raise ConnectionError
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            for _ in range(tokens):
                await asyncio.sleep(STEP_SECS)
                if gone.done():
                    raise ConnectionError
                writer.write(chunk(EVENT))
            writer.write(chunk(LAST) + b"0\r\n\r\n")
        finally:
            self.connections.discard(writer)
            if turn in self.waiting:
                self.waiting.remove(turn)
            else:
                self.running -= 1
            self._begin_next()
            gone.cancel()
            await asyncio.wait({gone})

    def _count(self) -> None:
        self.most = max(self.most, self.present)
        self.most_held = max(self.most_held, sum(map(is_open, self.connections)))

    def _begin_next(self) -> None:
        while self.waiting and self.running < SEQUENCES:
            self.running += 1
            self.waiting.popleft().set_result(None)


def is_open(writer: asyncio.StreamWriter) -> bool:
    """Return whether the peer of a connection has not closed it, noticed or not."""
    end = writer.get_extra_info("socket")
    return end.fileno() >= 0 and end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == ESTABLISHED


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def whole(body: bytes, status: int = 200) -> bytes:
    return b"HTTP/1.1 %d -\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body)


async def main() -> None:
    server = await asyncio.start_server(Engine("--tells" in sys.argv).serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
