"""The backends: which are up, and which models they serve.

Each is polled (see `polling`) in a loop of its own: what one does delays and harms no other. One good answer
makes it healthy; a refused connection, in a poll or in service, makes it down at once, and other failures after some in a row,
because a busy engine is slow to answer and not down.

What is in flight at a backend that is down. Where connections are refused the process has gone, and the requests with it, or it
ends what it has and takes no more: they are left to it. Where polls fail otherwise it may never answer, so requests that have
shown their clients nothing are taken away, as soon as another backend serves their model. What stays there brings slots of its
own until it has ended: it must not use up those of the healthy ones.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from maitred.admission import fleet_load
from maitred.core.contracts import FleetLoad
from maitred.core.errors import MaitredError
from maitred.core.request import Request
from maitred.core.units import Micros
from maitred.gateway.config import DEFAULT_SLOTS_PER_BACKEND, GatewayConfig
from maitred.gateway.polling import BackendPoller, PollResult, ReportedLoad
from maitred.wire.client import Origin, UpstreamClient
from maitred.wire.errors import ConnectError, LocalError

log = logging.getLogger("maitred.gateway")
SlotSource: TypeAlias = Literal["configured", "reported", "default", "mixed", "none"]
"""How it is known how many slots there are; `none`: there are none, because no backend is up."""


class ModelSlots(msgspec.Struct, frozen=True):
    """What the healthy backends of one model offer."""

    slots: int
    source: SlotSource


class Backend:
    """An instance reached over HTTP, as routers see it (InstanceView)."""

    __slots__ = (
        *("failures_in_a_row", "requests", "healthy", "index", "load", "models"),
        *("origin", "has_been_polled", "problem", "reported_slots", "was_ever_healthy", "url"),
    )

    def __init__(self, index: int, url: str) -> None:
        self.index = index
        self.origin = Origin.parse(url, where="--backend")
        self.url = str(self.origin)
        self.requests: set[UpstreamRequest] = set()
        self.has_been_polled = False
        """Whether a poll of it has ended, however."""
        self.healthy = False
        self.was_ever_healthy = False
        """Whether it ever was."""
        self.models: dict[str, dict[str, Any]] = {}
        """What it served when last asked, by id; kept while it is down."""
        self.reported_slots: int | None = None
        """Requests that it says it can run at once."""
        self.load: ReportedLoad | None = None
        """What it says of its load; None: it does not, or nobody wants to know."""
        self.failures_in_a_row = 0
        self.problem = "not polled yet"
        """Why it is not healthy."""

    @property
    def in_flight(self) -> int:
        return len(self.requests)

    @property
    def waiting(self) -> int:
        return 0 if self.load is None else self.load.waiting

    @property
    def running(self) -> int:
        """All that is in flight, if it does not say."""
        return len(self.requests) if self.load is None else self.load.running

    @property
    def kv_usage(self) -> float:
        return 0.0 if self.load is None else self.load.kv_usage

    def cached_blocks(self, request: Request) -> int:
        return 0


class UpstreamRequest:
    """One request at one backend, made by the task that waits for the answer."""

    __slots__ = ("_task", "backend", "is_abandoned", "model", "response_started")

    def __init__(self, backend: Backend, model: str) -> None:
        self.backend = backend
        self.model = model
        self.response_started = False
        """Whether the client has seen anything of the answer."""
        self.is_abandoned = False
        self._task = asyncio.current_task()

    def abandon(self) -> None:
        """Cancel its task, which then asks `taken`."""
        assert self._task is not None
        self.is_abandoned = True
        self._task.cancel()

    def absorb_abandonment(self) -> bool:
        """Whether the task was cancelled by `abandon` and by nobody else. To be asked once; then it may go on."""
        assert self._task is not None
        return self.is_abandoned and self._task.uncancel() == 0


class BackendFleet:
    """`changed` is called with the models whose slots may have become more or fewer; `wants_load` is asked whether anybody
    decides by the load that backends report."""

    def __init__(
        self,
        config: GatewayConfig,
        client: UpstreamClient,
        on_slots_changed: Callable[[Iterable[str]], object],
        wants_load: Callable[[], bool] = lambda: False,
    ) -> None:
        self._config = config
        self._on_slots_changed = on_slots_changed
        self._wants_load = wants_load
        self.backends: Sequence[Backend] = [Backend(index, url) for index, url in enumerate(config.backends)]
        self._pollers = [BackendPoller(client, backend.origin, config) for backend in self.backends]
        self._serving: dict[str, tuple[Backend, ...]] = {}

    @property
    def healthy(self) -> Sequence[Backend]:
        return [backend for backend in self.backends if backend.healthy]

    def backends_serving(self, model: str) -> tuple[Backend, ...]:
        """The healthy backends that serve `model`."""
        return self._serving.get(model, ())

    def may_serve(self, model: str) -> bool:
        """Whether a backend has ever served `model`, or one that was never up yet might."""
        return model in self._serving or not all(backend.was_ever_healthy for backend in self.backends)

    @property
    def all_polled(self) -> bool:
        """Whether every backend has been polled once."""
        return all(backend.has_been_polled for backend in self.backends)

    @property
    def known_models(self) -> Sequence[str]:
        """All that were ever served."""
        return list(self._serving)

    def total_slots(self, model: str) -> int:
        """How many requests for `model` may be in flight."""
        serving = self.backends_serving(model)
        left = sum(flight.model == model for b in self.backends if b not in serving for flight in b.requests)
        return self.offered_slots(model).slots + left

    def offered_slots(self, model: str) -> ModelSlots:
        """What its healthy backends offer."""
        offers = [self.backend_slots(backend) for backend in self.backends_serving(model)]
        sources = {offer.source for offer in offers}
        source = sources.pop() if len(sources) == 1 else "mixed" if sources else "none"
        return ModelSlots(sum(offer.slots for offer in offers), source)

    def model_load(self, model: str, now: Micros) -> FleetLoad:
        """How loaded the healthy backends of `model` are. O(backends)."""
        return fleet_load(self.backends_serving(model))

    def backend_slots(self, backend: Backend) -> ModelSlots:
        """What one backend offers, for each model it serves."""
        if self._config.slots_per_backend is not None:
            return ModelSlots(self._config.slots_per_backend, "configured")
        if backend.reported_slots is not None:
            return ModelSlots(backend.reported_slots, "reported")
        return ModelSlots(DEFAULT_SLOTS_PER_BACKEND, "default")

    def add_request(self, backend: Backend, model: str) -> UpstreamRequest:
        """A request is about to be sent there by the current task."""
        flight = UpstreamRequest(backend, model)
        backend.requests.add(flight)
        return flight

    def remove_request(self, flight: UpstreamRequest) -> None:
        """It is over there, whatever became of it."""
        flight.backend.requests.remove(flight)
        if flight.backend not in self.backends_serving(flight.model):
            self._on_slots_changed((flight.model,))

    def list_models(self) -> Sequence[dict[str, Any]]:
        """What `/v1/models` says: the healthy backends' models, each once."""
        merged: dict[str, dict[str, Any]] = {}
        for backend in self.healthy:
            for name, model in backend.models.items():
                merged.setdefault(name, model)
        return list(merged.values())

    def apply_config(self, config: GatewayConfig) -> None:
        """From now on poll by this configuration."""
        for poller in self._pollers:
            poller.use_key(config.upstream_api_key)

    async def poll_forever(self) -> None:
        """Poll for ever."""
        async with asyncio.TaskGroup() as polls:
            for backend in self.backends:
                polls.create_task(self._poll_repeatedly(backend))

    def mark_down(self, backend: Backend, problem: str) -> None:
        """Send it nothing more until a poll succeeds."""
        backend.problem = problem
        if backend.healthy:
            log.warning("backend %s is down: %s", backend.url, problem)
            backend.healthy, backend.load = False, None
            self._pollers[backend.index].reset_reported()
            self._update_serving()

    async def _poll_repeatedly(self, backend: Backend) -> None:
        while True:
            await self._poll(backend)
            if not backend.has_been_polled:
                backend.has_been_polled = True
                self._on_slots_changed(())
            await asyncio.sleep(self._config.health_interval_secs)

    async def _poll(self, backend: Backend) -> None:
        try:
            found = await self._pollers[backend.index].poll()
        except ConnectError as error:
            self.mark_down(backend, str(error))
            if not _is_connection_refused(error):
                self._count_failure(backend, str(error))
        except LocalError as error:
            if backend.problem != str(error):
                backend.problem = str(error)
                log.error("backend %s cannot be polled: %s", backend.url, error)
        except TimeoutError:
            self._count_failure(backend, f"no answer within {self._config.health_timeout_secs:g} s")
        except Exception as error:  # there is no end to what a backend may answer, and no poll may be the last
            self._count_failure(
                backend, f"{type(error).__name__}: {error}" if not isinstance(error, MaitredError) else str(error)
            )
        else:
            self._mark_up(backend, found)
            load = await self._pollers[backend.index].fetch_load() if self._wants_load() else None
            backend.load = load if backend.healthy else None

    def _count_failure(self, backend: Backend, problem: str) -> None:
        backend.failures_in_a_row += 1
        if backend.failures_in_a_row == 1:
            log.warning("backend %s: %s", backend.url, problem)
        enough = backend.failures_in_a_row >= self._config.health_failures
        if enough or not backend.healthy:
            self.mark_down(backend, problem)
        if enough:
            self._abandon_requests(backend)

    def _abandon_requests(self, backend: Backend) -> None:
        """Take away what it has shown nothing of, if it can go elsewhere."""
        for flight in backend.requests:
            if not (flight.response_started or flight.is_abandoned) and self.backends_serving(flight.model):
                flight.abandon()

    def _mark_up(self, backend: Backend, found: PollResult) -> None:
        backend.failures_in_a_row, backend.problem = 0, ""
        changed = not backend.healthy or found.models.keys() != backend.models.keys()
        resized = found.slots != backend.reported_slots
        level = (
            logging.WARNING if backend.was_ever_healthy and not backend.healthy else logging.INFO
        )  # who read that it is down is told
        backend.healthy, backend.was_ever_healthy, backend.models, backend.reported_slots = (
            True,
            True,
            found.models,
            found.slots,
        )
        if changed:
            log.log(level, "backend %s is up, serving %s", backend.url, ", ".join(found.models) or "no model")
        if changed or resized:
            self._update_serving()

    def _update_serving(self) -> None:
        names = dict.fromkeys([*self._serving, *(name for backend in self.backends for name in backend.models)])
        self._serving = {name: tuple(b for b in self.backends if b.healthy and name in b.models) for name in names}
        self._on_slots_changed(names)


def _is_connection_refused(error: ConnectError) -> bool:
    """Whether the host answered that nobody listens; else nothing is known of the process."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.ECONNREFUSED
