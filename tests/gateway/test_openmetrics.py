"""`/metrics` as OpenMetrics, held to the parser of Prometheus' own client library; exemplars where there are traces."""

from __future__ import annotations

import msgspec
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as plain_families
from prometheus_client.samples import Sample
from test_gateway_otel import SAMPLED, TRACE, Kept, stream
from world import Backend, GatewayWorld, answer, run, world

from maitred.core.histogram import Histogram
from maitred.gateway.config import OtelConfig
from maitred.gateway.observe import span_export
from maitred.gateway.observe.openmetrics import Exemplars, TraceExample, prefers_openmetrics
from maitred.gateway.observe.request_metrics import RequestMetrics
from maitred.gateway.observe.state import GatewayCounters
from maitred.gateway.workers.shares import Gauges, SeriesShare, take_share

ASKED = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.4,*/*;q=0.1"
LATENCIES = ("maitred_time_to_first_token_seconds_bucket", "maitred_e2e_request_latency_seconds_bucket")


async def page(w: GatewayWorld, accept: str, **headers: str) -> tuple[str, str]:
    status, told, text = await w.request("/metrics", b"", "GET", accept=accept, **headers)
    assert status == 200
    return told["content-type"], text.decode()


def samples(text: str) -> list[Sample]:
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def test_a_latency_has_the_trace_of_the_last_sampled_request_in_its_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_export, "SpanExport", Kept)

    async def scenario() -> None:
        otel = OtelConfig(endpoint="http://127.0.0.1:1/v1/traces")
        async with world(Backend(stream), otel=otel, api_key="k") as w:
            key = {"authorization": "Bearer k"}
            await w.request(body={"model": "m", "stream": True, "messages": []}, traceparent=SAMPLED, **key)
            await w.request(body={"model": "m", "stream": True, "messages": []}, traceparent=SAMPLED[:-1] + "0", **key)
            await w.wait_until_idle()
            kind, text = await page(w, ASKED, **key)
            assert kind.startswith("application/openmetrics-text; version=1.0.0")
            found = [sample for sample in samples(text) if sample.exemplar is not None]
            assert [sample.name for sample in found] == [*LATENCIES]
            for sample in found:
                assert sample.exemplar.labels == {"trace_id": TRACE}
                assert sample.exemplar.value <= float(sample.labels["le"])
            assert found[1].exemplar.value >= 0.1
            plain_kind, plain = await page(w, "*/*", **key)
            assert plain_kind == "text/plain; version=0.0.4; charset=utf-8"
            assert TRACE not in plain
            assert {sample.name for family in plain_families(plain) for sample in family.samples} == {
                s.name for s in samples(text)
            }
            assert TRACE not in (await page(w, ASKED))[1]  # what names no tenant names no trace either

    run(scenario())


def test_without_traces_the_page_is_the_same_without_exemplars() -> None:
    async def scenario() -> None:
        async with world(Backend(answer), admission={"mode": "priority"}, programs={"mode": "tr"}) as w:
            await w.request()
            await w.wait_until_idle()
            text = (await page(w, ASKED))[1]
            assert len(samples(text)) > 300
            assert " # {" not in text

    run(scenario())


def test_two_lines_of_accept_are_one_list() -> None:
    async def scenario() -> None:
        async with world(Backend(answer)) as w:
            openmetrics, plain = "application/openmetrics-text;q=0.6", "text/plain;q=0.5"
            assert (await page(w, plain, Accept=openmetrics))[0].startswith("application/openmetrics-text")
            assert (await page(w, openmetrics, Accept="text/plain"))[0].startswith("text/plain")

    run(scenario())


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        (None, False),
        ("*/*", False),
        (ASKED, True),
        ("application/openmetrics-text", True),
        ("text/plain;version=0.0.4;q=0.9, application/openmetrics-text;q=0.5", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=x,,;", False),
    ],
)
def test_who_prefers_openmetrics(accept: str | None, wanted: bool) -> None:
    assert prefers_openmetrics(None if accept is None else accept.encode()) is wanted


def test_exemplars_of_workers_are_added_up_and_the_newest_stays() -> None:
    metrics = RequestMetrics(8)
    series = metrics.series(0, "m")
    series.exemplars.note("e2e", series.e2e, TraceExample(400_000, "a" * 32, 2))
    share = take_share(GatewayCounters(8), metrics, Histogram(), 0, 0, Gauges()).series[0]
    told = msgspec.msgpack.decode(msgspec.msgpack.encode(share), type=SeriesShare)
    total, bucket = Exemplars(), series.e2e.bucket_of(400_000)
    total.note("e2e", series.e2e, TraceExample(400_001, "b" * 32, 1))
    total.add(told.examples)
    assert total.of["e2e"][bucket].trace_id == "a" * 32
    total.note("e2e", series.e2e, TraceExample(400_002, "c" * 32, 3))
    total.add(told.examples)
    assert total.of["e2e"][bucket].trace_id == "c" * 32
