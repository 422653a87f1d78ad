"""Lease: until when a gateway may start requests, by its own clock.

Beats are answered, and each answer prolongs the lease from when its beat was *sent*: the scheduler counts from later, when the
beat came. So whatever the answer takes, the gateway stops first.

Example: a lease of 3 s. A beat is sent at 10.0 s and answered at 10.8 s: the lease is over at 13.0 s.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from maitred.core.histogram import DURATION_BOUNDS, Histogram
from maitred.core.units import SECOND, Micros
from maitred.scheduler.link.messages import Beat, BeatAnswer

BEAT_INTERVAL: Final[Micros] = SECOND
"""The time between two beats, µs."""


class Lease:
    """The leases of one gateway, over all its connections."""

    def __init__(self) -> None:
        self.until: Micros | None = None
        """Until when requests may be started, µs, or None if no scheduler has welcomed the gateway on this connection."""
        self.send_until: Micros = 0
        """The end of the last lease, µs, also of one whose connection is lost."""
        self.num_lapses = 0
        """How many leases were over before the next one began."""
        self.next_beat_at: Micros = 0
        self.answer_times = Histogram(DURATION_BOUNDS)
        """The times from a beat to its answer, µs."""
        self._length: Micros = 0
        self._asked_at: Micros = 0
        """When the hello was sent."""
        self._last_beat = 0
        self._beats: deque[tuple[int, Micros]] = deque()
        """Beats that are not answered yet, with when they were sent."""

    def ask(self, now: Micros) -> None:
        """Note that a hello is sent, which asks for a lease."""
        self._asked_at = now

    def begin(self, length: Micros, now: Micros) -> None:
        """Begin a lease, as the answer to the hello grants it."""
        self.num_lapses += now >= self.send_until  # Otherwise the scheduler had the hello before it could reclaim a slot.
        self._length = length
        self.prolong(self._asked_at)
        self.next_beat_at = self._asked_at + BEAT_INTERVAL

    def beat(self, now: Micros) -> Beat:
        """Return the beat to be sent."""
        self._last_beat += 1
        self._beats.append((self._last_beat, now))
        self.next_beat_at = now + BEAT_INTERVAL
        return Beat(self._last_beat)

    def on_answer(self, answer: BeatAnswer, now: Micros) -> None:
        """Prolong the lease, if the beat is known that is answered."""
        while self._beats and self._beats[0][0] <= answer.number:
            number, sent_at = self._beats.popleft()
            if number == answer.number:
                self.answer_times.observe(now - sent_at)
                self.prolong(sent_at)

    def prolong(self, sent_at: Micros) -> None:
        """Let it last from `sent_at` on, when what was answered had been sent."""
        self.until = self.send_until = sent_at + self._length

    def end(self) -> None:
        """Let it be over, with the connection."""
        self.until = None
        self._beats.clear()
