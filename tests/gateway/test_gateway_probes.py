"""What counts as a failure of a backend and what does not, and who gets to probe one that is half-open."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

from test_gateway_programs import Counted, body, program
from test_gateway_retries import says, sent_to, streams
from world import STREAM_HEAD, Backend, BackendRequest, GatedAnswer, chunk, run, whole, world

from maitred.core.request import Request
from maitred.gateway.config import RetryConfig
from maitred.scheduler.backends.backend import UpstreamRequest
from maitred.scheduler.ejection import EjectionConfig
from maitred.wire.errors import ConnectTimeout


def test_a_backend_that_no_other_can_replace_is_not_silent() -> None:
    """It answers slowly, and there is no other one for its model."""

    async def scenario() -> None:
        gated = GatedAnswer()
        other, slow = Backend(models=("m",)), Backend(gated, models=("n",))
        config = EjectionConfig(silence_secs=0.05, consecutive_failures=2)
        async with world(other, slow, ejection=config, health_interval_secs=0.02) as w:
            clients = [await w.start_request({"model": "n"}) for _ in range(4)]
            await w.wait_until(lambda: len(slow.received) == 4)
            for _ in range(10):
                assert (await w.request())[0] == 200
                await asyncio.sleep(0.02)  # together four times `silence_secs`
            assert w.state.backends[1].ejection.state == "closed"
            gated.open.set()
            assert [(await client.read_response())[0] for client in clients] == [200] * 4
            assert sent_to(slow) == [4]

    run(scenario())


def test_a_stored_answer_that_has_failed_is_no_failure_of_its_engine() -> None:
    stored = b'{"id":"resp_1","status":"failed","error":{"code":"server_error","message":"boom"}}'

    async def scenario() -> None:
        first, second = Backend(says("200 OK", stored)), Backend(says("200 OK", stored))
        async with world(first, second, ejection=EjectionConfig(consecutive_failures=1)) as w:
            for _ in range(6):
                assert (await w.request("/v1/responses/resp_1", method="GET"))[::2] == (200, stored)
            assert sum(sent_to(first, second)) == 6
            assert [backend.ejection.state for backend in w.state.backends] == ["closed", "closed"]

    run(scenario())


def test_what_a_backend_has_stored_is_found_whatever_the_circuits_are() -> None:
    """It is at the ejected one at first, and then at the closed one while the other is half-open."""
    stored = b'{"id":"resp_1"}'

    async def scenario() -> None:
        first, second = Backend(says("500 I")), Backend()
        config = EjectionConfig(consecutive_failures=1, base_ejection_secs=3600.0, max_ejection_secs=3600.0)
        async with world(first, second, ejection=config) as w:
            await w.request()
            await w.request()
            assert w.state.backends[0].ejection.state == "ejected"
            first.respond, second.respond = says("200 OK", stored), says("404 N")
            assert (await w.request("/v1/responses/resp_1", method="GET"))[::2] == (200, stored)
            first.respond, second.respond = says("404 N"), says("200 OK", stored)
            ejection = w.gateway.scheduler.fleet.ejection
            ejection._settle(ejection.detector.try_early([0], w.gateway.machine.clock.now()))
            assert w.state.backends[0].ejection.state == "half_open"
            for _ in range(3):
                assert (await w.request("/v1/responses/resp_1", method="GET"))[::2] == (200, stored)

    run(scenario())


def test_one_request_of_programs_at_a_time_is_a_probe_and_no_program_moves_there() -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        good, flaky = Backend(Counted()), Backend(says("500 I"))
        config = EjectionConfig(consecutive_failures=1, base_ejection_secs=0.05)
        async with world(good, flaky, programs={"mode": "default"}, ejection=config) as w:
            for number in range(4):
                assert (await w.request(body=body(f"a{number}", 100)))[0] == 200
            await w.wait_until(lambda: w.state.backends[1].ejection.state == "half_open")
            num_sent = len(flaky.received)
            flaky.respond = gated
            clients = [await w.start_request(body(f"b{number}", 100)) for number in range(8)]
            await w.wait_until(lambda: len(good.received) + len(flaky.received) >= num_sent + 11)
            assert len(flaky.received) == num_sent + 1
            gated.open.set()
            assert [(await client.read_response())[0] for client in clients] == [200] * 8
            assert {program(w, f"b{number}").backend for number in range(8)} == {0}

    run(scenario())


def test_a_probe_that_an_engine_refuses_for_its_stream_options_shows_that_it_works(tmp_path: Path) -> None:
    async def refuses_options(received: BackendRequest) -> None:
        if b"stream_options" in received.body:
            await received.send(whole(b'{"error":"stream_options is not known"}', b"400 B"))
        else:
            await streams(b'data: {"choices":[]}\n\n', b"data: [DONE]\n\n")(received)

    async def scenario() -> None:
        good, flaky = Backend(), Backend(says("500 I"))
        config = EjectionConfig(consecutive_failures=1, base_ejection_secs=0.05)
        async with world(good, flaky, ejection=config, record=str(tmp_path / "record.csv")) as w:
            for _ in range(4):
                assert (await w.request())[0] == 200
            flaky.respond = refuses_options
            await w.wait_until(lambda: w.state.backends[1].ejection.state == "half_open")
            for _ in range(3):
                assert (await w.request(body={"model": "m", "stream": True}))[0] == 200
            assert w.state.backends[1].ejection.state == "closed"

    run(scenario())


def test_streams_that_all_break_off_eject_their_backend() -> None:
    async def breaks(received: BackendRequest) -> None:
        await received.send(STREAM_HEAD + chunk(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'))
        raise ConnectionError

    async def scenario() -> None:
        good, bad = Backend(), Backend(breaks)
        async with world(good, bad, ejection=EjectionConfig(consecutive_failures=4)) as w:
            for _ in range(16):
                await w.request(body={"model": "m", "stream": True})
            assert len(bad.received) == 4
            assert w.state.backends[1].ejection.state == "ejected"

    run(scenario())


def test_a_sole_backend_that_is_busy_costs_others_no_retry() -> None:
    """Its answers cannot be asked for elsewhere, so they are passed on at once, and the budget stays for those that can."""

    async def scenario() -> None:
        full, failing, good = Backend(says("429 T"), models=("n",)), Backend(says("500 I")), Backend()
        retry = RetryConfig(budget_share=0, budget_floor_per_sec=0.5, initial_backoff_secs=0)  # 5 in store
        async with world(full, failing, good, retry=retry, ejection=EjectionConfig(enabled=False)) as w:
            for _ in range(20):
                assert (await w.request(body={"model": "n"}))[0] == 429
            assert (await w.request())[0] == 200
            assert w.gateway.counters.retries_over_budget == 0

    run(scenario())


def test_a_request_without_a_model_makes_no_pool() -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        first, second = Backend(gated), Backend(gated)
        async with world(first, second) as w:
            client = await w.connect()
            await client.send_request("/v1/responses/resp_1", method="GET")
            await w.wait_until(lambda: first.received or second.received)
            for backend in w.gateway.scheduler.fleet.backends:
                w.gateway.scheduler.fleet.drain(backend)
            gated.open.set()
            assert (await client.read_response())[0] == 200
            assert w.gateway.core.pool_names == ["m"]

    run(scenario())


def test_a_connection_that_is_not_made_in_time_is_no_death_while_a_stream_flows() -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        async with world(Backend(gated), Backend()) as w:
            fleet, task = w.gateway.scheduler.fleet, asyncio.current_task()
            assert task is not None
            busy, unreachable = fleet.backends
            for backend, is_heard in ((busy, True), (unreachable, False)):
                sent = UpstreamRequest(backend, Request(id=1, arrival=0, prompt_tokens=1, model="m"), task)
                fleet.add_request(sent, 0)
                sent.record = SimpleNamespace(sent_at=100, first_data_at=None, last_data_at=200 if is_heard else 0)
                fleet.note_unreachable(sent, ConnectTimeout("no connection within 5 s"))
                assert backend.healthy is is_heard
                fleet.remove_request(sent, 200)

    run(scenario())


def test_a_half_open_backend_that_is_busy_draws_no_traffic() -> None:
    """Each request would be its next probe, and cost a retry."""

    async def scenario() -> None:
        good, flaky = Backend(), Backend(says("500 I"))
        config = EjectionConfig(consecutive_failures=1, base_ejection_secs=1.0)
        async with world(good, flaky, ejection=config, retry=RetryConfig(initial_backoff_secs=0)) as w:
            for _ in range(4):
                assert (await w.request())[0] == 200
            await w.wait_until(lambda: w.state.backends[1].ejection.state == "half_open")
            num_sent = len(flaky.received)
            flaky.respond = says("503 S", headers=b"retry-after: 5\r\n")
            for _ in range(20):
                assert (await w.request())[0] == 200
            assert len(flaky.received) == num_sent + 1

    run(scenario())
