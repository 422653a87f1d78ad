"""The backends: which are up, and which models they serve.

Each backend is polled in a loop of its own (`engines.polling`), so that none delays another. One good answer makes a backend
healthy. A refused connection, in a poll or in service, takes it down at once; other failures take it down after
`health_failures` in a row, because a busy engine is slow to answer and not down. A poll that times out while answers to
requests come is no failure at all: the engine lives. A backend whose polls are good and whose answers are bad is the matter of
`ejection`.

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

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Sequence
from typing import Any

from maitred.admission import fleet_load
from maitred.core.contracts import FleetLoad
from maitred.core.errors import MaitredError
from maitred.core.request import Request
from maitred.core.units import Micros
from maitred.scheduler.backends.backend import Backend, BackendObserver, UpstreamRequest
from maitred.scheduler.backends.ejection_driver import RealTimeEjection
from maitred.scheduler.backends.served_models import ServedModels
from maitred.scheduler.backends.slot_pools import FleetListener, SlotPools
from maitred.scheduler.config import FleetConfig
from maitred.scheduler.drivers.deadline_timer import monotonic_now
from maitred.scheduler.engines.polling import BackendPoller, KvPolling, PollResult
from maitred.scheduler.engines.readings import MetricsReader
from maitred.scheduler.engines.report import has_restarted
from maitred.wire.client import UpstreamClient
from maitred.wire.errors import ConnectError, LocalError, PoolTimeout

log = logging.getLogger("maitred.gateway")


class BackendFleet:
    """All backends of a gateway."""

    def __init__(self, config: FleetConfig, client: UpstreamClient) -> None:
        """Its backends are not polled before `poll_forever`, and what becomes of its slots is told from `listen` on."""
        self._config, self._client = config, client
        self._listener: FleetListener = FleetListener()
        self.backends: Sequence[Backend] = [Backend(index, url) for index, url in enumerate(config.backends)]
        self._pollers = [BackendPoller(client, backend.origin, config) for backend in self.backends]
        self._models = ServedModels(self.backends)
        self.pools = SlotPools(config, self._models, self.backends)
        """Which models share slots, and how many there are."""
        self.ejection = RealTimeEjection(config.ejection, self.backends, self._update_serving)
        """What ejects the backends that fail requests."""
        self._urgent_polls: dict[int, asyncio.Task[None]] = {}
        """The polls that requests wait for, by the number of the backend."""
        self.prefers_free_slots = False
        """Whether the slots of a backend limit what is sent to it."""
        self._is_ready = False
        """Whether a backend was healthy when the log last said so."""
        self._observer: BackendObserver | None = None
        self._kv_polling: KvPolling | None = None
        self._all_polled = asyncio.Event()
        self._told_problems: dict[int, str] = {}
        """Why the load of a backend is not known, as last told, by its index."""

    def listen(self, listener: FleetListener) -> None:
        """Tell `listener` what becomes of the slots, from now on."""
        self._listener = listener

    def tell_slots_changed(self, pools: Iterable[str]) -> None:
        """Say that these pools may have another number of slots."""
        self._listener.on_slots_changed(pools)

    def observe(self, observer: BackendObserver, kv_polling: KvPolling | None) -> None:
        """Tell `observer` how backends are, and read their KV memory as `kv_polling` says, or not if it is None."""
        self._observer, self._kv_polling = observer, kv_polling
        for poller in self._pollers:
            poller.kv_polling = kv_polling

    def metrics_reader(self, backend: Backend) -> MetricsReader:
        """Return what reads the metrics of `backend`."""
        return self._pollers[backend.index].metrics

    @property
    def reads_kv(self) -> bool:
        """Whether the KV memory of backends is read."""
        return self._kv_polling is not None

    @property
    def poll_interval_secs(self) -> float:
        """Seconds between two polls of one backend."""
        interval = None if self._kv_polling is None else self._kv_polling.interval_secs
        return self._config.health_interval_secs if interval is None else min(interval, self._config.health_interval_secs)

    @property
    def kv_interval_secs(self) -> float:
        """Seconds between two readings of the KV memory of one backend."""
        interval = None if self._kv_polling is None else self._kv_polling.interval_secs
        return self.poll_interval_secs if interval is None else interval

    @property
    def healthy(self) -> Sequence[Backend]:
        return [backend for backend in self.backends if backend.healthy]

    def backends_serving(self, model: str) -> tuple[Backend, ...]:
        """Return the healthy backends that serve `model` and are neither drained nor ejected; the ejected ones if all are."""
        return self._models.backends_serving(model)

    def with_free_slots(self, backends: Sequence[Backend]) -> Sequence[Backend]:
        """Return those of `backends` that have fewer sequences in flight than slots, or all of them if none has. Slots are
        given out per model, so nothing else keeps a backend to its own number."""
        if not self.prefers_free_slots or len(backends) < 2:
            return backends
        free = [backend for backend in backends if backend.in_flight < self.pools.backend_slots(backend).slots]
        return free if 0 < len(free) < len(backends) else backends

    def num_connections(self, backend: Backend) -> int:
        """Return how many connections to `backend` are open."""
        return self._client.num_connections(backend.origin)

    def may_serve(self, model: str) -> bool:
        """Return whether a backend has served `model`, or one that has never been up might."""
        return self._models.was_served(model) or not all(backend.was_ever_healthy for backend in self.backends)

    def is_known(self, model: str) -> bool:
        """Return whether `model` has a pool of slots."""
        return self._models.is_known(model)

    @property
    def all_polled(self) -> bool:
        """Whether every backend has been polled at least once."""
        return all(backend.has_been_polled for backend in self.backends)

    @property
    def known_models(self) -> Sequence[str]:
        """All models that backends serve, or served when they were last up."""
        return self._models.names

    def pool_load(self, pool: str, now: Micros) -> FleetLoad:
        """Return the load of the healthy backends of a pool. O(backends)."""
        return fleet_load(self.pools.backends(pool))

    def add_request(self, backend: Backend, request: Request, task: asyncio.Task[None], now: Micros) -> UpstreamRequest:
        """Count the request that `task` is about to send to `backend`."""
        sent = UpstreamRequest(backend, request, task)
        backend.requests.add(sent)
        backend.in_flight += sent.sequences
        if backend.circuit.needs_attention:
            self.ejection.begin(sent)
        if backend.learned_slots is not None:
            sent.own = backend.own_requests.add(request.prompt_tokens, request.stream, now, request.sequences)
            backend.in_use.set()
        return sent

    def remove_request(self, sent: UpstreamRequest) -> None:
        """Stop counting a request that has ended at its backend, in whatever way."""
        backend, own = sent.backend, sent.own
        backend.requests.remove(sent)
        backend.in_flight -= sent.sequences
        if sent.is_probe:
            self.ejection.end(sent)
        if own is not None:
            backend.own_requests.remove(own, monotonic_now(), completed=sent.is_complete, failed=sent.has_failed)
        if sent.is_stranded or not backend.is_in_use:
            self._on_left_behind(sent)

    def _on_left_behind(self, sent: UpstreamRequest) -> None:
        """A request has ended where no new ones come: its slot ends with it (`SlotPools.total_slots`)."""
        if sent.backend.is_draining and not sent.backend.requests:
            log.warning("backend %s is drained: it has no request any more", sent.backend.url)
        if sent.model:
            self._listener.on_slots_changed((self.pools.pool_of(sent.model),))

    def list_models(self) -> Sequence[dict[str, Any]]:
        """Return what `/v1/models` lists: the models of the healthy backends, each once."""
        return self._models.list_models()

    def reconfigure(self, config: FleetConfig) -> None:
        """Use the keys of this configuration for all polls from now on."""
        for poller in self._pollers:
            poller.use_key(config.upstream_api_key)

    async def poll_forever(self) -> None:
        """Poll all backends until cancelled."""
        async with asyncio.TaskGroup() as polls:
            for backend in self.backends:
                polls.create_task(self._poll_repeatedly(backend))

    def note_unreachable(self, sent: UpstreamRequest, error: ConnectError) -> None:
        """No connection could be made for a request: its backend is down, unless it has said something since: it is busy."""
        if error.is_refusal or not sent.backend.has_answered(sent.sent_at, sent.backend.circuit.num_answers):
            self.mark_down(sent.backend, str(error))

    def mark_down(self, backend: Backend, problem: str) -> None:
        """Send nothing more to `backend` until a poll of it succeeds."""
        backend.problem = problem
        if backend.healthy:
            log.warning("backend %s is down: %s", backend.url, problem)
            backend.healthy, backend.reading, backend.kv = False, None, None
            backend.note_load(None)
            if backend.learned_slots is not None:
                backend.learned_slots.forget(monotonic_now())
            self._pollers[backend.index].reset_reported()
            self.ejection.reset(backend)
            self._update_serving()
            self._tell_observer(backend)

    def drain(self, backend: Backend) -> None:
        """Send nothing more to `backend`. Requests that it has are left to it."""
        if not backend.is_draining:
            log.warning("backend %s is being drained; requests that it has: %d", backend.url, len(backend.requests))
            backend.is_draining = True
            self._on_drain_changed(backend)

    def undrain(self, backend: Backend) -> None:
        """Use `backend` again."""
        if backend.is_draining:
            log.warning("backend %s is in use again", backend.url)
            backend.is_draining = False
            self._on_drain_changed(backend)

    def _on_drain_changed(self, backend: Backend) -> None:
        self._update_serving()
        self._tell_observer(backend)

    def _tell_observer(self, backend: Backend) -> None:
        if self._observer is not None:
            self._observer.on_backend_polled(backend)

    async def poll_now(self, backend: Backend) -> None:
        """Poll `backend` beside its regular polls, and return when that has ended. Requests that ask at once share it."""
        polled = self._urgent_polls.get(backend.index)
        if polled is None:
            polled = self._urgent_polls[backend.index] = asyncio.create_task(self._poll(backend))
            polled.add_done_callback(lambda _: self._urgent_polls.pop(backend.index))
        await asyncio.shield(polled)

    async def wait_until_polled(self, secs: float) -> None:
        """Return when every backend has been polled once, or after `secs`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(secs):
                await self._all_polled.wait()

    async def _poll_repeatedly(self, backend: Backend) -> None:
        while True:
            await self._poll(backend)
            if not backend.has_been_polled:
                self._on_first_poll(backend)
            self._tell_observer(backend)
            self._abandon(self.ejection.find_silent(backend))
            if self._models.vanished:
                self._forget_vanished()
            await asyncio.sleep(self.poll_interval_secs)

    def _on_first_poll(self, backend: Backend) -> None:
        backend.has_been_polled = True
        if not backend.healthy and not backend.failures_in_a_row:  # A failure that counts has been logged.
            log.warning("backend %s is not up: %s", backend.url, backend.problem)
        if self.all_polled:
            self._all_polled.set()
        self._listener.on_slots_changed(())

    async def _poll(self, backend: Backend) -> None:
        began_at, num_answers = monotonic_now(), backend.circuit.num_answers
        was_healthy, reads_kv = backend.healthy, self._is_kv_due(backend)
        try:
            found = await self._pollers[backend.index].poll(wants_metrics=reads_kv)
        except ConnectError as error:
            # Refused: the process has ended, or finishes its requests; they are left to it. Any other failure to connect may
            # lie in the network and last, so it counts towards taking the requests away.
            if error.is_refusal or not backend.has_answered(began_at, num_answers):
                self.mark_down(backend, str(error))
                if not error.is_refusal:
                    self._count_failure(backend, str(error))
        except (LocalError, PoolTimeout) as error:
            # This says nothing about the backend, so its health stays as it was.
            if backend.problem != str(error):
                backend.problem = str(error)
                log.error("backend %s cannot be polled: %s", backend.url, error)
        except TimeoutError:
            if backend.has_answered(began_at, num_answers):
                backend.failures_in_a_row = 0
            else:
                self._count_failure(backend, f"no answer within {self._config.health_timeout_secs:g} s")
        except Exception as error:  # A backend may answer anything, and an error here would end the polls of all of them.
            words = str(error) if isinstance(error, MaitredError) else f"{type(error).__name__}: {error}"
            self._count_failure(backend, words)
        else:
            # A request may have found the backend down during the poll, which says nothing then.
            if backend.healthy or not was_healthy:
                if reads_kv:
                    self._note_kv(backend)
                self._mark_up(backend, found)
                await self._note_load(backend, has_read_metrics=reads_kv)

    async def _note_load(self, backend: Backend, *, has_read_metrics: bool) -> None:
        """Take over what a backend that is up reports of its load, if anything goes by it."""
        metrics, report = self._pollers[backend.index].metrics, None
        if self._listener.wants_load():
            if not has_read_metrics:
                await metrics.read()
            report = metrics.report
            self._tell_unknown_load(backend, metrics.problem)
        backend.note_load(report if backend.healthy and report is not None and report.has_load else None)

    def _tell_unknown_load(self, backend: Backend, problem: str) -> None:
        """Say once of each problem that routing or admission goes by a load that is not known."""
        if problem and self._told_problems.get(backend.index) != problem:
            log.warning("backend %s does not say how loaded it is: %s", backend.url, problem)
        self._told_problems[backend.index] = problem

    def _is_kv_due(self, backend: Backend) -> bool:
        """Return whether the KV memory of a backend is to be read with this poll. That is before the backend counts as up:
        until its capacity is known, none of it may be given away."""
        polling, now = self._kv_polling, asyncio.get_running_loop().time()
        return polling is not None and (backend.kv is None or now - backend.kv_read_at >= (polling.interval_secs or 0))

    def _note_kv(self, backend: Backend) -> None:
        before, report = backend.kv, self._pollers[backend.index].kv_report()
        backend.kv, backend.kv_read_at = report, asyncio.get_running_loop().time()
        if self._observer is not None and before is not None and report is not None and has_restarted(before, report):
            log.warning("backend %s has restarted: what was in its KV memory is lost", backend.url)
            self._observer.on_backend_restarted(backend)

    def _count_failure(self, backend: Backend, problem: str) -> None:
        backend.failures_in_a_row += 1
        if backend.failures_in_a_row == 1:
            log.warning("backend %s: %s", backend.url, problem)
        enough = backend.failures_in_a_row >= self._config.health_failures
        if enough or not backend.healthy:
            self.mark_down(backend, problem)
        if enough:
            self._abandon(backend.requests)

    def _abandon(self, requests: Iterable[UpstreamRequest]) -> None:
        """Take requests that have no response yet away from their backend, if another one serves their model."""
        for sent in requests:
            is_left = sent.is_committed or not sent.may_be_abandoned
            if not is_left and any(other is not sent.backend for other in self.backends_serving(sent.model)):
                sent.cancel()

    def _mark_up(self, backend: Backend, found: PollResult) -> None:
        backend.failures_in_a_row, backend.problem = 0, ""
        changed = not backend.healthy or found.models.keys() != backend.models.keys()
        resized = found.slots != backend.reported_slots
        # A log that is filtered for warnings shows that the backend went down, and must show that it is up again.
        level = logging.WARNING if backend.was_ever_healthy and not backend.healthy else logging.INFO
        backend.healthy = backend.was_ever_healthy = True
        backend.models, backend.reported_slots = found.models, found.slots
        if changed:
            log.log(level, "backend %s is up, serving %s", backend.url, ", ".join(found.models) or "no model")
        if changed or resized:
            self._update_serving()

    def _update_serving(self) -> None:
        is_ready = bool(self.healthy)
        if is_ready != self._is_ready:
            self._is_ready = is_ready
            log.log(*((logging.INFO, "ready: a backend is up") if is_ready else (logging.ERROR, "not ready: no backend is up")))
        were_left = [backend.is_left for backend in self.backends]
        self.ejection.detector.set_in_use([b.index for b in self.backends if b.healthy and not b.is_draining])
        self._models.update()
        pools = self.pools.update()
        # Slots that go make no victims, and those that come are given away before a victim is stopped for one.
        self._tell_stranded(stranded=True)
        self._listener.on_slots_changed(pools)
        self._tell_stranded(stranded=False)
        self._forget_vanished()
        for backend, was_left in zip(self.backends, were_left, strict=True):
            if backend.is_left is not was_left:
                self._tell_observer(backend)

    def _tell_stranded(self, *, stranded: bool) -> None:
        """Tell of the requests that are at backends whose slots do not count any more, or do so again."""
        for sent in [sent for backend in self.backends for sent in backend.requests if sent.is_stranded is not stranded]:
            if (sent.backend not in self.pools.backends(self.pools.pool_of(sent.model))) is stranded:
                sent.is_stranded = stranded
                self._listener.on_stranded(sent.request_id, stranded)

    def _forget_vanished(self) -> None:
        """Drop the models that no backend lists any more, as soon as no request of theirs is left."""
        for model in list(self._models.vanished):
            at_backends = any(sent.model == model for backend in self.backends for sent in backend.requests)
            if not at_backends and (self.pools.is_shared(model) or self._listener.on_vanished(self.pools.pool_of(model))):
                self._models.forget(model)
                self.pools.forget(model)
