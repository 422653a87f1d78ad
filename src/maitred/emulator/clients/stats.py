"""Emulated clients: a workload replayed over HTTP in an open loop, and what the clients saw, counted per class.

Each job is sent at its arrival, whether or not earlier jobs have their answers. A closed loop would slow down with the server
and hide its queue. An answer has exactly the length of the job.

A request that was sent is waiting, in flight, or has ended with exactly one outcome:

    num_sent  =  num_waiting  +  num_in_flight  +  sum of num_ended
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import count
from time import monotonic

import msgspec

from maitred.core.request import PriorityClass, RequestId
from maitred.core.units import Micros
from maitred.emulator import tokens
from maitred.emulator.clients.prompts import PromptWriter, TokenScale
from maitred.emulator.clients.schedule import SendSchedule
from maitred.emulator.clients.sender import STOPPED, LoadSender, SendTarget, SentRequest
from maitred.wire.origin import Origin
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


class TrackedRequest:
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

    def on_send(self, priority_class: PriorityClass, now: float) -> TrackedRequest:
        """Note that a request was sent, and return what notes its course."""
        return TrackedRequest(self.classes.setdefault(priority_class, ClassStats()), now)


def percentile_ms(seconds: Sequence[float], percent: float) -> float | None:
    """Return the smallest value that `percent` of the values do not exceed (nearest rank), in ms to a tenth, or None if there
    are no values."""
    if not seconds:
        return None
    rank = max(1, -(-len(seconds) * percent // 100))
    return round(sorted(seconds)[int(rank) - 1] * 1000, 1)


_REJECTIONS = frozenset((408, 429, 503))
_PREEMPTED_HEADER = (b"x-smg-preempted", b"true")

_CHAT = "/v1/chat/completions"
_CHAT_TOKENS = tokens.CHAT_TOKENS_PER_MESSAGE + tokens.CHAT_TOKENS_FOR_ANSWER


def repeat_jobs(jobs: Iterable[Job], period: Micros) -> Iterator[Job]:
    """Yield `jobs` again and again, with ids of their own, each round `period` after the previous one. All of them must arrive
    within `period`."""
    kept, numbers = list(jobs), count()
    start: Micros = 0
    while kept:
        for job in kept:
            number, arrival = next(numbers), start + job.request.arrival
            yield Job(msgspec.structs.replace(job.request, id=number, arrival=arrival), job.output_tokens)
        start += period


class WorkloadClients:
    """Clients of one server, as many as the workload needs: a sender, the requests of which are counted."""

    def __init__(self, server: Origin, model: str, stats: ClientStats) -> None:
        prompts = PromptWriter(model, chat=True, scale=TokenScale(_CHAT_TOKENS))
        self._sender = LoadSender(SendTarget(origin=server, path=_CHAT), prompts, self._on_end, self._on_send)
        self._stats = stats
        self._schedule = SendSchedule(())
        self._tracked: dict[RequestId, TrackedRequest] = {}

    async def run(self, jobs: Iterable[Job]) -> None:
        """Send every job when it is due, counted from now. Returns when all have ended."""
        self._schedule = SendSchedule(jobs)
        await self._sender.run(self._schedule)

    def stop_sending(self) -> None:
        """Send nothing more; what is in flight goes on, and `run` returns when it has ended."""
        self._sender.stop_sending()

    async def close(self) -> None:
        """Cancel the requests that have not ended, and close all connections."""
        self._sender.stop()
        await self._sender.close()

    def _on_send(self, sent: SentRequest) -> None:
        tracked = self._stats.on_send(sent.job.request.priority_class, monotonic())
        self._tracked[sent.job.request.id] = tracked
        sent.answer.on_first = lambda: tracked.on_token(monotonic())

    def _on_end(self, sent: SentRequest) -> None:
        self._tracked.pop(sent.job.request.id).on_end(_outcome_of(sent), monotonic())


def _outcome_of(sent: SentRequest) -> ClientOutcome:
    if sent.completed:
        return ClientOutcome.COMPLETED
    if sent.problem == STOPPED:
        return ClientOutcome.CANCELLED
    if _PREEMPTED_HEADER in sent.headers:
        return ClientOutcome.SLOT_PREEMPTED
    return ClientOutcome.REJECTED if sent.status in _REJECTIONS else ClientOutcome.FAILED
