"""What clients saw, counted per class. Whatever was sent is waiting, in flight, or has ended in exactly one way.

Emulated clients: a workload replayed over HTTP, open loop.

Each job is sent at its arrival whether or not the ones before it have been answered, as users do it; a closed loop would
slow down with the server and hide its queue. An answer has exactly the length that the job names.
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
    """How a request ended, as its client sees it."""

    COMPLETED = "completed"
    REJECTED = "rejected"
    """Refused by a server that had no room for it (429, 503) or none in time (408)."""
    PREEMPTED = "preempted"
    """Its slot was taken back for a request of a higher class (503, and a header says so)."""
    FAILED = "failed"
    """Any other error, or an answer that broke off."""
    CANCELLED = "cancelled"
    """By the client itself."""


class ClassOutcomes(msgspec.Struct, frozen=True):
    """One class at the end. Times are milliseconds, over completed requests; None without any."""

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
        """Sent, and no token has come yet."""
        self.num_in_flight = 0
        """Tokens are coming."""
        self.num_ended = dict.fromkeys(ClientOutcome, 0)
        self._ttft = array("d")
        self._e2e = array("d")

    def ttft_ms(self, percent: float) -> float | None:
        return percentile_ms(self._ttft, percent)

    def outcomes(self) -> ClassOutcomes:
        return ClassOutcomes(
            **{outcome.value: number for outcome, number in self.num_ended.items()},
            ttft_p50_ms=self.ttft_ms(50),
            ttft_p99_ms=self.ttft_ms(99),
            e2e_p50_ms=percentile_ms(self._e2e, 50),
        )


class SentRequest:
    """One request on its way, from `send` to `end`. All times are seconds of one clock."""

    __slots__ = ("_class", "_first_token_at", "_sent_at")

    def __init__(self, tally: ClassStats, now: float) -> None:
        self._class = tally
        self._sent_at = now
        self._first_token_at: float | None = None
        tally.num_sent += 1
        tally.num_waiting += 1

    def on_token(self, now: float) -> None:
        """There are tokens; only the first time counts."""
        if self._first_token_at is None:
            self._first_token_at = now
            self._class.num_waiting -= 1
            self._class.num_in_flight += 1

    def on_end(self, outcome: ClientOutcome, now: float) -> None:
        """Call it once."""
        tally = self._class
        if self._first_token_at is None:
            tally.num_waiting -= 1
        else:
            tally.num_in_flight -= 1
        tally.num_ended[outcome] += 1
        if outcome is ClientOutcome.COMPLETED and self._first_token_at is not None:
            tally._ttft.append(self._first_token_at - self._sent_at)
            tally._e2e.append(now - self._sent_at)


class ClientStats:
    """All classes that sent something."""

    def __init__(self, classes: Sequence[PriorityClass] = ()) -> None:
        """`classes` are listed from the start, in this order."""
        self.classes = {priority_class: ClassStats() for priority_class in classes}

    @property
    def num_sent(self) -> int:
        return sum(tally.num_sent for tally in self.classes.values())

    def on_send(self, priority_class: PriorityClass, now: float) -> SentRequest:
        return SentRequest(self.classes.setdefault(priority_class, ClassStats()), now)


def percentile_ms(seconds: Sequence[float], percent: float) -> float | None:
    """The smallest of the values that `percent` of them do not exceed (nearest rank), in ms to a tenth; None of nothing."""
    if not seconds:
        return None
    rank = max(1, -(-len(seconds) * percent // 100))
    return round(sorted(seconds)[int(rank) - 1] * 1000, 1)


_REJECTIONS = frozenset((408, 429, 503))
_PREEMPTED_HEADER = (b"x-smg-preempted", b"true")

_encode = msgspec.json.Encoder().encode


def repeat_jobs(jobs: Iterable[Job], period: Micros) -> Iterator[Job]:
    """`jobs` for ever, each round `period` after the one before; they must all arrive within it."""
    kept = list(jobs)
    start: Micros = 0
    while kept:
        for job in kept:
            yield Job(msgspec.structs.replace(job.request, arrival=start + job.request.arrival), job.output_tokens)
        start += period


class WorkloadClients:
    """As many clients as it takes, of one server."""

    def __init__(self, client: UpstreamClient, server: Origin, model: str, stats: ClientStats) -> None:
        self._client = client
        self._server = server
        self._model = model
        self._stats = stats
        self._tasks: set[asyncio.Task[None]] = set()

    async def send_jobs(self, jobs: Iterable[Job]) -> None:
        """Send every job when it is due, counted from now. Ends with the last one sent; cancel it to send no more."""
        start = monotonic()
        for job in jobs:
            early = start + to_seconds(job.request.arrival) - monotonic()
            if early > 0:
                await asyncio.sleep(early)
            flight = asyncio.create_task(self._send(job))
            self._tasks.add(flight)
            flight.add_done_callback(self._tasks.discard)

    async def wait_until_done(self) -> None:
        """Until every answer that is on its way has come."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def cancel_open(self) -> None:
        """Cancel whatever is still on its way."""
        flights = tuple(self._tasks)
        for flight in flights:
            flight.cancel()
        await asyncio.gather(*flights, return_exceptions=True)

    async def _send(self, job: Job) -> None:
        flight = self._stats.on_send(job.request.priority_class, monotonic())
        outcome = ClientOutcome.CANCELLED
        try:
            outcome = await self._exchange(job, flight)
        except UpstreamError:
            outcome = ClientOutcome.FAILED
        finally:
            flight.on_end(outcome, monotonic())

    async def _exchange(self, job: Job, sent: SentRequest) -> ClientOutcome:
        """Raises UpstreamError."""
        headers = [(b"content-type", b"application/json"), (b"x-smg-priority", job.request.priority_class.label.encode())]
        response = await self._client.request(self._server, "POST", "/v1/chat/completions", headers, self._body(job))
        tail = b""

        def heard(piece: bytes, _more: bool) -> None:
            nonlocal tail
            sent.on_token(monotonic())
            tail = (tail + piece)[-len(sse.DONE) :]

        try:
            if response.status != 200:
                while await response.read_piece():
                    pass
                return _outcome_of_error(response)
            await response.pipe_body(heard)
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
        return ClientOutcome.PREEMPTED
    return ClientOutcome.REJECTED if response.status in _REJECTIONS else ClientOutcome.FAILED


def _prompt_text(request: Request) -> str:
    """So long that, with what the chat template adds, it has the tokens that the job names (or the fewest there can be)."""
    added = tokens.CHAT_TOKENS_PER_MESSAGE + tokens.CHAT_TOKENS_FOR_ANSWER
    return tokens.filler(max(1, request.prompt_tokens - added))
