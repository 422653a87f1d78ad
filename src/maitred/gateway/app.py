"""The gateway: its parts, and which of them serves which path.

A path is forwarded to a backend (`Proxy`), or the gateway answers it itself (`admin.endpoints`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import Metric

from maitred.admission import Admission, AdmissionConfig
from maitred.core.errors import ConfigError
from maitred.core.steps import run_at_once
from maitred.files.undo import whole_or_nothing
from maitred.gateway import error_responses
from maitred.gateway.access.caller_sources import SourceWatch, make_sources
from maitred.gateway.access.page_access import Page, Port
from maitred.gateway.admin.endpoints import AdminEndpoints, DrainSwitch
from maitred.gateway.admin.idle_checks import IdleChecks
from maitred.gateway.admin.port_certificates import PortCertificates
from maitred.gateway.admin.program_pages import ProgramPages
from maitred.gateway.admin.reload import ConfigReloader, GatewaySettings
from maitred.gateway.admin.request_stories import RequestStories
from maitred.gateway.admin.shadow_endpoint import SHADOW_PATH, shadow_endpoint
from maitred.gateway.bodies.body_budget import BodyBudget
from maitred.gateway.config import GatewayConfig
from maitred.gateway.dashboard.pages import Dashboard
from maitred.gateway.intake.request_intake import RequestIntake
from maitred.gateway.observe.descriptor_watch import DescriptorWatch
from maitred.gateway.observe.logs import LogOutput
from maitred.gateway.observe.loop_lag import LoopLag
from maitred.gateway.observe.metrics import GatewayCollector, ejection_families, upstream_families
from maitred.gateway.observe.outputs import GatewayOutputs
from maitred.gateway.observe.request_ids import RequestIds
from maitred.gateway.observe.request_metrics import RequestMetrics
from maitred.gateway.observe.request_observer import RequestObserver
from maitred.gateway.observe.request_record import CLIENT_GONE
from maitred.gateway.observe.shadow import ShadowFollower
from maitred.gateway.observe.shared_page import SharedPages
from maitred.gateway.observe.state import GatewayCounters, GatewayState
from maitred.gateway.observe.state_snapshots import StateSnapshots
from maitred.gateway.observe.tenant_views import TenantViews
from maitred.gateway.observe.tracing import RequestTracer
from maitred.gateway.proxy import Proxy
from maitred.gateway.routes import ROUTES
from maitred.programs import ProgramsConfig
from maitred.routing import RoutingConfig, Signals
from maitred.scheduler.interface import LocalScheduler, RealTimePrograms, Scheduler, SchedulerParts
from maitred.scheduler.link_config import SchedulerConfig
from maitred.shadow import ShadowRules
from maitred.wire.client import UpstreamClient
from maitred.wire.exchange import ApiError, Exchange, send_error
from maitred.wire.machine import Machine
from maitred.wire.server import App, Listener, OpenPort, open_ports, serve
from maitred.wire.server_context import ServerContext

if TYPE_CHECKING:
    from maitred.gateway.observe.span_export import SpanExport

log = logging.getLogger("maitred.gateway")
FIRST_POLLS_SECS: Final = 0.5
"""For how long the first connections may wait for backends that do not answer polls."""


class Gateway(App):
    """What `maitred serve` serves."""

    endpoints_class = AdminEndpoints
    """What answers the paths that are not forwarded."""
    snapshots_class = StateSnapshots
    """What looks at the whole."""
    outputs_class = GatewayOutputs
    """What writes files."""

    @whole_or_nothing()
    def __init__(
        self,
        config: GatewayConfig,
        admission: AdmissionConfig | None = None,
        routing: RoutingConfig | None = None,
        programs: ProgramsConfig | None = None,
        *,
        link: SchedulerConfig | None = None,
        shadow: ShadowRules | None = None,
        seed: int = 0,
        reload: Callable[[], GatewaySettings] | None = None,
        fallback: str | None = None,
        default_state: str | None = None,
        log_output: LogOutput | None = None,
        machine: Machine | None = None,
        make_scheduler: Callable[[SchedulerParts], Scheduler] = LocalScheduler,
    ) -> None:
        """`link` says how schedulers and gateways find each other that are processes of their own. By `shadow` a shadow decides
        beside, if there is one. `reload` reads the sources of the configuration again. `fallback` says why less than they
        configure is in force. `default_state` keeps the programs if the configuration names no file. `log_output` takes the
        lines of the log; None: standard error. `machine` is where it runs; None: on this one. `make_scheduler` makes the
        scheduler of its parts. Raises ConfigError for a configuration that cannot work; then no file has been made or changed.
        """
        if not config.backends and not config.discover and not (link and link.addresses):
            hint = "--backend http://127.0.0.1:9001, once for each, or --discover"
            raise ConfigError("no backend is named", where="--backend", hint=hint)
        settings = GatewaySettings(
            gateway=config,
            admission=admission or AdmissionConfig(),
            routing=routing or RoutingConfig(),
            programs=programs or ProgramsConfig(),
            scheduler=link or SchedulerConfig(),
            shadow=shadow,
        )
        self.config = config
        self.machine = machine or Machine()
        self._clock = self.machine.clock
        self.send_timeout_secs, self.keep_alive_secs = config.send_timeout_secs, config.keep_alive_secs
        self.drain_switch = DrainSwitch(config.settle_secs, config.drain_secs)
        """Begins the end of this gateway."""
        self.counters = GatewayCounters(config.tenant_metric_top_n)
        self.certificates = PortCertificates(config, self._clock)
        self._client = UpstreamClient(config.upstream, self.machine)
        self._key_watch = SourceWatch(make_sources(config, self._clock, self._client))
        self._outputs = self.outputs_class(config, self._clock, log_output)
        decisions = self._outputs.decisions
        self.shadow = None if shadow is None else ShadowFollower(shadow, settings.routing, self._clock, decisions)
        """What lets a shadow decide beside, or None."""
        self.decisions = decisions if self.shadow is None else self.shadow.log
        """Every input and decision of the cores, or None if nobody follows them."""
        self.scheduler = make_scheduler(
            SchedulerParts(
                config=config,
                admission=settings.admission,
                routing=settings.routing,
                programs=settings.programs,
                client=self._client,
                clock=self._clock,
                decisions=self.decisions,
                seed=seed,
                fallback=fallback,
                default_state=default_state,
                file_mode=config.file_mode,
            )
        )
        if any(backend.origin.tls for backend in self.scheduler.fleet.backends) or config.discover:
            self._client.load_authorities()
        self._program_pages = _program_pages(settings, self.scheduler)
        self._wire_requests(settings)
        self._wire_pages(settings, reload)

    def _wire_requests(self, settings: GatewaySettings) -> None:
        """Build what takes requests in, forwards them and observes them."""
        config, outputs = self.config, self._outputs
        self._ids = RequestIds(self.machine.random.randbytes(6).hex())
        self.request_metrics = RequestMetrics(config.model_metric_top_n)
        self._span_export, tracer = self._open_traces(config)
        self._observer = RequestObserver(
            *(self.request_metrics, self.counters, outputs.access_log, outputs.recorder, self._clock, tracer)
        )
        self._budget = BodyBudget(config.max_parked_body_bytes, self._clock)
        signals = self.scheduler.signals
        self._intake = RequestIntake(
            config=config,
            core=self.core,
            fleet=self.scheduler.fleet,
            counters=self.counters,
            clock=self._clock,
            budget=self._budget,
            observer=self._observer,
            ids=self._ids,
            signals=signals if outputs.recorder is None else signals | Signals.SESSION,
            programs=settings.programs,
            further_keys=self._key_watch.sources,
            notes=self.scheduler.notes or self.decisions,
            objectives=self.scheduler.objectives,
        )
        self._proxy = Proxy(
            config=config,
            intake=self._intake,
            scheduler=self.scheduler,
            client=self._client,
            counters=self.counters,
            observer=self._observer,
            machine=self.machine,
        )

    def _open_traces(self, config: GatewayConfig) -> tuple[SpanExport | None, RequestTracer | None]:
        """Build the export of spans and the tracer of requests; both are None if there are no traces. Raises ConfigError."""
        if config.otel.endpoint is None:
            return None, None
        try:
            from maitred.gateway.observe.span_export import SpanExport
        except ImportError as error:
            problem, cure = f"OpenTelemetry is not installed ({error.name})", "pip install 'maitred[otel]'"
            if not isinstance(error, ModuleNotFoundError):
                problem = "the files of opentelemetry-proto are not its own, but those of another package (xds-protos has some)"
                cure = "pip install --no-deps --force-reinstall opentelemetry-proto"
            raise ConfigError(problem, where="gateway.otel", hint=cure) from error
        export = SpanExport(config.otel, self.counters.spans)
        return export, RequestTracer(export, config.otel.sample_ratio, self._clock, self.machine.random)

    def _wire_pages(self, settings: GatewaySettings, reload: Callable[[], GatewaySettings] | None) -> None:
        """Build what watches the gateway, shows it, and lets its operator change it."""
        admission, fleet = self.scheduler.admission, self.scheduler.fleet
        self._descriptors, self._loop_lag = DescriptorWatch(self.machine), LoopLag(self._clock)
        self._idle_checks = IdleChecks(self.scheduler.checks(), lambda: not admission.leases)
        self._reloader = ConfigReloader(
            settings,
            reload,
            scheduler=self.scheduler,
            intake=self._intake,
            certificates=self.certificates,
            look_at_keys=self._key_watch.look,
            results=self.counters.reloads,
            use_shadow=None if self.shadow is None else self.shadow.use,
        )
        self._snapshots = self.snapshots_class(
            self.scheduler, self._client, self.counters, self._budget, self._descriptors, self._outputs
        )
        programs, shared = self._program_pages, SharedPages()
        tenants = TenantViews(admission, fleet, self.counters, self._budget, None if programs is None else programs.views)
        families: list[Callable[[], Iterable[Metric]]] = [self.request_metrics.families, self._loop_lag.families]
        families += [partial(upstream_families, fleet.backends), partial(ejection_families, fleet)]
        if programs is not None:
            families.append(programs.metric_families)
        if self.shadow is not None:
            families.append(self.shadow.families)
        self._collector = GatewayCollector(self.counters, self._snapshots.take, tenants, shared, families)
        self._endpoints = self.endpoints_class(
            *(self.scheduler, self._intake, self._collector, self._snapshots, tenants, shared),
            reloader=self._reloader,
            drain_switch=self.drain_switch,
        )
        self._endpoints.add({}, RequestStories(self._outputs.narrator, self.scheduler).by_prefix)
        if programs is not None:
            self._endpoints.add(*programs.endpoints(shared).paths, programs.health_fields)
        self._dashboard = Dashboard(
            snapshots=self._snapshots,
            admission=admission,
            counters=self.counters,
            metrics=self.request_metrics,
            programs=None if programs is None else programs.views,
            pages=shared,
            clock=self._clock,
            shadow=self.shadow,
        )
        fleet.is_watched = self._dashboard.recent.is_watching
        self._endpoints.add({**self._dashboard.endpoints(), SHADOW_PATH: shadow_endpoint(self.shadow)}, {})

    @property
    def core(self) -> Admission:
        """The admission core."""
        return self.scheduler.admission.core

    @property
    def programs(self) -> RealTimePrograms | None:
        """The driver of the programs, or None if requests are routed one by one."""
        return self.scheduler.programs

    async def start(self, server: ServerContext) -> None:
        """Start to poll the backends, and return when each has been polled, or after half a second. Connections that come
        before wait in the backlog of the listening socket, where they would find no backend up and get a 503."""
        self._budget.server = self._snapshots.server = server
        self.drain_switch.request_stop = server.request_stop
        self._client.on_descriptor = server.make_room
        self._descriptors.start(server.make_room)
        self._loop_lag.start()
        self._idle_checks.start()
        self._key_watch.start()
        self._outputs.start()
        self._dashboard.start()
        if self.shadow is not None:
            self.shadow.start()
        if self._program_pages is not None:
            self._program_pages.start()
        self.scheduler.start()
        await self.scheduler.wait_until_polled(FIRST_POLLS_SECS)

    async def stop(self) -> None:
        """Release all resources, after the last request has ended."""
        await self._reloader.close()
        self._descriptors.stop()
        self._loop_lag.stop()
        self._idle_checks.stop()
        await self._key_watch.stop()
        await self._dashboard.close()
        if self.shadow is not None:
            await self.shadow.close()
        await self.scheduler.close()
        if self._program_pages is not None:
            await self._program_pages.close()
        await self._client.close()
        if self._span_export is not None:
            await self._span_export.close()
        await self._outputs.close()

    def state(self) -> GatewayState:
        """Return the state of requests, backends and capacity at this instant."""
        return run_at_once(self._snapshots.take()).state

    def metric_families(self) -> Iterable[Metric]:
        """Return all metrics, as `/metrics` shows them."""
        return self._collector.collect()

    def settings(self) -> GatewaySettings:
        """Return the settings in force."""
        return self._reloader.in_force()

    def __call__(self, exchange: Exchange) -> Coroutine[Any, Any, None]:
        """Answer one request."""
        cross_origins = self._intake.rules.cross_origins
        if cross_origins is not None and cross_origins.answer_preflight(exchange):
            return asyncio.sleep(0)
        route = ROUTES.get(exchange.path)
        if route is None and self._endpoints.answers(exchange.path):
            return self._answer_page(exchange, self._intake.access.port)
        if route is not None and exchange.method != "POST":
            return self._refuse(exchange, error_responses.method_not_allowed(exchange.method, "POST"))
        return self._proxy.proxy_request(exchange)

    async def answer_operator(self, exchange: Exchange) -> None:
        """Answer a request that came on `admin_port`: what clients send elsewhere is not there."""
        if exchange.path in ROUTES:
            await self._refuse(exchange, error_responses.no_route(exchange.path))
        elif self._endpoints.answers(exchange.path):
            await self._answer_page(exchange, Port.ADMIN)
        else:
            try:
                operator = self._intake.access.viewer(Page.ENGINE, exchange, Port.ADMIN)
            except ApiError as error:
                await self._refuse(exchange, error)
            else:
                await self._proxy.proxy_request(exchange, operator)

    def admin_listener(self) -> Sequence[Listener]:
        """Return the port of the operator, if there is to be one."""
        config = self.config
        if config.admin_port is None:
            return ()
        host = config.admin_host or config.host
        return (Listener(host, config.admin_port, self.answer_operator, self.certificates.admin_port, "admin-"),)

    def listeners(self) -> Sequence[Listener]:
        """Return the ports of this gateway: that of the clients, and that of the operator, if there is to be one."""
        return [Listener(self.config.host, self.config.port, self, self.certificates.port), *self.admin_listener()]

    def open_ports(self) -> Sequence[OpenPort]:
        """Return the ports of this gateway, all of them listening. Raises ConfigError if an address cannot be listened on."""
        return open_ports(self.listeners(), self.machine)

    async def _answer_page(self, exchange: Exchange, port: Port) -> None:
        """Answer a request for a page of the gateway's own."""
        began_at, request_id = self._clock.now(), self._ids.mark_answer(exchange)
        error_code = await self._endpoints.answer_request(exchange, port)
        access_log = self._outputs.access_log
        if access_log is not None:
            span, tenant = self._clock.now() - began_at, self._intake.access.tenant_of(exchange, port)
            status = exchange.status or (CLIENT_GONE if exchange.refusal is None else exchange.refusal.status)
            access_log.write_answer(exchange, status, error_code, span, request_id, tenant)

    async def _refuse(self, exchange: Exchange, error: ApiError) -> None:
        """Answer a request for a route of the engines with an error, before it is taken in."""
        now, request_id = self._clock.now(), self._ids.mark_answer(exchange)
        send_error(exchange, error, exchange.path)
        tenant = self._intake.access.tenant_of(exchange, self._intake.access.port)
        self._observer.refuse(exchange, error.status, error.code or "", now, request_id, tenant)

    def request_reload(self) -> None:
        """Open anew the files that are written for long, and start to reload the configuration (SIGHUP). The log says how it
        went. A gateway that is closing its files does neither."""
        if self._reloader.is_closed:
            log.warning("SIGHUP changes nothing: this gateway is shutting down")
            return
        self._outputs.reopen()
        self.machine.service_manager.tell_reloading(self._clock.now())
        self._reloader.request_reload(self.machine.service_manager.tell_ready)


def serve_gateway(
    gateway: Gateway, ports: Sequence[OpenPort], on_ready: Callable[..., object] = lambda *urls: None
) -> Coroutine[Any, Any, None]:
    """Serve a gateway on its ports inside the running loop until a signal: what `maitred serve` does. `on_ready` is called with
    the URL of each port."""
    config = gateway.config
    return serve(
        gateway,
        ports,
        drain_secs=config.drain_secs,
        settle_secs=config.settle_secs,
        on_ready=on_ready,
        on_hangup=gateway.request_reload,
        machine=gateway.machine,
    )


def _program_pages(settings: GatewaySettings, scheduler: Scheduler) -> ProgramPages | None:
    """Build the pages of the programs, or return None if requests are routed one by one."""
    parts = scheduler.program_parts
    return None if parts is None else ProgramPages(settings.programs, scheduler, parts, settings.gateway.file_mode)
