"""Traces of requests: a SERVER span for each, and below it a CLIENT span for each attempt (OpenTelemetry).

    client ──traceparent──▶ SERVER span ──▶ CLIENT span of attempt 1 ──traceparent──▶ engine
                                        ──▶ CLIENT span of attempt 2 ──traceparent──▶ another engine

A request whose client sends a `traceparent` belongs to that trace, and is sampled as its flag says; of the others the share
`sample_ratio` is. What is not sampled costs its header alone. While a request is served, instants and words are noted; its
spans are made when it has ended (`RequestObserver.end`), and leave in a thread of their own (`span_export`): nothing waits for
a collector.

Without `gateway.otel.endpoint` nothing of this is there, and no header of a trace is touched.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final, NamedTuple, Protocol

from maitred.core.units import Micros, to_seconds
from maitred.gateway.observe.openmetrics import TraceExample
from maitred.gateway.observe.request_record import RequestRecord
from maitred.gateway.observe.request_trace import TRACE_HEADERS, AttemptSpan, RequestTrace, SpanEvent, Value
from maitred.wire.clock import Clock
from maitred.wire.exchange import Exchange

_OPERATIONS: Final[Mapping[str, str]] = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}


class FinishedSpan(NamedTuple):
    """A span, as it is exported. Instants are those of the monotonic clock, µs."""

    name: str
    is_server: bool
    trace_id: int
    span_id: int
    parent_id: int
    """0: none."""
    is_parent_remote: bool
    trace_state: str
    began_at: Micros
    ended_at: Micros
    attributes: Mapping[str, Value]
    events: Sequence[SpanEvent]
    error: str
    """Why it has failed, or "" if it has not."""


class SpanSink(Protocol):
    """Takes finished spans."""

    def take(self, spans: Sequence[FinishedSpan], wall_offset: Micros) -> None:
        """Take the spans of a request. `wall_offset` is what makes their instants times of day. Never blocks."""
        ...


class RequestTracer:
    """Makes the spans of all requests of a gateway."""

    def __init__(self, sink: SpanSink, sample_ratio: float, clock: Clock, random: Random) -> None:
        """`sample_ratio` is the share of the requests without a `traceparent` that are sampled, 0 to 1."""
        self._sink, self._clock, self._random = sink, clock, random
        self._ratio_bound = round(sample_ratio * (1 << 64))

    def begin(self, exchange: Exchange) -> RequestTrace:
        """Return the trace of a request."""
        parent, state = TRACE_HEADERS
        return RequestTrace(self._random, exchange.get_header(parent), exchange.get_list(state), self._ratio_bound)

    def end(self, trace: RequestTrace, record: RequestRecord, exchange: Exchange) -> None:
        """Make the spans of a request that has ended."""
        if not trace.is_sampled:
            return
        request, events = record.request, trace.events
        attributes = _http(exchange, record.status, record.error_code)
        operation = _OPERATIONS.get(exchange.path)
        if operation is not None:
            attributes["gen_ai.operation.name"] = operation
        attributes |= {
            "gen_ai.request.model": request.model,
            "gen_ai.request.id": request.client_id,
            "gen_ai.request.stream": request.stream or record.is_stream,
            "maitred.class": request.priority_class.label,
            "maitred.tenant": request.tenant,
            "maitred.attempts": record.num_attempts,
            "maitred.outcome": record.outcome,
            "gen_ai.latency.e2e": to_seconds(record.ended_at - request.arrival),
        }
        if request.max_output_tokens is not None:
            attributes["gen_ai.request.max_tokens"] = request.max_output_tokens
        first_sent = trace.attempts[0].began_at if trace.attempts else record.ended_at
        attributes["gen_ai.latency.time_in_queue"] = to_seconds(first_sent - request.arrival)
        if record.first_token_at is not None:
            attributes["gen_ai.latency.time_to_first_token"] = to_seconds(record.first_token_at - request.arrival)
        for names, tokens in ((_PROMPT_NAMES, record.prompt_tokens), (_OUTPUT_NAMES, record.output_tokens)):
            if tokens is not None:
                attributes |= dict.fromkeys(names, tokens)
        reasons = {"maitred.queue.reason": trace.queue_reason, "maitred.admission.reason": trace.refusal_reason}
        attributes |= {name: reason for name, reason in reasons.items() if reason}
        if request.program:
            attributes["gen_ai.conversation.id"] = request.program
        error = record.error_code if record.status >= 500 or not record.is_complete or record.has_failed else ""
        name = f"{operation or exchange.method} {request.model}" if request.model else f"{exchange.method} {exchange.path}"
        state = trace.trace_state.decode("latin-1")
        server = FinishedSpan(
            *(name, True, trace.trace_id, trace.span_id, trace.parent_id, True, state),
            *(request.arrival, record.ended_at, attributes, events, error),
        )
        path = f"{exchange.method} {exchange.path}"
        clients = [
            FinishedSpan(
                *(path, False, trace.trace_id, attempt.span_id, trace.span_id, False, state),
                *(attempt.began_at, attempt.ended_at or record.ended_at),
                attributes=_of_attempt(number, attempt, exchange),
                events=(),
                error=attempt.error,
            )
            for number, attempt in enumerate(trace.attempts, 1)
        ]
        wall = self._clock.wall()
        self._sink.take([server, *clients], wall - self._clock.now())
        if record.status == 200 and record.error is None:
            _note_examples(record, f"{trace.trace_id:032x}", wall)

    def refuse(self, exchange: Exchange, status: int, error_code: str, began_at: Micros, tenant: str, model: str) -> None:
        """Make the span of a request that was refused before it was taken in."""
        trace, now = self.begin(exchange), self._clock.now()
        if not trace.is_sampled:
            return
        attributes = _http(exchange, status, error_code)
        attributes |= {name: text for name, text in (("maitred.tenant", tenant), ("gen_ai.request.model", model)) if text}
        span = FinishedSpan(
            *(f"{exchange.method} {exchange.path}", True, trace.trace_id, trace.span_id, trace.parent_id, True),
            *(trace.trace_state.decode("latin-1"), began_at, now, attributes, (), error_code if status >= 500 else ""),
        )
        self._sink.take([span], self._clock.wall() - now)


def _note_examples(record: RequestRecord, trace_id: str, wall: Micros) -> None:
    """Keep the trace of an answer beside its latencies, where these were counted."""
    series, arrival = record.series, record.request.arrival
    if record.is_stream and record.first_data_at is not None:
        series.exemplars.note("ttft", series.ttft, TraceExample(record.first_data_at - arrival, trace_id, wall))
    if record.is_complete:
        series.exemplars.note("e2e", series.e2e, TraceExample(record.ended_at - arrival, trace_id, wall))


_PROMPT_NAMES: Final = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
"""As the conventions name it now, and as vLLM and SGLang do."""
_OUTPUT_NAMES: Final = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")


def _http(exchange: Exchange, status: int, error_code: str) -> dict[str, Value]:
    attributes: dict[str, Value] = {"http.request.method": exchange.method, "url.path": exchange.path}
    attributes["http.response.status_code"] = status
    if exchange.client is not None:
        attributes["client.address"] = exchange.client[0]
    if error_code or status >= 400:
        attributes["error.type"] = error_code or str(status)
    return attributes


def _of_attempt(number: int, attempt: AttemptSpan, exchange: Exchange) -> dict[str, Value]:
    attributes: dict[str, Value] = {
        "http.request.method": exchange.method,
        "url.full": attempt.url + exchange.path,
        "maitred.backend": attempt.url,
        "maitred.attempt": number,
    }
    if attempt.status is not None:
        attributes["http.response.status_code"] = attempt.status
    return attributes
