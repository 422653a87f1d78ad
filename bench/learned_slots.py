"""Learned slots before emulated engines that do not say how many sequences they run, beside slots set by hand.

    python bench/learned_slots.py [--limits 8,16,128,512] [--secs 20]

For each limit: bulk clients in a closed loop (twice the limit and 20) and chats at random instants, before one engine behind
one gateway. First with `--slots-per-backend LIMIT`, then as the gateway comes. In the second run the engine is restarted with
half the limit. Bulk is not streamed, so that a large engine costs one machine little; engines of more than 128 sequences run
slower still, and are measured for longer in proportion. So are engines of fewer than 64, which give few answers per second.

A row says: bulk answers per second and the times to first token of chats (p50, p99, ms) by hand and learned, after the first
ten seconds; when the slots were first within 10 % of the limit, and when again after the restart, in seconds. All times are
wall times of this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import processes

PORT = 19_480
CHATS_PER_SEC = 4.0
SETTLING_SECS = 10.0
"""At the beginning, left out of rates and times."""
RESTART_SECS = 20.0
"""How long the engine of half the limit is measured."""
BODY = {"model": "m", "max_tokens": 200}


@dataclass
class Load:
    """What clients have seen, in seconds since the beginning."""

    url: str
    began: float = field(default_factory=time.monotonic)
    bulk_ends: list[float] = field(default_factory=list)
    chats: list[tuple[float, float]] = field(default_factory=list)
    """Arrival and time to first token."""
    slots: list[tuple[float, int]] = field(default_factory=list)

    @property
    def now(self) -> float:
        return time.monotonic() - self.began

    def bulk_per_sec(self, since: float, until: float) -> float:
        return sum(since <= at < until for at in self.bulk_ends) / (until - since)

    def ttft(self, share: float, since: float, until: float) -> float:
        times = sorted(ttft for at, ttft in self.chats if since <= at < until)
        return 1000 * times[min(len(times) - 1, int(share * len(times)))] if times else float("nan")

    def found(self, limit: int, since: float) -> float | None:
        """Return how long after `since` the slots were first within 10 % of `limit`, or 1."""
        return next((at - since for at, n in self.slots if at >= since and abs(n - limit) <= max(1, limit / 10)), None)


@contextlib.contextmanager
def run_engine(limit: int, speed: float, port: int) -> Iterator[str]:
    """Run an engine with `limit` sequences, which reports no slots."""
    flags = ["--port", str(port), "--model", "m", "--max-num-seqs", str(limit), "--hide-slots", "--speed", f"{speed:g}"]
    flags += ["--output-tokens", "uniform:30,90", "--total-kv-blocks", "100000"]
    with subprocess.Popen([*processes.MAITRED, "engine", *flags], stderr=subprocess.DEVNULL) as process:
        url = f"http://127.0.0.1:{port}"
        for _ in range(400):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{url}/health", timeout=1).close()
                break
            time.sleep(0.05)
        try:
            yield url
        finally:
            process.terminate()


async def send(load: Load, cls: str, rng: Random) -> None:
    """Send one request, and note what came."""
    host, port = load.url.removeprefix("http://").split(":")
    began, first = load.now, None
    prompt = "hello world " * rng.randint(10, 40)
    body = json.dumps({**BODY, "stream": cls != "bulk", "prompt": prompt}).encode()
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-smg-priority: {cls}\r\nconnection: close\r\n"
        head += f"content-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        if b" 200 " not in await reader.readline():
            await asyncio.sleep(0.2)
            return
        async for line in reader:
            if first is None and line.startswith(b"data:"):
                first = load.now
    except (ConnectionError, asyncio.IncompleteReadError):
        await asyncio.sleep(0.2)
        return
    finally:
        writer.close()
    if cls == "bulk":
        load.bulk_ends.append(load.now)
    elif first is not None:
        load.chats.append((began, first - began))


async def play(load: Load, clients: int, secs: float) -> None:
    """Load the gateway for `secs`. Chats come at the same instants in every run."""
    rng, tasks = Random(1), set[asyncio.Task[None]]()
    chats = Random(2)

    async def bulk() -> None:
        while True:
            await send(load, "bulk", rng)

    async def watch() -> None:
        while True:
            state = await asyncio.to_thread(processes.fetch_json, f"{load.url}/maitred/state")
            load.slots.append((load.now, state["backends"][0]["slots"]))
            await asyncio.sleep(0.1)

    tasks.update(asyncio.create_task(bulk()) for _ in range(clients))
    tasks.add(asyncio.create_task(watch()))
    until = load.now + secs
    while load.now < until:
        await asyncio.sleep(min(until - load.now, chats.expovariate(CHATS_PER_SEC)))
        tasks.add(asyncio.create_task(send(load, "interactive", chats)))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def measure(limit: int, speed: float, secs: float, *, by_hand: bool) -> Load:
    """Measure one limit; learned slots also before an engine that comes back with half of it."""
    flags = ["--admission", "priority", "--default-max-class", "system"]
    flags += ["--slots-per-backend", str(limit)] if by_hand else []
    clients = 2 * limit + 20
    with contextlib.ExitStack() as gateways:
        with run_engine(limit, speed, PORT) as url:
            gateway = gateways.enter_context(processes.run_gateway([url], *flags))
            while not processes.fetch_json(f"{gateway.url}/maitred/state")["ready"]:
                time.sleep(0.05)
            load = Load(gateway.url)
            asyncio.run(play(load, clients, secs))
        if not by_hand:
            with run_engine(limit // 2, speed, PORT):
                while not processes.fetch_json(f"{gateway.url}/maitred/state")["ready"]:
                    time.sleep(0.05)
                load.slots.append((load.now, -1))  # From here on the limit is another.
                asyncio.run(play(load, clients, RESTART_SECS / speed))
    return load


def row(limit: int, secs: float) -> str:
    """Return a row of the table."""
    speed = min(1.0, 128 / limit)
    secs *= max(1.0, 64 / limit) / speed
    settled = min(SETTLING_SECS / speed, secs / 2)
    hand, learned = measure(limit, speed, secs, by_hand=True), measure(limit, speed, secs, by_hand=False)
    restarted = next(at for at, slots in learned.slots if slots == -1)
    by_hand, found = hand.bulk_per_sec(settled, secs), learned.bulk_per_sec(settled, secs)
    cells = [str(limit), f"{by_hand:.1f}", f"{found:.1f} ({found / by_hand:.2f})" if by_hand else "-"]
    cells += [f"{load.ttft(0.5, settled, secs):.0f} / {load.ttft(0.99, settled, secs):.0f}" for load in (hand, learned)]
    times = (learned.found(limit, 0.0), learned.found(limit // 2, restarted + 1e-6))
    cells += ["never" if at is None else f"{at:.1f}" for at in times]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limits", default="8,16,128,512")
    parser.add_argument("--secs", type=float, default=20.0)
    args = parser.parse_args()
    print("| limit | bulk/s by hand | learned | chats by hand | learned | found after | again after |")
    print("|---|---|---|---|---|---|---|")
    for limit in map(int, args.limits.split(",")):
        print(row(limit, args.secs), flush=True)


if __name__ == "__main__":
    main()
