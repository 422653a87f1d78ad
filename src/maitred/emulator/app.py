"""An emulated engine as clients see it: OpenAI's endpoints, vLLM's metrics, what gateways ask of SGLang's `/server_info`,
and `/emulator/state` for tests.

The head of a streamed answer leaves at once, the first event with the first token. A client who leaves, whether queued or
being served, streaming or not, has its sequences aborted at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from maitred import __version__
from maitred.emulator import embeddings, metrics
from maitred.emulator.config import EngineConfig
from maitred.emulator.engine import EmulatedEngine
from maitred.emulator.pacer import LoopClock
from maitred.emulator.responses import (
    BufferedResponse,
    ChatFormat,
    CompletionFormat,
    EndpointFormat,
    ResponseProgress,
    StreamedResponse,
)
from maitred.emulator.schemas import ChatBody, CompletionBody, EmbeddingBody, GenerationBody, parse_body
from maitred.instance import InstanceConfig
from maitred.instance.catalogue import resolve_instance
from maitred.wire.asgi import (
    ApiError,
    ClientDisconnected,
    DisconnectWatcher,
    Receive,
    Scope,
    Send,
    read_body,
    run_lifespan,
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


def _routing_key_of(scope: Scope, body: GenerationBody) -> str:
    """Of the header, else of the body, else the adapter."""
    for name, value in scope["headers"]:
        if name == ROUTING_KEY and value:
            key: str = value.decode("latin-1")
            return key
    return body.routing_key or body.lora_path or ""


class EngineApp:
    """A raw ASGI app with its engine."""

    def __init__(self, config: EngineConfig, instance: InstanceConfig) -> None:
        """Raises ConfigError for an unknown scheduler."""
        self._config = config
        self._instance = resolve_instance(instance)
        self._engine = EmulatedEngine(config, self._instance, LoopClock())
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
            await run_lifespan(receive, send, _do_nothing, _do_nothing)
            return
        try:
            await self._handler(scope)(scope, receive, send)
        except ApiError as error:
            await send_error(send, error)
        except ClientDisconnected:
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
        ask = parse_body(await read_body(scope, receive, self._config.max_body_bytes), ChatBody)
        await self._generate(ask, ChatFormat(), scope, receive, send)

    async def _completion(self, scope: Scope, receive: Receive, send: Send) -> None:
        ask = parse_body(await read_body(scope, receive, self._config.max_body_bytes), CompletionBody)
        await self._generate(ask, CompletionFormat(), scope, receive, send)

    async def _generate(
        self, body: GenerationBody, endpoint_format: EndpointFormat, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Raises ApiError, and ClientDisconnected when nobody is left to answer."""
        reply, requests = self._engine.plan(body, endpoint_format, _routing_key_of(scope, body))
        answer: ResponseProgress
        if body.stream:
            await send(_STREAM_HEAD)
            answer = StreamedResponse(reply, send)
        else:
            answer = BufferedResponse(reply)
        departure = DisconnectWatcher(receive, lambda: _on_client_gone(answer))
        try:
            self._engine.start(reply, requests, answer)
            await answer.done
        finally:
            departure.stop()
            self._engine.abort(requests)
        if not body.stream:
            await send_json(send, 200, reply.complete())

    async def _embeddings(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Not paced: answered at once."""
        ask = parse_body(await read_body(scope, receive, self._config.max_body_bytes), EmbeddingBody)
        self._engine.check_model(ask.model)
        payload, prompt_tokens = embeddings.embedding_response(ask, self._engine.model)
        self._engine.metrics.count_prompt_tokens(prompt_tokens)
        await send_json(send, 200, payload)

    async def _models(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send_json(send, 200, {"object": "list", "data": [self._model_card()]})

    async def _model(self, scope: Scope, _receive: Receive, send: Send) -> None:
        self._engine.check_model(scope["path"].removeprefix(_ONE_MODEL))
        await send_json(send, 200, self._model_card())

    def _model_card(self) -> dict[str, object]:
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
        await send_bytes(send, 200, self._engine.metrics.exposition(), metrics.CONTENT_TYPE)

    async def _state(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send_json(send, 200, self._engine.state())


async def _do_nothing() -> None:
    """An engine has nothing to prepare, and when the server stops every answer has ended."""


def _on_client_gone(response: ResponseProgress) -> None:
    if not response.done.done():
        response.done.set_exception(ClientDisconnected())
