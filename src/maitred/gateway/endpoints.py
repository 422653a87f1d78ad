"""The paths that the gateway answers itself: its health, metrics, state and models, and what its operator may change.

Which requests may use a path is said beside it (`EndpointAccess`). Paths that only some gateways have are added (`add`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any, Final

import msgspec

from maitred.core.errors import ConfigError
from maitred.gateway import error_responses
from maitred.gateway.auth import ApiKeys
from maitred.gateway.backend import Backend
from maitred.gateway.fleet import BackendFleet
from maitred.gateway.metrics import GatewayCollector
from maitred.gateway.reload import ConfigReloader, GatewaySettings
from maitred.gateway.request_fields import read_credentials
from maitred.gateway.served_models import ANY_MODEL
from maitred.gateway.state import GatewayState
from maitred.wire.exchange import ApiError, Exchange, Handler, send_bytes, send_error, send_json

MODEL_PATH_PREFIX: Final = "/v1/models/"
"""The path of one model without its name, which may contain slashes."""
READ_METHODS: Final = ("GET", "HEAD")
WRITE_METHODS: Final = ("POST",)


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

    handler: Handler
    access: EndpointAccess
    methods: tuple[str, ...] = READ_METHODS


class NamedBackend(msgspec.Struct, frozen=True):
    """The body of a request about one backend."""

    backend: str
    """Its URL."""


_decode_named_backend = msgspec.json.Decoder(NamedBackend).decode
_MAX_BODY_BYTES: Final = 64 * 1024
"""Largest body of a request to these paths."""


def _send_draining(exchange: Exchange, backend: Backend) -> None:
    answer = {"backend": backend.url, "draining": backend.is_draining, "in_flight": len(backend.requests)}
    send_json(exchange, 200, answer)


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
            "/liveness": Endpoint(self._liveness, EndpointAccess.OPEN),
            "/readiness": Endpoint(self._readiness, EndpointAccess.OPEN),
            "/get_loads": Endpoint(self._loads, EndpointAccess.KEY),
            "/metrics": Endpoint(self._metrics, EndpointAccess.OPEN),
            "/v1/models": Endpoint(self._models, EndpointAccess.KEY),
            MODEL_PATH_PREFIX: Endpoint(self._models, EndpointAccess.KEY),
            "/maitred/state": Endpoint(self._state, EndpointAccess.KEY),
            "/admin/config": Endpoint(self._config, EndpointAccess.ADMIN),
            "/admin/reload": Endpoint(self._reload, EndpointAccess.ADMIN, WRITE_METHODS),
            "/admin/drain": Endpoint(self._drain, EndpointAccess.ADMIN, WRITE_METHODS),
            "/admin/undrain": Endpoint(self._undrain, EndpointAccess.ADMIN, WRITE_METHODS),
        }
        self._by_prefix = {MODEL_PATH_PREFIX: Endpoint(self._model, EndpointAccess.KEY)}
        self._health_fields: Callable[[], Mapping[str, Any]] | None = None

    def add(
        self,
        by_path: Mapping[str, Endpoint],
        by_prefix: Mapping[str, Endpoint],
        health_fields: Callable[[], Mapping[str, Any]],
    ) -> None:
        """Answer these paths as well, and all that begin with one of these prefixes. `health_fields` returns what /health says
        beside its status."""
        self._endpoints.update(by_path)
        self._by_prefix.update(by_prefix)
        self._health_fields = health_fields

    def answers(self, path: str) -> bool:
        """Return whether the gateway itself answers this path."""
        return self._endpoint(path) is not None

    def _endpoint(self, path: str) -> Endpoint | None:
        return self._endpoints.get(path) or next(
            (below for prefix, below in self._by_prefix.items() if path.startswith(prefix)), None
        )

    async def answer_request(self, exchange: Exchange) -> None:
        """Answer a request for any path that is not forwarded."""
        try:
            await self._dispatch(exchange)
        except ApiError as error:
            send_error(exchange, error, exchange.path)

    async def _dispatch(self, exchange: Exchange) -> None:
        path, method = exchange.path, exchange.method
        endpoint = self._endpoint(path)
        if endpoint is None:
            raise error_responses.no_route(path)
        if method not in endpoint.methods:
            raise error_responses.method_not_allowed(method, ", ".join(endpoint.methods))
        if endpoint.access is EndpointAccess.KEY:
            self._keys().authenticate(read_credentials(exchange.headers))
        elif endpoint.access is EndpointAccess.ADMIN:
            self._keys().require_administrator(read_credentials(exchange.headers), exchange.client, exchange.headers)
        await endpoint.handler(exchange)

    async def _models(self, exchange: Exchange) -> None:
        if not self._fleet.healthy:
            raise error_responses.upstream_failed(None)
        send_json(exchange, 200, {"object": "list", "data": self._fleet.list_models()})

    async def _model(self, exchange: Exchange) -> None:
        name = exchange.path.removeprefix(MODEL_PATH_PREFIX)
        for model in self._fleet.list_models():
            if model["id"] == name:
                send_json(exchange, 200, model)
                return
        raise error_responses.model_unavailable(self._fleet, name)

    async def _health(self, exchange: Exchange) -> None:
        """Answer 200 even if less than the configuration is in force: a restart would not help."""
        fallback = self._fallback()
        status: dict[str, Any] = {"status": "ok"} if fallback is None else {"status": "degraded", "problems": [fallback]}
        send_json(exchange, 200, status if self._health_fields is None else {**status, **self._health_fields()})

    async def _ready(self, exchange: Exchange) -> None:
        state = self._take_snapshot()
        fallback = self._fallback()
        problems = {} if fallback is None else {"problems": [fallback]}
        send_json(exchange, 200 if state.ready else 503, {"ready": state.ready, **problems, "backends": state.backends})

    async def _liveness(self, exchange: Exchange) -> None:
        send_json(exchange, 200, {"status": "alive"})

    async def _readiness(self, exchange: Exchange) -> None:
        """Answer as SMG does: ready while a backend is."""
        backends, healthy = self._fleet.backends, len(self._fleet.backends_serving(ANY_MODEL))
        status = {"status": "ready" if healthy else "not_ready", "healthy_workers": healthy, "total_workers": len(backends)}
        send_json(exchange, 200 if healthy else 503, status)

    async def _loads(self, exchange: Exchange) -> None:
        """Answer as SMG does, with the requests that each backend has from this gateway; -1 for one that is down."""
        loads = [{"worker": b.url, "load": b.in_flight if b.healthy else -1} for b in self._fleet.backends]
        send_json(exchange, 200, {"workers": loads})

    async def _metrics(self, exchange: Exchange) -> None:
        send_bytes(exchange, 200, self._collector.render(), b"text/plain; version=0.0.4; charset=utf-8")

    async def _state(self, exchange: Exchange) -> None:
        send_json(exchange, 200, self._take_snapshot())

    async def _config(self, exchange: Exchange) -> None:
        send_json(exchange, 200, self._settings().redacted())

    async def _drain(self, exchange: Exchange) -> None:
        backend = await self._named_backend(exchange)
        self._fleet.drain(backend)
        _send_draining(exchange, backend)

    async def _undrain(self, exchange: Exchange) -> None:
        backend = await self._named_backend(exchange)
        self._fleet.undrain(backend)
        _send_draining(exchange, backend)

    async def _named_backend(self, exchange: Exchange) -> Backend:
        """Return the backend that the body names. Raises ApiError 400 for a body that names none, 404 for an unknown one."""
        try:
            named = _decode_named_backend(await exchange.read_body(_MAX_BODY_BYTES)).backend
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise error_responses.no_backend_named(str(error)) from error
        for backend in self._fleet.backends:
            if backend.url == named.rstrip("/"):
                return backend
        raise error_responses.unknown_backend(named, [backend.url for backend in self._fleet.backends])

    async def _reload(self, exchange: Exchange) -> None:
        try:
            reloaded = await self._reloader.reload()
        except ConfigError as error:
            raise error_responses.invalid_config(str(error)) from error
        send_json(exchange, 200, reloaded)
