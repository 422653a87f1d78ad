"""Traces: spans of requests and attempts, what engines are told, and a collector that records, or is not there."""

from __future__ import annotations

import asyncio
import gzip
import logging
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from threading import Thread
from typing import Any

import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from world import STREAM_HEAD, Backend, BackendRequest, GatedAnswer, answer, chunk, run, run_on_sockets, world

from maitred.core.units import Micros
from maitred.gateway.config import OtelConfig
from maitred.gateway.observe import span_export
from maitred.gateway.observe.request_trace import RequestTrace
from maitred.gateway.observe.span_export import SpanExport
from maitred.gateway.observe.tracing import FinishedSpan

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{PARENT}-01"
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}\n\n'
TOKEN = b'data: {"id":"c","choices":[{"delta":{"content":"a"}}]}\n\n'


async def stream(received: BackendRequest) -> None:
    await received.send(STREAM_HEAD + chunk(TOKEN))
    await asyncio.sleep(0.1)
    await received.send(chunk(USAGE) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")


async def fail(received: BackendRequest) -> None:
    raise ConnectionError


class Kept:
    """Keeps the spans in place of an exporter."""

    def __init__(self, *_: object) -> None:
        self.spans: list[FinishedSpan] = []
        Kept.last = self

    last: Kept

    def take(self, spans: Sequence[FinishedSpan], wall_offset: Micros) -> None:
        self.spans += spans

    async def close(self) -> None:
        pass


@pytest.fixture
def otel(monkeypatch: pytest.MonkeyPatch) -> OtelConfig:
    monkeypatch.setattr(span_export, "SpanExport", Kept)
    return OtelConfig(endpoint="http://127.0.0.1:1/v1/traces")


def test_a_request_has_a_span_and_each_attempt_another_and_engines_are_told(otel: OtelConfig) -> None:
    async def scenario() -> None:
        first, second = Backend(fail), Backend(stream)
        async with world(first, second, otel=otel) as w:
            body = {"model": "m", "stream": True, "max_tokens": 9}
            state = {"traceparent": SAMPLED, "tracestate": "vendor=1", "Tracestate": "other=2"}  # two lines
            for _ in range(8):  # The router may begin with either.
                status, _, _ = await w.request(body=body, **state)
                assert status == 200
                if first.received:
                    break
            await w.wait_until_idle()
            spans = Kept.last.spans[-3:]
            server, *clients = spans
            assert [span.is_server for span in spans] == [True, False, False]
            assert {span.trace_id for span in spans} == {int(TRACE, 16)}
            assert (server.parent_id, server.is_parent_remote) == (int(PARENT, 16), True)
            assert [span.parent_id for span in clients] == [server.span_id] * 2
            told = [backend.received[-1].headers[b"traceparent"].decode() for backend in (first, second)]
            assert told == [f"00-{TRACE}-{span.span_id:016x}-01" for span in clients]
            assert second.received[-1].headers[b"tracestate"] == b"vendor=1, other=2"
            assert server.began_at <= clients[0].began_at <= clients[0].ended_at <= clients[1].began_at < clients[1].ended_at
            assert clients[1].ended_at <= server.ended_at
            assert (bool(clients[0].error), clients[1].error, server.error) == (True, "", "")
            assert clients[1].attributes["http.response.status_code"] == 200
            (retry,) = server.events
            assert (retry.name, retry.attributes["maitred.attempt"]) == ("retry", 2)
            wanted = {
                "gen_ai.operation.name": "chat",
                "gen_ai.request.model": "m",
                "gen_ai.request.max_tokens": 9,
                "gen_ai.usage.prompt_tokens": 7,
                "gen_ai.usage.completion_tokens": 3,
                "maitred.class": "default",
                "maitred.tenant": "ip:127.0.0.1",
                "http.response.status_code": 200,
                "maitred.attempts": 2,
            }
            assert {name: server.attributes[name] for name in wanted} == wanted
            latencies = [
                server.attributes[f"gen_ai.latency.{name}"] for name in ("time_in_queue", "time_to_first_token", "e2e")
            ]
            assert latencies == sorted(latencies)
            assert latencies[2] > 0.1

    run(scenario())


def test_waiting_preemption_and_refusals_are_in_the_spans(otel: OtelConfig) -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        rules = {
            "on_preempt": "retry",
            "classes": {"interactive": {"can_preempt": True}, "bulk": {"queue_size": 1, "queue_timeout_secs": 9}},
        }
        async with world(Backend(gated), slots=1, admission=rules, otel=otel) as w:
            victim = await w.start_request(x_smg_priority="bulk")
            await w.wait_until(lambda: w.backends[0].received)
            urgent = await w.start_request(x_smg_priority="interactive")
            await w.wait_until(lambda: len(w.backends[0].received) == 2)
            assert (await w.request(x_smg_priority="bulk"))[0] == 429
            gated.open.set()
            assert (await urgent.read_response())[0] == (await victim.read_response())[0] == 200
            assert (await w.request(body=b"no json"))[0] == 400
            await w.wait_until_idle()
            refused, invalid = (
                next(span for span in Kept.last.spans if span.attributes.get("http.response.status_code") == status)
                for status in (429, 400)
            )
            assert refused.attributes["maitred.admission.reason"] == "queue_full"
            assert (refused.attributes["error.type"], refused.error) == ("scheduler_queue_full", "")
            assert invalid.attributes["error.type"] == "400"
            bulk = next(span for span in Kept.last.spans if span.is_server and span.events)
            assert bulk.attributes["maitred.class"] == "bulk"
            assert [event.name for event in bulk.events] == ["preempted", "retry"]
            assert bulk.attributes["maitred.queue.reason"] == "to_be_retried"

    run(scenario())


@pytest.mark.parametrize(("parent", "ratio", "is_sampled"), [(None, 0.0, False), (None, 1.0, True), (SAMPLED, 0.0, True)])
def test_what_is_sampled_follows_the_parent_and_the_ratio(
    parent: str | None, ratio: float, is_sampled: bool, otel: OtelConfig
) -> None:
    async def scenario() -> None:
        async with world(Backend(), otel=msgspec.structs.replace(otel, sample_ratio=ratio)) as w:
            await w.request(**({} if parent is None else {"traceparent": parent}))
            await w.wait_until_idle()
            assert bool(Kept.last.spans) is is_sampled
            told = w.backends[0].received[0].headers[b"traceparent"]
            assert told.endswith(b"-01" if is_sampled else b"-00")

    run(scenario())


def test_a_parent_that_is_not_sampled_is_passed_on(otel: OtelConfig) -> None:
    async def scenario() -> None:
        async with world(Backend(), otel=otel) as w:
            given = SAMPLED[:-1] + "0"
            await w.request(traceparent=given)
            assert w.backends[0].received[0].headers[b"traceparent"] == given.encode()
            await w.wait_until_idle()
            assert Kept.last.spans == []

    run(scenario())


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"nonsense",
        b"ff" + SAMPLED[2:].encode(),
        b"00-" + b"0" * 32 + b"-" + PARENT.encode() + b"-01",
        SAMPLED.upper().encode(),
    ],
)
def test_a_header_that_is_none_begins_a_trace(header: bytes) -> None:

    trace = RequestTrace(Random(1), header, b"x" * 10_000, 1 << 64)
    assert (trace.parent_id, trace.is_sampled, trace.trace_state) == (0, True, b"")
    assert trace.trace_id != int(TRACE, 16)


def test_without_traces_headers_pass_as_they_came_and_nothing_is_imported() -> None:
    async def scenario() -> None:
        async with world(Backend()) as w:
            await w.request(traceparent=SAMPLED, tracestate="a=b")
            received = w.backends[0].received[0].headers
            assert (received[b"traceparent"], received[b"tracestate"]) == (SAMPLED.encode(), b"a=b")

    run(scenario())
    code = "import sys, maitred.gateway.app; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class Collector:
    """A recording OTLP server."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:

                body = self.rfile.read(int(self.headers["content-length"]))
                body = gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body
                collector.requests.append(ExportTraceServiceRequest.FromString(body))
                answered = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("content-length", str(len(answered)))
                self.end_headers()
                self.wfile.write(answered)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/traces"
        Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_spans_reach_a_collector(collector: Collector) -> None:
    async def scenario() -> None:
        async with world(Backend(answer), otel=OtelConfig(endpoint=collector.url, service_name="edge")) as w:
            assert (await w.request(traceparent=SAMPLED))[0] == 200
        assert dict(w.gateway.counters.spans) == {"dropped": 0, "exported": 2}

    run_on_sockets(scenario())
    (request,) = collector.requests
    (of_resource,) = request.resource_spans
    assert ("service.name", "edge") in [(each.key, each.value.string_value) for each in of_resource.resource.attributes]
    server, client = sorted(of_resource.scope_spans[0].spans, key=lambda span: span.kind)
    assert (server.trace_id.hex(), server.parent_span_id.hex()) == (TRACE, PARENT)
    assert client.parent_span_id == server.span_id
    assert server.name == "chat m"
    assert 0 < client.end_time_unix_nano - client.start_time_unix_nano < 60e9
    assert abs(server.start_time_unix_nano - time.time_ns()) < 600e9


def test_a_collector_that_is_down_is_one_warning_and_its_spans_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    class Down:
        def export(self, spans: Sequence[object]) -> Any:
            raise ConnectionError

        def shutdown(self) -> None:
            pass

    async def scenario() -> None:
        counts = Counter[str]()
        export = SpanExport(OtelConfig(endpoint="http://collector:1", max_queued_spans=3), counts, Down())  # type: ignore[arg-type]
        span = FinishedSpan("a", True, 1, 2, 0, False, "", 0, 1, {}, (), "")
        for _ in range(2):
            export.take([span] * 5, 0)
        await export.close()
        assert counts["dropped"] == 10
        assert counts["exported"] == 0

    run_on_sockets(scenario())
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "the collector at http://collector:1 takes no spans: they are dropped until it does"
    ]
