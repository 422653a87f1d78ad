"""RequestObserver: what is told of every request for a forwarded route, when it has ended or was refused.

    metrics      `RequestMetrics`, always
    traces       spans (`tracing`)
    access log   one line (`access_log`)
    recording    one row for each request that generates (`record`)

Each of them reads the same `RequestRecord`, so they agree. The observer changes nothing about a request.
Compiled (`tools/compile.py`).
"""

from __future__ import annotations

import logging

from maitred.core.request import Request
from maitred.core.units import Micros
from maitred.gateway.observe.access_log import AccessLog
from maitred.gateway.observe.recording import TrafficRecorder
from maitred.gateway.observe.request_metrics import RequestMetrics, TokenCounts
from maitred.gateway.observe.request_record import ERROR_IN_ANSWER, RequestRecord
from maitred.gateway.observe.state import GatewayCounters
from maitred.gateway.observe.tracing import RequestTracer
from maitred.gateway.routes import Route
from maitred.wire.clock import Clock
from maitred.wire.exchange import Exchange

log = logging.getLogger("maitred.gateway")


class RequestObserver:
    """Observes all requests of a gateway."""

    def __init__(
        self,
        metrics: RequestMetrics,
        counters: GatewayCounters,
        access_log: AccessLog | None,
        recorder: TrafficRecorder | None,
        clock: Clock,
        tracer: RequestTracer | None = None,
    ) -> None:
        """`tracer` makes spans of the requests, or is None if there are no traces."""
        self.tracer = tracer
        self.metrics = metrics
        self._counters = counters
        self._access_log = access_log
        self._recorder = recorder
        self._clock = clock

    @property
    def reads_usage(self) -> bool:
        """Whether the usage of every answer that is generated must be known."""
        return self._recorder is not None

    def begin(self, request: Request, route: Route, exchange: Exchange) -> RequestRecord:
        """Return the record of a request that was taken in."""
        if self._recorder is not None and route.generates:
            self._recorder.open_row(request)
        record = RequestRecord(request, route, self.metrics.series(request.priority_class, request.model), self._clock)
        if self.tracer is not None:
            record.trace = self.tracer.begin(exchange)
        return record

    def end(self, record: RequestRecord, exchange: Exchange) -> None:
        """Tell of a request that has ended, in whatever way."""
        record.end()
        if record.error is not None and record.has_failed:
            record.error_code = ERROR_IN_ANSWER
        elif not record.is_complete:
            record.error_code = "client_gone" if exchange.is_disconnected else "broken_off"
        elif record.error_code:
            self._counters.count_refusal(record.request.tenant, record.error_code)
        self.metrics.responses[record.status, record.error_code] += 1
        if record.sent_at is not None:
            counts = record.series.tokens.get(record.request.tenant)
            if counts is None:  # the first of its tenant, or of one without a label of its own
                counts = record.series.tokens_of(self._counters.tenant_label(record.request.tenant))
            _count_tokens(record, counts)
            if record.is_unreadable and record.backend is not None:
                self._count_unreadable(record.backend.url)
        if self._access_log is not None:
            self._access_log.write_record(exchange, record)
        if self._recorder is not None and record.route.generates:
            self._recorder.write_row(record)
        if self.tracer is not None and record.trace is not None:
            self.tracer.end(record.trace, record, exchange)

    def _count_unreadable(self, url: str) -> None:
        """Count an answer of a backend that has passed unread; the first one is logged."""
        counts = self._counters.unreadable_answers
        if not counts[url]:
            log.warning("%s compresses answers unasked: errors and tokens in them are not seen", url)
        counts[url] += 1

    def refuse(
        self,
        exchange: Exchange,
        status: int,
        error_code: str,
        began_at: Micros,
        request_id: bytes,
        tenant: str = "",
        model: str = "",
    ) -> None:
        """Tell of a request that was refused before it was taken in, or of which the client has left by then. Tenant and model
        are empty if they are not known."""
        self.metrics.responses[status, error_code] += 1
        if self._access_log is not None:
            span = self._clock.now() - began_at
            self._access_log.write_answer(exchange, status, error_code, span, request_id, tenant, model)
        if self.tracer is not None:
            self.tracer.refuse(exchange, status, error_code, began_at, tenant, model)


def _count_tokens(record: RequestRecord, counts: TokenCounts) -> None:
    """Count the tokens of a request that was sent to a backend: of an answer that broke off, those that came."""
    if record.prompt_tokens is not None:
        counts.reported_prompt += record.prompt_tokens
    elif record.route.generates:
        counts.estimated_prompt += record.request.prompt_tokens
    if record.output_tokens is not None:
        counts.reported_output += record.output_tokens
    elif record.route.generates and record.status == 200:
        counts.estimated_output += record.estimated_output()
