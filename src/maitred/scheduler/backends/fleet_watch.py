"""FleetWatch: polls the backends, and tells the view of the fleet what it has found.

Each backend is polled in a loop of its own (`engines.polling`), so that none delays another. What a poll says:

    a good answer                       the backend is up
    a refused connection                it is down at once: nothing listens there
    no connection for another reason    it is down at once, and the failure counts, because the network may stay cut
    no answer in time, or a bad one     the failure counts
    nothing could be sent from here     nothing: this machine has no ports or descriptors left

Failures that count take a backend down after `health_failures` in a row, because a busy engine is slow to answer and not down;
then its requests are taken away (`FleetView.count_failure`). No connection, or no answer in time, is no failure at all while
pieces of answers to requests come: the engine lives. A backend whose polls are good and whose answers are bad is the matter
of `ejection`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from maitred.core.errors import MaitredError
from maitred.core.units import Micros, from_seconds
from maitred.scheduler.backends.backend import Backend
from maitred.scheduler.backends.fleet_view import FleetView
from maitred.scheduler.config import FleetConfig
from maitred.scheduler.engines.polling import BackendPoller, KvPolling
from maitred.scheduler.engines.readings import MetricsReader
from maitred.wire.client import UpstreamClient
from maitred.wire.clock import Clock
from maitred.wire.errors import ConnectError, LocalError, PoolTimeout
from maitred.wire.tasks import end_tasks

log = logging.getLogger("maitred.gateway")


class FleetWatch:
    """Watches the backends of one fleet, from `start` to `close`."""

    def __init__(
        self,
        config: FleetConfig,
        fleet: FleetView,
        client: UpstreamClient,
        *,
        clock: Clock,
        kv_polling: KvPolling | None,
        wants_load: Callable[[], bool],
    ) -> None:
        """`kv_polling` says how KV memory is read; None: it is not. `wants_load` returns whether anything goes by the load that
        backends report."""
        self._config, self._fleet, self._kv_polling, self._wants_load = config, fleet, kv_polling, wants_load
        self._clock = clock
        self._client = client
        self._pollers: dict[int, BackendPoller] = {}
        """By the number of the backend; that of one that has gone is kept until another has its number."""
        self._kv_read_at: dict[int, Micros] = {}
        """When the KV memory of each backend was last read."""
        self._told_problems: dict[int, str] = {}
        """Why the load of each backend is not known, as last told."""
        self._urgent_polls: dict[int, asyncio.Task[None]] = {}
        """The polls that requests wait for, by the index of the backend."""
        self._all_polled = asyncio.Event()
        self._tasks: dict[Backend, asyncio.Task[None]] = {}
        self._is_started = False
        for backend in fleet.backends:
            self.add(backend)

    @property
    def kv_interval_secs(self) -> float | None:
        """Seconds between two readings of the KV memory of one backend, or None if it is not read."""
        polling = self._kv_polling
        if polling is None or polling.interval_secs is not None:
            return None if polling is None else polling.interval_secs
        return self._poll_interval_secs

    @property
    def _poll_interval_secs(self) -> float:
        """Seconds between two polls of one backend."""
        health, polling = self._config.health_interval_secs, self._kv_polling
        return health if polling is None or polling.interval_secs is None else min(polling.interval_secs, health)

    def metrics_reader(self, backend: Backend) -> MetricsReader:
        """Return the reader of the metrics of `backend`."""
        return self._pollers[backend.index].metrics

    def start(self) -> None:
        """Begin to poll all backends, inside this event loop."""
        self._is_started = True
        for backend in self._fleet.backends:
            self._begin(backend)

    async def close(self) -> None:
        """Poll no more."""
        self._is_started = False
        await end_tasks(*self._tasks.values(), *self._urgent_polls.values())  # a request that asked for one may have left

    def add(self, backend: Backend) -> None:
        """Poll a backend that has come."""
        index = backend.index
        self._pollers[index] = BackendPoller(self._client, backend.origin, self._config, self._kv_polling, self._clock)
        self._kv_read_at[index], self._told_problems[index] = 0, ""
        if self._is_started:
            self._begin(backend)

    def remove(self, backend: Backend) -> None:
        """Poll a backend no more that has gone."""
        task = self._tasks.pop(backend, None)
        if task is not None:
            task.cancel()

    def _begin(self, backend: Backend) -> None:
        task = self._tasks[backend] = asyncio.create_task(self._poll_repeatedly(backend))
        task.add_done_callback(_on_polling_ended)

    def reconfigure(self, config: FleetConfig) -> None:
        """Use the keys of this configuration for all polls from now on."""
        self._config = config
        for poller in self._pollers.values():
            poller.use_key(config.upstream_api_key)

    async def wait_until_polled(self, secs: float) -> None:
        """Return when every backend has been polled once, or after `secs`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(secs):
                while not self._fleet.all_polled:
                    self._all_polled.clear()
                    await self._all_polled.wait()

    async def poll_now(self, backend: Backend) -> None:
        """Poll `backend` beside its regular polls, and return when that has ended. Requests that ask at once share it."""
        polled = self._urgent_polls.get(backend.index)
        if polled is None:
            polled = self._urgent_polls[backend.index] = asyncio.create_task(self._poll(backend))
            polled.add_done_callback(lambda _: self._urgent_polls.pop(backend.index))
        await asyncio.shield(polled)

    async def _poll_repeatedly(self, backend: Backend) -> None:
        while True:
            await self._poll(backend)
            self._fleet.note_polled(backend)
            if self._fleet.all_polled:
                self._all_polled.set()
            await asyncio.sleep(self._poll_interval_secs)

    async def _poll(self, backend: Backend) -> None:
        poller, fleet = self._pollers[backend.index], self._fleet
        began_at, num_answers = self._clock.now(), backend.circuit.num_answers
        was_healthy, reads_kv = backend.healthy, self._is_kv_due(backend)
        if not was_healthy:
            poller.forget_reported()
        try:
            found = await poller.poll(wants_metrics=reads_kv)
        except Exception as error:  # A backend may answer anything, and an error here would end its polls.
            self._on_failure(backend, error, has_answered=backend.has_answered(began_at, num_answers))
            return
        if was_healthy and not backend.healthy:
            return  # A request has found it down during the poll, which says nothing then.
        if reads_kv:
            self._kv_read_at[backend.index] = self._clock.now()
            fleet.note_kv(backend, poller.kv_report())
        fleet.mark_up(backend, found.models, found.slots)
        await self._note_load(backend, has_read_metrics=reads_kv)

    def _on_failure(self, backend: Backend, error: Exception, *, has_answered: bool) -> None:
        """Tell what a failed poll means. `has_answered`: pieces of answers have come from the backend meanwhile."""
        fleet, problem = self._fleet, self._describe(error)
        if isinstance(error, LocalError | PoolTimeout):
            fleet.note_not_polled(backend, problem)
        elif isinstance(error, ConnectError) and error.is_refusal:
            # The process has ended, or finishes its requests; they are left to it, so no failure counts.
            fleet.mark_down(backend, problem)
        elif isinstance(error, ConnectError | TimeoutError) and has_answered:
            fleet.note_alive(backend)
        else:
            if isinstance(error, ConnectError):
                fleet.mark_down(backend, problem)
            fleet.count_failure(backend, problem)

    def _describe(self, error: Exception) -> str:
        if isinstance(error, TimeoutError):
            return f"no answer within {self._config.health_timeout_secs:g} s"
        return str(error) if isinstance(error, MaitredError) else f"{type(error).__name__}: {error}"

    def _is_kv_due(self, backend: Backend) -> bool:
        """Return whether the KV memory of a backend is to be read with this poll. That is before the backend counts as up:
        until its capacity is known, none of it may be given away."""
        polling, read_at = self._kv_polling, self._kv_read_at[backend.index]
        if polling is None:
            return False
        return backend.kv is None or self._clock.now() - read_at >= from_seconds(polling.interval_secs or 0.0)

    async def _note_load(self, backend: Backend, *, has_read_metrics: bool) -> None:
        """Take over what a backend that is up reports of its load, if anything goes by it or somebody looks at it."""
        metrics, report = self._pollers[backend.index].metrics, None
        wants_load = self._wants_load()
        if wants_load or self._fleet.is_watched():
            if not has_read_metrics:
                await metrics.read()
            report = metrics.report
        if wants_load:
            self._tell_unknown_load(backend, metrics.problem)
        backend.note_load(report if backend.healthy and report is not None and report.has_load else None)

    def _tell_unknown_load(self, backend: Backend, problem: str) -> None:
        """Say once of each problem that routing or admission goes by a load that is not known."""
        if problem and self._told_problems[backend.index] != problem:
            log.warning("backend %s does not say how loaded it is: %s", backend.url, problem)
        self._told_problems[backend.index] = problem


def _on_polling_ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        log.critical("a backend is watched no more: restart the gateway", exc_info=task.exception())
