"""Metrics: their names, and the law that arrivals are those that have ended, wait or are in flight, at every scrape."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from world import (
    ANSWER,
    STREAM_HEAD,
    Backend,
    BackendRequest,
    GatedAnswer,
    GatewayWorld,
    chunk,
    run,
    run_on_sockets,
    whole,
    world,
)

from maitred.core.request import PriorityClass, Request
from maitred.gateway.observe import loop_lag
from maitred.gateway.observe.request_metrics import RequestMetrics, RequestSeries
from maitred.gateway.observe.request_record import RequestRecord
from maitred.gateway.routes import ROUTES
from maitred.routing import RoutingConfig
from maitred.wire.clock import Clock

STREAM = {"model": "m", "stream": True}


class Scrape:
    def __init__(self, text: str) -> None:
        self.kinds = {family.name: family.type for family in text_string_to_metric_families(text)}
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        self.values = {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.values.get((name, tuple(sorted(labels.items()))))

    def total(self, name: str, **labels: str) -> float:
        wanted = labels.items()
        return sum(value for (n, given), value in self.values.items() if n == name and wanted <= dict(given).items())


async def scrape(w: GatewayWorld) -> Scrape:
    return Scrape((await w.request("/metrics", method="GET"))[2].decode())


def check_the_law(seen: Scrape) -> None:
    for c in ("system", "interactive", "default", "bulk"):
        ended = seen.total("maitred_scheduler_admit_total", **{"class": c})
        here = seen.total("maitred_scheduler_queue_depth", **{"class": c})
        here += seen.total("maitred_scheduler_inflight", **{"class": c})
        assert seen("maitred_scheduler_arrivals_total", **{"class": c}) == ended + here


@pytest.mark.parametrize("on_preempt", ["reject", "retry"])
def test_nothing_is_lost_at_any_scrape(on_preempt: str) -> None:
    async def scenario() -> None:
        async def respond(received: BackendRequest) -> None:
            await received.send(STREAM_HEAD)
            await asyncio.sleep(0.004)  # Until its first data comes, a request may be a victim.
            await received.send(chunk(b"data: 1\n\n") + b"0\r\n\r\n")

        async def visit(w: GatewayWorld, number: int, outcomes: Counter[int | None]) -> None:
            await asyncio.sleep(number % 17 / 100)  # Each comes and leaves at another instant.
            connection = await w.start_request(STREAM, x_smg_priority=("bulk", "default", "interactive")[number % 3])
            if number % 5 == 0:
                await asyncio.sleep(number % 7 / 200)
                connection.disconnect()
                outcomes[None] += 1
            else:
                outcomes[(await connection.read_response())[0]] += 1

        classes: dict[str, Any] = {"interactive": {"can_preempt": True}}
        classes |= {"default": {"queue_size": 3}, "bulk": {"queue_timeout_secs": 0.05}}
        admission = {"classes": classes, "on_preempt": on_preempt}
        async with world(Backend(respond), slots=2, admission=admission) as w:
            outcomes: Counter[int | None] = Counter()
            visits = asyncio.gather(*(visit(w, number, outcomes) for number in range(150)))
            while not visits.done():
                check_the_law(await scrape(w))
                await asyncio.sleep(0.02)  # at many instants
            await visits
            await w.wait_until_idle()
            seen = await scrape(w)
            check_the_law(seen)
            assert seen.total("maitred_scheduler_arrivals_total") == 150 - w.gateway.counters.refused_before_admission.total()
            kinds = {429: "rejected_queue_full", 408: "rejected_queue_timeout"}
            for status, outcome in kinds.items():
                counted = seen.total("maitred_scheduler_admit_total", outcome=outcome)
                assert outcomes[status] <= counted <= outcomes[status] + outcomes[None]
            counted = seen.total("maitred_scheduler_admit_total", outcome="preempted")
            assert outcomes[503] <= counted <= outcomes[503] + outcomes[None]
            preempted = seen.total("maitred_scheduler_preemption_total", by_class="interactive")
            assert preempted == counted + seen.total("maitred_scheduler_retry_total")
            assert preempted > 0

    run(scenario())


def test_names_and_kinds() -> None:
    async def scenario() -> Scrape:
        release = asyncio.Event()

        async def respond(received: BackendRequest) -> None:
            await release.wait()
            await received.send(STREAM_HEAD + chunk(b"data: 1\n\n") + b"0\r\n\r\n")

        admission = {"classes": {"bulk": {"queue_size": 0}, "interactive": {"reserved_floor": 1}}}
        async with world(Backend(respond), slots=2, admission={**admission, "default_max_class": "interactive"}) as w:
            connections = [await w.start_request(STREAM, x_smg_priority=name) for name in ("system", "urgent")]
            await w.wait_until(lambda: w.state.in_flight == 2)
            connections.append(await w.start_request(STREAM))
            await w.wait_until(lambda: w.state.waiting)
            assert (await w.request(x_smg_priority="bulk"))[0] == 429
            busy = await scrape(w)
            check_the_law(busy)
            assert busy("maitred_scheduler_inflight", **{"class": "interactive"}) == 1
            assert busy("maitred_scheduler_queue_depth", **{"class": "default"}) == 1
            assert busy("maitred_scheduler_utilization") == 1.0
            assert busy("maitred_tenant_inflight", tenant="ip:127.0.0.1") == 2
            assert busy("maitred_tenant_queue_depth", tenant="ip:127.0.0.1") == 1
            # one of the two in flight is not reserved, and it could have that one only
            assert busy("maitred_scheduler_class_capacity_pressure", **{"class": "default"}) == 1.0
            release.set()
            for connection in connections:
                assert (await connection.read_response())[0] == 200
            return await scrape(w)

    seen = run(scenario())
    assert seen("maitred_scheduler_admit_total", **{"class": "default", "outcome": "admitted"}) == 2
    assert seen("maitred_scheduler_admit_total", **{"class": "bulk", "outcome": "rejected_queue_full"}) == 1
    clamp = {"tenant": "ip:127.0.0.1", "requested_class": "system", "effective_class": "interactive"}
    assert seen("maitred_scheduler_clamp_total", **clamp) == 1
    assert seen("maitred_scheduler_unknown_priority_value_total", tenant="ip:127.0.0.1") == 1
    assert seen("maitred_scheduler_queue_wait_seconds_count", **{"class": "default"}) == 1
    assert seen("maitred_scheduler_slot_hold_seconds_count", **{"class": "default"}) == 2
    assert seen("maitred_scheduler_wasted_seconds_count", **{"class": "default"}) == 0
    of_model = {"class": "interactive", "model": "m"}
    assert seen("maitred_time_to_first_token_seconds_count", **of_model) == 1
    assert seen("maitred_e2e_request_latency_seconds_count", **of_model) == 1
    assert seen("maitred_generation_tokens_total", source="estimated", **of_model) == 0
    assert seen("maitred_scheduler_capacity", model="m") == 2
    assert seen("maitred_scheduler_reserved_effective", **{"class": "interactive", "model": "m"}) == 1
    assert seen("maitred_scheduler_queue_size_limit", **{"class": "bulk"}) == 0
    assert seen("maitred_config_fallback") == 0
    assert seen("maitred_http_rate_limit_total", result="rejected") is None
    histograms = {name for name, kind in seen.kinds.items() if kind == "histogram"}
    scheduler = ("queue_wait", "slot_hold", "wasted", "retry_after_error")
    requests = ("time_to_first_token", "inter_token_latency", "e2e_request_latency", "upstream_first_data")
    names = (*requests, *(f"scheduler_{name}" for name in scheduler), "event_loop_lag")
    assert histograms == {f"maitred_{name}_seconds" for name in names}


def test_metrics_without_classes() -> None:
    async def scenario() -> Scrape:
        release = asyncio.Event()

        async def respond(received: BackendRequest) -> None:
            await release.wait()
            await received.send(whole(ANSWER))

        legacy = {"max_concurrent_requests": 1, "queue_size": 1, "queue_timeout_secs": 0.5}
        async with world(Backend(respond), admission={"mode": "legacy", "classes": {}, "legacy": legacy}) as w:
            first = await w.start_request()
            await w.wait_until(lambda: w.state.in_flight)
            late = await w.start_request(x_smg_priority="system")
            await w.wait_until(lambda: w.state.waiting)
            assert (await w.request())[0] == 429
            busy = await scrape(w)
            assert busy("maitred_admission_queue_depth") == busy("maitred_admission_inflight") == 1
            assert (await late.read_response())[0] == 408
            release.set()
            assert (await first.read_response())[0] == 200
            return await scrape(w)

    seen = run(scenario())
    assert seen("maitred_http_rate_limit_total", result="allowed") == 1
    assert seen("maitred_http_rate_limit_total", result="rejected") == 2
    assert seen("maitred_admission_queue_rejected_total", reason="full") == 1
    assert seen("maitred_admission_queue_rejected_total", reason="timeout") == 1
    assert seen("maitred_scheduler_reserved_effective", **{"class": "system", "model": "*"}) is None
    check_the_law(seen)


def test_the_gate_is_counted_beside() -> None:
    async def scenario() -> Scrape:
        rate = {"max_concurrent_requests": 2, "rate_limit_tokens_per_second": 0.01}
        async with world(admission={"legacy": rate}) as w:
            assert [(await w.request())[0] for _ in range(4)] == [200, 200, 429, 429]
            return await scrape(w)

    seen = run(scenario())
    assert seen("maitred_http_rate_limit_total", result="rejected") == 2
    assert seen.total("maitred_scheduler_arrivals_total") == seen.total("maitred_scheduler_admit_total") == 2


def test_few_tenants_have_labels_of_their_own() -> None:
    async def scenario() -> Scrape:
        config = {"trust_tenant_header": True, "tenant_metric_top_n": 2}
        async with world(admission={"default_max_class": "default"}, **config) as w:
            for tenant in ("a", "b", "c", "d", "a"):
                assert (await w.request(x_smg_tenant_id=tenant, x_smg_priority="system"))[0] == 200
            return await scrape(w)

    seen = run(scenario())
    to = {"requested_class": "system", "effective_class": "default"}
    counted = {
        tenant: seen("maitred_scheduler_clamp_total", tenant=tenant, **to) for tenant in ("header:a", "header:b", "other")
    }
    assert counted == {"header:a": 2, "header:b": 1, "other": 2}
    assert seen.total("maitred_scheduler_clamp_total") == 5


USAGE = b'{"choices":[],"usage":{"prompt_tokens":21,"completion_tokens":34}}'


def test_tokens_and_the_times_between_them() -> None:
    """A stream of three tokens with 20 ms between them and a usage; one without a usage; a whole answer with one."""

    async def respond(received: BackendRequest) -> None:
        asked = received.body
        if b"stream" not in asked:
            await received.send(
                whole(b'{"text":"\\"usage\\": {\\"prompt_tokens\\": 9}","usage":{"prompt_tokens":5,"completion_tokens":6}}')
            )
            return
        await received.send(STREAM_HEAD)
        for _ in range(3):
            await received.send(chunk(b'data: {"choices":[{}]}\n\n'))
            await asyncio.sleep(0.02)  # which is measured
        last = b"data: %b\n\n" % USAGE if b"include_usage" in asked else b""
        await received.send(chunk(last + b"data: [DONE]\n\n") + b"0\r\n\r\n")

    async def scenario() -> Scrape:
        async with world(Backend(respond)) as w:
            await w.request(body={**STREAM, "stream_options": {"include_usage": True}})
            await w.request(body={**STREAM, "prompt": "x" * 360}, x_smg_priority="bulk")
            await w.request()
            assert w.backends[0].received[1].body.count(b"usage") == 0
            return await scrape(w)

    seen = run(scenario())

    def tokens(kind: str, name: str, source: str) -> float | None:
        return seen(f"maitred_{kind}_tokens_total", **{"class": name, "model": "m", "source": source})

    assert (tokens("prompt", "default", "reported"), tokens("generation", "default", "reported")) == (21 + 5, 34 + 6)
    assert (tokens("prompt", "default", "estimated"), tokens("generation", "default", "estimated")) == (0, 0)
    assert (tokens("generation", "bulk", "reported"), tokens("generation", "bulk", "estimated")) == (0, 3)
    assert 90 <= (tokens("prompt", "bulk", "estimated") or 0) <= 105
    gaps, bulk = "maitred_inter_token_latency_seconds", {"class": "bulk", "model": "m"}
    assert seen(f"{gaps}_count", **bulk) == 2
    assert 0.035 < (seen(f"{gaps}_sum", **bulk) or 0) < 1
    assert seen(f"{gaps}_bucket", le="0.015", **bulk) == 0
    ttft, e2e = (seen(f"maitred_{name}_seconds_sum", **bulk) or 0 for name in ("time_to_first_token", "e2e_request_latency"))
    assert 0 < ttft < e2e - 0.05
    assert seen("maitred_time_to_first_token_seconds_count", **{"class": "default", "model": "m"}) == 1
    assert seen.total("maitred_upstream_first_data_seconds_count") == 3


@pytest.mark.parametrize(("behind", "reported"), [(20_000, (5, 6)), (200_000, (None, None))])
@pytest.mark.parametrize("cut", [0, 30])
def test_the_usage_is_looked_for_at_the_end_of_an_answer_alone(behind: int, reported: object, cut: int) -> None:
    """A search through all of a long answer would stop the loop for longer than all else that is done for it."""
    answer = b'{"usage":{"prompt_tokens":5,"completion_tokens":6},"text":"%b"}' % (b"x" * behind)
    record = RequestRecord(Request(id=1, arrival=0, prompt_tokens=1), ROUTES["/v1/chat/completions"], RequestSeries(), Clock())
    record.on_first_data(answer[:cut])
    record.on_body_piece(answer[cut:])
    record.end()
    assert (record.prompt_tokens, record.output_tokens) == reported


def test_answers_by_status_and_error() -> None:
    async def scenario() -> Scrape:
        async def dies(received: BackendRequest) -> None:
            await received.send(STREAM_HEAD + chunk(b"data: 1\n\n"))
            raise ConnectionError

        backend = Backend()
        async with world(backend) as w:
            await w.request()
            await w.request(body={"model": "nobody"})
            backend.respond = dies
            assert b"upstream_truncated" in (await w.request(body=STREAM))[2]
            return await scrape(w)

    seen = run(scenario())
    found = {key: value for (name, key), value in seen.values.items() if name == "maitred_http_responses_total"}
    expected = {("200", ""): 1, ("404", "model_not_found"): 1, ("200", "broken_off"): 1}
    assert found == {(("error_code", code), ("status_code", status)): n for (status, code), n in expected.items()}


def test_connections_and_what_routing_sees_of_a_backend() -> None:
    async def scenario() -> tuple[Scrape, Scrape]:
        gated, backend = GatedAnswer(), Backend()
        backend.respond = gated
        backend.metrics = b"vllm:num_requests_running 7\nvllm:num_requests_waiting 3\nvllm:kv_cache_usage_perc 0.25\n"
        async with world(backend, slots=1, routing=RoutingConfig(policy="least-loaded(load=effective)")) as w:
            idle = await scrape(w)
            held = [await w.start_request() for _ in range(3)]
            await w.wait_until(lambda: w.state.waiting == 2 and w.state.backends[0].load)
            busy = await scrape(w)
            gated.open.set()
            for connection in held:
                await connection.read_response()
            return idle, busy

    idle, busy = run(scenario())
    assert (busy("maitred_num_requests_running", model="m"), busy("maitred_num_requests_waiting", model="m")) == (1, 2)
    # Three that are held, and those of the scrapes.
    assert (idle("maitred_http_connections_active"), busy("maitred_http_connections_active")) == (1, 5)
    assert busy.total("maitred_backend_connections") >= 1
    names = ("requests_running", "requests_waiting", "kv_cache_usage_perc")
    assert [busy.total(f"maitred_backend_{name}") for name in names] == [7, 3, 0.25]


def test_few_models_have_labels_of_their_own() -> None:
    metrics = RequestMetrics(max_model_labels=2)
    for number in range(5):
        for c in PriorityClass:
            series = metrics.series(c, f"m{number}")
            series.tokens_of(f"auth:{number}").reported_output += 1
            assert series is metrics.series(c, f"m{number}")
    (counted,) = (family for family in metrics.families() if family.name == "maitred_generation_tokens")
    reported = [sample for sample in counted.samples if sample.labels["source"] == "reported"]
    assert Counter({s.labels["model"]: 0 for s in reported}).keys() == {"m0", "m1", "other"}
    assert sum(s.value for s in reported if s.labels["model"] == "other") == 3 * len(PriorityClass)


def test_a_loop_that_is_held_up_shows_its_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_lag, "INTERVAL_SECS", 0.01)
    monkeypatch.setattr(loop_lag, "_INTERVAL", 10_000)

    async def scenario() -> loop_lag.LoopLag:
        lag = loop_lag.LoopLag(Clock())
        lag.start()
        time.sleep(0.1)  # what it must notice
        while not lag.lags.count:
            await asyncio.sleep(0)
        lag.stop()
        return lag

    measured = run_on_sockets(scenario()).lags
    assert measured.count >= 1
    assert measured.total > 80_000
