"""FleetView: which backends are up, what they serve, and which requests they have.

Routers, placements, admission and pages read it. It is told what happens, and asks no backend anything:

    fleet_watch     what a poll has found (`mark_up`, `mark_down`, `count_failure`, ...)
    an attempt      a request begins and ends at a backend (`add_request`, `remove_request`), or finds it down
                    (`note_unreachable`)
    an operator     `drain`, `undrain`
    discovery       a backend comes or goes (`add`, `leave`, `rejoin`, `forget_when_idle`)
    ejection        other backends may get requests than before

After each of these that changes who may get requests, `update_serving` draws the consequences for models, slots and requests.

**Requests in flight at a backend that is down.** If connections are refused, the process has ended, and its requests with it;
or it finishes them and accepts no more. They are left to it. If polls fail otherwise, it may never answer: then requests of
which the client has received nothing are taken away, as soon as another backend serves their model. That costs a request none
of its attempts. But what was taken away `max_attempts` times stays where it is, since it may be what stalls the backends.

**Slots.** The requests that stay at a backend that is down bring slots of their own until they have ended, so that they do not
use up the slots of the healthy ones. For example, two backends of 8 slots each have 16; when one goes down with 3 requests
left, the model has 8 + 3 slots, then 8 + 2, and so on. Such a request is *stranded*: its slot goes with it and is of no use to
another one, so it is no victim of a preemption (`_tell_stranded`; in the core, `Ticket.stranded`). Compiled
(`tools/compile.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

from maitred.admission import fleet_load
from maitred.core.contracts import FleetLoad
from maitred.core.errors import InvariantError
from maitred.core.units import Micros
from maitred.routing import with_free_slots
from maitred.scheduler.backends.backend import Backend, BackendObserver, UpstreamRequest
from maitred.scheduler.backends.ejection_driver import RealTimeEjection
from maitred.scheduler.backends.seats import Seats
from maitred.scheduler.backends.served_models import ServedModel, ServedModels
from maitred.scheduler.backends.slot_pools import FleetListener, SlotPools
from maitred.scheduler.config import FleetConfig
from maitred.scheduler.engines.report import EngineReport, has_restarted
from maitred.wire.clock import Clock
from maitred.wire.errors import ConnectError

log = logging.getLogger("maitred.gateway")
_MOST_NAMED = 8  # models of a backend in a line of the log


class FleetView:
    """All backends of a gateway, as they are now."""

    def __init__(self, config: FleetConfig, clock: Clock) -> None:
        """All backends are down at first. What becomes of the slots is told from `listen` on."""
        self._clock = clock
        self.may_change = bool(config.discover) or not config.backends
        """Whether backends are found that the configuration does not name."""
        self._seats = Seats(config.backends)
        self.seats, self.backends = self._seats.all, self._seats.taken
        self.on_added: list[Callable[[Backend], object]] = []
        """Called with each backend that has come."""
        self.on_removed: list[Callable[[Backend], object]] = []
        """Called with each backend that has gone."""
        self._failures_until_down = config.health_failures
        self._models = ServedModels(self.backends)
        self.pools = SlotPools(config, self._models, self.backends)
        """Which models share slots, and how many there are."""
        self.ejection = RealTimeEjection(config.ejection, self.backends, self.update_serving, clock)
        """What ejects the backends that fail requests."""
        self.is_watched: Callable[[], bool] = bool
        """Whether somebody looks at the loads of backends, so that they are read where nothing else goes by them."""
        self.prefers_free_slots = False
        """Whether the slots of a backend limit what is sent to it."""
        self._is_ready = False
        """Whether a backend was healthy when the log last said so."""
        self._listener: FleetListener = FleetListener()
        self._observers: list[BackendObserver] = []
        self.on_unreachable: Callable[[UpstreamRequest, ConnectError], object] | None = None
        """Told of backends that could not be reached, where another process decides what that means; None: none does."""
        self.is_told = True
        """Whether it is known how backends are: not where another process says it, and has not yet."""

    def listen(self, listener: FleetListener) -> None:
        """Tell `listener` what becomes of the slots, from now on."""
        self._listener = listener

    def observe(self, observer: BackendObserver) -> None:
        """Tell `observer` how backends are, from now on, after those that were there before."""
        self._observers.append(observer)

    @property
    def healthy(self) -> Sequence[Backend]:
        """The backends that are up, drained and ejected ones included."""
        return [backend for backend in self.backends if backend.healthy]

    @property
    def all_polled(self) -> bool:
        """Whether every backend has been polled at least once."""
        return all(backend.has_been_polled for backend in self.backends)

    @property
    def known_models(self) -> Sequence[str]:
        """All models that backends serve, or served when they were last up."""
        return self._models.names

    def find_model(self, model: str) -> ServedModel | None:
        """Return `model`, which says as long as it is known which backends serve it now; None if none ever has."""
        return self._models.find(model)

    def backends_serving(self, model: str) -> tuple[Backend, ...]:
        """Return the backends that get requests for `model` now (`ServedModel.backends`), none if it is not known."""
        return self._models.backends_serving(model)

    def with_free_slots(self, backends: Sequence[Backend]) -> Sequence[Backend]:
        """Return those of `backends` that a router is shown (`routing.free_slots`)."""
        is_narrowed = self.prefers_free_slots and len(backends) > 1
        return with_free_slots(backends, self.pools.num_slots) if is_narrowed else backends

    def may_serve(self, model: str) -> bool:
        """Return whether a backend has served `model`, or one that has never been up might."""
        return self._models.was_served(model) or not all(backend.was_ever_healthy for backend in self.backends)

    def is_known(self, model: str) -> bool:
        """Return whether `model` has a pool of slots."""
        return self._models.is_known(model)

    def list_models(self) -> Sequence[dict[str, Any]]:
        """Return the entries of `/v1/models`: the models of the healthy backends, each once."""
        return self._models.list_models()

    def pool_load(self, pool: str, now: Micros) -> FleetLoad:
        """Return the load of the healthy backends of a pool. O(backends)."""
        return fleet_load(self.pools.backends(pool))

    def add_request(self, sent: UpstreamRequest, now: Micros) -> None:
        """Count a request that is about to be sent to its backend."""
        backend, request = sent.backend, sent.request
        backend.requests[sent] = None
        backend.in_flight += request.sequences
        if backend.circuit.needs_attention:
            self.ejection.begin(sent)
        if backend.learned_slots is not None:
            sent.own = backend.own_requests.add(request.prompt_tokens, request.stream, now, request.sequences)
            backend.in_use.set()

    def remove_request(self, sent: UpstreamRequest, now: Micros) -> None:
        """Stop counting a request that has ended at its backend, in whatever way."""
        backend, own = sent.backend, sent.own
        del backend.requests[sent]
        backend.in_flight -= sent.request.sequences
        if sent.is_probe:
            self.ejection.end(sent)
        if own is not None:
            backend.own_requests.remove(own, now, completed=sent.is_complete, failed=sent.has_failed)
        if sent.is_stranded or not backend.is_in_use:
            self._on_left_behind(sent)

    def _on_left_behind(self, sent: UpstreamRequest) -> None:
        """A request has ended where no new ones come: its slot ends with it (`SlotPools.total_slots`)."""
        if sent.backend.is_draining and not sent.backend.requests and self.on_unreachable is None:
            log.warning("backend %s is drained: it has no request any more", sent.backend.url)
        if sent.model:
            self.tell_slots_changed((self.pools.pool_of(sent.model),), ())
        if sent.backend.is_forgotten and not sent.backend.requests:
            self._remove(sent.backend)

    def note_unreachable(self, sent: UpstreamRequest, error: ConnectError) -> None:
        """No connection could be made for a request: its backend is down, unless it has said something since: it is busy."""
        if self.on_unreachable is not None:
            self.on_unreachable(sent, error)
        elif error.is_refusal or not sent.backend.has_answered(sent.sent_at, sent.backend.circuit.num_answers):
            self.mark_down(sent.backend, str(error))

    def drain(self, backend: Backend) -> None:
        """Send nothing more to `backend`. Requests that it has are left to it."""
        if not backend.is_drained:
            log.warning("backend %s is being drained; requests that it has: %d", backend.url, len(backend.requests))
            backend.is_drained = True
            self._settle_draining(backend)

    def undrain(self, backend: Backend) -> None:
        """Use `backend` again, unless it is about to go."""
        if backend.is_drained:
            log.warning("backend %s is in use again%s", backend.url, " when it is listed again" if backend.is_leaving else "")
            backend.is_drained = False
            self._settle_draining(backend)

    def add(self, url: str) -> Backend:
        """Have a backend, which is down until it has been polled, or have it again. Raises ConfigError for no URL."""
        backend = self._seats.find(url)
        if backend is not None:
            self.rejoin(url)
            return backend
        backend = self._seats.take(url, self._clock.now())
        self.ejection.seat(backend)
        for on_added in self.on_added:
            on_added(backend)
        self._tell_observers(backend)
        return backend

    def number_of(self, url: str) -> int:
        """Return the number of a backend. One that is not there has requests of another scheduler, and gets no others."""
        backend = self._seats.find(url)
        if backend is None:
            backend = self.add(url)
            self.leave(url)
            backend.is_forgotten = True  # after its requests, which are about to be told
        return backend.index

    def reseat(self, urls: Sequence[str]) -> None:
        """Have the backends that another process has, by number (`Seats.reseat`)."""
        came, went = self._seats.reseat(urls)
        self.ejection.reseat(self.seats)
        for backend in went:
            backend.healthy, backend.models = False, {}
            for on_removed in self.on_removed:
                on_removed(backend)
        for backend in came:
            for on_added in self.on_added:
                on_added(backend)

    def leave(self, url: str) -> None:
        """Send nothing more to a backend that is about to go."""
        backend = self._seats.find(url)
        if backend is not None and not backend.is_leaving:
            log.warning("backend %s is listed no more; requests that it has: %d", url, len(backend.requests))
            backend.is_leaving = True
            self._settle_draining(backend)

    def rejoin(self, url: str) -> None:
        """Use a backend again that was about to go."""
        backend = self._seats.find(url)
        if backend is not None:
            backend.is_forgotten = False
            if backend.is_leaving:
                log.warning("backend %s is listed again", url)
                backend.is_leaving = False
                self._settle_draining(backend)

    def forget_when_idle(self, url: str) -> None:
        """Have a backend no more that is about to go, as soon as it has no request."""
        backend = self._seats.find(url)
        if backend is not None:
            backend.is_forgotten = True
            if not backend.requests:
                self._remove(backend)

    def _remove(self, backend: Backend) -> None:
        log.info("backend %s has gone", backend.url)
        self.ejection.reset(backend)
        self._seats.leave(backend, self._clock.now())
        backend.healthy, backend.models, backend.is_forgotten = False, {}, False
        backend.problem = "it has gone"
        self.update_serving()
        self._tell_observers(backend)
        for on_removed in self.on_removed:
            on_removed(backend)

    def _settle_draining(self, backend: Backend) -> None:
        is_draining = backend.is_drained or backend.is_leaving
        if is_draining is not backend.is_draining:
            backend.is_draining = is_draining
            self.update_serving()
            self._tell_observers(backend)

    def mark_up(self, backend: Backend, models: dict[str, dict[str, Any]], slots: int | None) -> None:
        """Send requests to `backend`: it serves `models`, by id, and can run `slots` requests at once, or does not say how
        many."""
        backend.failures_in_a_row, backend.problem = 0, ""
        changed = not backend.healthy or models.keys() != backend.models.keys()
        resized = slots != backend.reported_slots
        # A log that is filtered for warnings shows that the backend went down, and must show that it is up again.
        level = logging.WARNING if backend.was_ever_healthy and not backend.healthy else logging.INFO
        backend.healthy = backend.was_ever_healthy = True
        backend.models, backend.reported_slots = models, slots
        if changed:
            names = ", ".join([*models][:_MOST_NAMED]) or "no model"
            more = f" and {len(models) - _MOST_NAMED} more" if len(models) > _MOST_NAMED else ""
            log.log(level, "backend %s is up, serving %s%s", backend.url, names, more)
        if changed or resized:
            self.update_serving(*[backend] if resized else [])

    def mark_down(self, backend: Backend, problem: str) -> None:
        """Send nothing more to `backend` until it is marked as up."""
        backend.problem = problem
        if backend.healthy:
            log.warning("backend %s is down: %s", backend.url, problem)
            backend.healthy, backend.reading, backend.kv = False, None, None
            backend.note_load(None)
            if backend.learned_slots is not None:
                backend.learned_slots.forget(self._clock.now())
            self.ejection.reset(backend)
            self.update_serving()
            self._tell_observers(backend)

    def count_failure(self, backend: Backend, problem: str) -> None:
        """Count a poll of `backend` that has failed. After `health_failures` in a row it is down, and its requests are taken
        away."""
        backend.failures_in_a_row += 1
        if backend.failures_in_a_row == 1:
            log.warning("backend %s: %s", backend.url, problem)
        enough = backend.failures_in_a_row >= self._failures_until_down
        if enough or not backend.healthy:
            self.mark_down(backend, problem)
        if enough:
            self._abandon(backend.requests)

    def note_alive(self, backend: Backend) -> None:
        """Note that `backend` works, although a poll had no answer."""
        backend.failures_in_a_row = 0

    def note_not_polled(self, backend: Backend, problem: str) -> None:
        """Note that `backend` could not be polled, for a reason that says nothing about it: its health stays as it was."""
        if backend.problem != problem:
            backend.problem = problem
            log.error("backend %s cannot be polled: %s", backend.url, problem)

    def note_kv(self, backend: Backend, report: EngineReport | None) -> None:
        """Take over what `backend` reports of its KV memory, or that it reports nothing."""
        before, backend.kv = backend.kv, report
        if self._observers and before is not None and report is not None and has_restarted(before, report):
            log.warning("backend %s has restarted: what was in its KV memory is lost", backend.url)
            for observer in self._observers:
                observer.on_backend_restarted(backend)

    def note_polled(self, backend: Backend) -> None:
        """Note that a regular poll of `backend` has ended, whatever it has found, and look for what is due with each."""
        if not backend.has_been_polled:
            backend.has_been_polled = True
            if not backend.healthy and not backend.failures_in_a_row:  # A failure that counts has been logged.
                log.warning("backend %s is not up: %s", backend.url, backend.problem)
            self.tell_slots_changed((), (backend,))
        self._tell_observers(backend)
        self._abandon(self.ejection.find_silent(backend))
        self._forget_vanished()
        if backend.is_forgotten and not backend.requests:
            self._remove(backend)

    def tell_slots_changed(self, pools: Iterable[str], backends: Iterable[Backend]) -> None:
        """Say that these pools may have another number of slots, and these backends another source of theirs."""
        self._listener.on_slots_changed(pools, backends)

    def check(self) -> None:
        """Raise InvariantError if what is counted of a backend is not what it has, or its learned slots are out of bounds."""
        for backend in self.backends:
            sequences = sum([sent.request.sequences for sent in backend.requests])
            if backend.in_flight != sequences:
                raise InvariantError(f"{backend.url}: {backend.in_flight} in flight are counted, and requests have {sequences}")
            backend.own_requests.check()
            if backend.learned_slots is not None:
                backend.learned_slots.check()
        self.pools.check()

    def _tell_observers(self, backend: Backend) -> None:
        for observer in self._observers:
            observer.on_backend_polled(backend)

    def _abandon(self, requests: Iterable[UpstreamRequest]) -> None:
        """Take requests that have no response yet away from their backend, if another one serves their model."""
        for sent in requests:
            is_left = sent.is_committed or not sent.may_be_abandoned
            if not is_left and any(other is not sent.backend for other in self.backends_serving(sent.model)):
                sent.cancel()

    def update_serving(self, *resized: Backend) -> None:
        """Draw the consequences of what has changed. `resized` report another number of slots."""
        is_ready = any(backend.healthy for backend in self.backends)
        if is_ready != self._is_ready and self.on_unreachable is None:
            self._is_ready = is_ready
            log.log(*((logging.INFO, "ready: a backend is up") if is_ready else (logging.ERROR, "not ready: no backend is up")))
        were_left = [backend.is_left for backend in self.backends]
        self.ejection.detector.set_in_use([b.index for b in self.backends if b.healthy and not b.is_draining])
        change = self._models.update()
        pools, moved = self.pools.update(change, resized)
        # Slots that go make no victims, and those that come are given away before a victim is stopped for one.
        self._tell_stranded(moved, stranded=True)
        self.tell_slots_changed(pools, (*change.backends, *resized))
        self._tell_stranded(moved, stranded=False)
        self._forget_vanished()
        for backend, was_left in zip(self.backends, were_left, strict=True):
            if backend.is_left is not was_left:
                self._tell_observers(backend)

    def _tell_stranded(self, moved: Container[Backend], *, stranded: bool) -> None:
        """Tell of the requests that are at backends whose slots do not count any more, or do so again: of those that have
        `moved` and those that are in no use."""
        looked_at = [backend for backend in self.backends if backend.requests and (backend in moved or not backend.is_in_use)]
        for sent in [sent for backend in looked_at for sent in backend.requests if sent.is_stranded is not stranded]:
            if self.pools.serves(sent.backend, self.pools.pool_of(sent.model)) is not stranded:
                sent.is_stranded = stranded
                self._listener.on_stranded(sent.request.id, stranded)

    def _forget_vanished(self) -> None:
        """Drop the models that no backend lists any more, as soon as no request of theirs is left."""
        for model in list(self._models.vanished):
            at_backends = any(sent.model == model for backend in self.backends for sent in backend.requests)
            if not at_backends and (self.pools.is_shared(model) or self._listener.on_vanished(self.pools.pool_of(model))):
                self._models.forget(model)
                self.pools.forget(model)
