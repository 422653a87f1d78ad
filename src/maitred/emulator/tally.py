"""What clients saw, counted per class. Whatever was sent is waiting, in flight, or has ended in exactly one way."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import Enum

import msgspec

from maitred.request import PriorityClass


class Outcome(Enum):
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


class ClassSummary(msgspec.Struct, frozen=True):
    """One class at the end. Times are milliseconds, over completed requests; None without any."""

    completed: int
    rejected: int
    preempted: int
    failed: int
    cancelled: int
    ttft_p50_ms: float | None
    ttft_p99_ms: float | None
    e2e_p50_ms: float | None


class ClassTally:
    """The requests of one class."""

    def __init__(self) -> None:
        self.sent = 0
        self.waiting = 0
        """Sent, and no token has come yet."""
        self.in_flight = 0
        """Tokens are coming."""
        self.ended = dict.fromkeys(Outcome, 0)
        self._ttft = array("d")
        self._e2e = array("d")

    def ttft_ms(self, percent: float) -> float | None:
        return percentile_ms(self._ttft, percent)

    def summary(self) -> ClassSummary:
        return ClassSummary(
            **{outcome.value: number for outcome, number in self.ended.items()},
            ttft_p50_ms=self.ttft_ms(50),
            ttft_p99_ms=self.ttft_ms(99),
            e2e_p50_ms=percentile_ms(self._e2e, 50),
        )


class Flight:
    """One request on its way, from `send` to `end`. All times are seconds of one clock."""

    __slots__ = ("_class", "_first_token_at", "_sent_at")

    def __init__(self, tally: ClassTally, now: float) -> None:
        self._class = tally
        self._sent_at = now
        self._first_token_at: float | None = None
        tally.sent += 1
        tally.waiting += 1

    def token(self, now: float) -> None:
        """There are tokens; only the first time counts."""
        if self._first_token_at is None:
            self._first_token_at = now
            self._class.waiting -= 1
            self._class.in_flight += 1

    def end(self, outcome: Outcome, now: float) -> None:
        """Call it once."""
        tally = self._class
        if self._first_token_at is None:
            tally.waiting -= 1
        else:
            tally.in_flight -= 1
        tally.ended[outcome] += 1
        if outcome is Outcome.COMPLETED and self._first_token_at is not None:
            tally._ttft.append(self._first_token_at - self._sent_at)
            tally._e2e.append(now - self._sent_at)


class Tally:
    """All classes that sent something."""

    def __init__(self, classes: Sequence[PriorityClass] = ()) -> None:
        """`classes` are listed from the start, in this order."""
        self.classes = {priority_class: ClassTally() for priority_class in classes}

    @property
    def arrivals(self) -> int:
        return sum(tally.sent for tally in self.classes.values())

    def send(self, priority_class: PriorityClass, now: float) -> Flight:
        return Flight(self.classes.setdefault(priority_class, ClassTally()), now)


def percentile_ms(seconds: Sequence[float], percent: float) -> float | None:
    """The smallest of the values that `percent` of them do not exceed (nearest rank), in ms to a tenth; None of nothing."""
    if not seconds:
        return None
    rank = max(1, -(-len(seconds) * percent // 100))
    return round(sorted(seconds)[int(rank) - 1] * 1000, 1)
