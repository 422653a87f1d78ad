"""The gateway as a raw ASGI app: its parts, which of them serves which path, and the paths that the gateway answers itself.

These are its health, metrics, state and models, and what its operator may change (`AdminEndpoints`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from enum import Enum, auto
from typing import Final, TypeAlias

import msgspec

from maitred.admission import Admission, AdmissionConfig, LoadProbe, RecordedAdmission
from maitred.core.decisions import DecisionLog
from maitred.core.errors import ConfigError
from maitred.gateway import error_responses
from maitred.gateway.auth import ApiKeys
from maitred.gateway.capacity import CapacityController
from maitred.gateway.config import GatewayConfig
from maitred.gateway.driver import RealTimeAdmission
from maitred.gateway.fleet import BackendFleet
from maitred.gateway.metrics import GatewayCollector
from maitred.gateway.proxy import Proxy
from maitred.gateway.recording import AppendFile, TrafficRecorder
from maitred.gateway.reload import ConfigReloader, GatewaySettings
from maitred.gateway.request_fields import AUTHORIZATION_HEADER, ROUTES
from maitred.gateway.request_intake import RequestIntake
from maitred.gateway.state import GatewayCounters, GatewayState, StateSnapshots
from maitred.routing import RoutingConfig, Signals, signals_read
from maitred.wire import asgi
from maitred.wire.asgi import ApiError, Receive, Scope, Send
from maitred.wire.client import UpstreamClient

log = logging.getLogger("maitred.gateway")


EndpointHandler: TypeAlias = Callable[[Scope, Send], Awaitable[None]]
MODEL_PATH_PREFIX: Final = "/v1/models/"
"""The path of one model without its name, which may contain slashes."""
_READ_METHODS: Final = ("GET", "HEAD")
_WRITE_METHODS: Final = ("POST",)


class Gateway:
    """The ASGI app. Its server must run the lifespan protocol."""

    def __init__(
        self,
        config: GatewayConfig,
        admission: AdmissionConfig | None = None,
        routing: RoutingConfig | None = None,
        *,
        seed: int = 0,
        reload: Callable[[], GatewaySettings] | None = None,
        fallback: str | None = None,
    ) -> None:
        """`reload` reads the sources of the configuration again. `fallback` says why less than they configure is in force.

        Raises ConfigError for a configuration that cannot work.
        """
        if not config.backends:
            raise ConfigError("no backend is named", where="--backend", hint="--backend http://127.0.0.1:9001, once for each")
        self.config = config
        self.counters = GatewayCounters(config.tenant_metric_top_n)
        self._client = UpstreamClient(config.upstream)
        router = (routing or RoutingConfig()).router(random.Random(seed))
        self._router_signals = signals_read(router)
        self._fleet = BackendFleet(config, self._client, self._on_slots_changed, self._wants_load)
        self._decision_log = _open_decision_log(config)
        self._recorder = None if config.record is None else TrafficRecorder(config.record)
        self.core = _make_core(admission or AdmissionConfig(), self._decision_log, self._fleet.model_load)
        self._driver = RealTimeAdmission(self.core, self._fleet.model_load)
        self._capacity = CapacityController(self._fleet, self._driver, fallback)
        self._snapshots = StateSnapshots(self._driver, self._fleet, self._capacity, self.counters)
        signals = self._router_signals if self._recorder is None else self._router_signals | Signals.SESSION
        self._intake = RequestIntake(config, lambda: self.core.config, self._fleet, self.counters, self._driver.now, signals)
        self._proxy = Proxy(
            config, self._intake, self._driver, self._fleet, router, self._client, self.counters, self._recorder
        )
        self._poll_task: asyncio.Task[None] | None = None
        settings = GatewaySettings(gateway=config, admission=self.core.config, routing=routing or RoutingConfig())
        self._reloader = ConfigReloader(settings, reload, self._apply_settings, self.counters.reloads)
        self._endpoints = AdminEndpoints(
            self._fleet,
            GatewayCollector(self.counters, self.core, self.state),
            self.state,
            self._reloader,
            self.settings,
            lambda: self._intake.keys,
            lambda: self._capacity.fallback,
        )

    async def start(self) -> None:
        """Start to poll the backends. Called by the lifespan protocol."""
        for file in (self._decision_log, self._recorder):
            if file is not None:
                file.start()
        self._poll_task = asyncio.create_task(self._fleet.poll_forever())
        self._poll_task.add_done_callback(_on_polling_ended)

    async def stop(self) -> None:
        """Release all resources. Called by the lifespan protocol after the last request has ended."""
        if self._poll_task is not None:
            self._poll_task.cancel()
            await asyncio.wait({self._poll_task})
        self._driver.close()
        await self._client.close()
        for file in (self._decision_log, self._recorder):
            if file is not None:
                file.close()

    def state(self) -> GatewayState:
        """Return the state of requests, backends and capacity at this instant."""
        failed = self._decision_log is not None and self._decision_log.failed
        return self._snapshots.take_snapshot(parked_body_bytes=self._intake.parked_bytes, decision_log_failed=failed)

    def settings(self) -> GatewaySettings:
        """Return the settings in force."""
        return msgspec.structs.replace(self._reloader.settings, admission=self.core.config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await asgi.run_lifespan(receive, send, self.start, self.stop)
            return
        method, path = scope["method"], scope["path"]
        if path not in ROUTES:
            await self._endpoints.answer_request(scope, send)
        elif method == "POST":
            await self._proxy.proxy_request(scope, receive, send)
        else:
            await asgi.send_error(send, error_responses.method_not_allowed(method, "POST"))

    def request_reload(self) -> None:
        """Start to reload the configuration (SIGHUP). The log says how it went."""
        self._reloader.request_reload()

    def _wants_load(self) -> bool:
        """Return whether the router or the admission policy reads the load that backends report."""
        return Signals.LOAD in self._router_signals or self.core.reads_load

    def _apply_settings(self, settings: GatewaySettings) -> None:
        """Use `settings` from now on. Raises ConfigError, and changes nothing then."""
        self._capacity.apply_config(settings.admission)
        self._intake.apply_config(settings.gateway)
        self._fleet.apply_config(settings.gateway)

    def _on_slots_changed(self, models: Iterable[str]) -> None:
        self._capacity.on_slots_changed(models)


def _on_polling_ended(poll_task: asyncio.Task[None]) -> None:
    if not poll_task.cancelled():
        log.critical("backends are watched no more: restart the gateway", exc_info=poll_task.exception())


def _open_decision_log(config: GatewayConfig) -> AppendFile | None:
    path = config.decision_log
    return None if path is None else AppendFile(path, where="gateway.decision_log", what="decisions")


def _make_core(config: AdmissionConfig, decision_log: AppendFile | None, load_probe: LoadProbe) -> Admission:
    if decision_log is None:
        return Admission(config, {}, load_probe)
    return RecordedAdmission(config, {}, DecisionLog(decision_log.write), load_probe, now=RealTimeAdmission.now())


class EndpointAccess(Enum):
    """What a request needs for an endpoint, once API keys are configured."""

    OPEN = auto()
    """Nothing."""
    KEY = auto()
    """Any valid key."""
    ADMIN = auto()
    """The shared key; without any configured key, a connection from this machine."""


class Endpoint(msgspec.Struct, frozen=True):
    """One path: what answers it, under which methods, to which requests."""

    handler: EndpointHandler
    access: EndpointAccess
    methods: tuple[str, ...] = _READ_METHODS


class AdminEndpoints:
    """Answers every path that is not forwarded."""

    def __init__(
        self,
        fleet: BackendFleet,
        collector: GatewayCollector,
        take_snapshot: Callable[[], GatewayState],
        reloader: ConfigReloader,
        settings: Callable[[], GatewaySettings],
        keys: Callable[[], ApiKeys],
        fallback: Callable[[], str | None],
    ) -> None:
        """`settings` and `keys` return those in force; `fallback` returns why less than the configuration is in force, or
        None."""
        self._fleet = fleet
        self._collector = collector
        self._take_snapshot = take_snapshot
        self._reloader = reloader
        self._settings = settings
        self._keys = keys
        self._fallback = fallback
        self._endpoints = {
            "/health": Endpoint(self._health, EndpointAccess.OPEN),
            "/ready": Endpoint(self._ready, EndpointAccess.OPEN),
            "/metrics": Endpoint(self._metrics, EndpointAccess.OPEN),
            "/v1/models": Endpoint(self._models, EndpointAccess.KEY),
            "/maitred/state": Endpoint(self._state, EndpointAccess.KEY),
            "/admin/config": Endpoint(self._config, EndpointAccess.ADMIN),
            "/admin/reload": Endpoint(self._reload, EndpointAccess.ADMIN, _WRITE_METHODS),
        }
        self._one_model = Endpoint(self._model, EndpointAccess.KEY)

    async def answer_request(self, scope: Scope, send: Send) -> None:
        """Answer a request for any path that is not forwarded."""
        try:
            await self._dispatch(scope, send)
        except ApiError as error:
            await asgi.send_error(send, error)

    async def _dispatch(self, scope: Scope, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        endpoint = self._one_model if path.startswith(MODEL_PATH_PREFIX) else self._endpoints.get(path)
        if endpoint is None:
            raise error_responses.no_route(path)
        if method not in endpoint.methods:
            raise error_responses.method_not_allowed(method, ", ".join(endpoint.methods))
        if endpoint.access is EndpointAccess.KEY:
            self._keys().authenticate(asgi.get_header(scope, AUTHORIZATION_HEADER))
        elif endpoint.access is EndpointAccess.ADMIN:
            self._keys().require_administrator(asgi.get_header(scope, AUTHORIZATION_HEADER), scope)
        await endpoint.handler(scope, send)

    async def _models(self, scope: Scope, send: Send) -> None:
        if not self._fleet.healthy:
            raise error_responses.upstream_failed(None)
        await asgi.send_json(send, 200, {"object": "list", "data": self._fleet.list_models()})

    async def _model(self, scope: Scope, send: Send) -> None:
        name = scope["path"].removeprefix(MODEL_PATH_PREFIX)
        for model in self._fleet.list_models():
            if model["id"] == name:
                await asgi.send_json(send, 200, model)
                return
        raise error_responses.model_unavailable(self._fleet, name)

    async def _health(self, scope: Scope, send: Send) -> None:
        """Answer 200 even if less than the configuration is in force: a restart would not help."""
        fallback = self._fallback()
        if fallback is None:
            await asgi.send_json(send, 200, {"status": "ok"})
        else:
            await asgi.send_json(send, 200, {"status": "degraded", "problems": [fallback]})

    async def _ready(self, scope: Scope, send: Send) -> None:
        state = self._take_snapshot()
        await asgi.send_json(send, 200 if state.ready else 503, {"ready": state.ready, "backends": state.backends})

    async def _metrics(self, scope: Scope, send: Send) -> None:
        await asgi.send_bytes(send, 200, self._collector.render(), b"text/plain; version=0.0.4; charset=utf-8")

    async def _state(self, scope: Scope, send: Send) -> None:
        await asgi.send_json(send, 200, self._take_snapshot())

    async def _config(self, scope: Scope, send: Send) -> None:
        await asgi.send_json(send, 200, self._settings().redacted())

    async def _reload(self, scope: Scope, send: Send) -> None:
        try:
            reloaded = await self._reloader.reload()
        except ConfigError as error:
            raise error_responses.invalid_config(str(error)) from error
        await asgi.send_json(send, 200, reloaded)
