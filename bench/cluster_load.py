"""The clients of `cluster.py`: a flood of bulk requests, and chats at random. Each request has a connection of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

BULK_TOKENS, CHAT_TOKENS = 60, 20


@dataclass
class Sent:
    """One request, as its client saw it. Times are in seconds, on one clock."""

    is_chat: bool
    at: float
    port: int = 0
    gateway: int = 0
    """The port of the gateway that it was sent to."""
    connected_at: float = 0.0
    first_at: float | None = None
    ended_at: float | None = None
    is_whole: bool = False
    answer: bytes = b""
    """How what came begins."""


@dataclass
class Load:
    """All requests of one run."""

    ports: Sequence[int]
    """The ports of the gateways; each request takes one at random."""
    random: Random
    sent: list[Sent] = field(default_factory=list)

    async def request(self, *, is_chat: bool) -> None:
        """Send one request."""
        one = Sent(is_chat, time.monotonic())
        self.sent.append(one)
        tokens, name = (CHAT_TOKENS, "interactive") if is_chat else (BULK_TOKENS, "bulk")
        body = json.dumps({"model": "m", "stream": True, "max_tokens": tokens, "messages": []}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: b\r\nx-smg-priority: {name}\r\ncontent-length: {len(body)}\r\n\r\n"
        with contextlib.suppress(OSError):
            reader, writer = await self._connect()
            one.port, one.connected_at = writer.get_extra_info("sockname")[1], time.monotonic()
            one.gateway = writer.get_extra_info("peername")[1]
            writer.write(head.encode() + body)
            got = b""
            while piece := await reader.read(65_536):
                got += piece
                if one.first_at is None and b"data: " in got:
                    one.first_at = time.monotonic()
                if got.endswith(b"\r\n0\r\n\r\n") or b"HTTP/1.1 200" not in got[:20]:
                    break
            one.is_whole, one.answer = b"[DONE]" in got, got[:400]
            writer.close()
        one.ended_at = time.monotonic()
        if not one.is_whole:
            await asyncio.sleep(0.1)

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
