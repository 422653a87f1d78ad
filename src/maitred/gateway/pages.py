"""What the gateway says of itself and of the models behind it, and what its operator may tell it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import Final, TypeAlias

import msgspec

from maitred.errors import ConfigError
from maitred.gateway import refusals
from maitred.gateway.auth import Keys
from maitred.gateway.fleet import Fleet
from maitred.gateway.intake import AUTHORIZATION
from maitred.gateway.metrics import GatewayCollector
from maitred.gateway.reload import Reloading, Settings
from maitred.gateway.state import GatewayState
from maitred.wire import asgi
from maitred.wire.asgi import ApiError, Scope, Send

Act: TypeAlias = Callable[[Scope, Send], Awaitable[None]]
MODEL: Final = "/v1/models/"
"""Before the name of one model, which may have slashes in it."""
_READ: Final = ("GET", "HEAD")
_WRITE: Final = ("POST",)


class Access(Enum):
    """Who may see a page, once there are API keys."""

    OPEN = auto()
    KEY = auto()
    ADMIN = auto()
    """Without any key: who asks from this machine."""


class Page(msgspec.Struct, frozen=True):
    act: Act
    access: Access
    methods: tuple[str, ...] = _READ


class Pages:
    """`settings` and `keys` are those in force, `fallback` tells why they are less than what was configured (None: they are
    not)."""

    def __init__(
        self,
        fleet: Fleet,
        collector: GatewayCollector,
        state: Callable[[], GatewayState],
        reloading: Reloading,
        settings: Callable[[], Settings],
        keys: Callable[[], Keys],
        fallback: Callable[[], str | None],
    ) -> None:
        self._fleet = fleet
        self._collector = collector
        self._observed = state
        self._reloading = reloading
        self._settings = settings
        self._keys = keys
        self._fallback = fallback
        self._pages = {
            "/health": Page(self._health, Access.OPEN),
            "/ready": Page(self._ready, Access.OPEN),
            "/metrics": Page(self._metrics, Access.OPEN),
            "/v1/models": Page(self._models, Access.KEY),
            "/maitred/state": Page(self._state, Access.KEY),
            "/admin/config": Page(self._config, Access.ADMIN),
            "/admin/reload": Page(self._reload, Access.ADMIN, _WRITE),
        }
        self._one_model = Page(self._model, Access.KEY)

    async def serve(self, scope: Scope, send: Send) -> None:
        """Answer, whatever the path."""
        try:
            await self._serve(scope, send)
        except ApiError as error:
            await asgi.send_error(send, error)

    async def _serve(self, scope: Scope, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        page = self._one_model if path.startswith(MODEL) else self._pages.get(path)
        if page is None:
            raise refusals.no_route(path)
        if method not in page.methods:
            raise refusals.wrong_method(method, ", ".join(page.methods))
        if page.access is Access.KEY:
            self._keys().caller(asgi.header(scope, AUTHORIZATION))
        elif page.access is Access.ADMIN:
            self._keys().administrator(asgi.header(scope, AUTHORIZATION), scope)
        await page.act(scope, send)

    async def _models(self, scope: Scope, send: Send) -> None:
        if not self._fleet.healthy:
            raise refusals.unanswered(None)
        await asgi.send_json(send, 200, {"object": "list", "data": self._fleet.listed()})

    async def _model(self, scope: Scope, send: Send) -> None:
        name = scope["path"].removeprefix(MODEL)
        for model in self._fleet.listed():
            if model["id"] == name:
                await asgi.send_json(send, 200, model)
                return
        raise refusals.not_served(self._fleet, name)

    async def _health(self, scope: Scope, send: Send) -> None:
        """200 also if it serves with less than was configured: to restart it would not help."""
        fallback = self._fallback()
        if fallback is None:
            await asgi.send_json(send, 200, {"status": "ok"})
        else:
            await asgi.send_json(send, 200, {"status": "degraded", "problems": [fallback]})

    async def _ready(self, scope: Scope, send: Send) -> None:
        state = self._observed()
        await asgi.send_json(send, 200 if state.ready else 503, {"ready": state.ready, "backends": state.backends})

    async def _metrics(self, scope: Scope, send: Send) -> None:
        await asgi.send_bytes(send, 200, self._collector.text(), b"text/plain; version=0.0.4; charset=utf-8")

    async def _state(self, scope: Scope, send: Send) -> None:
        await asgi.send_json(send, 200, self._observed())

    async def _config(self, scope: Scope, send: Send) -> None:
        await asgi.send_json(send, 200, self._settings().shown())

    async def _reload(self, scope: Scope, send: Send) -> None:
        try:
            reloaded = await self._reloading.reload()
        except ConfigError as error:
            raise refusals.bad_reload(str(error)) from error
        await asgi.send_json(send, 200, reloaded)
