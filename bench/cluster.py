"""What several workers that share one scheduler do under load, and when one of them fails: real processes on loopback.

    python bench/cluster.py [--seconds 15] [--bulk 48] [--chats-per-sec 8] [--workers 3]

An engine runs 8 sequences at once and tells nobody that limit; more wait in it. A flood of `bulk` requests keeps it full, and
chats (class `interactive`) come at random. The same load goes through

    one          `maitred serve`
    workers      `maitred serve --workers N`
    kill -9      the same, and a worker is killed a third of the way in
    SIGSTOP      the same, and a worker stands still for 5 s
    cluster      three `maitred serve --scheduler`, each with a port of its own, and two `maitred scheduler` with an election by
                 a file; and the same with a gateway, or the scheduler that leads, killed or standing still

and of each is printed: TTFT of the chats, tokens per second of bulk, the most requests that the engine had at once; and where a
worker has failed: requests that failed beyond those that it had (told by the ports of its connections), streams that broke off
beyond these, and how long after the fault a chat that came after it had its first byte. `lead` is what the gateway keeps at the
engine beyond the limit that it has learned (docs/admission.md), so at most 8 + lead may be there.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from processes import MAITRED

SEQUENCES = 8
STEP_SECS = 0.02
BULK_TOKENS, CHAT_TOKENS = 60, 20
MODELS = b'{"object":"list","data":[{"id":"m","object":"model","created":0,"owned_by":"bench"}]}'
EVENT = b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"token "}}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
STOP_SECS = 5.0


class Engine:
    """Runs 8 sequences at once, in the order in which they came; says how many run and wait, and not how many may."""

    def __init__(self) -> None:
        self.running = self.most = 0
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
                    writer.write(whole(self._page(head.split(b" ", 2)[1])))
        writer.close()

    def _page(self, path: bytes) -> bytes:
        if path == b"/metrics":
            counts = f"vllm:num_requests_running {self.running}\nvllm:num_requests_waiting {len(self.waiting)}\n"
            return counts.encode()
        return b"%d" % self.most if path == b"/most" else MODELS

    async def _generate(self, tokens: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        self._begin_next()
        self.most = max(self.most, self.present)
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
            if turn in self.waiting:
                self.waiting.remove(turn)
            else:
                self.running -= 1
            self._begin_next()
            gone.cancel()
            await asyncio.wait({gone})

    def _begin_next(self) -> None:
        while self.waiting and self.running < SEQUENCES:
            self.running += 1
            self.waiting.popleft().set_result(None)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def whole(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


async def run_engine() -> None:
    server = await asyncio.start_server(Engine().serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@dataclass
class Sent:
    """One request, as its client saw it. Times are in seconds, on one clock."""

    is_chat: bool
    at: float
    port: int = 0
    first_at: float | None = None
    ended_at: float | None = None
    is_whole: bool = False
    answer: bytes = b""
    """The beginning of what came."""


@dataclass
class Load:
    """All requests of one run."""

    ports: Sequence[int]
    """The ports of the gateways; each request takes one at random."""
    random: Random
    sent: list[Sent] = field(default_factory=list)

    async def request(self, *, is_chat: bool) -> None:
        """Send one request, on a connection of its own."""
        one = Sent(is_chat, time.monotonic())
        self.sent.append(one)
        tokens, name = (CHAT_TOKENS, "interactive") if is_chat else (BULK_TOKENS, "bulk")
        body = json.dumps({"model": "m", "stream": True, "max_tokens": tokens, "messages": []}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: b\r\nx-smg-priority: {name}\r\ncontent-length: {len(body)}\r\n\r\n"
        with contextlib.suppress(OSError):
            reader, writer = await self._connect()
            one.port = writer.get_extra_info("sockname")[1]
            writer.write(head.encode() + body)
            got = b""
            while piece := await reader.read(65_536):
                got += piece
                if one.first_at is None and b"data: " in got:
                    one.first_at = time.monotonic()
                if got.endswith(b"\r\n0\r\n\r\n") or b"HTTP/1.1 200" not in got[:20]:
                    break
            one.is_whole, one.answer = b"[DONE]" in got, got[:600]
            writer.close()
        one.ended_at = time.monotonic()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to one gateway, or to another where that one refuses. Raises OSError if all do."""
        for port in self.random.sample(self.ports, len(self.ports)):
            with contextlib.suppress(ConnectionRefusedError):
                return await asyncio.open_connection("127.0.0.1", port)
        raise ConnectionRefusedError

    async def flood(self, until: float) -> None:
        """Send one bulk request after the other."""
        while time.monotonic() < until:
            await self.request(is_chat=False)

    async def chat(self, until: float, per_sec: float) -> None:
        """Send chats at random."""
        tasks = set[asyncio.Task[None]]()
        while time.monotonic() < until:
            await asyncio.sleep(self.random.expovariate(per_sec))
            tasks.add(asyncio.create_task(self.request(is_chat=True)))
        await asyncio.gather(*tasks)


@dataclass
class Fault:
    """What was done to a worker."""

    at: float = 0.0
    ports: set[int] = field(default_factory=set)
    """The ports of the clients that it had then."""


def peer_ports(pid: int) -> set[int]:
    """Return the ports of the peers that a process has connections with."""
    inodes = set[str]()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            inodes.add(str(each.readlink()).removeprefix("socket:[").removesuffix("]"))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(row[2].rpartition(":")[2], 16) for row in rows if row[9] in inodes} - {0}


async def kill(pid: int, fault: Fault) -> None:
    """Kill a process; it is stopped first, so that what it had is known."""
    os.kill(pid, signal.SIGSTOP)
    fault.ports = peer_ports(pid)
    fault.at = time.monotonic()
    os.kill(pid, signal.SIGKILL)


async def stop(pid: int, fault: Fault) -> None:
    """Let a process stand still for a while."""
    os.kill(pid, signal.SIGSTOP)
    fault.ports = peer_ports(pid)
    fault.at = time.monotonic()
    await asyncio.sleep(STOP_SECS)
    os.kill(pid, signal.SIGCONT)


class Processes:
    """The processes of one run: an engine, and what is in front of it."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        engine = stack.enter_context(subprocess.Popen([sys.executable, __file__, "--engine"], stdout=subprocess.PIPE))
        stack.callback(engine.kill)
        assert engine.stdout is not None
        self.engine_port = int(engine.stdout.readline())
        self.ports: list[int] = []
        """The ports of the gateways."""
        self._logs: dict[int, Path] = {}

    async def _start(self, *command: str) -> tuple[int, str]:
        """Start a command of maitred. Return its process and what it says when it serves."""
        log = self._folder / f"log {len(self._logs)}"
        backend = f"http://127.0.0.1:{self.engine_port}"
        with log.open("wb") as stderr:
            process = self._stack.enter_context(
                subprocess.Popen([*MAITRED, *command, "--backend", backend, "--admission", "priority"], stderr=stderr)
            )
        self._stack.callback(process.kill)
        while not (found := re.search(r"(gateway|scheduler) on [^,]*:(\d+),", log.read_text())):
            await asyncio.sleep(0.05)
            assert process.poll() is None, log.read_text()
        self._logs[process.pid] = log
        return process.pid, found[2]

    async def start_workers(self, number: int) -> Callable[[], int]:
        """Start a gateway of so many processes. Return what finds one of its workers."""
        pid, port = await self._start("serve", "--port", "0", "--workers", str(number))
        self.ports.append(int(port))
        children = Path(f"/proc/{pid}/task/{pid}/children")
        return lambda: int(children.read_text().split()[0])

    async def start_cluster(self) -> tuple[Callable[[], int], Callable[[], int]]:
        """Start two schedulers and three gateways. Return what finds a gateway, and what finds the scheduler that leads."""
        secret = self._folder / "secret"
        secret.write_text("a secret of a benchmark")
        secret.chmod(0o600)
        link = ("--link-secret-file", str(secret))
        election = f"file:{self._folder / 'election'}"
        schedulers, gateways = list[int](), list[int]()
        for _ in range(2):
            where = ("--listen", "127.0.0.1:0", "--pages-port", "0", "--election", election)
            schedulers.append((await self._start("scheduler", *where, *link))[0])
        for number in range(3):
            named = ("--scheduler", election, "--name", f"gateway-{number}")
            pid, port = await self._start("serve", "--port", "0", *named, *link)
            gateways.append(pid)
            self.ports.append(int(port))
        leader = next(pid for pid in schedulers if "this scheduler leads" in self._logs[pid].read_text())
        return lambda: gateways[0], lambda: leader


Harm = Callable[[int, Fault], Awaitable[None]]
"""What is done to a process."""


async def play(options: argparse.Namespace, name: str, harm: Harm | None) -> str:
    """Send the load through what `name` says, and return what is to be printed of it."""
    with contextlib.ExitStack() as stack:
        processes = Processes(stack)
        if name.startswith("cluster"):
            gateway, leader = await processes.start_cluster()
            victim = leader if "leader" in name else gateway
        else:
            victim = await processes.start_workers(1 if name == "one" else options.workers)
        load, fault = Load(processes.ports, Random(1)), Fault()
        began = time.monotonic()
        until = began + options.warm_up + options.seconds
        tasks = [asyncio.create_task(load.flood(until)) for _ in range(options.bulk)]
        tasks.append(asyncio.create_task(load.chat(until, options.chats_per_sec)))
        if harm is not None:
            await asyncio.sleep(options.warm_up + options.seconds / 3)
            await harm(victim(), fault)
        await asyncio.gather(*tasks)
        most = int(urllib.request.urlopen(f"http://127.0.0.1:{processes.engine_port}/most").read())
        return describe(load, fault, began + options.warm_up, options.seconds, most)


def describe(load: Load, fault: Fault, since: float, seconds: float, most: int) -> str:
    chats = [one for one in load.sent if one.is_chat and one.at >= since]
    waits = [one.first_at - one.at for one in chats if one.first_at is not None]
    quantiles = statistics.quantiles(waits, n=100)
    ended = [
        one
        for one in load.sent
        if not one.is_chat and one.is_whole and one.ended_at and since <= one.ended_at <= since + seconds
    ]
    line = f"{quantiles[49] * 1e3:7.0f} {quantiles[98] * 1e3:8.0f} {len(ended) * BULK_TOKENS / seconds:9.0f} {most:6}"
    failed = [one for one in load.sent if not one.is_whole]
    if not fault.at:
        return f"{line} {len(failed):8}"
    beyond = [one for one in failed if one.port not in fault.ports]
    again = [one.first_at - fault.at for one in chats if one.at >= fault.at and one.first_at is not None]
    broken = sum(one.first_at is not None for one in beyond)
    return f"{line} {len(beyond):8} {broken:8} {min(again) * 1e3:10.0f}   ({len(failed) - len(beyond)} that the worker had)"


async def main(options: argparse.Namespace) -> None:
    print(f"{'':24} TTFT p50, p99 ms   bulk tok/s   most   failed   broken   chat after ms")
    runs: list[tuple[str, Harm | None]] = [("one", None), ("workers", None), ("kill -9", kill), ("SIGSTOP", stop)]
    runs += [("cluster", None), ("cluster: kill -9", kill), ("cluster: SIGSTOP", stop)]
    runs += [("cluster: kill -9 leader", kill), ("cluster: SIGSTOP leader", stop)]
    for name, harm in runs:
        if options.only in name:
            print(f"{name:24}", await play(options, name, harm), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="of each measurement")
    parser.add_argument("--warm-up", type=float, default=10.0, help="seconds in which the gateway learns the engine")
    parser.add_argument("--bulk", type=int, default=48, help="bulk requests at once")
    parser.add_argument("--chats-per-sec", type=float, default=8.0)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--engine", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    asyncio.run(run_engine() if given.engine else main(given))
