"""What a scheduler tells its gateways without being asked: how the backends are, how the slots are shared, and which
objectives discovery knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from maitred.core.units import Micros
from maitred.scheduler.backends.backend import Backend
from maitred.scheduler.backends.fleet_view import FleetView
from maitred.scheduler.link.gateway_books import GatewayId
from maitred.scheduler.link.messages import BackendNews, Fleet, Note
from maitred.scheduler.link.scheduler_end import SchedulerEnd
from maitred.scheduler.sharing.shares import OBJECTIVES, SHARES, Shares


class FleetNews:
    """Tells gateways of changes, in one message for all that have come in a turn of the loop."""

    def __init__(self, fleet: FleetView, objectives: Mapping[str, int], flush_soon: Callable[[], object]) -> None:
        """`objectives` are always those that are known now. `flush_soon` has `tell` called, and written what was said."""
        self._fleet, self._objectives, self._flush_soon = fleet, objectives, flush_soon
        self._have_objectives_changed = False
        self._is_due = True
        """Whether something may have changed."""
        self._last, self._last_shares = Fleet([]), Shares()

    def on_backend_polled(self, backend: Backend) -> None:
        """Tell gateways what has become of a backend (`BackendObserver`)."""
        self.note()

    def on_backend_restarted(self, backend: Backend) -> None:
        """Note nothing: what was in KV memory is the programs' concern, which are told themselves."""

    def note(self) -> None:
        """Note that gateways may have to be told of something."""
        self._is_due = True
        self._flush_soon()

    def note_objectives(self) -> None:
        """Note that gateways have to be told of other objectives."""
        self._have_objectives_changed = True
        self.note()

    def tell(self, end: SchedulerEnd, now: Micros) -> None:
        """Tell the gateways at `end` what has changed."""
        if not self._is_due:
            return
        self._is_due = False
        news = Fleet([_news(backend, now) for backend in self._fleet.seats])
        if news != self._last:
            self._last = news
            end.tell(news)
        shares = Shares(dict(end.settling.slots), len(end.books.connected) or 1)
        if shares != self._last_shares:
            self._last_shares = shares
            end.tell(_note_of(shares))
        if self._have_objectives_changed:
            self._have_objectives_changed = False
            end.tell(self._objectives_note())

    def tell_all(self, end: SchedulerEnd, gateway: GatewayId) -> None:
        """Tell a gateway that has come what the others have been told."""
        end.tell(self._last, gateway)
        end.tell(_note_of(self._last_shares), gateway)
        end.tell(self._objectives_note(), gateway)

    def _objectives_note(self) -> Note:
        return Note(OBJECTIVES, 0, msgspec.msgpack.encode(self._objectives))


def _note_of(shares: Shares) -> Note:
    return Note(SHARES, 0, msgspec.msgpack.encode(shares))


def _news(backend: Backend, now: Micros) -> BackendNews:
    rests_until = backend.circuit.rests_until
    return BackendNews(
        healthy=backend.healthy,
        was_ever_healthy=backend.was_ever_healthy,
        has_been_polled=backend.has_been_polled,
        is_draining=backend.is_draining,
        is_ejected=backend.circuit.is_ejected,
        rests=None if rests_until is None else max(0, rests_until - now),
        problem=backend.problem,
        models=msgspec.json.encode(backend.models),
        url="" if backend.is_gone else backend.url,
    )
