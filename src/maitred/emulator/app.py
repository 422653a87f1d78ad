"""An emulated engine as clients see it: OpenAI's endpoints, vLLM's metrics, what gateways ask of SGLang's `/server_info`,
and `/emulator/state` for tests.

The head of a streamed answer leaves at once, the first event with the first token. A client who leaves, whether queued or
being served, streaming or not, has its sequences aborted at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from maitred import __version__
from maitred.catalogue import resolved
from maitred.emulator import embeddings, metrics
from maitred.emulator.asks import Ask, ChatAsk, CompletionAsk, EmbeddingAsk, parse
from maitred.emulator.clock import LoopClock
from maitred.emulator.config import EngineConfig
from maitred.emulator.engine import Engine
from maitred.emulator.replies import Answering, ChatDialect, Dialect, Streamed, TextDialect, Whole
from maitred.instance import InstanceConfig
from maitred.wire.asgi import (
    ApiError,
    ClientGone,
    Departure,
    Receive,
    Scope,
    Send,
    lifespan,
    read_body,
    send_bytes,
    send_error,
    send_json,
)

Handler: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Route: TypeAlias = tuple[tuple[str, ...], Handler]
"""The methods it takes, and who answers."""

_GET, _POST = ("GET", "HEAD"), ("POST",)  # the server sends no body in answer to HEAD
_ONE_MODEL = "/v1/models/"
ROUTING_KEY = b"x-smg-routing-key"

_STREAM_HEAD = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")],
}


def _routing_key(scope: Scope, ask: Ask) -> str:
    """Of the header, else of the body, else the adapter."""
    for name, value in scope["headers"]:
        if name == ROUTING_KEY and value:
            key: str = value.decode("latin-1")
            return key
    return ask.routing_key or ask.lora_path or ""


class EngineApp:
    """A raw ASGI app with its engine."""

    def __init__(self, config: EngineConfig, instance: InstanceConfig) -> None:
        """Raises ConfigError for an unknown scheduler."""
        self._config = config
        self._instance = resolved(instance)
        self._engine = Engine(config, self._instance, LoopClock())
        self._one_model: Route = (_GET, self._model)
        self._routes: dict[str, Route] = {
            "/v1/chat/completions": (_POST, self._chat),
            "/v1/completions": (_POST, self._completion),
            "/v1/embeddings": (_POST, self._embeddings),
            "/v1/models": (_GET, self._models),
            "/health": (_GET, self._health),
            "/version": (_GET, self._version),
            "/server_info": (_GET, self._server_info),
            "/metrics": (_GET, self._metrics),
            "/emulator/state": (_GET, self._state),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send, _nothing, _nothing)
            return
        try:
            await self._handler(scope)(scope, receive, send)
        except ApiError as error:
            await send_error(send, error)
        except ClientGone:
            return

    def _handler(self, scope: Scope) -> Handler:
        """Raises ApiError 404 and 405."""
        path, method = scope["path"], scope["method"]
        route = self._one_model if path.startswith(_ONE_MODEL) else self._routes.get(path)
        if route is None:
            raise ApiError(404, f"there is no {path} here", kind="invalid_request_error", code="not_found")
        allowed, handler = route
        if method not in allowed:
            allow = [(b"allow", ", ".join(allowed).encode())]
            message = f"{path} takes {allowed[0]}, not {method}"
            raise ApiError(405, message, kind="invalid_request_error", code="method_not_allowed", headers=allow)
        return handler

    async def _chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        ask = parse(await read_body(scope, receive, self._config.max_body_bytes), ChatAsk)
        await self._generate(ask, ChatDialect(), scope, receive, send)

    async def _completion(self, scope: Scope, receive: Receive, send: Send) -> None:
        ask = parse(await read_body(scope, receive, self._config.max_body_bytes), CompletionAsk)
        await self._generate(ask, TextDialect(), scope, receive, send)

    async def _generate(self, ask: Ask, dialect: Dialect, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises ApiError, and ClientGone when nobody is left to answer."""
        reply, requests = self._engine.plan(ask, dialect, _routing_key(scope, ask))
        answer: Answering
        if ask.stream:
            await send(_STREAM_HEAD)
            answer = Streamed(reply, send)
        else:
            answer = Whole(reply)
        departure = Departure(receive, lambda: _leave(answer))
        try:
            self._engine.start(reply, requests, answer)
            await answer.done
        finally:
            departure.stop()
            self._engine.abort(requests)
        if not ask.stream:
            await send_json(send, 200, reply.whole())

    async def _embeddings(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Not paced: answered at once."""
        ask = parse(await read_body(scope, receive, self._config.max_body_bytes), EmbeddingAsk)
        self._engine.check_model(ask.model)
        payload, prompt_tokens = embeddings.answer(ask, self._engine.model)
        self._engine.metrics.prompt_read(prompt_tokens)
        await send_json(send, 200, payload)

    async def _models(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send_json(send, 200, {"object": "list", "data": [self._card()]})

    async def _model(self, scope: Scope, _receive: Receive, send: Send) -> None:
        self._engine.check_model(scope["path"].removeprefix(_ONE_MODEL))
        await send_json(send, 200, self._card())

    def _card(self) -> dict[str, object]:
        return {
            "id": self._config.model,
            "object": "model",
            "created": 0,
            "owned_by": "maitred",
            "max_model_len": self._instance.model_len,
        }

    async def _health(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send_bytes(send, 200, b"", b"text/plain")

    async def _version(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send_json(send, 200, {"version": __version__})

    async def _server_info(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send_json(send, 200, {"version": __version__, "max_running_requests": self._instance.max_num_seqs})

    async def _metrics(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send_bytes(send, 200, self._engine.metrics.page(), metrics.CONTENT_TYPE)

    async def _state(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send_json(send, 200, self._engine.state())


async def _nothing() -> None:
    """An engine has nothing to prepare, and when the server stops every answer has ended."""


def _leave(answer: Answering) -> None:
    if not answer.done.done():
        answer.done.set_exception(ClientGone())
