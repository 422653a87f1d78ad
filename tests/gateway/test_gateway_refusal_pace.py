"""The pace of refusals: a tenant that retries at once is told more and more slowly, and all others as soon as ever."""

from __future__ import annotations

import tracemalloc

import pytest
from world import Backend, BackendRequest, run, world

from maitred.core.errors import ConfigError
from maitred.gateway import refusal_pace
from maitred.gateway.config import GatewayConfig
from maitred.gateway.refusal_pace import RefusalPace
from maitred.routing import RoutingConfig

SECOND = 1_000_000


def test_refusals_of_a_second_come_at_once_and_further_ones_at_the_rate() -> None:
    pace = RefusalPace(4)
    assert [pace.next_delay("a", 10 * SECOND) for _ in range(7)] == [0, 0, 0, 0, 0, 250_000, 500_000]
    assert pace.next_delay("b", 10 * SECOND) == 0


def test_none_waits_for_more_than_a_second() -> None:
    pace = RefusalPace(4)
    assert max(pace.next_delay("a", 10 * SECOND) for _ in range(1000)) == SECOND
    assert pace.next_delay("a", 11 * SECOND) == 0, "what was cut off is not owed"


def test_a_tenant_that_waits_saves_up_a_second() -> None:
    pace = RefusalPace(4)
    for _ in range(9):
        pace.next_delay("a", 10 * SECOND)
    assert [pace.next_delay("a", 100 * SECOND) for _ in range(6)] == [0, 0, 0, 0, 0, 250_000]


def test_without_a_rate_none_waits() -> None:
    pace = RefusalPace(0)
    assert {pace.next_delay("a", 10 * SECOND) for _ in range(1000)} == {0}


def test_only_tenants_that_were_refused_lately_are_remembered() -> None:
    pace = RefusalPace(4)
    for second in range(10, 20):
        for number in range(100):
            pace.next_delay(f"{second}-{number}", second * SECOND)
        assert pace.num_tenants <= 200


@pytest.mark.parametrize("rate", [-1, 1_000_001])
def test_a_rate_out_of_range_is_an_error(rate: int) -> None:
    with pytest.raises((ConfigError, ValueError), match="refusals_per_sec must be from 0 to 1,000,000"):
        GatewayConfig(refusals_per_sec=rate)


async def silent(received: BackendRequest) -> None:
    await received.wait_until_disconnected()


FULL = {"classes": {"default": {"queue_size": 0}}}


def test_a_refusal_that_waits_holds_neither_a_body_nor_a_slot_and_delays_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusal_pace, "MAX_DELAY", 3600 * SECOND)

    async def scenario() -> None:
        async with world(Backend(silent), slots=1, admission=FULL, refusals_per_sec=1, trust_tenant_header=True) as w:
            await w.start_request()
            await w.wait_until(lambda: w.state.in_flight == 1)
            for _ in range(2):
                assert (await w.request(x_smg_tenant_id="eager"))[0] == 429
            for _ in range(20):
                await w.start_request(x_smg_tenant_id="eager")
            await w.wait_until(lambda: w.state.classes["default"].queue_full == 22)
            bytes_of_one = w.state.parked_body_bytes
            assert (w.state.in_flight, w.state.waiting) == (1, 0)
            assert 0 < bytes_of_one < 1000
            assert (await w.request(x_smg_tenant_id="patient"))[0] == 429
            assert (await w.request("/health", method="GET"))[0] == 200

    run(scenario())


@pytest.mark.parametrize("size", [200_000, 400_000, 1_200_000])
@pytest.mark.parametrize("policy", ["cache-aware", "prefix-hash", "least-loaded"])
def test_a_refusal_that_waits_holds_no_prompt_for_the_router(policy: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusal_pace, "MAX_DELAY", 3600 * SECOND)

    async def scenario() -> None:
        routing = RoutingConfig(policy=policy)
        async with world(Backend(silent), slots=1, admission=FULL, refusals_per_sec=1, routing=routing) as w:
            await w.start_request()
            await w.wait_until(lambda: w.state.in_flight == 1)
            tracemalloc.start()
            for refused in range(1, 9):
                await w.start_request({"model": "m", "messages": [{"role": "user", "content": "x" * size}]})
                await w.wait_until(lambda refused=refused: w.state.classes["default"].queue_full == refused)
            await w.wait_until(lambda: tracemalloc.get_traced_memory()[0] < 2 * size)
            tracemalloc.stop()

    run(scenario())


def test_a_refusal_that_waits_is_told_and_the_connection_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[str] = []

    def one_millisecond(self: RefusalPace, tenant: str, now: int) -> int:
        waited.append(tenant)
        return 1000

    monkeypatch.setattr(RefusalPace, "next_delay", one_millisecond)

    async def scenario() -> None:
        async with world(Backend(silent), slots=1, admission=FULL) as w:
            await w.start_request()
            await w.wait_until(lambda: w.state.in_flight == 1)
            client = await w.connect()
            for _ in range(3):
                await client.send_request(body={"model": "m"})
                status, headers, _ = await client.read_response()
                assert (status, headers["retry-after"]) == (429, "1")

    run(scenario())
    assert waited == ["ip:127.0.0.1"] * 3
