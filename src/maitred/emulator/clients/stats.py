"""Emulated clients: a workload replayed over HTTP in an open loop, and what the clients saw, counted per class.

Each job is sent at its arrival, whether or not earlier jobs have their answers. A closed loop would slow down with the server
and hide its queue. An answer has exactly the length of the job.

A request that was sent is waiting, in flight, or has ended with exactly one outcome:

    num_sent  =  num_waiting  +  num_in_flight  +  sum of num_ended
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from time import monotonic

import msgspec

from maitred.core.request import PriorityClass, Request
from maitred.core.units import Micros, to_seconds
from maitred.emulator import tokens
from maitred.wire import sse
from maitred.wire.client import Origin, UpstreamClient
from maitred.wire.errors import UpstreamError
from maitred.wire.response import UpstreamResponse
from maitred.workload import Job


class ClientOutcome(Enum):
    """The end of a request, as its client sees it."""

    COMPLETED = "completed"
    REJECTED = "rejected"
    """The server had no room for the request (429, 503), or none in time (408)."""
    SLOT_PREEMPTED = "preempted"
    """The slot went to a request of a higher class (503 with `x-smg-preempted`)."""
    FAILED = "failed"
    """Any other error, or an incomplete answer."""
    CANCELLED = "cancelled"
    """The client cancelled the request."""


class ClassOutcomes(msgspec.Struct, frozen=True):
    """The outcomes of one class. Times are in ms, over completed requests, or None if there are none."""

    completed: int
    rejected: int
    preempted: int
    failed: int
    cancelled: int
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    e2e_p50_ms: float | None


class ClassStats:
    """The requests of one class."""

    def __init__(self) -> None:
        self.num_sent = 0
        self.num_waiting = 0
        """Requests that were sent and have no token yet."""
        self.num_in_flight = 0
        """Requests that have begun to receive tokens."""
        self.num_ended = dict.fromkeys(ClientOutcome, 0)
        self._ttft = array("d")
        self._e2e = array("d")

    def ttft_ms(self, percent: float) -> float | None:
        """Return the percentile of the times to the first token."""
        return percentile_ms(self._ttft, percent)

    def outcomes(self) -> ClassOutcomes:
        """Return the counts and percentiles so far."""
        return ClassOutcomes(
            **{outcome.value: number for outcome, number in self.num_ended.items()},
            ttft_p50_ms=self.ttft_ms(50),
            ttft_p99_ms=self.ttft_ms(99),
            e2e_p50_ms=percentile_ms(self._e2e, 50),
        )


class SentRequest:
    """One request from `ClientStats.on_send` to `on_end`. All times are seconds of one clock."""

    __slots__ = ("_class", "_first_token_at", "_sent_at")

    def __init__(self, stats: ClassStats, now: float) -> None:
        self._class = stats
        self._sent_at = now
        self._first_token_at: float | None = None
        stats.num_sent += 1
        stats.num_waiting += 1

    def on_token(self, now: float) -> None:
        """Note that tokens have come; only the first call counts."""
        if self._first_token_at is None:
            self._first_token_at = now
            self._class.num_waiting -= 1
            self._class.num_in_flight += 1

    def on_end(self, outcome: ClientOutcome, now: float) -> None:
        """Note the end of the request. Called once."""
        stats = self._class
        if self._first_token_at is None:
            stats.num_waiting -= 1
        else:
            stats.num_in_flight -= 1
        stats.num_ended[outcome] += 1
        if outcome is ClientOutcome.COMPLETED and self._first_token_at is not None:
            stats._ttft.append(self._first_token_at - self._sent_at)
            stats._e2e.append(now - self._sent_at)


class ClientStats:
    """The requests of all classes."""

    def __init__(self, classes: Sequence[PriorityClass] = ()) -> None:
        """`classes` come first, in this order, even without requests."""
        self.classes = {priority_class: ClassStats() for priority_class in classes}

    @property
    def num_sent(self) -> int:
        """Requests sent, of all classes."""
        return sum(stats.num_sent for stats in self.classes.values())

    def on_send(self, priority_class: PriorityClass, now: float) -> SentRequest:
        """Note that a request was sent, and return what notes its course."""
        return SentRequest(self.classes.setdefault(priority_class, ClassStats()), now)


def percentile_ms(seconds: Sequence[float], percent: float) -> float | None:
    """Return the smallest value that `percent` of the values do not exceed (nearest rank), in ms to a tenth, or None if there
    are no values."""
    if not seconds:
        return None
    rank = max(1, -(-len(seconds) * percent // 100))
    return round(sorted(seconds)[int(rank) - 1] * 1000, 1)


_REJECTIONS = frozenset((408, 429, 503))
_PREEMPTED_HEADER = (b"x-smg-preempted", b"true")

_encode = msgspec.json.Encoder().encode


def repeat_jobs(jobs: Iterable[Job], period: Micros) -> Iterator[Job]:
    """Yield `jobs` again and again, each round `period` after the previous one. All of them must arrive within `period`."""
    kept = list(jobs)
    start: Micros = 0
    while kept:
        for job in kept:
            yield Job(msgspec.structs.replace(job.request, arrival=start + job.request.arrival), job.output_tokens)
        start += period


class WorkloadClients:
    """Clients of one server, as many as the workload needs."""

    def __init__(self, client: UpstreamClient, server: Origin, model: str, stats: ClientStats) -> None:
        self._client = client
        self._server = server
        self._model = model
        self._stats = stats
        self._tasks: set[asyncio.Task[None]] = set()

    async def send_jobs(self, jobs: Iterable[Job]) -> None:
        """Send every job when it is due, counted from now. Returns when the last job has been sent; cancel the call to stop
        earlier."""
        start = monotonic()
        for job in jobs:
            early = start + to_seconds(job.request.arrival) - monotonic()
            if early > 0:
                await asyncio.sleep(early)
            task = asyncio.create_task(self._send(job))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def wait_until_done(self) -> None:
        """Wait until every request that was sent has ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def cancel_open(self) -> None:
        """Cancel the requests that have not ended."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, job: Job) -> None:
        sent = self._stats.on_send(job.request.priority_class, monotonic())
        outcome = ClientOutcome.CANCELLED
        try:
            outcome = await self._exchange(job, sent)
        except UpstreamError:
            outcome = ClientOutcome.FAILED
        finally:
            sent.on_end(outcome, monotonic())

    async def _exchange(self, job: Job, sent: SentRequest) -> ClientOutcome:
        """Send one request, read its response, and return the outcome. Raises UpstreamError."""
        headers = [(b"content-type", b"application/json"), (b"x-smg-priority", job.request.priority_class.label.encode())]
        response = await self._client.request(self._server, "POST", "/v1/chat/completions", headers, self._body(job))
        tail = b""

        def on_piece(piece: bytes, _more: bool) -> None:
            nonlocal tail
            sent.on_token(monotonic())
            # The mark that ends a stream may be split over two pieces. A stream without it was cut off and is not complete.
            tail = (tail + piece)[-len(sse.DONE) :]

        try:
            if response.status != 200:
                while await response.read_piece():
                    pass
                return _outcome_of_error(response)
            await response.pipe_body(on_piece)
        finally:
            response.close()
        return ClientOutcome.COMPLETED if tail == sse.DONE else ClientOutcome.FAILED

    def _body(self, job: Job) -> bytes:
        return _encode(
            {
                "model": self._model,
                "messages": [{"role": "user", "content": _prompt_text(job.request)}],
                "max_tokens": job.output_tokens,
                "ignore_eos": True,
                "stream": True,
            }
        )


def _outcome_of_error(response: UpstreamResponse) -> ClientOutcome:
    if _PREEMPTED_HEADER in response.headers:
        return ClientOutcome.SLOT_PREEMPTED
    return ClientOutcome.REJECTED if response.status in _REJECTIONS else ClientOutcome.FAILED


def _prompt_text(request: Request) -> str:
    """Return a text that has the tokens of the job's prompt together with what the chat template adds, or one token if that
    alone is more."""
    added = tokens.CHAT_TOKENS_PER_MESSAGE + tokens.CHAT_TOKENS_FOR_ANSWER
    return tokens.filler(max(1, request.prompt_tokens - added))
