"""What a scheduler tells its gateways without being asked: how the backends are, how the slots are shared, and which
objectives discovery knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from maitred.core.units import Micros
from maitred.scheduler.backends.backend import Backend
from maitred.scheduler.backends.fleet_view import FleetView
from maitred.scheduler.link.gateway_books import GatewayId
from maitred.scheduler.link.messages import Fleet, Note
from maitred.scheduler.link.scheduler_end import SchedulerEnd
from maitred.scheduler.link.terms import BackendNews
from maitred.scheduler.sharing.shares import OBJECTIVES, SHARES, Shares

_PART_BYTES: Final = 1 << 20
"""How long the models of the backends in one message may be, about."""


class _Said(NamedTuple):
    """What gateways have been told of a backend."""

    news: BackendNews
    """Without `rests`."""
    rests_until: Micros | None


class FleetNews:
    """Tells gateways of changes, in one message for all that have come in a turn of the loop. Each backend is polled once a
    second or so, and then only that one is looked at: with hundreds of them, to look at all each time takes long."""

    def __init__(self, fleet: FleetView, objectives: Mapping[str, int], flush_soon: Callable[[], object]) -> None:
        """`objectives` are always those that are known now. `flush_soon` has `tell` called, and written what was said."""
        self._fleet, self._objectives, self._flush_soon = fleet, objectives, flush_soon
        self._have_objectives_changed = False
        self._is_due = self._are_all_due = self._are_shares_due = True
        """Whether anything may have changed; any backend; how the slots are shared."""
        self._changed = set[int]()
        """The backends that may have changed, by number."""
        self._unsteady = set[int]()
        """Those that rest or are ejected: time, or an answer, ends that without a word."""
        self._said: list[_Said] = []
        self._last_shares = Shares()

    def on_backend_polled(self, backend: Backend) -> None:
        """Tell gateways what has become of a backend (`BackendObserver`)."""
        self._changed.add(backend.index)
        self._is_due = True
        self._flush_soon()

    def on_backend_restarted(self, backend: Backend) -> None:
        """Note nothing: what was in KV memory is the programs' concern, which are told themselves."""

    def note(self) -> None:
        """Note that gateways may have to be told of anything. O(backends), later."""
        self._are_all_due = True
        self.note_shares()

    def note_shares(self) -> None:
        """Note that there are other slots, or other gateways."""
        self._is_due = self._are_shares_due = True
        self._flush_soon()

    def note_objectives(self) -> None:
        """Note that gateways have to be told of other objectives."""
        self._is_due = self._have_objectives_changed = True
        self._flush_soon()

    def tell(self, end: SchedulerEnd, now: Micros) -> None:
        """Tell the gateways at `end` what has changed."""
        if not self._is_due:
            return
        self._is_due = False
        if changed := self._look():
            self._tell_of(changed, end, now)
        if self._have_objectives_changed:
            self._have_objectives_changed = False
            end.tell(self._objectives_note())
        if not self._are_shares_due:
            return
        self._are_shares_due = False
        shares = Shares(dict(end.settling.slots), len(end.books.connected) or 1)
        if shares != self._last_shares:
            self._last_shares = shares
            end.tell(_note_of(shares))

    def _look(self) -> list[int]:
        """Look at the backends that may have changed, and return which have, by number."""
        seats, said, changed = self._fleet.seats, self._said, list[int]()
        are_all = self._are_all_due or len(seats) != len(said)
        for number in range(len(seats)) if are_all else {*self._changed, *self._unsteady}:
            now = _said_of(seats[number])
            if number == len(said):
                said.append(now)
            elif now == said[number]:
                continue
            else:
                said[number] = now
            changed.append(number)
            (self._unsteady.add if now.news.is_ejected or now.rests_until is not None else self._unsteady.discard)(number)
        self._are_all_due = False
        self._changed.clear()
        return changed

    def _tell_of(self, numbers: Iterable[int], end: SchedulerEnd, now: Micros, anew_to: GatewayId | None = None) -> None:
        """Tell the gateways of these backends, or a gateway that has come. A frame is bounded, and the models of hundreds of
        backends may be more than fit."""
        parts, size = [list[BackendNews]()], 0
        for news, until in map(self._said.__getitem__, numbers):
            if size > _PART_BYTES:
                parts.append([])
                size = 0
            parts[-1].append(news if until is None else msgspec.structs.replace(news, rests=max(0, until - now)))
            size += len(news.models)
        for index, part in enumerate(parts):
            end.tell(Fleet(part, anew_to is not None and index == 0, part is not parts[-1]), anew_to)

    def tell_all(self, end: SchedulerEnd, gateway: GatewayId, now: Micros) -> None:
        """Tell a gateway that has come what the others have been told."""
        self._tell_of(range(len(self._said)), end, now, gateway)
        end.tell(_note_of(self._last_shares), gateway)
        end.tell(self._objectives_note(), gateway)

    def _objectives_note(self) -> Note:
        return Note(OBJECTIVES, 0, msgspec.msgpack.encode(self._objectives))


def _note_of(shares: Shares) -> Note:
    return Note(SHARES, 0, msgspec.msgpack.encode(shares))


def _said_of(backend: Backend) -> _Said:
    news = BackendNews(
        number=backend.index,
        healthy=backend.healthy,
        was_ever_healthy=backend.was_ever_healthy,
        has_been_polled=backend.has_been_polled,
        is_draining=backend.is_draining,
        is_ejected=backend.circuit.is_ejected,
        rests=None,
        problem=backend.problem,
        models=msgspec.json.encode(backend.models),
        url="" if backend.is_gone else backend.url,
    )
    return _Said(news, backend.circuit.rests_until)
