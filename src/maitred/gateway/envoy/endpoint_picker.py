"""EndpointPicker: a gateway without sockets for clients and backends. Envoy has these, and asks here.

It has the intake and the life of a request of every gateway (`RequestIntake`, `Proxy`), and is linked to the scheduler of its
own process. What it counts stands on the pages of the scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from maitred.gateway import error_responses
from maitred.gateway.access.auth import FurtherKeys
from maitred.gateway.access.page_access import Page
from maitred.gateway.admin.reload import GatewaySettings
from maitred.gateway.bodies.body_budget import BodyBudget
from maitred.gateway.envoy.endpoints import Endpoints
from maitred.gateway.envoy.ext_proc_messages import PickedMessages
from maitred.gateway.envoy.ext_proc_stream import ExtProcStream, Rpc
from maitred.gateway.envoy.picked_attempts import PickedAttempts
from maitred.gateway.intake.request_intake import RequestIntake
from maitred.gateway.observe.access_log import AccessLog
from maitred.gateway.observe.recording import TrafficRecorder
from maitred.gateway.observe.request_ids import RequestIds
from maitred.gateway.observe.request_metrics import RequestMetrics
from maitred.gateway.observe.request_observer import RequestObserver
from maitred.gateway.observe.state import GatewayCounters
from maitred.gateway.observe.tracing import RequestTracer
from maitred.gateway.proxy import Proxy
from maitred.gateway.routes import ROUTES
from maitred.gateway.workers.notes import AdmissionRules, NoteKind
from maitred.routing import Signals
from maitred.scheduler.interface import FleetView, LinkNote, RemoteScheduler, ServedModel
from maitred.wire.client import UpstreamClient
from maitred.wire.exchange import ApiError, Exchange, send_error, send_json
from maitred.wire.machine import Machine

_MODELS: Final = "/v1/models"


@dataclass(frozen=True, kw_only=True)
class PickerParts:
    """What a picker shares with the scheduler of its process."""

    settings: GatewaySettings
    scheduler: RemoteScheduler
    """The picker's end of the link."""
    client: UpstreamClient
    counters: GatewayCounters
    metrics: RequestMetrics
    access_log: AccessLog | None
    recorder: TrafficRecorder | None
    tracer: RequestTracer | None
    further_keys: Sequence[FurtherKeys]
    machine: Machine


class EndpointPicker:
    """Answers the streams of ext_proc, from `start` to `close`."""

    def __init__(self, parts: PickerParts) -> None:
        settings, machine = parts.settings, parts.machine
        # What is written before the response of a backend would be that response, for Envoy.
        config = msgspec.structs.replace(settings.gateway, sse_keepalive_secs=0.0)
        self._config, self._scheduler, self._clock = config, parts.scheduler, machine.clock
        self._picked = PickedMessages()
        self._endpoints = Endpoints(parts.scheduler.fleet, config.upstream, machine)
        self._ids = RequestIds(machine.random.randbytes(6).hex())
        self._budget = BodyBudget(config.max_parked_body_bytes, machine.clock)
        self._observer = RequestObserver(
            *(parts.metrics, parts.counters, parts.access_log, parts.recorder, machine.clock, parts.tracer)
        )
        self._intake = RequestIntake(
            config=config,
            core=parts.scheduler.admission.core,
            fleet=parts.scheduler.fleet,
            counters=parts.counters,
            clock=machine.clock,
            budget=self._budget,
            observer=self._observer,
            ids=self._ids,
            signals=parts.scheduler.signals if parts.recorder is None else parts.scheduler.signals | Signals.SESSION,
            programs=settings.programs,
            reads_answers=False,
            eligible=self._eligible,
            further_keys=parts.further_keys,
            objectives=parts.scheduler.objectives,
        )
        self._attempts = PickedAttempts(
            *(config, parts.scheduler, self._endpoints, parts.counters, machine), reads_usage=self._observer.reads_usage
        )
        self._proxy = Proxy(
            config=config,
            intake=self._intake,
            scheduler=parts.scheduler,
            client=parts.client,
            counters=parts.counters,
            observer=self._observer,
            machine=machine,
            attempts=self._attempts,
        )
        parts.scheduler.on_note = self._on_note

    @property
    def num_streams(self) -> int:
        """HTTP requests that are at Envoy now, as far as they are whole."""
        return len(self._attempts.streams)

    @property
    def fleet(self) -> FleetView:
        """The backends, as the picker sees them."""
        return self._scheduler.fleet

    @property
    def has_backends(self) -> bool:
        """Whether a backend is up."""
        return bool(self._scheduler.fleet.healthy)

    async def start(self) -> None:
        """Link the picker to its scheduler, inside this event loop."""
        self._endpoints.start()
        self._scheduler.start()

    async def close(self) -> None:
        """Release everything, after the last stream has ended."""
        await self._scheduler.close()
        self._endpoints.close()

    def use_secret(self, secret: bytes) -> None:
        """Prove further links to the scheduler by another secret."""
        self._scheduler.link.use_secret(secret)

    def reconfigure(self, settings: GatewaySettings) -> None:
        """Go by other settings from now on, as far as these may change while requests are served."""
        config = msgspec.structs.replace(settings.gateway, sse_keepalive_secs=0.0)
        self._intake.use(self._intake.rules_of(config, settings.programs))

    async def process(self, rpc: Rpc) -> None:
        """Serve one stream of ext_proc."""
        await ExtProcStream(rpc, self._serve, self._picked, self._config.max_body_bytes).run()

    async def _serve(self, stream: ExtProcStream) -> None:
        """Answer the request of a stream."""
        exchange = stream.exchange
        task = exchange.task
        assert task is not None
        self._attempts.streams[task] = stream
        try:
            await self._answer(exchange)
        finally:
            del self._attempts.streams[task]

    async def _answer(self, exchange: Exchange) -> None:
        if exchange.path in ROUTES and exchange.method != "POST":
            self._refuse(exchange, error_responses.method_not_allowed(exchange.method, "POST"))
        elif exchange.path == _MODELS and exchange.method in ("GET", "HEAD"):
            self._list_models(exchange)
        else:
            await self._proxy.proxy_request(exchange)

    def _eligible(self, exchange: Exchange, served: ServedModel) -> tuple[int, ...]:
        """Return the indexes of the backends among which Envoy lets choose, or () if it does not say. Raises ApiError if none
        of them serves the model."""
        assert exchange.task is not None
        subset = self._attempts.streams[exchange.task].subset
        if subset is None:
            return ()
        eligible = tuple(backend.index for backend in served.backends if self._endpoints.known(backend) & subset)
        if not eligible:
            raise error_responses.upstream_failed(None)
        return eligible

    def _list_models(self, exchange: Exchange) -> None:
        access = self._intake.access
        try:
            access.viewer(Page.MODELS, exchange, access.port)
        except ApiError as error:
            self._refuse(exchange, error)
        else:
            self._ids.mark_answer(exchange)
            send_json(exchange, 200, {"object": "list", "data": self._scheduler.fleet.list_models()})

    def _refuse(self, exchange: Exchange, error: ApiError) -> None:
        now, request_id = self._clock.now(), self._ids.mark_answer(exchange)
        send_error(exchange, error, exchange.path)
        self._observer.refuse(exchange, error.status, error.code or "", now, request_id)

    def _on_note(self, note: LinkNote) -> None:
        """Go by the rules of the scheduler that leads."""
        if note.kind == NoteKind.RULES:
            rules = msgspec.msgpack.decode(note.payload, type=AdmissionRules)
            self._scheduler.follow(rules.admission, rules.fallback)
