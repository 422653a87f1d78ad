"""The paths that the gateway answers itself: its health, metrics, state and models, and what its operator may change.

Beside each path stands the row of the table (`access.page_access`) that says who may use it, and what of it they see. Paths
that only some gateways have are added (`add`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from maitred.core.errors import ConfigError
from maitred.core.steps import Steps
from maitred.gateway import error_responses
from maitred.gateway.access.page_access import Page, Port, Viewer
from maitred.gateway.admin import backend_endpoints
from maitred.gateway.admin.page_bodies import named_backend, read_page_body
from maitred.gateway.admin.reload import ConfigReloader
from maitred.gateway.intake.request_intake import RequestIntake
from maitred.gateway.observe.metrics import GatewayCollector
from maitred.gateway.observe.openmetrics import CONTENT_TYPE as OPENMETRICS
from maitred.gateway.observe.openmetrics import prefers_openmetrics
from maitred.gateway.observe.shared_page import SharedPages, write_json
from maitred.gateway.observe.state import GatewayState
from maitred.gateway.observe.state_snapshots import StateSnapshots
from maitred.gateway.observe.tenant_views import TenantViews
from maitred.scheduler.interface import ANY_MODEL, Backend, Scheduler
from maitred.wire.exchange import ApiError, ClientDisconnected, Exchange, send_bytes, send_error, send_json

MODEL_PATH_PREFIX: Final = "/v1/models/"
"""The path of one model without its name, which may contain slashes."""
READ_METHODS: Final = ("GET", "HEAD")
WRITE_METHODS: Final = ("POST",)


PageHandler: TypeAlias = Callable[[Exchange, Viewer], Awaitable[None]]


class Endpoint(msgspec.Struct, frozen=True):
    """One path: what answers it, under which methods, and as which page."""

    handler: PageHandler
    page: Page
    methods: tuple[str, ...] = READ_METHODS


def _send_draining(exchange: Exchange, backend: Backend) -> None:
    answer = {"backend": backend.url, "draining": backend.is_draining, "in_flight": len(backend.requests)}
    send_json(exchange, 200, answer)


def _ignore() -> None:
    """Do nothing."""


class DrainSwitch:
    """Begins the end of a gateway: the same as SIGTERM."""

    def __init__(self, settle_secs: float, drain_secs: float) -> None:
        self._settle_secs, self._drain_secs = settle_secs, drain_secs
        self.request_stop: Callable[[], object] = _ignore
        """Begins the end; further calls do nothing. Set as soon as something serves: only then does a request come here."""

    def begin(self) -> dict[str, Any]:
        """Begin the end, and return what is said of it."""
        self.request_stop()
        return {"draining": True, "settle_secs": self._settle_secs, "drain_secs": self._drain_secs}


class AdminEndpoints:
    """Answers every path that is not forwarded."""

    def __init__(
        self,
        scheduler: Scheduler,
        intake: RequestIntake,
        collector: GatewayCollector,
        snapshots: StateSnapshots,
        tenants: TenantViews,
        pages: SharedPages,
        reloader: ConfigReloader,
        drain_switch: DrainSwitch,
    ) -> None:
        """`intake` knows who may see which page. `drain_switch` begins the end of the gateway."""
        self._drain_switch = drain_switch
        self._fleet = scheduler.fleet
        self._scheduler = scheduler
        self._intake = intake
        self._collector = collector
        self._snapshots = snapshots
        self._pages = pages
        self._tenants = tenants
        self._reloader = reloader
        self._endpoints = {
            "/health": Endpoint(self._health, Page.HEALTH),
            "/ready": Endpoint(self._ready, Page.HEALTH),
            "/liveness": Endpoint(self._liveness, Page.HEALTH),
            "/readiness": Endpoint(self._readiness, Page.HEALTH),
            "/get_loads": Endpoint(self._loads, Page.LOADS),
            "/metrics": Endpoint(self._metrics, Page.METRICS),
            "/v1/models": Endpoint(self._models, Page.MODELS),
            MODEL_PATH_PREFIX: Endpoint(self._models, Page.MODELS),
            "/maitred/state": Endpoint(self._state, Page.STATE),
            "/admin/config": Endpoint(self._config, Page.ADMIN),
            "/admin/reload": Endpoint(self._reload, Page.ADMIN, WRITE_METHODS),
            "/admin/drain": Endpoint(self._drain, Page.ADMIN, WRITE_METHODS),
            "/admin/undrain": Endpoint(self._undrain, Page.ADMIN, WRITE_METHODS),
            backend_endpoints.PATH: Endpoint(self._backends, Page.ADMIN, backend_endpoints.METHODS),
        }
        self._by_prefix = {MODEL_PATH_PREFIX: Endpoint(self._model, Page.MODELS)}
        self._health_fields: Callable[[], Steps[Mapping[str, Any]]] | None = None

    def add(
        self,
        by_path: Mapping[str, Endpoint],
        by_prefix: Mapping[str, Endpoint],
        health_fields: Callable[[], Steps[Mapping[str, Any]]] | None = None,
    ) -> None:
        """Answer these paths as well, and all that begin with one of these prefixes. `health_fields` returns in steps
        what /health says beside its status; None: nothing."""
        self._endpoints.update(by_path)
        self._by_prefix.update(by_prefix)
        self._health_fields = health_fields or self._health_fields

    def answers(self, path: str) -> bool:
        """Return whether the gateway itself answers this path."""
        return self._endpoint(path) is not None

    def _endpoint(self, path: str) -> Endpoint | None:
        endpoint = self._endpoints.get(path)
        if endpoint is not None:
            return endpoint
        return next((below for prefix, below in self._by_prefix.items() if path.startswith(prefix)), None)

    async def answer_request(self, exchange: Exchange, port: Port) -> str:
        """Answer a request for any path that is not forwarded, which came on `port`. Return the code of the error, or "" for
        none."""
        path, method = exchange.path, exchange.method
        try:
            endpoint = self._endpoint(path)
            if endpoint is None:
                raise error_responses.no_route(path)
            viewer = self._intake.access.viewer(endpoint.page, exchange, port)
            if method not in endpoint.methods:
                raise error_responses.method_not_allowed(method, ", ".join(endpoint.methods))
            return await self.answer_as(exchange, endpoint, viewer)
        except ApiError as error:
            send_error(exchange, error, path)
            return error.code or ""
        except ClientDisconnected:
            return "" if exchange.refusal is None else exchange.refusal.code or ""

    async def answer_as(self, exchange: Exchange, endpoint: Endpoint, viewer: Viewer) -> str:
        """Answer a request of `viewer`, under a method that the path has. Return the code of the error, or "" for none. Raises
        ApiError, and what `Exchange.read_body` raises."""
        await endpoint.handler(exchange, viewer)
        return ""

    async def answer_viewer(self, exchange: Exchange, viewer: Viewer) -> str:
        """Answer a request of which another process has found out who sees what. Return as `answer_request` does."""
        endpoint = self._endpoint(exchange.path)
        try:
            if endpoint is None:
                raise error_responses.no_route(exchange.path)
            return await self.answer_as(exchange, endpoint, viewer)
        except ApiError as error:
            send_error(exchange, error, exchange.path)
            return error.code or ""

    async def _models(self, exchange: Exchange, viewer: Viewer) -> None:
        if not self._fleet.healthy:
            raise error_responses.nothing_served(self._fleet)
        send_json(exchange, 200, {"object": "list", "data": self._fleet.list_models()})

    async def _model(self, exchange: Exchange, viewer: Viewer) -> None:
        name = exchange.path.removeprefix(MODEL_PATH_PREFIX)
        for model in self._fleet.list_models():
            if model["id"] == name:
                send_json(exchange, 200, model)
                return
        raise error_responses.model_unavailable(self._fleet, name)

    async def _health(self, exchange: Exchange, viewer: Viewer) -> None:
        """Answer 200 even if less than the configuration is in force: a restart would not help. Answer 503 once the gateway is
        told to stop, as balancers look here."""
        status = 503 if self._snapshots.is_draining else 200
        if viewer.sees_all and self._health_fields is not None:
            page = await self._pages.page("health", lambda: write_json(self._health_steps()))
            send_bytes(exchange, status, page, b"application/json")
        else:
            send_json(exchange, status, self._health_status(names_problems=viewer.sees_all))

    def _health_steps(self) -> Steps[Mapping[str, Any]]:
        assert self._health_fields is not None
        fields = yield from self._health_fields()
        return {**self._health_status(names_problems=True), **fields}

    def _health_status(self, *, names_problems: bool) -> dict[str, Any]:
        fallback = self._scheduler.fallback
        problems = {"problems": [fallback]} if names_problems and fallback is not None else {}
        is_draining = self._snapshots.is_draining
        return {"status": "draining" if is_draining else "ok" if fallback is None else "degraded", **problems}

    async def _ready(self, exchange: Exchange, viewer: Viewer) -> None:
        cluster = None if self._snapshots.cluster is None else self._snapshots.cluster()
        is_closed = cluster is not None and cluster.mode == "closed"
        is_ready = bool(self._fleet.healthy) and not self._snapshots.is_draining and not is_closed
        answer: dict[str, Any] = {"ready": is_ready}
        if viewer.sees_all:
            fallback = self._scheduler.fallback
            answer |= {} if fallback is None else {"problems": [fallback]}
            answer |= {} if cluster is None else {"cluster": cluster}
            answer["backends"] = msgspec.Raw(await self._pages.page("backends", lambda: write_json(self._snapshots.backends())))
        send_json(exchange, 200 if is_ready else 503, answer)

    async def _liveness(self, exchange: Exchange, viewer: Viewer) -> None:
        send_json(exchange, 200, {"status": "alive"})

    async def _readiness(self, exchange: Exchange, viewer: Viewer) -> None:
        """Answer as SMG does: ready while a backend is, and the gateway has not been told to stop."""
        backends, healthy = self._fleet.backends, len(self._fleet.backends_serving(ANY_MODEL))
        is_ready = healthy > 0 and not self._snapshots.is_draining
        status = {"status": "ready" if is_ready else "not_ready", "healthy_workers": healthy, "total_workers": len(backends)}
        send_json(exchange, 200 if is_ready else 503, status)

    async def _loads(self, exchange: Exchange, viewer: Viewer) -> None:
        """Answer as SMG does, with the requests that each backend has from this gateway; -1 for one that is down."""
        loads = [{"worker": b.url, "load": b.in_flight if b.healthy else -1} for b in self._fleet.backends]
        send_json(exchange, 200, {"workers": loads})

    async def _metrics(self, exchange: Exchange, viewer: Viewer) -> None:
        if prefers_openmetrics(exchange.get_list(b"accept")):
            send_bytes(exchange, 200, await self._collector.render(viewer, as_openmetrics=True), OPENMETRICS)
        else:
            send_bytes(exchange, 200, await self._collector.render(viewer), b"text/plain; version=0.0.4; charset=utf-8")

    async def _state(self, exchange: Exchange, viewer: Viewer) -> None:
        if viewer.sees_all:
            page = await self._pages.page("state", lambda: write_json(self._state_steps()))
        else:
            tenant = viewer.tenant
            page = await self._pages.page(("state", tenant), lambda: write_json(self._tenants.state(tenant)))
        send_bytes(exchange, 200, page, b"application/json")

    def _state_steps(self) -> Steps[GatewayState]:
        snapshot = yield from self._snapshots.take()
        return snapshot.state

    async def _config(self, exchange: Exchange, viewer: Viewer) -> None:
        send_json(exchange, 200, self._reloader.in_force().redacted())

    async def _drain(self, exchange: Exchange, viewer: Viewer) -> None:
        """Drain the backend that the body names; without a body, the gateway itself."""
        body = await read_page_body(exchange)
        if not body:
            self.drain_itself(exchange)
            return
        backend = self._named_backend(body)
        self._fleet.drain(backend)
        _send_draining(exchange, backend)

    def drain_itself(self, exchange: Exchange) -> None:
        """Begin the end of the gateway, and say so."""
        send_json(exchange, 202, self._drain_switch.begin())

    async def _undrain(self, exchange: Exchange, viewer: Viewer) -> None:
        backend = self._named_backend(await read_page_body(exchange))
        self._fleet.undrain(backend)
        _send_draining(exchange, backend)

    async def _backends(self, exchange: Exchange, viewer: Viewer) -> None:
        discovery = self._scheduler.discovery
        assert discovery is not None  # where another process decides, that makes this page
        await backend_endpoints.BackendEndpoints(discovery, self._fleet).answer(exchange, viewer)

    def _named_backend(self, body: bytes) -> Backend:
        """Return the backend that `body` names. Raises ApiError 400 for a body that names none, 404 for an unknown one."""
        named = named_backend(body)
        for backend in self._fleet.backends:
            if backend.url == named.rstrip("/"):
                return backend
        raise error_responses.unknown_backend(named, [backend.url for backend in self._fleet.backends])

    async def _reload(self, exchange: Exchange, viewer: Viewer) -> None:
        try:
            reloaded = await self._reloader.reload()
        except ConfigError as error:
            raise error_responses.invalid_config(str(error)) from error
        send_json(exchange, 200, reloaded)
