"""What the gateway says of itself, and of the models behind it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from maitred.gateway import refusals
from maitred.gateway.fleet import Fleet
from maitred.gateway.metrics import GatewayCollector
from maitred.gateway.state import GatewayState
from maitred.wire import asgi
from maitred.wire.asgi import Scope, Send

Page: TypeAlias = Callable[[Scope, Send], Awaitable[None]]
MODEL = "/v1/models/"
"""Before the name of one model, which may have slashes in it."""


class Pages:
    def __init__(self, fleet: Fleet, collector: GatewayCollector, state: Callable[[], GatewayState]) -> None:
        self._fleet = fleet
        self._collector = collector
        self._observed = state
        self._pages: dict[str, Page] = {
            "/v1/models": self._models,
            "/health": self._health,
            "/ready": self._ready,
            "/metrics": self._metrics,
            "/maitred/state": self._state,
        }

    def find(self, path: str) -> Page | None:
        return self._model if path.startswith(MODEL) else self._pages.get(path)

    async def _models(self, scope: Scope, send: Send) -> None:
        if self._fleet.healthy:
            await asgi.send_json(send, 200, {"object": "list", "data": self._fleet.listed()})
        else:
            await asgi.send_error(send, refusals.unanswered(None))

    async def _model(self, scope: Scope, send: Send) -> None:
        name = scope["path"].removeprefix(MODEL)
        for model in self._fleet.listed():
            if model["id"] == name:
                await asgi.send_json(send, 200, model)
                return
        await asgi.send_error(send, refusals.not_served(self._fleet, name))

    async def _health(self, scope: Scope, send: Send) -> None:
        await asgi.send_json(send, 200, {"status": "ok"})

    async def _ready(self, scope: Scope, send: Send) -> None:
        state = self._observed()
        await asgi.send_json(send, 200 if state.ready else 503, {"ready": state.ready, "backends": state.backends})

    async def _metrics(self, scope: Scope, send: Send) -> None:
        await asgi.send_bytes(send, 200, self._collector.text(), b"text/plain; version=0.0.4; charset=utf-8")

    async def _state(self, scope: Scope, send: Send) -> None:
        await asgi.send_json(send, 200, self._observed())
