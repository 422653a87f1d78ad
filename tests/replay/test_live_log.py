"""A live run is true: the log of a scheduler with three gateways, all of them processes, is equal when it is run again."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request, urlopen

import msgspec

from maitred.files.rotated import in_order, read_lines
from maitred.replay import ROOMS
from maitred.replay.verify import Verifier
from ports import free_ports

NUM_REQUESTS = 2000
MAITRED = (sys.executable, "-m", "maitred")
RULES = """
admission:
  mode: priority
  default_max_class: system
  on_preempt: retry
  preemption_budget_ms: 200
  classes:
    interactive: {reserved_floor: 0, reserved_per_slot: 0, can_preempt: true}
    system: {reserved_floor: 0, reserved_per_slot: 0}
    bulk: {queue_size: %d, queue_timeout_secs: 0.1, starvation_threshold_secs: 0.05}
"""


@contextmanager
def processes(commands: Sequence[Sequence[str]], folder: Path) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Run commands of maitred until the end of the block, and then end them in good order, the last one first."""
    started = []
    try:
        for number, command in enumerate(commands):
            log = (folder / f"{number}.log").open("wb")
            started.append(subprocess.Popen([*MAITRED, *command], cwd=folder, stdout=log, stderr=log))
            log.close()
        yield started
    finally:
        for each in reversed(started):
            each.send_signal(signal.SIGINT)
        for each in started:
            try:
                each.wait(10)
            except subprocess.TimeoutExpired:
                each.kill()


def post(url: str, body: bytes = b"") -> None:
    with urlopen(Request(url, body, method="POST"), timeout=30) as answer:
        answer.read()


def wait_until_ready(ports: Sequence[int]) -> None:
    """Wait until each gateway has a backend."""
    until = time.monotonic() + 30
    for port in ports:
        while time.monotonic() < until:
            try:
                with urlopen(f"http://127.0.0.1:{port}/ready", timeout=10):
                    break
            except (URLError, OSError):
                time.sleep(0.05)


async def send(port: int, draw: random.Random, statuses: Counter[str]) -> None:
    """Send one request; one of ten leaves before its answer."""
    priority_class = draw.choice(("bulk", "bulk", "interactive", "default", "system"))
    body = b'{"model":"m","max_tokens":%d,"messages":[{"role":"user","content":"hello"}]}' % draw.randint(1, 6)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\nx-smg-priority: {priority_class}\r\ncontent-length: {len(body)}\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.encode() + b"connection: close\r\n\r\n" + body)
    if draw.random() < 0.1:
        await asyncio.sleep(draw.random() * 0.02)
        statuses["left"] += 1
    else:
        statuses[(await reader.read(12)).decode()[-3:]] += 1
    writer.close()


async def send_all(ports: Sequence[int], statuses: Counter[str]) -> None:
    draw, room = random.Random(7), asyncio.Semaphore(60)

    async def one() -> None:
        try:
            await send(draw.choice(ports), draw, statuses)
        finally:
            room.release()

    async with asyncio.TaskGroup() as group:
        for _ in range(NUM_REQUESTS):
            await room.acquire()
            group.create_task(one())


def test_a_scheduler_with_three_gateways_decides_what_its_log_says(tmp_path: Path) -> None:
    engines, (link, pages, *ports) = free_ports(2), free_ports(5)
    (tmp_path / "secret").write_text("a secret of sixteen bytes and more")
    (tmp_path / "secret").chmod(0o600)
    (tmp_path / "rules.yaml").write_text(RULES % 20)
    backends = [f for port in engines for f in ("--backend", f"http://127.0.0.1:{port}")]
    shared = [*backends, "--slots-per-backend", "4", "--config", "rules.yaml", "--link-secret-file", "secret"]
    log = tmp_path / "decisions.jsonl"
    scheduler = ["scheduler", "--listen", f"127.0.0.1:{link}", "--pages-port", str(pages), "--decision-log", str(log), *shared]
    commands = [
        *(["engine", "--port", str(port), "--model", "m", "--speed", "20"] for port in engines),
        scheduler,
        *(["serve", "--port", str(port), "--scheduler", f"127.0.0.1:{link}", *shared] for port in ports),
    ]

    async def change(running: list[subprocess.Popen[bytes]]) -> None:
        """Reload, rotate the log, and drain a backend and take it back, while requests come."""
        drained = msgspec.json.encode({"backend": f"http://127.0.0.1:{engines[0]}"})
        for number in range(3):
            await asyncio.sleep(0.3)
            (tmp_path / "rules.yaml").write_text(RULES % (5 + number))
            if number == 1:
                log.rename(f"{log}.1")
            running[2].send_signal(signal.SIGHUP)
            await asyncio.to_thread(post, f"http://127.0.0.1:{pages}/admin/{'undrain' if number % 2 else 'drain'}", drained)

    async def play(running: list[subprocess.Popen[bytes]]) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(send_all(ports, statuses))
            group.create_task(change(running))

    statuses: Counter[str] = Counter()
    with processes(commands, tmp_path) as running:
        wait_until_ready(ports)
        asyncio.run(play(running))
    assert statuses["200"] > NUM_REQUESTS / 4, statuses
    (parts,) = in_order(tmp_path.glob("decisions.jsonl*")).values()
    assert len(parts) == 2
    found = Verifier(ROOMS).run(read_lines(parts))
    assert found.difference is None
    assert (found.gaps, found.torn, found.num_unsealed) == ([], [], 0)
    assert found.num_decisions > NUM_REQUESTS
    written = b"".join(part.read_bytes() for part in parts)
    for what in (b'"action":"preempt"', b'"queue_timeout"', b'"queue_full"', b'"input":"reconfigure"', b'"input":"resize"'):
        assert what in written, what
