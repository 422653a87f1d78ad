"""How much of the limits per minute and day is used, kept by the gateways for the scheduler that leads next.

    a leader     tells its gateways once a second which windows have changed
    a gateway    keeps the last that it was told of each window, whoever told it, and tells it to each leader that welcomes it,
                 before that is asked for anything
    a new term   begins without counts, and takes over of each window the newest that any gateway has

So a takeover forgets what the old leader had counted and not told: of a second at most, and of one that ends in order nothing.
What requests that are under way had reserved stays counted, although they may use less. Ages of counts are measured by each
process itself; times of day only say which of several gateways knows more.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Final

import msgspec

from maitred.admission import Admission, UsageRecord
from maitred.admission.gates.usage_limits import MAX_WINDOWS
from maitred.admission.waiting.usage_window import WindowKey
from maitred.core.units import SECOND, Micros
from maitred.scheduler.link.fields import Count
from maitred.scheduler.link.messages import Note
from maitred.scheduler.link.scheduler_end import SchedulerEnd
from maitred.wire.clock import Clock

USAGE: Final = "usage"
"""The kind of the notes that tell windows."""
MOST_IN_NOTE: Final = 1_000
"""Windows in one note, of half a kilobyte each at most. Where more change each second, gateways know some a little later."""


class ToldUsage(msgspec.Struct, frozen=True, array_like=True):
    """A window, as a leader has told it."""

    term: bytes
    """Drawn for each term of each scheduler."""
    at: Count
    """When it was told, µs since 1970."""
    record: UsageRecord


_DECODER: Final = msgspec.msgpack.Decoder(list[ToldUsage])


class UsageNews:
    """The end of a scheduler."""

    def __init__(self, core: Admission, clock: Clock, random: Random) -> None:
        self._core, self._clock, self._random = core, clock, random
        self._term = random.randbytes(8)
        self._heard: dict[WindowKey, int] = {}
        """When that was told which has been taken over in this term."""
        self._due_at: Micros = 0

    def begin_term(self) -> None:
        """Begin without counts: those of an earlier term are known to the gateways, with what has come since."""
        self._term = self._random.randbytes(8)
        self._heard.clear()
        if self._core.limits.has_windows:
            self._core.recall([], self._clock.now(), anew=True)

    def tell(self, end: SchedulerEnd, now: Micros, *, at_once: bool = False) -> None:
        """Tell the gateways what has changed, once a second or `at_once`."""
        limits = self._core.limits
        if not limits.is_on or (now < self._due_at and not at_once):
            return
        self._due_at = now + SECOND
        while records := limits.take_changed(MOST_IN_NOTE, now):
            wall = self._clock.wall()
            told = [ToldUsage(self._term, wall, record) for record in records]
            end.tell(Note(USAGE, 0, msgspec.msgpack.encode(told)))
            if not at_once:
                break

    def tell_all(self) -> None:
        """Have the gateways know all soon."""
        if self._core.limits.is_on:
            self._core.limits.mark_all()

    def hear(self, payload: bytes) -> None:
        """Take over what a gateway has kept. Raises msgspec.ValidationError for what makes no sense."""
        newer = []
        for told in _DECODER.decode(payload):
            key = told.record.key
            if told.term != self._term and told.at > self._heard.get(key, -1) and len(self._heard) < MAX_WINDOWS:
                self._heard[key] = told.at
                newer.append(told.record)
        if newer and self._core.limits.is_on:
            self._core.recall(newer, self._clock.now())


class KeptUsage:
    """The end of a gateway."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[WindowKey, tuple[ToldUsage, Micros]] = {}
        """By window, with when it was told by the clock here; the one told last is last."""

    def take(self, payload: bytes) -> None:
        """Keep what a scheduler tells."""
        now = self._clock.now()
        for told in _DECODER.decode(payload):
            self._kept.pop(told.record.key, None)
            self._kept[told.record.key] = told, now
            if len(self._kept) > MAX_WINDOWS:
                del self._kept[next(iter(self._kept))]

    def answers(self) -> Iterator[Note]:
        """Yield notes of all that is kept."""
        now, kept = self._clock.now(), [*self._kept.values()]
        for begin in range(0, len(kept), MOST_IN_NOTE):
            aged = [
                ToldUsage(told.term, told.at, told.record.later(now - at)) for told, at in kept[begin : begin + MOST_IN_NOTE]
            ]
            yield Note(USAGE, 0, msgspec.msgpack.encode(aged))
