"""The emulated engine: its HTTP endpoints, and the way from a request body to sequences in the instance and back.

The endpoints are OpenAI's API, vLLM's metrics, the part of SGLang's `/server_info` that gateways read, and `/emulator/state`
for tests. The head of a streamed response is sent at once, the first event with the first token. When a client disconnects, its
sequences are aborted at once, whether they wait or run, and whether the response streams or not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import TypeAlias

import msgspec

from maitred import __version__
from maitred.compat.instance_rules import instance_rules
from maitred.core.errors import quote
from maitred.core.request import Request
from maitred.core.units import SECOND
from maitred.emulator import metrics
from maitred.emulator.config import EngineConfig
from maitred.emulator.metrics import EmulatedMetrics
from maitred.emulator.pacer import MachineClock, PacedAnswer, Pacer, PacerClock
from maitred.emulator.responses import (
    BufferedResponse,
    ChatFormat,
    CompletionFormat,
    EndpointFormat,
    ResponsePlan,
    ResponseProgress,
    StreamedResponse,
    embedding_response,
)
from maitred.emulator.schemas import (
    ChatBody,
    CompletionBody,
    EmbeddingBody,
    EmulatedPrompt,
    GenerationBody,
    bad_request,
    parse_body,
)
from maitred.emulator.tokens import FinishSampler, PlannedFinish, answered_prompt
from maitred.instance import Instance, InstanceConfig
from maitred.instance.catalogue import resolve_instance
from maitred.wire.exchange import ApiError, ClientDisconnected, Exchange, Handler, send_bytes, send_error, send_json
from maitred.wire.machine import Machine
from maitred.wire.messages import Headers
from maitred.wire.server import App

Route: TypeAlias = tuple[tuple[str, ...], Handler]
"""The methods of an endpoint, and its handler."""

_GET, _POST = ("GET", "HEAD"), ("POST",)  # the server drops the body of a response to HEAD
_ONE_MODEL = "/v1/models/"
ROUTING_KEY = b"x-smg-routing-key"
REQUEST_ID = b"x-request-id"
"""The id of the response ends with its value, as in vLLM."""

_STREAM_HEADERS: Headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


def _routing_key_of(exchange: Exchange, body: GenerationBody) -> str:
    """Return the routing key of the header, else of the body, else the adapter."""
    header = next((value for name, value in exchange.headers if name == ROUTING_KEY and value), b"")
    return header.decode("latin-1") or body.routing_key or body.lora_path or ""


class EngineApp(App):
    """The app of one engine."""

    def __init__(self, config: EngineConfig, instance: InstanceConfig, machine: Machine | None = None) -> None:
        """`machine` is where it runs; None: on this one. Raises ConfigError for an unknown scheduler."""
        self._config = config
        self._instance = resolve_instance(instance)
        machine = machine or Machine()
        self._engine = EmulatedEngine(config, self._instance, machine, MachineClock(machine.clock))
        self._one_model: Route = (_GET, self._model)
        self._routes: dict[str, Route] = {
            "/v1/chat/completions": (_POST, self._chat),
            "/v1/completions": (_POST, self._completion),
            "/v1/embeddings": (_POST, self._embeddings),
            "/v1/models": (_GET, _page(lambda: {"object": "list", "data": [self._model_card()]})),
            "/health": (_GET, self._health),
            "/version": (_GET, _page(lambda: {"version": __version__})),
            "/metrics": (_GET, self._metrics),
            "/emulator/state": (_GET, _page(self._engine.state)),
        }
        if not config.hide_slots:
            info = {"version": __version__, "max_running_requests": self._instance.max_num_seqs}
            self._routes["/server_info"] = (_GET, _page(lambda: info))

    def metrics_page(self) -> bytes:
        """Return the body of `/metrics` at this instant."""
        return self._engine.metrics.exposition()

    async def __call__(self, exchange: Exchange) -> None:
        """Answer one request."""
        try:
            await self._handler(exchange)(exchange)
        except ApiError as error:
            send_error(exchange, error, exchange.path)
        except ClientDisconnected:
            return

    def _handler(self, exchange: Exchange) -> Handler:
        """Return the handler of a request. Raises ApiError 404 and 405."""
        path, method = exchange.path, exchange.method
        route = self._one_model if path.startswith(_ONE_MODEL) else self._routes.get(path)
        if route is None:
            raise ApiError(404, f"there is no {path} here", kind="invalid_request_error", code="not_found")
        allowed, handler = route
        if method not in allowed:
            allow = [(b"allow", ", ".join(allowed).encode())]
            message = f"{path} takes {allowed[0]}, not {method}"
            raise ApiError(405, message, kind="invalid_request_error", code="method_not_allowed", headers=allow)
        return handler

    async def _chat(self, exchange: Exchange) -> None:
        body = parse_body(await exchange.read_body(self._config.max_body_bytes), ChatBody)
        await self._generate(body, ChatFormat(), exchange)

    async def _completion(self, exchange: Exchange) -> None:
        body = parse_body(await exchange.read_body(self._config.max_body_bytes), CompletionBody)
        await self._generate(body, CompletionFormat(), exchange)

    async def _generate(self, body: GenerationBody, endpoint_format: EndpointFormat, exchange: Exchange) -> None:
        """Generate a response. Raises ApiError, and ClientDisconnected if the client disconnects before the end."""
        request_id = (exchange.get_header(REQUEST_ID) or b"").decode("latin-1")
        plan, requests = self._engine.plan(body, endpoint_format, _routing_key_of(exchange, body), request_id)
        response = _begin_response(plan, exchange, streams=bool(body.stream))
        exchange.watch_disconnect(lambda: _on_client_gone(response))
        try:
            self._engine.start(plan, requests, response)
            await response.done
        finally:
            exchange.stop_watching()
            # Idempotent, so the end of a response, a client that is gone and an error of the server need no cases of their own.
            self._engine.abort(requests)
        if not body.stream:
            send_json(exchange, 200, plan.complete())

    async def _embeddings(self, exchange: Exchange) -> None:
        """Answer at once: embeddings are not paced."""
        body = parse_body(await exchange.read_body(self._config.max_body_bytes), EmbeddingBody)
        self._engine.check_model(body.model)
        payload, prompt_tokens = embedding_response(body, self._engine.model)
        self._engine.metrics.count_prompt_tokens(prompt_tokens)
        send_json(exchange, 200, payload)

    async def _model(self, exchange: Exchange) -> None:
        self._engine.check_model(exchange.path.removeprefix(_ONE_MODEL))
        send_json(exchange, 200, self._model_card())

    def _model_card(self) -> dict[str, object]:
        return {
            "id": self._config.model,
            "object": "model",
            "created": 0,
            "owned_by": "maitred",
            "max_model_len": self._instance.model_len,
        }

    async def _health(self, exchange: Exchange) -> None:
        send_bytes(exchange, 200, b"", b"text/plain")

    async def _metrics(self, exchange: Exchange) -> None:
        send_bytes(exchange, 200, self.metrics_page(), metrics.CONTENT_TYPE)


def _page(content: Callable[[], object]) -> Handler:
    """Return a handler that answers with the content as JSON."""

    async def handle(exchange: Exchange) -> None:
        send_json(exchange, 200, content())

    return handle


def _begin_response(plan: ResponsePlan, exchange: Exchange, *, streams: bool) -> ResponseProgress:
    if not streams:
        return BufferedResponse(plan)
    exchange.start_response(200, _STREAM_HEADERS, b"", True)
    return StreamedResponse(plan, exchange)


def _on_client_gone(response: ResponseProgress) -> None:
    if not response.done.done():
        response.done.set_exception(ClientDisconnected())


class EngineState(msgspec.Struct, frozen=True):
    """The body of `/emulator/state`: counts of sequences. `waiting` and `running` are current, the others are totals."""

    waiting: int
    running: int
    accepted: int
    finished: int
    aborted: int
    kv_usage: float
    steps: int


class EmulatedEngine:
    """One emulated engine."""

    def __init__(self, config: EngineConfig, instance: InstanceConfig, machine: Machine, clock: PacerClock) -> None:
        """`clock` says when steps end. Raises ConfigError for an unknown scheduler."""
        self.model = config.model
        self._model_len = instance.model_len
        paced = msgspec.structs.replace(instance, step_by_step=True)
        self._instance = Instance(paced, Random(f"{config.seed}/instance"), instance_rules(paced).new_parts(paced))
        self.metrics = EmulatedMetrics(config.model, instance, self._instance, speed=config.speed)
        self._machine = machine
        self._pacer = Pacer(self._instance, clock, self.metrics, speed=config.speed)
        self._finish_sampler = FinishSampler(config.output_tokens, config.seed)
        self._ids = itertools.count()
        self._id_suffix = machine.random.randbytes(4).hex()
        """A part of the ids of responses that differs between engines."""
        self._num_accepted = 0
        self._num_aborted = 0

    def check_model(self, model: str | None) -> None:
        """Raise ApiError 404 unless `model` is the one that is served. A request without a model means that one."""
        if model is not None and model != self.model:
            message = f"the model {quote(model)} does not exist; this engine serves {self.model!r}"
            raise ApiError(404, message, kind="invalid_request_error", param="model", code="model_not_found")

    def plan(
        self, body: GenerationBody, endpoint_format: EndpointFormat, routing_key: str = "", request_id: str = ""
    ) -> tuple[ResponsePlan, list[Request]]:
        """Return the plan of the response, and the requests that will generate it. `request_id` is the one that the client has
        given, if it has. Raises ApiError 400, 404 and 503."""
        self.check_model(body.model)
        body.reject_unsupported()
        requests = [self._make_request(body, prompt, routing_key) for prompt in body.prompts()]
        overload = self._instance.overload_reason([request.prompt_tokens for request in requests])
        if overload is not None:
            raise ApiError(503, f"the queue is full: {overload}", kind="service_unavailable_error")
        plan = ResponsePlan(
            endpoint_format=endpoint_format,
            id=f"{endpoint_format.id_prefix}{request_id or f'{self._id_suffix}-{requests[0].id}'}",
            created=self._machine.clock.wall() // SECOND,
            model=self.model,
            prompt_tokens=sum(request.prompt_tokens for request in requests),
            finishes=tuple(self._plan_finish(body, request) for request in requests),
            include_usage=body.include_usage,
        )
        return plan, requests

    def start(self, plan: ResponsePlan, requests: Sequence[Request], response: ResponseProgress) -> None:
        """Enqueue the requests of a plan together. `response` receives the progress of each choice."""
        self._num_accepted += len(requests)
        answers = []
        for index, (request, finish) in enumerate(zip(requests, plan.finishes, strict=True)):
            whole = answered_prompt(request.prefix, finish.output_tokens)
            answers.append(PacedAnswer(request, finish, partial(response.on_progress, index), whole))
        self._pacer.submit(*answers)

    def abort(self, requests: Sequence[Request]) -> None:
        """Abort those of the requests that have not ended. Idempotent."""
        self._num_aborted += sum(self._pacer.abort(request.id) for request in requests)

    def state(self) -> EngineState:
        """Return the current state."""
        waiting, running = self._instance.waiting, self._instance.running
        return EngineState(
            waiting=waiting,
            running=running,
            accepted=self._num_accepted,
            finished=self._num_accepted - self._num_aborted - waiting - running,
            aborted=self._num_aborted,
            kv_usage=self._instance.kv_usage,
            steps=self._instance.num_steps,
        )

    def _make_request(self, body: GenerationBody, prompt: EmulatedPrompt, routing_key: str) -> Request:
        """Return the request for one prompt. Raises ApiError 400 if the instance could never run it."""
        request = Request(
            id=next(self._ids),
            arrival=self._pacer.now(),
            prompt_tokens=prompt.tokens,
            prefix=prompt.prefix,
            routing_key=routing_key,
            max_output_tokens=body.token_limit,
            model=self.model,
            stream=bool(body.stream),
            priority=-(body.priority or 0.0),  # For vLLM smaller is more urgent.
        )
        rejection = self._instance.lengths.rejection_reason(request)
        if rejection is not None:  # Said before the head is sent: a streamed response could not become a 400 any more.
            raise bad_request(rejection, code="context_length_exceeded")
        return request

    def _plan_finish(self, body: GenerationBody, request: Request) -> PlannedFinish:
        room = self._model_len - request.prompt_tokens
        max_tokens = room if body.token_limit is None else body.token_limit
        if body.ignore_eos:
            return self._finish_sampler.exactly(max_tokens)
        return self._finish_sampler.draw(max_tokens=max_tokens, min_tokens=body.min_tokens or 0)
