"""The crowd of `make stress`: thousands of clients in one process, each with a connection that it keeps.

    python bench/stress_crowd.py --url http://127.0.0.1:8080 --clients 10000 --rate 2000 --seconds 60 --step-secs 0.5

Requests are sent at a fixed rate whether or not the ones before have been answered, each by the client that has been idle
longest; some clients leave while they wait, some in the middle of a stream, and come back with a fresh connection. In the end
everybody is waited for. What was seen goes to stdout as JSON (see Seen).
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

from http_client import Answer, Ask, Connection, connect, request
from maitred.core.request import PriorityClass
from mock_engine import EVENT, streamed, whole
from stage import use_every_descriptor

MODELS = ("alpha", "beta")
CLASSES = {PriorityClass.SYSTEM: 2, PriorityClass.INTERACTIVE: 28, PriorityClass.DEFAULT: 30, PriorityClass.BULK: 40}
"""Who asks, in percent. At twice the capacity the upper two fit, some of `default` and most of `bulk` do not."""
TENANTS = tuple(f"t{number}" for number in range(24))
CAPPED = {"t0": PriorityClass.DEFAULT}
"""Tenants whose requests count as a lower class than they ask for."""
STEPS = range(4, 13)
TICK_SECS = 0.005
PATIENCE_SECS = 120.0
"""For the last answers, after the last request."""


class ClassSeen(msgspec.Struct):
    """What the clients of one class saw."""

    sent: int = 0
    whole: int = 0
    queue_full: int = 0
    """429"""
    queue_timeout: int = 0
    """408"""
    preempted: int = 0
    left: int = 0
    """Went away before their answer was complete."""
    strange: int = 0
    """Anything else: an answer cut short, none at all, a status or a code that does not belong here."""


class Seen(msgspec.Struct):
    """What all clients saw."""

    classes: dict[str, ClassSeen]
    strange: dict[str, int]
    """What exactly, and how often."""
    clients: int = 0
    """That asked at least once."""
    seconds: float = 0.0
    """From the first request to the last."""
    nobody_idle: int = 0
    """Requests that were not sent, because all clients waited for an answer."""
    first_byte_ms: dict[str, list[float]] = {}
    """By class, of whole answers: p50, p99."""


SHED = {
    429: ("queue_full", {"scheduler_queue_full", "scheduler_tenant_queue_full"}),
    408: ("queue_timeout", {"scheduler_queue_timeout"}),
}


def outcome(ask: Ask, answer: Answer) -> tuple[str, str]:
    """The field of ClassSeen to count it in, and what was strange about it."""
    if answer.left:
        return "left", ""
    if not answer.complete:
        return "strange", f"{answer.status} cut short" if answer.status else "no answer"
    if answer.status == 200:
        return ("whole", "") if answer.size == ask.body_bytes else ("strange", "200 with another body than the engine's")
    if not answer.headers.get(b"retry-after", b"").isdigit():
        return "strange", f"{answer.status} {answer.code} without Retry-After"
    if answer.status == 503 and answer.code == "scheduler_preempted" and answer.headers.get(b"x-smg-preempted") == b"true":
        return "preempted", ""
    name, codes = SHED.get(answer.status, ("", set()))
    return (name, "") if answer.code in codes else ("strange", f"{answer.status} {answer.code}")


@cache
def wire(priority_class: PriorityClass, model: str, tenant: str, stream: bool, steps: int) -> tuple[bytes, int]:
    """A request, and the size of its answer's body."""
    messages = [{"role": "user", "content": "What is it that you would say to this? " * 8}]
    body = json.dumps({"model": model, "max_tokens": steps, "stream": stream, "messages": messages}).encode()
    headers = {"x_smg_priority": priority_class.label, "x_smg_tenant_id": tenant}
    return request("/v1/chat/completions", body, **headers), len(streamed(steps) if stream else whole(steps))


def asks(step_secs: float, random: Random) -> Iterator[tuple[PriorityClass, Ask]]:
    """Requests for ever, each with the class that it counts as."""
    classes, shares = list(CLASSES), list(CLASSES.values())
    while True:
        priority_class = random.choices(classes, shares)[0]
        tenant, steps, stream = random.choice(TENANTS), random.choice(STEPS), random.random() < 0.6
        raw, size = wire(priority_class, random.choice(MODELS), tenant, stream, steps)
        ask = Ask(raw, size)
        if random.random() < 0.04:  # runs out of patience: mostly in a queue
            ask = Ask(raw, size, stay_secs=step_secs * random.uniform(0.2, 4))
        elif stream and random.random() < 0.05:
            ask = Ask(raw, size, stay_bytes=len(EVENT) * random.randrange(1, steps))
        yield min(priority_class, CAPPED.get(tenant, priority_class)), ask


class Crowd:
    def __init__(self, url: str, clients: int) -> None:
        self._url = url
        self._idle: deque[Connection] = deque()
        self._size = clients
        self._away = 0
        """Clients that wait for an answer."""
        self._first_bytes: dict[PriorityClass, list[float]] = {c: [] for c in CLASSES}
        self._tasks: set[asyncio.Task[None]] = set()
        self.seen = Seen({c.label: ClassSeen() for c in CLASSES}, Counter())

    async def play(self, rate: float, seconds: float, requests: Iterator[tuple[PriorityClass, Ask]]) -> None:
        """Connect, send for so many seconds, and wait for what is still to come."""
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
        await self._landed()
        self.seen.first_byte_ms = {c.label: _percentiles(values) for c, values in self._first_bytes.items() if values}

    async def _connect(self) -> None:
        """All of them, some at a time: a listener's backlog is not endless."""
        for start in range(0, self._size, 500):
            some = range(start, min(start + 500, self._size))
            self._idle += await asyncio.gather(*(connect(self._url) for _ in some))

    def _send(self, priority_class: PriorityClass, ask: Ask) -> None:
        if not self._idle:
            self.seen.nobody_idle += 1
            return
        connection = self._idle.popleft()
        self._away += 1
        self.seen.classes[priority_class.label].sent += 1
        if connection.open:
            connection.ask(ask, partial(self._answered, connection, priority_class, ask))
        else:
            task = asyncio.create_task(self._come_back(priority_class, ask))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _come_back(self, priority_class: PriorityClass, ask: Ask) -> None:
        connection = await connect(self._url)
        connection.ask(ask, partial(self._answered, connection, priority_class, ask))

    def _answered(self, connection: Connection, priority_class: PriorityClass, ask: Ask, answer: Answer) -> None:
        self._away -= 1
        self._idle.append(connection)
        name, strange = outcome(ask, answer)
        books = self.seen.classes[priority_class.label]
        setattr(books, name, getattr(books, name) + 1)
        if strange:
            self.seen.strange[strange] += 1
        if name == "whole":
            self._first_bytes[priority_class].append(answer.first_byte * 1e3)

    async def _landed(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECS
        while self._away and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        if self._away:
            self.seen.strange["never answered"] = self._away
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
    use_every_descriptor()
    crowd = Crowd(options.url, options.clients)
    uvloop.run(crowd.play(options.rate, options.seconds, asks(options.step_secs, Random(3))))
    print(msgspec.json.encode(crowd.seen).decode())
