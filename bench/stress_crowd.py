"""The clients of `make stress`: thousands in one process, each with a connection that it keeps.

    python bench/stress_crowd.py --url http://127.0.0.1:8080 --clients 10000 --rate 2000 --seconds 60 --step-secs 0.5

Requests are sent at a fixed rate, whether or not earlier ones are answered, each by the client that has been idle longest.
Some clients disconnect while they wait, some in the middle of a stream, and come back with a new connection. At the end all
responses are awaited. What the clients saw goes to stdout as JSON (`CrowdSeen`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import Counter, deque
from collections.abc import Iterator
from functools import cache, partial
from random import Random

import msgspec
import uvloop

from http_client import ClientRequest, ClientResponse, Connection, connect, encode_request
from maitred.core.request import PriorityClass
from mock_engine import EVENT, streamed, whole
from processes import raise_descriptor_limit

MODELS = ("alpha", "beta")
CLASSES = {PriorityClass.SYSTEM: 2, PriorityClass.INTERACTIVE: 28, PriorityClass.DEFAULT: 30, PriorityClass.BULK: 40}
"""Share of the requests in percent. At twice the capacity the upper two fit, part of `default`, and little of `bulk`."""
TENANTS = tuple(f"t{number}" for number in range(24))
CAPPED = {"t0": PriorityClass.DEFAULT}
"""Tenants that get a lower class than they ask for."""
STEPS = range(4, 13)
TICK_SECS = 0.005
PATIENCE_SECS = 120.0
"""Seconds to wait for responses after the last request."""


class ClassSeen(msgspec.Struct):
    """Requests of one class, by what their clients saw."""

    sent: int = 0
    whole: int = 0
    queue_full: int = 0
    """429"""
    queue_timeout: int = 0
    """408"""
    preempted: int = 0
    left: int = 0
    """The client disconnected before its response was complete."""
    strange: int = 0
    """Any other end: a response cut short, none at all, an unexpected status or code."""


class CrowdSeen(msgspec.Struct):
    """What all clients saw."""

    classes: dict[str, ClassSeen]
    strange: dict[str, int]
    """Unexpected ends, and how often each occurred."""
    clients: int = 0
    """Clients that sent at least one request."""
    seconds: float = 0.0
    """From the first request to the last."""
    not_sent: int = 0
    """Requests that were due while all clients waited for a response."""
    first_byte_ms: dict[str, list[float]] = {}
    """Time to first byte of whole responses by class: p50, p99."""


SHED = {
    429: ("queue_full", {"scheduler_queue_full", "scheduler_tenant_queue_full"}),
    408: ("queue_timeout", {"scheduler_queue_timeout"}),
}


def classify_response(request: ClientRequest, response: ClientResponse) -> tuple[str, str]:
    """Return the field of ClassSeen to count a response in, and what was unexpected about it."""
    if response.left:
        return "left", ""
    if not response.complete:
        return "strange", f"{response.status} cut short" if response.status else "no answer"
    if response.status == 200:
        return ("whole", "") if response.size == request.body_bytes else ("strange", "200 with another body than the engine's")
    if not response.headers.get(b"retry-after", b"").isdigit():
        return "strange", f"{response.status} {response.code} without Retry-After"
    if (
        response.status == 503
        and response.code == "scheduler_preempted"
        and response.headers.get(b"x-smg-preempted") == b"true"
    ):
        return "preempted", ""
    name, codes = SHED.get(response.status, ("", set()))
    return (name, "") if response.code in codes else ("strange", f"{response.status} {response.code}")


@cache
def encode_for(priority_class: PriorityClass, model: str, tenant: str, stream: bool, steps: int) -> tuple[bytes, int]:
    """Return a request, and the size of the body of its response."""
    messages = [{"role": "user", "content": "What is it that you would say to this? " * 8}]
    body = json.dumps({"model": model, "max_tokens": steps, "stream": stream, "messages": messages}).encode()
    headers = {"x_smg_priority": priority_class.label, "x_smg_tenant_id": tenant}
    return encode_request("/v1/chat/completions", body, **headers), len(streamed(steps) if stream else whole(steps))


def make_requests(step_secs: float, random: Random) -> Iterator[tuple[PriorityClass, ClientRequest]]:
    """Yield requests without end, each with the class that it gets."""
    classes, shares = list(CLASSES), list(CLASSES.values())
    while True:
        priority_class = random.choices(classes, shares)[0]
        tenant, steps, stream = random.choice(TENANTS), random.choice(STEPS), random.random() < 0.6
        raw, size = encode_for(priority_class, random.choice(MODELS), tenant, stream, steps)
        request = ClientRequest(raw, size)
        if random.random() < 0.04:  # disconnects early: mostly in a queue
            request = ClientRequest(raw, size, leave_after_secs=step_secs * random.uniform(0.2, 4))
        elif stream and random.random() < 0.05:
            request = ClientRequest(raw, size, leave_after_bytes=len(EVENT) * random.randrange(1, steps))
        yield min(priority_class, CAPPED.get(tenant, priority_class)), request


class Crowd:
    """All clients."""

    def __init__(self, url: str, clients: int) -> None:
        self._url = url
        self._idle: deque[Connection] = deque()
        self._size = clients
        self._num_waiting = 0
        """Clients that wait for a response."""
        self._first_bytes: dict[PriorityClass, list[float]] = {c: [] for c in CLASSES}
        self._tasks: set[asyncio.Task[None]] = set()
        self.seen = CrowdSeen({c.label: ClassSeen() for c in CLASSES}, Counter())

    async def play(self, rate: float, seconds: float, requests: Iterator[tuple[PriorityClass, ClientRequest]]) -> None:
        """Connect, send requests for `seconds`, and wait for the last responses."""
        await self._connect()
        began, sent = time.monotonic(), 0
        while (elapsed := time.monotonic() - began) < seconds:
            due = int(elapsed * rate) - sent
            sent += due
            for _ in range(due):
                self._send(*next(requests))
            await asyncio.sleep(TICK_SECS)
        self.seen.seconds = time.monotonic() - began
        self.seen.clients = min(self._size, sent)
        await self._wait_for_responses()
        self.seen.first_byte_ms = {c.label: _percentiles(values) for c, values in self._first_bytes.items() if values}

    async def _connect(self) -> None:
        """Connect all clients, some at a time: the backlog of a listener is limited."""
        for start in range(0, self._size, 500):
            some = range(start, min(start + 500, self._size))
            self._idle += await asyncio.gather(*(connect(self._url) for _ in some))

    def _send(self, priority_class: PriorityClass, request: ClientRequest) -> None:
        if not self._idle:
            self.seen.not_sent += 1
            return
        connection = self._idle.popleft()
        self._num_waiting += 1
        self.seen.classes[priority_class.label].sent += 1
        if connection.open:
            connection.send_request(request, partial(self._on_response, connection, priority_class, request))
        else:
            task = asyncio.create_task(self._reconnect(priority_class, request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _reconnect(self, priority_class: PriorityClass, request: ClientRequest) -> None:
        connection = await connect(self._url)
        connection.send_request(request, partial(self._on_response, connection, priority_class, request))

    def _on_response(
        self, connection: Connection, priority_class: PriorityClass, request: ClientRequest, response: ClientResponse
    ) -> None:
        self._num_waiting -= 1
        self._idle.append(connection)
        name, strange = classify_response(request, response)
        seen = self.seen.classes[priority_class.label]
        setattr(seen, name, getattr(seen, name) + 1)
        if strange:
            self.seen.strange[strange] += 1
        if name == "whole":
            self._first_bytes[priority_class].append(response.first_byte * 1e3)

    async def _wait_for_responses(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECS
        while self._num_waiting and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        if self._num_waiting:
            self.seen.strange["never answered"] = self._num_waiting
        for connection in self._idle:
            connection.close()


def _percentiles(values: list[float]) -> list[float]:
    ordered = sorted(values)
    return [round(ordered[int(len(ordered) * share)], 1) for share in (0.5, 0.99)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--step-secs", type=float, required=True)
    options = parser.parse_args()
    raise_descriptor_limit()
    crowd = Crowd(options.url, options.clients)
    uvloop.run(crowd.play(options.rate, options.seconds, make_requests(options.step_secs, Random(3))))
    print(msgspec.json.encode(crowd.seen).decode())
