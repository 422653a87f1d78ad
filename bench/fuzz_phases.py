"""The attacks of `fuzz_gateway.py`, one function for each phase."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random
from typing import TypeAlias

from body_shapes import SHAPES
from fuzz_backends import Engine
from fuzz_bytes import REQUESTS, cut_in_pieces, mutate
from fuzz_files import KINDS, in_place_of

LARGE_BYTES = 1_500_000
PATIENCE_SECS = 1.0
"""For which a hostile client waits for an answer."""
SLOW_BYTES = 6_000_000
"""Size of a body that is sent slowly; those of all its clients do not fit into the budget."""
Phase: TypeAlias = Callable[["Attack", float], Awaitable[None]]


class Attack:
    """What all phases know."""

    def __init__(self, url: str, pid: int, config: Path, outputs: Sequence[Path], killed: Engine, seed: int) -> None:
        """`outputs` are the files that the gateway writes, `pid` is its process."""
        self.pid, self.config, self.outputs, self.killed = pid, config, outputs, killed
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


async def slow_bodies(attack: Attack, secs: float) -> None:
    async def act() -> None:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(attack.host, attack.port)
            try:
                attack.sent += 1
                head = f"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {SLOW_BYTES}\r\n\r\n"
                writer.write(head.encode() + bytes(attack.random.randrange(SLOW_BYTES)))
                until = time.monotonic() + secs * attack.random.random()
                while time.monotonic() < until and not writer.transport.is_closing():
                    writer.write(bytes(attack.random.choice((1, 30, 1_000))))
                    await asyncio.sleep(0.1)
            finally:
                writer.transport.abort()

    await in_parallel(48, secs, act)


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
            await asyncio.sleep(min(4.0, secs / 2))
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
    await settle_reload(attack)


async def no_files(attack: Attack, secs: float) -> None:
    async def act() -> None:
        attack.sent += 1
        path, kind = attack.random.choice((attack.config, *attack.outputs)), attack.random.choice([*KINDS])
        with in_place_of(path, KINDS[kind]):
            os.kill(attack.pid, signal.SIGHUP)
            await attack.exchange([attack.chat("killed"), b"POST /admin/reload HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"])
            await asyncio.sleep(attack.random.random())

    await in_parallel(1, secs, act)
    await settle_reload(attack)


async def settle_reload(attack: Attack) -> None:
    """Have the configuration in force that was at the beginning."""
    await asyncio.sleep(0.5)
    os.kill(attack.pid, signal.SIGHUP)


PHASES: dict[str, Phase] = {
    "idle": idle,
    "requests": fuzz_requests,
    "answers": fuzz_answers,
    "large bodies": large_bodies,
    "slow bodies": slow_bodies,
    "flood": flood,
    "slow readers": slow_readers,
    "kill": kill,
    "reload storm": reload_storm,
    "no files": no_files,
}
FUZZING = ("requests", "answers")
WARM_UP = {fuzz_requests: 3.0, fuzz_answers: 3.0, large_bodies: 3.0, slow_bodies: 10.0, flood: 10.0}
"""How many seconds of which phase come before the first measurement: what is imported, compiled and allocated at its first use
is no leak. Slow bodies fill their budget as in their phase, because glibc keeps what was allocated in small pieces, and a flood
the table of the 1,000 requests that are kept beside a decision log (8 MiB)."""
