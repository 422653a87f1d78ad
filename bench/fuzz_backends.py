"""The backends of `fuzz_gateway.py`: engines that can be killed, and one that answers with mutated bytes."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from pathlib import Path
from random import Random

from fuzz_bytes import ANSWERS, POLL_ANSWERS, cut_in_pieces, mutate
from processes import MAITRED, free_ports

MAX_SILENCE_SECS = 0.5
"""For which the hostile backend keeps silent at most."""


class Engine:
    """An emulated engine that generates quickly, in a process of its own; what it says goes to `log`."""

    def __init__(self, model: str, log: Path) -> None:
        self.port, self.log = free_ports(1)[0], log
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
                    await asyncio.sleep(random.choice((0, 0, 0, 0.001, MAX_SILENCE_SECS)))
                if path not in POLL_ANSWERS and random.random() < 0.5:
                    break
        writer.transport.abort()

    return await asyncio.start_server(answer, "127.0.0.1", 0)
