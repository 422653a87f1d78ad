"""What the sender of `maitred bench` costs, and how well it keeps its schedule.

    python bench/sender.py [--requests 2000] [--events 50] [--rate 1000] [--secs 5]

The server is a process of its own that answers every request with a stream of `--events` events, each of which it writes
alone. The same requests are sent twice in turns: by the sender, with all that `maitred bench` keeps of them, and by a bare
socket client on the same loop, which writes bytes that are ready and counts what comes back until the stream has ended.
Printed are the CPU times of both per request, their difference, and the lateness of the sender at `--rate` requests per
second, each answered with one event. Timings of a busy machine say nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import uvloop

from maitred.cli.terminal import raise_file_limit
from maitred.core.request import Request
from maitred.emulator.clients.prompts import PromptWriter, TokenScale
from maitred.emulator.clients.schedule import SendSchedule
from maitred.emulator.clients.sender import LoadSender, SendTarget, SentRequest
from maitred.study.live.observed import Observation
from maitred.wire.origin import Origin
from maitred.workload import Job

ROUNDS = 5
STREAMS_PER_SEC = 200.0
PROMPT_TOKENS = 256
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = (
    b'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":" the",'
    b'"logprobs":null,"finish_reason":null}],"usage":null}\n\n'
)
LAST = b'data: {"choices":[],"usage":{"prompt_tokens":256,"completion_tokens":50,"total_tokens":306}}\n\ndata: [DONE]\n\n'
END = b"0\r\n\r\n"
GAP_SECS = 0.002
"""Between two events: long enough that each is read alone."""


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Streaming(asyncio.Protocol):
    """The server: it answers when a request has come whole, told by the end of its body."""

    def __init__(self, events: int) -> None:
        self._events = events
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._received.endswith(b"}"):
            self._received = b""
            self._transport.write(HEAD)
            self._send(0)

    def _send(self, number: int) -> None:
        if self._transport.is_closing():
            return
        if number < self._events:
            self._transport.write(chunk(EVENT))
            asyncio.get_running_loop().call_later(GAP_SECS, self._send, number + 1)
        else:
            self._transport.write(chunk(LAST) + END)


class Bare(asyncio.Protocol):
    """The bare client: it counts bytes until the last chunk, and is free again."""

    def __init__(self, free: list[Bare], on_end: Callable[[], None]) -> None:
        self._free, self._on_end = free, on_end
        self.size = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.size += len(data)
        if data.endswith(END):
            self._free.append(self)
            self._on_end()


def serve(events: int) -> None:
    """Serve on a free port, and print it."""

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(lambda: Streaming(events), "127.0.0.1", 0, backlog=2048)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    uvloop.run(run())


@contextlib.contextmanager
def serving(events: int) -> Iterator[int]:
    """Yield the port of a server in a process of its own."""
    command = [sys.executable, __file__, "--serve", str(events)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def jobs(count: int, rate: float) -> list[Job]:
    return [Job(Request(id=n, arrival=round(n / rate * 1e6), prompt_tokens=PROMPT_TOKENS), 50) for n in range(count)]


async def run_sender(port: int, count: int, rate: float) -> tuple[float, list[SentRequest]]:
    """Return the CPU seconds of a run, and its requests."""
    done: list[SentRequest] = []
    observed = Observation()

    def on_end(sent: SentRequest) -> None:
        observed.add(sent)
        done.append(sent)

    endpoint = SendTarget(origin=Origin.parse(f"http://127.0.0.1:{port}"), path="/v1/completions")
    sender = LoadSender(endpoint, PromptWriter("m", chat=False, scale=TokenScale(), nonce=time.time_ns()), on_end)
    await sender.run(SendSchedule(jobs(count // 4, rate)))  # connections
    done.clear()
    began = time.process_time()
    await sender.run(SendSchedule(jobs(count, rate)))
    took = time.process_time() - began
    await sender.close()
    assert all(sent.completed for sent in done), {sent.problem for sent in done}
    return took, done


async def run_bare(port: int, count: int, rate: float) -> float:
    """Return the CPU seconds of as many requests by the bare client."""
    loop, free, ended = asyncio.get_running_loop(), list[Bare](), asyncio.Event()
    body = PromptWriter("m", chat=False, scale=TokenScale()).body(jobs(1, 1.0)[0])
    request = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    left = 0

    def on_end() -> None:
        nonlocal left
        left -= 1
        if not left:
            ended.set()

    async def send(number: int) -> None:
        nonlocal left
        left = number
        ended.clear()
        start = loop.time()
        for index in range(number):
            early = start + index / rate - loop.time()
            if early > 0:
                await asyncio.sleep(early)
            if not free:
                await loop.create_connection(lambda: free.append(Bare(free, on_end)) or free[-1], "127.0.0.1", port)  # type: ignore[func-returns-value]
            free.pop().transport.write(request)
        await ended.wait()

    await send(count // 4)
    began = time.process_time()
    await send(count)
    took = time.process_time() - began
    for client in free:
        client.transport.close()
    return took


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=2_000)
    parser.add_argument("--events", type=int, default=50)
    parser.add_argument("--rate", type=float, default=1_000.0)
    parser.add_argument("--secs", type=float, default=5.0)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve is not None:
        serve(given.serve)
    raise_file_limit()
    with serving(given.events) as port:
        ours, bare = [], []
        for _ in range(ROUNDS):
            ours.append(uvloop.run(run_sender(port, given.requests, STREAMS_PER_SEC))[0] / given.requests * 1e6)
            bare.append(uvloop.run(run_bare(port, given.requests, STREAMS_PER_SEC)) / given.requests * 1e6)
    beyond = sorted(a - b for a, b in zip(ours, bare, strict=True))
    print(f"CPU per request of {given.events} events, median of {ROUNDS} rounds: sender {statistics.median(ours):.0f} µs,")
    print(f"bare client {statistics.median(bare):.0f} µs, beyond it {statistics.median(beyond):.0f} µs")
    print(f"({beyond[0]:.0f} to {beyond[-1]:.0f} in single rounds)")
    with serving(1) as port:
        took, done = uvloop.run(run_sender(port, round(given.rate * given.secs), given.rate))
    late = sorted((sent.sent - sent.planned) / 1000 for sent in done)
    p50, p99 = late[len(late) // 2], late[len(late) * 99 // 100]
    print(f"{given.rate:,.0f} requests/s for {given.secs:g} s: CPU {took / given.secs:.0%} of a core;")
    print(f"late by {p50:.2f} ms (p50), {p99:.2f} ms (p99), {late[-1]:.2f} ms (worst)")


if __name__ == "__main__":
    main()
