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

from maitred.admission import load_of
from maitred.contracts import FleetLoad
from maitred.errors import MaitredError
from maitred.gateway.config import DEFAULT_SLOTS, GatewayConfig
from maitred.gateway.engine_load import EngineLoad
from maitred.gateway.polling import Found, Poller
from maitred.request import Request
from maitred.units import Micros
from maitred.wire.client import Client, Origin
from maitred.wire.failures import ConnectError, LocalError

log = logging.getLogger("maitred.gateway")
Source: TypeAlias = Literal["configured", "reported", "default", "mixed", "none"]
"""How it is known how many slots there are; `none`: there are none, because no backend is up."""


class ModelSlots(msgspec.Struct, frozen=True):
    """What the healthy backends of one model offer."""

    slots: int
    source: Source


class Backend:
    """An instance reached over HTTP, as routers see it (InstanceView)."""

    __slots__ = (
        *("failures", "flights", "healthy", "index", "load", "models"),
        *("origin", "polled", "problem", "reported", "seen", "url"),
    )

    def __init__(self, index: int, url: str) -> None:
        self.index = index
        self.origin = Origin.parse(url, where="--backend")
        self.url = str(self.origin)
        self.flights: set[Flight] = set()
        self.polled = False
        """Whether a poll of it has ended, however."""
        self.healthy = False
        self.seen = False
        """Whether it ever was."""
        self.models: dict[str, dict[str, Any]] = {}
        """What it served when last asked, by id; kept while it is down."""
        self.reported: int | None = None
        """Requests that it says it can run at once."""
        self.load: EngineLoad | None = None
        """What it says of its load; None: it does not, or nobody wants to know."""
        self.failures = 0
        self.problem = "not polled yet"
        """Why it is not healthy."""

    @property
    def in_flight(self) -> int:
        return len(self.flights)

    @property
    def waiting(self) -> int:
        return 0 if self.load is None else self.load.waiting

    @property
    def running(self) -> int:
        """All that is in flight, if it does not say."""
        return len(self.flights) if self.load is None else self.load.running

    @property
    def kv_usage(self) -> float:
        return 0.0 if self.load is None else self.load.kv_usage

    def cached_blocks(self, request: Request) -> int:
        return 0


class Flight:
    """One request at one backend, made by the task that waits for the answer."""

    __slots__ = ("_task", "abandoned", "backend", "model", "shown")

    def __init__(self, backend: Backend, model: str) -> None:
        self.backend = backend
        self.model = model
        self.shown = False
        """Whether the client has seen anything of the answer."""
        self.abandoned = False
        self._task = asyncio.current_task()

    def abandon(self) -> None:
        """Cancel its task, which then asks `taken`."""
        assert self._task is not None
        self.abandoned = True
        self._task.cancel()

    def taken(self) -> bool:
        """Whether the task was cancelled by `abandon` and by nobody else. To be asked once; then it may go on."""
        assert self._task is not None
        return self.abandoned and self._task.uncancel() == 0


class Fleet:
    """`changed` is called with the models whose slots may have become more or fewer; `wants_load` is asked whether anybody
    decides by the load that backends report."""

    def __init__(
        self,
        config: GatewayConfig,
        client: Client,
        changed: Callable[[Iterable[str]], object],
        wants_load: Callable[[], bool] = lambda: False,
    ) -> None:
        self._config = config
        self._changed = changed
        self._wants_load = wants_load
        self.backends: Sequence[Backend] = [Backend(index, url) for index, url in enumerate(config.backends)]
        self._pollers = [Poller(client, backend.origin, config) for backend in self.backends]
        self._serving: dict[str, tuple[Backend, ...]] = {}

    @property
    def healthy(self) -> Sequence[Backend]:
        return [backend for backend in self.backends if backend.healthy]

    def serving(self, model: str) -> tuple[Backend, ...]:
        """The healthy backends that serve `model`."""
        return self._serving.get(model, ())

    def may_serve(self, model: str) -> bool:
        """Whether a backend has ever served `model`, or one that was never up yet might."""
        return model in self._serving or not all(backend.seen for backend in self.backends)

    @property
    def polled(self) -> bool:
        """Whether every backend has been polled once."""
        return all(backend.polled for backend in self.backends)

    @property
    def models(self) -> Sequence[str]:
        """All that were ever served."""
        return list(self._serving)

    def slots(self, model: str) -> int:
        """How many requests for `model` may be in flight."""
        serving = self.serving(model)
        left = sum(flight.model == model for b in self.backends if b not in serving for flight in b.flights)
        return self.offered(model).slots + left

    def offered(self, model: str) -> ModelSlots:
        """What its healthy backends offer."""
        offers = [self.slots_of(backend) for backend in self.serving(model)]
        sources = {offer.source for offer in offers}
        source = sources.pop() if len(sources) == 1 else "mixed" if sources else "none"
        return ModelSlots(sum(offer.slots for offer in offers), source)

    def load(self, model: str, now: Micros) -> FleetLoad:
        """How loaded the healthy backends of `model` are. O(backends)."""
        return load_of(self.serving(model))

    def slots_of(self, backend: Backend) -> ModelSlots:
        """What one backend offers, for each model it serves."""
        if self._config.slots_per_backend is not None:
            return ModelSlots(self._config.slots_per_backend, "configured")
        if backend.reported is not None:
            return ModelSlots(backend.reported, "reported")
        return ModelSlots(DEFAULT_SLOTS, "default")

    def sent(self, backend: Backend, model: str) -> Flight:
        """A request is about to be sent there by the current task."""
        flight = Flight(backend, model)
        backend.flights.add(flight)
        return flight

    def ended(self, flight: Flight) -> None:
        """It is over there, whatever became of it."""
        flight.backend.flights.remove(flight)
        if flight.backend not in self.serving(flight.model):
            self._changed((flight.model,))

    def listed(self) -> Sequence[dict[str, Any]]:
        """What `/v1/models` says: the healthy backends' models, each once."""
        merged: dict[str, dict[str, Any]] = {}
        for backend in self.healthy:
            for name, model in backend.models.items():
                merged.setdefault(name, model)
        return list(merged.values())

    def configure(self, config: GatewayConfig) -> None:
        """From now on poll by this configuration."""
        for poller in self._pollers:
            poller.use_key(config.upstream_api_key)

    async def watch(self) -> None:
        """Poll for ever."""
        async with asyncio.TaskGroup() as polls:
            for backend in self.backends:
                polls.create_task(self._watch(backend))

    def down(self, backend: Backend, problem: str) -> None:
        """Send it nothing more until a poll succeeds."""
        backend.problem = problem
        if backend.healthy:
            log.warning("backend %s is down: %s", backend.url, problem)
            backend.healthy, backend.load = False, None
            self._pollers[backend.index].forget()
            self._settle()

    async def _watch(self, backend: Backend) -> None:
        while True:
            await self._poll(backend)
            if not backend.polled:
                backend.polled = True
                self._changed(())
            await asyncio.sleep(self._config.health_interval_secs)

    async def _poll(self, backend: Backend) -> None:
        try:
            found = await self._pollers[backend.index].poll()
        except ConnectError as error:
            self.down(backend, str(error))
            if not _refused(error):
                self._failed(backend, str(error))
        except LocalError as error:
            if backend.problem != str(error):
                backend.problem = str(error)
                log.error("backend %s cannot be polled: %s", backend.url, error)
        except TimeoutError:
            self._failed(backend, f"no answer within {self._config.health_timeout_secs:g} s")
        except Exception as error:  # there is no end to what a backend may answer, and no poll may be the last
            self._failed(backend, f"{type(error).__name__}: {error}" if not isinstance(error, MaitredError) else str(error))
        else:
            self._up(backend, found)
            load = await self._pollers[backend.index].load() if self._wants_load() else None
            backend.load = load if backend.healthy else None

    def _failed(self, backend: Backend, problem: str) -> None:
        backend.failures += 1
        if backend.failures == 1:
            log.warning("backend %s: %s", backend.url, problem)
        enough = backend.failures >= self._config.health_failures
        if enough or not backend.healthy:
            self.down(backend, problem)
        if enough:
            self._abandon(backend)

    def _abandon(self, backend: Backend) -> None:
        """Take away what it has shown nothing of, if it can go elsewhere."""
        for flight in backend.flights:
            if not (flight.shown or flight.abandoned) and self.serving(flight.model):
                flight.abandon()

    def _up(self, backend: Backend, found: Found) -> None:
        backend.failures, backend.problem = 0, ""
        changed = not backend.healthy or found.models.keys() != backend.models.keys()
        resized = found.slots != backend.reported
        level = logging.WARNING if backend.seen and not backend.healthy else logging.INFO  # who read that it is down is told
        backend.healthy, backend.seen, backend.models, backend.reported = True, True, found.models, found.slots
        if changed:
            log.log(level, "backend %s is up, serving %s", backend.url, ", ".join(found.models) or "no model")
        if changed or resized:
            self._settle()

    def _settle(self) -> None:
        names = dict.fromkeys([*self._serving, *(name for backend in self.backends for name in backend.models)])
        self._serving = {name: tuple(b for b in self.backends if b.healthy and name in b.models) for name in names}
        self._changed(names)


def _refused(error: ConnectError) -> bool:
    """Whether the host answered that nobody listens; else nothing is known of the process."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.ECONNREFUSED
