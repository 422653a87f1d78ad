"""Hostile clients and a hostile backend against the real gateway, beside a healthy client that must not notice.

    python bench/fuzz_gateway.py [--seconds 60] [--seed 1] [--programs]

The gateway stands before a good engine, an engine that is killed, and a backend that answers with mutated bytes. One phase
follows the other, and a healthy client sends 20 requests a second to the good engine all the while, from a process of its own:

    idle            nothing else happens, after a short warm-up; this is what the healthy client is compared with
    requests        32 connections send mutated requests: flipped, cut, doubled, glued together, in pieces, abandoned anywhere
    answers         16 clients ask the backend for answers, which are mutated in the same ways
    large bodies    8 connections send bodies of 1.5 MB in the shapes of `body_shapes.py`, whole, cut or slowly
    flood           64 connections send small requests one after the other, as fast as they are answered
    slow readers    64 clients ask for long streams, and read nothing
    kill            the second engine is killed (SIGKILL) and started again, with requests in flight
    reload storm    the configuration is reloaded without a pause, valid and invalid in turn

At the end the gateway must be as it was: no traceback in its log, no request in flight or waiting, no parked body, and memory
within 20 % of what it had after the idle phase. The healthy client's p99 in each phase must be at most twice that of the idle
phase plus 50 ms, and none of its requests may fail. Exits with 1 otherwise. The mutations follow from the seed; the pace of
everything does not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from random import Random
from typing import TypeAlias

from body_shapes import SHAPES
from fuzz_bytes import ANSWERS, POLL_ANSWERS, REQUESTS, cut_in_pieces, mutate
from measuring import resident_bytes
from processes import MAITRED, fetch_json, run_gateway

PAUSE_SECS = 0.05
"""Between two requests of the healthy client."""
OTHER_SECS = 10.0
"""Length of the phases that are no fuzzing, and at most that of `--seconds`."""
WARM_UP_SECS = 1.0
SETTLE_SECS = 20.0
"""Within which the gateway must be as it was."""
MEMORY_SHARE = 1.2
CONFIG = """
admission: {mode: priority}
gateway: {upstream: {head_secs: 5, idle_secs: 5}, health_interval_secs: 0.5, send_timeout_secs: 5}
"""
LARGE_BYTES = 1_500_000
PATIENCE_SECS = 1.0
"""For which a hostile client waits for an answer, and at most half of which the hostile backend keeps silent."""
Phase: TypeAlias = Callable[["Attack", float], Awaitable[None]]


class Attack:
    """What all phases know."""

    def __init__(self, url: str, pid: int, config: Path, killed: Engine, seed: int) -> None:
        self.pid, self.config, self.killed = pid, config, killed
        self.host, port = url.removeprefix("http://").split(":")
        self.port = int(port)
        self.random = Random(seed)
        self.sent = 0

    async def exchange(self, pieces: list[bytes], *, reads: bool = True) -> None:
        """Send `pieces` on a connection of its own, and read what comes for a while, or leave at once."""
        self.sent += 1
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection(self.host, self.port)
            try:
                for piece in pieces:
                    writer.write(piece)
                    await asyncio.sleep(0)
                if reads:
                    async with asyncio.timeout(PATIENCE_SECS * self.random.random() ** 3):
                        while await reader.read(65_536):
                            pass
            finally:
                writer.transport.abort()

    def chat(self, model: str, *, stream: bool = False, tokens: int = 4) -> bytes:
        """Return a whole, valid request."""
        body = json.dumps(
            {"model": model, "max_tokens": tokens, "stream": stream, "messages": [{"role": "user", "content": "x"}]}
        )
        return f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()


async def in_parallel(number: int, secs: float, act: Callable[[], Awaitable[None]]) -> None:
    """Let `number` tasks repeat `act` for `secs`."""
    until = time.monotonic() + secs

    async def repeat() -> None:
        while time.monotonic() < until:
            await act()

    await asyncio.gather(*(repeat() for _ in range(number)))


async def idle(attack: Attack, secs: float) -> None:
    await asyncio.sleep(secs)


async def fuzz_requests(attack: Attack, secs: float) -> None:
    async def act() -> None:
        data = b"".join(
            mutate(attack.random.choice(REQUESTS), attack.random) for _ in range(attack.random.choice((1, 1, 1, 2, 40)))
        )
        await attack.exchange(cut_in_pieces(data, attack.random), reads=attack.random.random() < 0.8)

    await in_parallel(32, secs, act)


async def fuzz_answers(attack: Attack, secs: float) -> None:
    async def act() -> None:
        await attack.exchange([attack.chat("hostile", stream=attack.random.random() < 0.5)])

    await in_parallel(16, secs, act)


async def large_bodies(attack: Attack, secs: float) -> None:
    shapes = [shape for shape in SHAPES.values() if not shape.is_answer]

    async def act() -> None:
        shape = attack.random.choice(shapes)
        body = shape.body(LARGE_BYTES)
        if attack.random.random() < 0.3:
            at = attack.random.randrange(len(body))
            body = body[:at] + attack.random.randbytes(2) + body[at + 2 :]
        coding = f"content-encoding: {shape.coding}\r\n" if shape.coding else ""
        head = f"POST {shape.path} HTTP/1.1\r\nhost: a\r\ncontent-type: {shape.content_type}\r\n{coding}"
        pieces = [f"{head}content-length: {len(body)}\r\n\r\n".encode(), body]
        if attack.random.random() < 0.3:  # Most of it, and then a few bytes at a time.
            pieces = [pieces[0], body[:-20], *(body[at : at + 1] for at in range(len(body) - 20, len(body) - 10))]
        await attack.exchange(pieces)

    await in_parallel(8, secs, act)


async def flood(attack: Attack, secs: float) -> None:
    async def act() -> None:
        kinds = (attack.chat("nothing"), attack.chat("killed"), b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")
        await attack.exchange([attack.random.choice(kinds) * 8])

    await in_parallel(64, secs, act)


async def slow_readers(attack: Attack, secs: float) -> None:
    async def act() -> None:
        with contextlib.suppress(OSError), socket.socket() as client:
            client.setblocking(False)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, (attack.host, attack.port))
            await loop.sock_sendall(client, attack.chat("killed", stream=True, tokens=2_000))
            attack.sent += 1
            await asyncio.sleep(secs * attack.random.random())

    await in_parallel(64, secs, act)


async def kill(attack: Attack, secs: float) -> None:
    until = time.monotonic() + secs

    async def kill_and_start() -> None:
        while time.monotonic() < until:
            await asyncio.sleep(4.0)
            attack.killed.kill()
            attack.killed.start()

    async def act() -> None:
        await attack.exchange([attack.chat("killed", stream=attack.random.random() < 0.5, tokens=200)])

    await asyncio.gather(kill_and_start(), in_parallel(16, secs, act))


async def reload_storm(attack: Attack, secs: float) -> None:
    good = attack.config.read_text()

    async def act() -> None:
        attack.config.write_text(attack.random.choice((good, "", "gateway: {port: x}", good.replace("priority", "legacy"))))
        os.kill(attack.pid, signal.SIGHUP)
        await asyncio.sleep(0.01)

    await in_parallel(1, secs, act)
    attack.config.write_text(good)
    await asyncio.sleep(0.5)
    os.kill(attack.pid, signal.SIGHUP)


PHASES: dict[str, Phase] = {
    "idle": idle,
    "requests": fuzz_requests,
    "answers": fuzz_answers,
    "large bodies": large_bodies,
    "flood": flood,
    "slow readers": slow_readers,
    "kill": kill,
    "reload storm": reload_storm,
}
FUZZING = ("requests", "answers")


async def serve_hostile(random: Random) -> asyncio.Server:
    """Serve a backend that is healthy most of the time, and answers with mutated bytes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, asyncio.CancelledError)
        with contextlib.suppress(*ends):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next((int(x[15:]) for x in head.lower().split(b"\r\n") if x.startswith(b"content-length:")), 0)
                await reader.readexactly(length)
                path = head.split(b" ")[1].decode()
                data = POLL_ANSWERS.get(path, b"") or random.choice(ANSWERS)
                if path not in POLL_ANSWERS or random.random() < 0.2:
                    data = mutate(data, random)
                for piece in cut_in_pieces(data, random):
                    writer.write(piece)
                    await asyncio.sleep(random.choice((0, 0, 0, 0.001, PATIENCE_SECS / 2)))
                if path not in POLL_ANSWERS and random.random() < 0.5:
                    break
        writer.transport.abort()

    return await asyncio.start_server(answer, "127.0.0.1", 0)


class Engine:
    """An emulated engine that generates quickly, in a process of its own; what it says goes to `log`."""

    def __init__(self, model: str, log: Path) -> None:
        self.port, self.log = free_port(), log
        flags = ("--port", str(self.port), "--model", model, "--latency-model", "linear:5000,1,1", "--speed", "10")
        self._command = [*MAITRED, "engine", *flags]
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(self._command, stderr=output)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def run_healthy_client(url: str) -> None:
    """Send requests until killed; for each print when it began, how long it took and its status."""
    host, port = url.removeprefix("http://").split(":")
    body = json.dumps({"model": "m", "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]})
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    while True:
        began, status = time.monotonic(), 0
        try:
            connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
            response = connection.getresponse()
            response.read()
            status = response.status
        except (OSError, http.client.HTTPException):
            connection.close()
        print(began, time.monotonic() - began, status, flush=True)
        time.sleep(PAUSE_SECS)


@contextlib.contextmanager
def healthy_client(url: str, log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, __file__, "--healthy", url], stdout=output)
        try:
            yield
        finally:
            process.kill()
            process.wait()


def p99_of(log: Path, begin: float, end: float) -> tuple[float, int, int]:
    """Return the p99 in ms of the requests that began in a phase, their number, and how many failed."""
    rows = [line.split() for line in log.read_text().splitlines() if line.count(" ") == 2]
    inside = [(float(took), int(status)) for began, took, status in rows if begin <= float(began) < end]
    times = sorted(took for took, _ in inside)
    p99 = times[int(len(times) * 0.99)] * 1e3 if times else float("nan")
    return p99, len(times), sum(status != 200 for _, status in inside)


def leftovers(url: str, pid: int, begin: int) -> list[str]:
    """Return what is not as it was, after waiting for it."""
    until = time.monotonic() + SETTLE_SECS
    while True:
        state, now = fetch_json(f"{url}/maitred/state"), resident_bytes(pid)
        wrong = [f"{key}: {state[key]}" for key in ("in_flight", "waiting", "parked_body_bytes") if state[key]]
        wrong += [f"{b['url']} has {b['in_flight']}" for b in state["backends"] if b["in_flight"]]
        if now > begin * MEMORY_SHARE:
            wrong.append(f"memory: {now / 2**20:.0f} MiB, after the idle phase {begin / 2**20:.0f} MiB")
        if not wrong or time.monotonic() > until:
            return wrong
        time.sleep(0.5)


async def attack_gateway(attack: Attack, seconds: float, log: Path) -> tuple[dict[str, tuple[float, float]], int]:
    """Run all phases. Return when each began and ended, and the memory after the first."""
    spans, memory = {}, 0
    for name, phase in PHASES.items():
        secs = seconds if name in FUZZING else min(seconds, OTHER_SECS)
        begin, sent = time.monotonic(), attack.sent
        await phase(attack, secs)
        spans[name] = begin, time.monotonic()
        memory = memory or resident_bytes(attack.pid)
        p99, count, failed = p99_of(log, *spans[name])
        now = resident_bytes(attack.pid) / 2**20
        healthy = f"healthy: {count:4} requests, p99 {p99:6.1f} ms, {failed} failed"
        print(f"{name:13} {attack.sent - sent:7} attacks, {now:4.0f} MiB; {healthy}", flush=True)
    return spans, memory


async def until_served(url: str, models: tuple[str, ...]) -> None:
    """Wait until the gateway serves all `models`."""
    while not all(fetch_json(f"{url}/maitred/state")["models"].get(model, {"slots": 0})["slots"] for model in models):
        await asyncio.sleep(0.2)


async def run(options: argparse.Namespace, folder: Path) -> list[str]:
    """Run everything, and return what was wrong."""
    hostile = await serve_hostile(Random(options.seed + 1))
    config, log = folder / "maitred.yaml", folder / "healthy"
    config.write_text(CONFIG)
    files = ("--decision-log", str(folder / "decisions"), "--record", str(folder / "record.csv"))
    flags = ("--config", str(config), *files, *(("--router", "tr", "--state", str(folder / "s")) if options.programs else ()))
    with contextlib.ExitStack() as stack:
        good, killed = Engine("m", folder / "good"), Engine("killed", folder / "killed")
        stack.callback(good.kill)
        stack.callback(killed.kill)
        url = f"http://127.0.0.1:{hostile.sockets[0].getsockname()[1]}"
        gateway = stack.enter_context(run_gateway([good.url, url, killed.url], *flags))
        await until_served(gateway.url, ("m", "killed"))
        stack.enter_context(healthy_client(gateway.url, log))
        await asyncio.sleep(2)
        attack = Attack(gateway.url, gateway.pid, config, killed, options.seed)
        # What is imported, compiled and allocated at its first use is no leak.
        for phase in (fuzz_requests, fuzz_answers, large_bodies, flood):
            await phase(attack, WARM_UP_SECS)
        spans, memory = await attack_gateway(attack, options.seconds, log)
        hostile.close()
        wrong = await asyncio.to_thread(leftovers, gateway.url, gateway.pid, sys.maxsize if options.no_timing else memory)
        for who, said in (("gateway", gateway.log_text), ("engine", good.log.read_text(errors="replace"))):
            if "Traceback" in said:
                wrong.append(f"a traceback of the {who}:\n" + said[max(0, said.index("Traceback") - 300) :][:4_000])
    allowed = 2 * p99_of(log, *spans["idle"])[0] + 50
    for name, span in spans.items():
        p99, count, failed = p99_of(log, *span)
        if not count or failed or (p99 > allowed and not options.no_timing):
            wrong.append(f"{name}: {failed} of {count} healthy requests failed, p99 {p99:.1f} ms; allowed are {allowed:.1f} ms")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each of the two fuzzing phases")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--programs", action="store_true", help="route agent programs by memory")
    parser.add_argument("--no-timing", action="store_true", help="judge neither latency nor memory, as a test does")
    parser.add_argument("--healthy", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.healthy:
        run_healthy_client(options.healthy)
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # It warns of each write to a connection that is gone.
    with tempfile.TemporaryDirectory() as folder:
        wrong = asyncio.run(run(options, Path(folder)))
    for line in wrong:
        print(f"WRONG  {line}")
    if wrong:
        sys.exit(1)
    print("the gateway is as it was")


if __name__ == "__main__":
    main()
