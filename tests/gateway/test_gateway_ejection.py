"""A gateway before backends that are healthy in their polls and fail their requests."""

from __future__ import annotations

import logging

import pytest
from test_gateway_programs import Counted, body, program
from test_gateway_retries import says, sent_to, streams
from world import ANSWER, Backend, BackendRequest, GatedAnswer, run, world

from maitred.scheduler.ejection import EjectionConfig
from maitred.wire.errors import UpstreamLimits

EVENT = b'data: {"error":{"message":"EngineCore died","code":500}}\n\n'


async def mute(received: BackendRequest) -> None:
    await received.wait_until_disconnected()


async def dies(received: BackendRequest) -> None:
    raise ConnectionError


async def garbage(received: BackendRequest) -> None:
    await received.send(b"?!\r\n\r\n")


@pytest.mark.parametrize("respond", [*map(says, ("500 I", "502 B", "503 S", "504 G", "520 E")), dies, streams(EVENT)])
def test_a_backend_that_fails_at_once_does_not_draw_the_traffic(respond) -> None:  # type: ignore[no-untyped-def]
    """It is always the least loaded one. All of these failures are retried, so no client sees any."""

    async def scenario() -> None:
        gated = GatedAnswer()
        good, bad = Backend(gated), Backend(respond)
        async with world(good, bad, health_interval_secs=30.0) as w:
            clients = [await w.start_request({"model": "m", "stream": True}) for _ in range(24)]
            await w.wait_until(lambda: len(good.received) == 24)
            gated.open.set()
            for client in clients:
                assert (await client.read_response())[::2] == (200, ANSWER)
            assert w.state.backends[1].ejection.state == "ejected"
            num_sent = len(bad.received)
            for _ in range(20):
                assert (await w.request())[0] == 200
            assert len(bad.received) == num_sent < 24

    run(scenario())


@pytest.mark.parametrize("respond", [garbage, mute])
def test_failures_that_are_not_retried_eject_as_well(respond) -> None:  # type: ignore[no-untyped-def]
    async def scenario() -> None:
        gated = GatedAnswer()
        good, bad = Backend(gated), Backend(respond)
        async with world(good, bad, upstream=UpstreamLimits(head_secs=0.05)) as w:
            gated.open.set()
            for _ in range(40):
                await w.request()
            assert w.state.backends[1].ejection.state == "ejected"
            assert len(bad.received) <= 20  # the rate over a window, since the good one answers between

    run(scenario())


def test_the_only_backend_is_never_ejected() -> None:
    async def scenario() -> None:
        bad = Backend(says("500 I"))
        async with world(bad) as w:
            assert [(await w.request())[0] for _ in range(12)] == [500] * 12
            assert w.state.backends[0].ejection.state == "closed"

    run(scenario())


def test_an_ejected_backend_is_used_when_the_others_are_down() -> None:
    async def scenario() -> None:
        other, flaky = Backend(), Backend(says("500 I"))
        async with world(other, flaky) as w:
            for _ in range(20):
                assert (await w.request())[0] == 200
            assert w.state.backends[1].ejection.state == "ejected"
            flaky.respond = says("200 OK", ANSWER)
            await other.stop()
            await w.wait_until(lambda: not w.state.backends[0].healthy)
            assert (await w.request())[0] == 200

    run(scenario())


@pytest.mark.parametrize("programs", [None, {"backend_capacity_tokens": 10_000}])
def test_an_ejected_backend_is_tried_early_when_all_others_fail(programs: object) -> None:
    """It has been well again for long, and its ejection would last for an hour. No client sees a failure."""

    async def scenario() -> None:
        other, flaky = Backend(), Backend(says("500 I"))
        config = EjectionConfig(consecutive_failures=3, base_ejection_secs=3600.0, max_ejection_secs=3600.0)
        async with world(other, flaky, programs=programs, ejection=config) as w:
            for number in range(20):
                assert (await w.request(body=body(f"a{number}", 100)))[0] == 200
            assert w.state.backends[1].ejection.state == "ejected"
            flaky.respond, other.respond = says("200 OK", ANSWER), says("500 I")
            for number in range(20):
                assert (await w.request(body=body(f"b{number}", 100)))[0] == 200
            assert w.state.backends[1].ejection.state == "closed"

    run(scenario())


def test_it_is_not_kept_from_the_models_that_it_alone_serves() -> None:
    async def scenario() -> None:
        other, flaky = Backend(models=("m",)), Backend(says("500 I"), models=("m", "n"))
        async with world(other, flaky) as w:
            for _ in range(20):
                assert (await w.request())[0] == 200
            assert w.state.backends[1].ejection.state == "ejected"
            flaky.respond = says("200 OK", ANSWER)
            assert (await w.request(body={"model": "n"}))[0] == 200

    run(scenario())


def test_probes_that_succeed_bring_it_back_and_each_change_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        good, flaky = Backend(), Backend(says("500 I"))
        async with world(good, flaky, slots=4, ejection=EjectionConfig(base_ejection_secs=0.2)) as w:
            while w.state.backends[1].ejection.state != "ejected":
                assert (await w.request())[0] == 200
            assert w.state.capacity == 4
            await w.wait_until(lambda: w.state.backends[1].ejection.state == "half_open")
            assert (await w.request())[0] == 200  # a probe that fails is tried elsewhere
            assert w.state.backends[1].ejection.state == "ejected"
            assert w.state.backends[1].ejection.ejections_in_a_row == 2
            flaky.respond = says("200 OK", ANSWER)
            await w.wait_until(lambda: w.state.backends[1].ejection.state == "half_open")
            for _ in range(3):
                assert (await w.request())[0] == 200
            assert (w.state.backends[1].ejection.state, w.state.capacity) == ("closed", 8)

    run(scenario())
    lines = [line for line in caplog.messages if "eject" in line or "half-open" in line or "in use again" in line]
    words = [word for line in lines for word in ("is ejected", "half-open", "in use again") if word in line]
    assert words == ["is ejected", "half-open", "is ejected", "half-open", "in use again"]
    assert "5 failures in a row, the last: it answers 500" in lines[0]


def test_one_request_at_a_time_is_a_probe() -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        good, flaky = Backend(), Backend(says("500 I"))
        async with world(good, flaky, ejection=EjectionConfig(base_ejection_secs=0.05)) as w:
            for _ in range(20):
                await w.request()
            flaky.respond, before = gated, len(flaky.received)
            await w.wait_until(lambda: w.state.backends[1].ejection.state == "half_open")
            probe = await w.start_request()
            await w.wait_until(lambda: len(flaky.received) == before + 1)
            for _ in range(10):
                assert (await w.request())[0] == 200
            assert len(flaky.received) == before + 1
            gated.open.set()
            assert (await probe.read_response())[0] == 200

    run(scenario())


def test_metrics_show_it() -> None:
    async def scenario() -> None:
        good, bad = Backend(), Backend(says("500 I"))
        async with world(good, bad) as w:
            for _ in range(20):
                await w.request()
            page = (await w.request("/metrics", method="GET"))[2].decode()
            assert f'maitred_backend_circuit{{backend="{bad.url}",state="ejected"}} 1.0' in page
            assert f'maitred_backend_circuit_changes_total{{backend="{bad.url}",state="ejected"}} 1.0' in page
            assert "maitred_retries_total 5.0" in page

    run(scenario())


def test_programs_leave_an_ejected_backend_and_may_come_back() -> None:
    async def scenario() -> None:
        first, second = Backend(Counted()), Backend(Counted())
        programs = {"backend_capacity_tokens": 10_000}
        async with world(first, second, programs=programs, ejection=EjectionConfig(consecutive_failures=1)) as w:
            assert (await w.request(body=body("a", 1000)))[0] == 200
            assert program(w, "a").backend == 0
            first.respond = says("500 I")
            assert (await w.request(body=body("a", 1200)))[0] == 200
            assert program(w, "a").backend == 1
            assert w.state.backends[0].ejection.state == "ejected"
            for number in range(4):
                assert (await w.request(body=body(f"b{number}", 1000)))[0] == 200
            assert sent_to(first) == [2]

    run(scenario())


def test_a_gateway_that_never_ejects() -> None:
    async def scenario() -> None:
        good, bad = Backend(), Backend(says("500 I"))
        async with world(good, bad, ejection=EjectionConfig(enabled=False), max_attempts=1) as w:
            statuses = [(await w.request())[0] for _ in range(30)]
            assert statuses.count(500) == len(bad.received) > 5

    run(scenario())


@pytest.mark.parametrize(("num_clients", "stream"), [(12, False), (4, True), (2, True)])
def test_a_backend_that_hangs_loses_its_requests_to_the_others(num_clients: int, *, stream: bool) -> None:
    """Its polls are good, and `head_secs` is ten minutes. Few streams that wait are taken away, too, but later."""

    async def scenario() -> None:
        gated = GatedAnswer()
        good, hanging = Backend(gated), Backend(mute)
        async with world(good, hanging, ejection=EjectionConfig(silence_secs=0.1)) as w:
            clients = [await w.start_request({"model": "m", "stream": stream}) for _ in range(num_clients)]
            num_silent = num_clients // 2
            await w.wait_until(lambda: len(hanging.received) == num_silent)
            gated.open.set()  # from now on the other one answers
            await w.wait_until(lambda: w.state.backends[1].ejection.state == "ejected")
            for client in clients:
                assert (await client.read_response())[::2] == (200, ANSWER)
            assert w.gateway.counters.upstream_failures["abandoned"] == num_silent

    run(scenario())


def test_a_few_answers_that_are_not_streamed_may_take_long() -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        good, slow = Backend(), Backend(gated)
        async with world(good, slow, ejection=EjectionConfig(silence_secs=0.02)) as w:
            waits = []
            while len(slow.received) < 2:
                waits.append(await w.start_request())
            polls = slow.health_polls
            await w.wait_until(lambda: slow.health_polls > polls + 15)
            assert w.state.backends[1].ejection.state == "closed"
            gated.open.set()
            assert [(await client.read_response())[0] for client in waits] == [200] * len(waits)
            assert not w.gateway.counters.upstream_failures

    run(scenario())


def test_slow_answers_of_all_are_no_silence() -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        first, second = Backend(gated), Backend(gated)
        async with world(first, second, ejection=EjectionConfig(silence_secs=0.05)) as w:
            clients = [await w.start_request() for _ in range(20)]
            await w.wait_until(lambda: len(first.received) + len(second.received) == 20)
            polls = first.health_polls
            await w.wait_until(lambda: first.health_polls > polls + 10)
            assert [b.ejection.state for b in w.state.backends] == ["closed", "closed"]
            gated.open.set()
            assert [(await client.read_response())[0] for client in clients] == [200] * 20

    run(scenario())


def test_a_client_that_leaves_in_a_probe_frees_its_place() -> None:
    async def scenario() -> None:
        good, flaky = Backend(), Backend(says("500 I"))
        async with world(good, flaky, ejection=EjectionConfig(base_ejection_secs=0.05)) as w:
            for _ in range(20):
                await w.request()
            flaky.respond, before = mute, len(flaky.received)
            await w.wait_until(lambda: w.state.backends[1].ejection.state == "half_open")
            client = await w.start_request()
            await w.wait_until(lambda: len(flaky.received) == before + 1)
            client.disconnect()
            await w.wait_until(lambda: w.state.backends[1].ejection.state == "ejected")
            assert w.gateway.scheduler.fleet.backends[1].circuit.num_probes == 0

    run(scenario())
