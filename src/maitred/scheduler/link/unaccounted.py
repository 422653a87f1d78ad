"""Slots that nobody answers for: their gateway is gone, and its requests may still run at the engines.

    orphans     requests of a gateway that was known here and is gone
    strangers   sequences of gateways that never said hello to this scheduler, of which only the engines know

They are held until an engine shows them gone, or until `reclaim_after` has passed, for strangers since they were first seen.
A client that leaves, or a connection that breaks, frees nothing by itself: the engine may not have noticed.

An engine says how many sequences are there (`running`, with those that wait in it), and not whose they are. So, of one reading:

    unaccounted ≤ running - (live requests that were certainly there)

A live request was certainly there if its response had begun before the engine was asked, and it is still held when its gateway
has nothing more to say of what was before the reading (`BookedGateway.known_until`). Gateways are asked for that with each
reading (`Mark`), so of a response that takes longer than a reading and an answer it is known.
Only orphans count of which the gateway could start nothing any more when the engine was asked (`BookedGateway.certain_from`).

So it is known of *some* orphans that they are gone (`absent`), and not of which. Their slots are used, and they stay in the
books until all are gone, or until their gateways are back and say which.

*Example.* 8 slots; gateway a holds 3 and dies, and b holds 5, which stream. The next reading says 7: 7 may all be unaccounted,
so nothing is freed. Soon b has answered the mark of that instant, and still holds its 5: at most 2 of those 7 were a's, so one
of a's 3 is absent, and there are 9 slots with 8 held. If a is back then and names only one of its 3, the other two end, and the
absent one is one of these.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from maitred.core.units import Micros
from maitred.scheduler.link.gateway_books import BookedRequest, GatewayBooks

_MOST_READINGS: Final = 8
"""Readings of a backend that are kept, until its gateways have said what they had to say before."""


class _Reading(msgspec.Struct, frozen=True):
    running: int
    asked_at: Micros
    came_at: Micros
    streaming: list[BookedRequest]
    """Those whose response had begun before."""


class Unaccounted:
    """The slots whose gateways are gone."""

    def __init__(self, books: GatewayBooks, reclaim_after: Micros) -> None:
        """`reclaim_after`: after how long an orphan is taken to be gone, µs."""
        self.strangers: Counter[int] = Counter()
        """At most so many sequences of unknown gateways are at each backend."""
        self.absent: Counter[int] = Counter()
        """At least so many sequences of orphans are not at their backend any more."""
        self._books = books
        self._reclaim_after = reclaim_after
        self._readings: dict[int, deque[_Reading]] = {}
        self._strangers_until: Micros | None = None
        """When strangers are taken to be gone, µs; None while there are none."""

    def note_strangers(self, backend: int, sequences: int, now: Micros) -> None:
        """Note that of so many sequences at a backend none is accounted for yet."""
        self.strangers[backend] = sequences
        self._strangers_until = now + self._reclaim_after

    def backends(self) -> set[int]:
        """Return the backends where something may be unaccounted for. O(gateways that are gone and their requests)."""
        asked = {backend for backend, sequences in self.strangers.items() if sequences}
        return asked | {request.backend for request in self.orphans() if request.backend >= 0}

    @property
    def extra_slots(self) -> Mapping[int, int]:
        """By how much more, or fewer, may be held at each backend than it has slots: absent orphans hold none, strangers do."""
        if not self.absent and not self.strangers:
            return {}
        return {backend: self.absent[backend] - self.strangers[backend] for backend in (*self.absent, *self.strangers)}

    def orphans(self) -> list[BookedRequest]:
        """Return the requests whose gateways are gone. O(gateways that are gone and their requests)."""
        gone = self._books.gone()
        return [request for gateway in gone for request in gateway.requests.values() if request.holds_slot] if gone else []

    def on_reading(self, backend: int, running: int, asked_at: Micros, now: Micros) -> list[BookedRequest]:
        """Note that an engine that was asked at `asked_at` has so many sequences, and return the orphans that have ended."""
        if not self.strangers[backend] and not self._orphans_at(backend):
            self._readings.pop(backend, None)
            return []
        streaming = [one for one in self._books.holders_at(backend) if _streams_since(one, asked_at)]
        reading = _Reading(running, asked_at, now, streaming)
        self._readings.setdefault(backend, deque(maxlen=_MOST_READINGS)).append(reading)
        self._apply(backend, reading)
        return self.settle()

    def review(self) -> list[BookedRequest]:
        """Return the orphans that have ended by the readings so far, after a gateway has been heard."""
        for backend, readings in self._readings.items():
            for reading in readings:
                self._apply(backend, reading)
        return self.settle()

    def on_orphan_ended(self, request: BookedRequest) -> None:
        """Note that an orphan is about to leave the books, as its gateway does not name it. It may be one of the absent."""
        backend = request.backend
        self.absent[backend] = max(0, self.absent[backend] - request.ticket.sequences)

    def settle(self) -> list[BookedRequest]:
        """Return the orphans of backends where all of them are absent. To be called when orphans have come or gone."""
        ended = []
        for backend in [*self.absent]:
            here = self._orphans_at(backend)
            if self.absent[backend] >= _sequences(here):
                ended += here
                del self.absent[backend]
        return ended

    def overdue(self, now: Micros) -> list[BookedRequest]:
        """Return the orphans that have been held for too long, and let strangers go."""
        if self._strangers_until is not None and now >= self._strangers_until:
            self._strangers_until = None
            self.strangers.clear()
        orphans = self.orphans()
        return [one for one in orphans if now >= one.gateway.certain_from + self._reclaim_after] if orphans else orphans

    def next_overdue_at(self) -> Micros | None:
        """Return when the next of them will have been held for too long, µs, or None if there is none."""
        strangers_until, orphans = self._strangers_until, self.orphans()
        if not orphans:  # It is asked in each turn of the loop.
            return strangers_until
        due = min(one.gateway.certain_from for one in orphans) + self._reclaim_after
        return due if strangers_until is None else min(due, strangers_until)

    def _orphans_at(self, backend: int) -> list[BookedRequest]:
        return [one for one in self.orphans() if one.backend == backend]

    def _apply(self, backend: int, reading: _Reading) -> None:
        """Lower the strangers, and raise the absent orphans, to what a reading leaves of them."""
        there = _sequences(one for one in reading.streaming if self._was_there(one, reading))
        orphans = _sequences(one for one in self._orphans_at(backend) if one.gateway.certain_from <= reading.asked_at)
        believed = self.strangers[backend] + orphans - self.absent[backend]
        excess = max(0, believed - max(0, reading.running - there))
        fewer = min(excess, self.strangers[backend])
        self.strangers[backend] -= fewer
        self.absent[backend] += excess - fewer

    def _was_there(self, request: BookedRequest, reading: _Reading) -> bool:
        """Return whether a live request was certainly at its engine when that was asked."""
        is_held = self._books.by_ticket.get(request.ticket.id) is request
        gateway = request.gateway
        return is_held and gateway.connection is not None and gateway.known_until >= reading.came_at


def _streams_since(request: BookedRequest, asked_at: Micros) -> bool:
    return request.streaming_since is not None and request.streaming_since <= asked_at


def _sequences(requests: Iterable[BookedRequest]) -> int:
    return sum(one.ticket.sequences for one in requests)
