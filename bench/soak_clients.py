"""The clients of the soak: a closed loop of clients of all classes, some of which leave, and what each of them saw.

    python bench/soak_clients.py --url http://127.0.0.1:8080 --clients 48 --seconds 3600 --step-secs 0.02 [--programs]

An answer that is whole holds the mark of its request in each token; the client compares every byte. What the clients saw goes
to stdout as JSON (`SoakSeen`): how often each end occurred, and the first requests that failed for no fault of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import Counter
from random import Random

import msgspec
import uvloop

from http_client import ClientRequest, ClientResponse, Connection, encode_request
from processes import raise_descriptor_limit
from soak_engine import MODEL, streamed, whole

CLASSES = {"system": 2, "interactive": 38, "default": 30, "bulk": 30}
TOKENS = (4, 40)
THINK_SECS = 0.2
"""Mean of the pause of a client between two requests."""
LEAVES = 0.03
"""Share of the requests whose client leaves early."""
REFUSAL_PAUSE_SECS = 1.0
SHED = {(429, "scheduler_queue_full"), (429, "scheduler_tenant_queue_full"), (408, "scheduler_queue_timeout")}
MAX_EXAMPLES = 20
GIVE_UP_SECS = 120.0
"""After which a request counts as never answered."""


class Failure(msgspec.Struct):
    """One request that failed for no fault of its own."""

    at: float
    """Seconds since the clients began."""
    what: str
    stream: bool
    took: float


class SoakSeen(msgspec.Struct):
    """What all clients saw."""

    ends: dict[str, int]
    failures: list[Failure]
    """The first of them."""
    foreign: int = 0
    """Answers with bytes that are not those of their request's answer."""


class MarkedConnection(Connection):
    """A connection that keeps what it receives of a body."""

    body = b""

    def on_body(self, piece: bytes) -> None:
        self.body += piece
        super().on_body(piece)


def classify(response: ClientResponse, expected: bytes, got: bytes, *, stream: bool) -> str:
    """Return how a request has ended: `whole`, `left`, `shed`, `preempted`, `begun` (its stream was cut after its first token),
    `foreign` (another's bytes), or what failed, for no fault of the request."""
    if response.status == 200 and not expected.startswith(got):
        if b'"EngineCore' not in got and b'"error"' not in got:
            return "foreign"
        said = got.split(b'data: {"error"')[0]
        return "begun" if stream and said and expected.startswith(said) else "200 with an error"
    if response.left:
        return "left"
    if response.complete and response.status == 200:
        return "whole" if got == expected else ("begun" if got else "200 without a body")
    if response.complete and (response.status, response.code) in SHED:
        return "shed"
    if response.complete and response.headers.get(b"x-smg-preempted") == b"true":
        return "preempted"
    if stream and response.status == 200 and got:
        return "begun"
    return f"{response.status or 'no answer'} {response.code}".strip()


class Client:
    """One client, with one connection at a time."""

    def __init__(self, number: int, options: argparse.Namespace, seen: SoakSeen, began: float) -> None:
        self.number, self.options, self.seen, self.began = number, options, seen, began
        self.random = Random(f"{options.seed}/{number}")
        self.host, _, port = options.url.removeprefix("http://").partition(":")
        self.port = int(port)
        self.connection: MarkedConnection | None = None
        self.sent = 0

    async def run(self) -> None:
        """Send one request after the other until the time is over."""
        while time.monotonic() - self.began < self.options.seconds:
            end = await self.ask()
            self.seen.ends[end] += 1
            pause = REFUSAL_PAUSE_SECS if end in {"shed", "preempted"} else THINK_SECS
            await asyncio.sleep(self.random.expovariate(1 / pause))

    async def ask(self) -> str:
        random = self.random
        tokens, stream = random.randint(*TOKENS), random.random() < 0.6
        mark = f"c{self.number}r{self.sent}"
        self.sent += 1
        request = self.request(mark, tokens, stream)
        expected = (streamed if stream else whole)(mark.encode(), tokens)
        response = await self.exchange(request)
        got = self.connection.body if self.connection else b""
        end = classify(response, expected, got, stream=stream)
        if end not in {"whole", "left", "shed", "preempted", "begun"}:
            self.seen.foreign += end == "foreign"
            if len(self.seen.failures) < MAX_EXAMPLES:
                at = time.monotonic() - self.began
                self.seen.failures.append(Failure(round(at, 2), f"{end} {got[:80]!r}", stream, round(response.took, 2)))
        return end

    def request(self, mark: str, tokens: int, stream: bool) -> ClientRequest:
        random = self.random
        fields: dict[str, object] = {"model": MODEL, "max_tokens": tokens, "stream": stream, "user": mark}
        if self.options.programs:
            fields["program_id"] = f"p{self.number % 16}"
        body = json.dumps(fields | {"messages": [{"role": "user", "content": "soak " * 64}]}).encode()
        priority_class = random.choices(list(CLASSES), list(CLASSES.values()))[0]
        headers = {"x_smg_priority": priority_class, "x_smg_tenant_id": f"t{self.number % 6}"}
        raw = encode_request("/v1/chat/completions", body, **headers)
        if random.random() >= LEAVES:
            return ClientRequest(raw, 0)
        return ClientRequest(raw, 0, leave_after_secs=random.uniform(0, tokens * self.options.step_secs))

    async def exchange(self, request: ClientRequest) -> ClientResponse:
        """Send a request, on a connection of its own if the last one is closed, and return what came."""
        loop = asyncio.get_running_loop()
        try:
            if self.connection is None or not self.connection.open:
                self.connection = None
                self.connection = (await loop.create_connection(MarkedConnection, self.host, self.port))[1]
        except OSError:
            return ClientResponse()
        done: asyncio.Future[ClientResponse] = loop.create_future()
        self.connection.body = b""
        self.connection.send_request(request, lambda response: None if done.done() else done.set_result(response))
        try:
            return await asyncio.wait_for(done, GIVE_UP_SECS)
        except TimeoutError:
            self.connection.close()
            return ClientResponse(took=GIVE_UP_SECS)


async def play(options: argparse.Namespace) -> SoakSeen:
    seen, began = SoakSeen(Counter(), []), time.monotonic()
    await asyncio.gather(*(Client(number, options, seen, began).run() for number in range(options.clients)))
    return seen


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--step-secs", type=float, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--programs", action="store_true")
    raise_descriptor_limit()
    print(msgspec.json.encode(uvloop.run(play(parser.parse_args()))).decode())
