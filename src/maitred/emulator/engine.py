"""The engine behind the endpoints: from a request body to sequences in the instance, and back to the response."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from random import Random

import msgspec

from maitred.compat.instance_rules import instance_rules
from maitred.core.request import Request
from maitred.emulator.config import EngineConfig
from maitred.emulator.finish_reasons import FinishSampler, PlannedFinish
from maitred.emulator.metrics import EngineMetrics
from maitred.emulator.pacer import PacedAnswer, Pacer, PacerClock
from maitred.emulator.responses import EndpointFormat, ResponsePlan, ResponseProgress
from maitred.emulator.schemas import EmulatedPrompt, GenerationBody, bad_request
from maitred.instance import Instance, InstanceConfig
from maitred.wire.asgi import ApiError


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

    def __init__(self, config: EngineConfig, instance: InstanceConfig, clock: PacerClock) -> None:
        """Raise ConfigError for an unknown scheduler."""
        self.model = config.model
        self._model_len = instance.model_len
        paced = msgspec.structs.replace(instance, step_by_step=True, async_scheduling=False)
        self._instance = Instance(paced, Random(f"{config.seed}/instance"), instance_rules(paced).new_parts(paced))
        self.metrics = EngineMetrics(config.model, instance, self._instance, speed=config.speed)
        self._pacer = Pacer(self._instance, clock, self.metrics, speed=config.speed)
        self._finish_sampler = FinishSampler(config.output_tokens, config.seed)
        self._ids = itertools.count()
        self._id_suffix = secrets.token_hex(4)
        """A part of response ids that differs between engines."""
        self._num_accepted = 0
        self._num_aborted = 0

    def check_model(self, model: str | None) -> None:
        """Raise ApiError 404 unless `model` is the one that is served. A request without a model means that one."""
        if model is not None and model != self.model:
            message = f"the model {model!r} does not exist; this engine serves {self.model!r}"
            raise ApiError(404, message, kind="invalid_request_error", param="model", code="model_not_found")

    def plan(
        self, body: GenerationBody, endpoint_format: EndpointFormat, routing_key: str = ""
    ) -> tuple[ResponsePlan, list[Request]]:
        """Return the plan of the response, and the requests that will generate it. Raises ApiError 400 and 404."""
        self.check_model(body.model)
        body.reject_unsupported()
        requests = [self._make_request(body, prompt, routing_key) for prompt in body.prompts()]
        plan = ResponsePlan(
            endpoint_format=endpoint_format,
            id=f"{endpoint_format.id_prefix}{self._id_suffix}-{requests[0].id}",
            created=int(datetime.now(UTC).timestamp()),
            model=self.model,
            prompt_tokens=sum(request.prompt_tokens for request in requests),
            finishes=tuple(self._plan_finish(body, request) for request in requests),
            include_usage=body.include_usage,
        )
        return plan, requests

    def start(self, plan: ResponsePlan, requests: Sequence[Request], response: ResponseProgress) -> None:
        """Enqueue the requests of a plan together. `response` receives the progress of each choice."""
        self._num_accepted += len(requests)
        finishes = enumerate(zip(requests, plan.finishes, strict=True))
        self._pacer.submit(
            *(PacedAnswer(request, finish, partial(response.on_progress, index)) for index, (request, finish) in finishes)
        )

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
        rejection = self._instance.rejection_reason(request)
        if rejection is not None:
            raise bad_request(rejection, code="context_length_exceeded")
        return request

    def _plan_finish(self, body: GenerationBody, request: Request) -> PlannedFinish:
        room = self._model_len - request.prompt_tokens
        max_tokens = room if body.token_limit is None else body.token_limit
        if body.ignore_eos:
            return self._finish_sampler.exactly(max_tokens)
        return self._finish_sampler.draw(max_tokens=max_tokens, min_tokens=body.min_tokens or 0)
