"""SpanExport: finished spans on their way to a collector, over OTLP/HTTP, by the SDK of OpenTelemetry (extra `otel`).

The SDK's batch processor has a thread of its own. What waits for it is bounded: spans beyond are dropped and counted, as are
those that a collector does not take. A collector that is down is one line of the log until it is back.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from maitred import __version__
from maitred.core.units import Micros
from maitred.files.daemon_threads import DAEMON_THREADS
from maitred.gateway.config import OtelConfig
from maitred.gateway.observe.request_trace import SpanEvent
from maitred.gateway.observe.tracing import FinishedSpan

log = logging.getLogger("maitred.gateway")
CLOSE_SECS: Final = 5.0
"""Seconds that the last spans have to reach the collector."""
EXPORT_SECS: Final = 5.0
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_SCOPE: Final = InstrumentationScope("maitred", __version__)


class SpanExport:
    """Exports spans (a `SpanSink`), from its making to `close`."""

    def __init__(self, config: OtelConfig, counts: Counter[str], exporter: SpanExporter | None = None) -> None:
        """`counts` gets how many spans were `exported` and `dropped`. `exporter` sends them; None: to the endpoint."""
        # It would say the same of every batch, in two lines.
        logging.getLogger("opentelemetry.exporter.otlp.proto.http.trace_exporter").disabled = True
        if exporter is None:
            exporter = OTLPSpanExporter(endpoint=config.endpoint, timeout=EXPORT_SECS)
        self._told = _ToldExporter(exporter, config.endpoint or "")
        self._counts, self._max_queued = counts, config.max_queued_spans
        self._resource = Resource.create({"service.name": config.service_name, "service.version": __version__})
        batch = min(512, config.max_queued_spans)
        # Never full: what is too much is dropped here, and counted.
        self._processor = BatchSpanProcessor(
            self._told, max_queue_size=config.max_queued_spans + 1, schedule_delay_millis=1_000, max_export_batch_size=batch
        )
        self._num_taken = self._num_told = self._num_failed_told = 0

    def take(self, spans: Sequence[FinishedSpan], wall_offset: Micros) -> None:
        """Take the spans of a request."""
        for span in spans:
            if self._num_taken - self._told.num_ended >= self._max_queued:
                self._counts["dropped"] += 1
            else:
                self._num_taken += 1
                self._processor.on_end(self._readable(span, wall_offset))
        self._count()

    def _count(self) -> None:
        """Count what the thread has done since."""
        ended, failed = self._told.num_ended, self._told.num_failed
        self._counts["dropped"] += failed - self._num_failed_told
        self._counts["exported"] += ended - self._num_told - (failed - self._num_failed_told)
        self._num_told, self._num_failed_told = ended, failed

    async def close(self) -> None:
        """Export what is left, within `CLOSE_SECS`."""
        try:
            async with asyncio.timeout(CLOSE_SECS):
                await asyncio.get_running_loop().run_in_executor(DAEMON_THREADS, self._processor.shutdown)
        except TimeoutError:
            log.warning("the last spans did not reach the collector within %g s", CLOSE_SECS)
        self._count()

    def _readable(self, span: FinishedSpan, offset: Micros) -> ReadableSpan:
        state = TraceState.from_header([span.trace_state]) if span.trace_state else TraceState()
        parent = None
        if span.parent_id:
            parent = SpanContext(span.trace_id, span.parent_id, span.is_parent_remote, _SAMPLED, state)
        return ReadableSpan(
            span.name,
            context=SpanContext(span.trace_id, span.span_id, is_remote=False, trace_flags=_SAMPLED, trace_state=state),
            parent=parent,
            resource=self._resource,
            attributes=span.attributes,
            events=[_event(event, offset) for event in span.events],
            kind=SpanKind.SERVER if span.is_server else SpanKind.CLIENT,
            instrumentation_scope=_SCOPE,
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
            start_time=(span.began_at + offset) * 1_000,
            end_time=(span.ended_at + offset) * 1_000,
        )


def _event(event: SpanEvent, offset: Micros) -> Event:
    return Event(event.name, attributes=event.attributes, timestamp=(event.at + offset) * 1_000)


class _ToldExporter(SpanExporter):
    """An exporter that says once that its collector is down, and counts. It runs in the thread of the processor."""

    def __init__(self, exporter: SpanExporter, endpoint: str) -> None:
        self._exporter, self._endpoint = exporter, endpoint
        self.num_ended = self.num_failed = 0
        """Spans that wait no more, and those of them that the collector has not taken."""
        self._is_down = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._exporter.export(spans)
        except Exception:  # of a collector that answers anything
            result = SpanExportResult.FAILURE
        is_down = result is not SpanExportResult.SUCCESS
        if is_down:
            self.num_failed += len(spans)
        self.num_ended += len(spans)
        if is_down and not self._is_down:
            log.warning("the collector at %s takes no spans: they are dropped until it does", self._endpoint)
        elif self._is_down and not is_down:
            log.info("the collector at %s takes spans again", self._endpoint)
        self._is_down = is_down
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()
