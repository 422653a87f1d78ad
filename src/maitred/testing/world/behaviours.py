"""What the clients of a world do: one coroutine for each kind of client.

    polite     one request after the other over a kept connection; follows Retry-After
    sdk        sends again as OpenAI's SDK for Python does: after 408, 409, 429, 5xx and a lost connection, twice at most
    stream     the same, with streams
    pipeline   several requests behind one another without a wait
    slow       reads its stream with long pauses
    dribble    sends its body in pieces, with pauses
    fickle     leaves at any moment
    flood      many at once, each on a connection of its own
    program    an agent program: turns of one session, with times for its tools

Each draws from a generator of its own. A client waits for `PATIENCE_SECS`, which is longer than anything in a world lasts: a
request that has not ended by then has been lost by the gateway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Final

import msgspec

from maitred.testing.world.clients import ClientConnection, Fate, Sent, request_bytes
from maitred.testing.world.loop import VirtualLoop

PATIENCE_SECS: Final = 900.0
MODEL: Final = "emulated"
"""What engines serve."""
OTHER_MODEL: Final = "another"
"""What one of them serves at times."""
_SDK_RETRIES: Final = 2
_SDK_OBEYS_SECS: Final = 60
"""The longest `Retry-After` that all SDKs obey."""


class ClientPlan(msgspec.Struct, frozen=True):
    """A client, as a scenario has it."""

    kind: str
    num_requests: int = 4
    priority: str = "default"
    tenant: str = "acme"
    max_tokens: int = 40
    think_secs: float = 2.0
    model: str = MODEL


class Ledger:
    """All requests of a world, and what clients have seen that must not be."""

    def __init__(self) -> None:
        self.sent: dict[str, Sent] = {}
        self.violations: list[str] = []


class SimulatedClient:
    """One client."""

    def __init__(self, loop: VirtualLoop, name: str, plan: ClientPlan, gateway: tuple[str, int], ledger: Ledger) -> None:
        self.loop, self.name, self.plan, self.ledger = loop, name, plan, ledger
        self.random: Random = loop.draws.of(f"client {name}")
        self._gateway = gateway
        self._connection: ClientConnection | None = None
        self._num_sent = 0

    async def run(self) -> None:
        """Do what a client of this kind does, and close the connection."""
        await self.think()
        await KINDS[self.plan.kind](self)
        self.close()

    def close(self) -> None:
        """Close the connection, if there is one."""
        connection, self._connection = self._connection, None
        if connection is not None and connection.is_open:
            connection.leave(abruptly=False)

    async def think(self, mean_secs: float | None = None) -> None:
        """Wait for a time that is drawn."""
        mean = self.plan.think_secs if mean_secs is None else mean_secs
        await asyncio.sleep(self.random.expovariate(1.0 / mean))

    async def connection(self) -> ClientConnection | None:
        """Return the kept connection, or another one, or None if none can be made."""
        kept = self._connection
        if kept is not None and kept.is_open and not kept.transport.is_closing():
            return kept
        self._connection = await self.connect()
        return self._connection

    async def connect(self) -> ClientConnection | None:
        """Return a connection, or None if none can be made."""
        try:
            _, connection = await self.loop.create_connection(
                lambda: ClientConnection(self.loop, self.ledger.violations.append), *self._gateway
            )
        except OSError:
            return None
        assert isinstance(connection, ClientConnection)
        return connection if connection.is_open else None

    def next_request(self, *, streams: bool) -> tuple[Sent, bytes]:
        """Return a request, and its bytes."""
        self._num_sent += 1
        mark = f"{self.name}-{self._num_sent}"
        tokens = self.random.randint(1, self.plan.max_tokens)
        sent = Sent(mark, tokens, streams, self.loop.micros, self.loop.create_future(), self.plan.priority, self.plan.model)
        headers = {"x-smg-priority": self.plan.priority, "x-smg-tenant-id": self.plan.tenant}
        if self.plan.kind == "program":
            headers["x-program-id"] = self.name
        words = self.random.randint(1, 200)
        if self.plan.kind == "program":  # What it has asked and got before is in its prompt.
            words += 150 * (self._num_sent - 1)
        prompt = "word " * words
        data = request_bytes(sent, prompt, self.plan.model, headers)
        sent.unsent_bytes = len(data)
        return sent, data

    def send(self, connection: ClientConnection, sent: Sent, data: bytes) -> None:
        """Send a request, or its first bytes."""
        self.ledger.sent[sent.mark] = sent
        sent.unsent_bytes -= len(data)
        connection.send(sent, data)

    async def ask(self, connection: ClientConnection, *, streams: bool) -> Sent:
        """Send a request, and return it when it has ended."""
        sent, data = self.next_request(streams=streams)
        self.send(connection, sent, data)
        await self.wait_for(sent)
        return sent

    async def wait_for(self, sent: Sent) -> None:
        """Wait until a request has ended. One that does not is a violation."""
        try:
            async with asyncio.timeout(PATIENCE_SECS):
                await asyncio.shield(sent.ended)
        except TimeoutError:
            self.ledger.violations.append(f"request {sent.mark} has not ended within {PATIENCE_SECS:g} s")
            sent.ended.set_result(Fate.ABANDONED)


async def _polite(client: SimulatedClient, *, streams: bool = False) -> None:
    for _ in range(client.plan.num_requests):
        connection = await client.connection()
        if connection is None:
            await client.think()
            continue
        sent = await client.ask(connection, streams=streams)
        await client.think(_retry_after(sent) or client.plan.think_secs)


async def _sdk(client: SimulatedClient) -> None:
    for _ in range(client.plan.num_requests):
        streams, wait = client.random.random() < 0.5, 0.0
        for num_retries in range(_SDK_RETRIES + 1):
            await asyncio.sleep(wait)
            connection = await client.connection()
            sent = None if connection is None else await client.ask(connection, streams=streams)
            told = None if sent is None else _sdk_wait(client, sent, num_retries)
            if sent is not None and told is None:
                break
            wait = told or _sdk_backoff(client, num_retries)
        await client.think()


def _sdk_wait(client: SimulatedClient, sent: Sent, num_retries: int) -> float | None:
    """Return after how many seconds the SDK sends a request again, or None if it does not."""
    answer = sent.answer
    if answer is None:  # The connection was lost.
        return _sdk_backoff(client, num_retries)
    told = answer.headers.get(b"retry-after", b"")
    if told and not (told.isdigit() and 0 < int(told) <= _SDK_OBEYS_SECS):
        client.ledger.violations.append(f"request {sent.mark} is told to come back after {told!r} s")
    should_retry = answer.headers.get(b"x-should-retry")
    if should_retry != b"true" and (should_retry == b"false" or not (answer.status in (408, 409, 429) or answer.status >= 500)):
        return None
    return float(told) if told.isdigit() else _sdk_backoff(client, num_retries)


def _sdk_backoff(client: SimulatedClient, num_retries: int) -> float:
    return float(min(0.5 * 2.0**num_retries, 8.0) * (1 - 0.25 * client.random.random()))


async def _stream(client: SimulatedClient) -> None:
    await _polite(client, streams=True)


async def _pipeline(client: SimulatedClient) -> None:
    connection = await client.connection()
    if connection is None:
        return
    requests = [client.next_request(streams=client.random.random() < 0.3) for _ in range(client.plan.num_requests)]
    for sent, data in requests:
        client.send(connection, sent, data)
        if client.random.random() < 0.3:
            await client.think(0.1)
        if not connection.is_open:
            break
    for sent, _ in requests:
        if sent.mark in client.ledger.sent:
            await client.wait_for(sent)


async def _slow(client: SimulatedClient) -> None:
    for _ in range(client.plan.num_requests):
        connection = await client.connection()
        if connection is None:
            return
        sent, data = client.next_request(streams=True)
        client.send(connection, sent, data)
        while not sent.ended.done() and connection.is_open:
            connection.transport.pause_reading()
            await client.think(3.0)
            connection.transport.resume_reading()
            await client.think(0.05)
        await client.wait_for(sent)


async def _dribble(client: SimulatedClient) -> None:
    for _ in range(client.plan.num_requests):
        connection = await client.connection()
        if connection is None:
            return
        sent, data = client.next_request(streams=False)
        client.send(connection, sent, b"")
        while data and connection.is_open:
            size = client.random.randint(1, len(data))
            connection.transport.write(data[:size])
            data = data[size:]
            sent.unsent_bytes = len(data)
            await client.think(0.5)
        await client.wait_for(sent)


async def _fickle(client: SimulatedClient) -> None:
    for _ in range(client.plan.num_requests):
        connection = await client.connect()
        if connection is None:
            return
        sent, data = client.next_request(streams=client.random.random() < 0.5)
        client.send(connection, sent, data[: client.random.randint(1, len(data))] if client.random.random() < 0.2 else data)
        await client.think(0.3)
        if connection.is_open:
            connection.leave(abruptly=client.random.random() < 0.5)
        await client.think()


async def _flood(client: SimulatedClient) -> None:
    await asyncio.gather(*(_ask_alone(client) for _ in range(client.plan.num_requests * 3)))


async def _ask_alone(client: SimulatedClient) -> None:
    await client.think(0.2)
    connection = await client.connect()
    if connection is not None:
        await client.ask(connection, streams=client.random.random() < 0.3)
        if connection.is_open:
            connection.leave(abruptly=False)


async def _program(client: SimulatedClient) -> None:
    await _polite(client, streams=True)


def _retry_after(sent: Sent) -> float:
    told = b"" if sent.answer is None else sent.answer.headers.get(b"retry-after", b"")
    return float(told) if told.isdigit() else 0.0


KINDS: Final[dict[str, Callable[[SimulatedClient], Awaitable[None]]]] = {
    "polite": _polite,
    "sdk": _sdk,
    "stream": _stream,
    "pipeline": _pipeline,
    "slow": _slow,
    "dribble": _dribble,
    "fickle": _fickle,
    "flood": _flood,
    "program": _program,
}
