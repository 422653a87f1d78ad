"""The engine behind the endpoints: from what a client asks to sequences in the instance, and back."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from random import Random

import msgspec

from maitred.emulator.asks import Ask, Prompt, bad_request
from maitred.emulator.config import EngineConfig
from maitred.emulator.endings import Ending, Endings, FinishReason
from maitred.emulator.metrics import EngineMetrics
from maitred.emulator.pacer import Answer, Clock, Pacer
from maitred.emulator.replies import Answering, Dialect, Reply
from maitred.instance import Instance, InstanceConfig
from maitred.request import Request, RequestId
from maitred.wire.asgi import ApiError


class EngineState(msgspec.Struct, frozen=True):
    """What /emulator/state says. Counts of sequences, in all but for those that are there now."""

    waiting: int
    running: int
    accepted: int
    finished: int
    aborted: int
    kv_usage: float
    steps: int


class Engine:
    """One emulated engine."""

    def __init__(self, config: EngineConfig, instance: InstanceConfig, clock: Clock) -> None:
        """Raises ConfigError for an unknown scheduler."""
        self.model = config.model
        self._model_len = instance.model_len
        self._instance = Instance(msgspec.structs.replace(instance, step_by_step=True), Random(f"{config.seed}/instance"))
        self.metrics = EngineMetrics(config.model, instance, self._instance, speed=config.speed)
        self._pacer = Pacer(self._instance, clock, self.metrics, speed=config.speed)
        self._endings = Endings(config.output_tokens, config.seed)
        self._ids = itertools.count()
        self._mark = secrets.token_hex(4)
        """Makes the ids of two engines differ."""
        self._accepted = 0
        self._aborted = 0

    def check_model(self, model: str | None) -> None:
        """Raises ApiError 404 unless it is the one served. A request that names none means it."""
        if model is not None and model != self.model:
            message = f"the model {model!r} does not exist; this engine serves {self.model!r}"
            raise ApiError(404, message, kind="invalid_request_error", param="model", code="model_not_found")

    def plan(self, ask: Ask, dialect: Dialect, routing_key: str = "") -> tuple[Reply, list[Request]]:
        """What will be answered, and the sequences that will answer it. Raises ApiError 400 and 404."""
        self.check_model(ask.model)
        ask.refuse_what_is_not_emulated()
        requests = [self._request(ask, prompt, routing_key) for prompt in ask.prompts()]
        reply = Reply(
            dialect=dialect,
            id=f"{dialect.id_prefix}{self._mark}-{requests[0].id}",
            created=int(datetime.now(UTC).timestamp()),
            model=self.model,
            prompt_tokens=sum(request.prompt_tokens for request in requests),
            endings=tuple(self._ending(ask, request) for request in requests),
            usage_wanted=ask.include_usage,
        )
        return reply, requests

    def start(self, reply: Reply, requests: Sequence[Request], answer: Answering) -> None:
        """Enqueue them, all at once; `answer` is told of each choice's progress."""
        self._accepted += len(requests)
        each = enumerate(zip(requests, reply.endings, strict=True))
        self._pacer.submit(*(Answer(request, ending, partial(answer.progress, index)) for index, (request, ending) in each))

    def abort(self, requests: Sequence[Request]) -> None:
        """Take out those that are still there. Idempotent."""
        self._aborted += sum(self._pacer.abort(request.id) for request in requests)

    def state(self) -> EngineState:
        waiting, running = self._instance.waiting, self._instance.running
        return EngineState(
            waiting=waiting,
            running=running,
            accepted=self._accepted,
            finished=self._accepted - self._aborted - waiting - running,
            aborted=self._aborted,
            kv_usage=self._instance.kv_usage,
            steps=self._instance.steps,
        )

    def _request(self, ask: Ask, prompt: Prompt, routing_key: str) -> Request:
        """Raises ApiError 400 if it could never run."""
        request = Request(
            id=self._next_id(),
            arrival=self._pacer.now(),
            prompt_tokens=prompt.tokens,
            prefix=prompt.content,
            routing_key=routing_key,
            max_output_tokens=ask.limit,
            model=self.model,
            stream=bool(ask.stream),
            priority=-(ask.priority or 0.0),
        )
        refusal = self._instance.refusal(request)
        if refusal is not None:
            raise bad_request(refusal, code="context_length_exceeded")
        return request

    def _next_id(self) -> RequestId:
        return next(self._ids)

    def _ending(self, ask: Ask, request: Request) -> Ending:
        room = self._model_len - request.prompt_tokens
        most = room if ask.limit is None else ask.limit
        if ask.ignore_eos:
            return Ending(most, FinishReason.LENGTH)
        return self._endings.draw(most=most, least=ask.min_tokens or 0)
