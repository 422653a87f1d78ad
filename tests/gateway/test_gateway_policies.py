"""Admission policies and flow control over HTTP: the same core as in the simulator, on the load of real backends."""

from __future__ import annotations

from typing import Any

import msgspec
from world import Backend, ClientConnection, GatedAnswer, GatewayWorld, run, world

from maitred.admission import AdmissionConfig, AdmissionPolicy, Refusal, Ticket
from maitred.core.contracts import FleetLoad
from maitred.core.units import SECOND, Micros
from maitred.gateway.admin.reload import GatewaySettings
from maitred.gateway.config import GatewayConfig

OFF: dict[str, Any] = {"mode": "off", "classes": {}}


class Maintenance(AdmissionPolicy):
    """A policy from a plug-in, with refusals of its own: a window for most prompts, and never for a long one."""

    def __init__(self, window: str) -> None:
        self._closed = Refusal("maintenance", 503, f"closed for maintenance: {window}", retry_after=90 * SECOND)

    def refusal(self, ticket: Ticket, load: FleetLoad, now: Micros) -> Refusal | None:
        return Refusal("never_here", 403, is_final=True) if ticket.prompt_tokens > 100 else self._closed


async def refused(w: GatewayWorld, body: object = None, **headers: str) -> tuple[int, str, str]:
    status, answered, said = await w.request(body=body, **headers)
    error = msgspec.json.decode(said)["error"]
    assert answered["x-smg-error-code"] == error["code"]
    return status, error["code"], answered["retry-after"]


async def for_good(w: GatewayWorld, body: bytes) -> tuple[int, str, str]:
    """Return the error of a request that is refused without `Retry-After`."""
    status, answered, said = await w.request("/v1/completions", body)
    error = msgspec.json.decode(said)["error"]
    assert "retry-after" not in answered
    return status, error["code"], error["type"]


async def in_flight(w: GatewayWorld, count: int) -> list[ClientConnection]:
    connections = [await w.start_request(x_smg_priority="interactive") for _ in range(count)]
    await w.wait_until(lambda: w.state.backends[0].in_flight == count)
    return connections


def prompt(tokens: int) -> bytes:
    """Return a body of four bytes per token, the ratio by which the gateway estimates prompts."""
    bare = len(b'{"model":"m","prompt":""}')
    return b'{"model":"m","prompt":"%b"}' % (b"x" * (4 * tokens - bare))


def test_tier_shed_lets_only_the_urgent_in_while_the_backend_is_busy() -> None:
    """Requests count as in flight and as running: two requests make a load of 4."""

    async def scenario() -> None:
        policy = {**OFF, "policy": "tier-shed", "tier_shed_threshold": 3}
        async with world(Backend(gate := GatedAnswer()), admission=policy) as w:
            first = await in_flight(w, 1)
            sheddable = await w.start_request(x_smg_priority="bulk")
            await w.wait_until(lambda: w.state.in_flight == 2)
            assert await refused(w, x_smg_priority="bulk") == (429, "admission_tier_shed", "2")
            urgent = await w.start_request(x_smg_priority="interactive")
            await w.wait_until(lambda: w.state.in_flight == 3)
            gate.open.set()
            assert [(await connection.read_response())[0] for connection in (*first, sheddable, urgent)] == [200] * 3

            bulk = w.state.classes["bulk"]
            assert (bulk.arrived, bulk.completed, bulk.rejected, bulk.refused) == (2, 1, 1, {"tier_shed": 1})
            metrics = (await w.request("/metrics", method="GET"))[2].decode()
            assert 'maitred_scheduler_admit_total{class="bulk",outcome="rejected_tier_shed"} 1.0' in metrics

    run(scenario())


def test_the_token_bucket_counts_what_the_gateway_guesses_of_prompts() -> None:
    async def scenario() -> None:
        bucket = {"policy": "token-bucket", "token_bucket_capacity": 100, "token_bucket_refill_rate": 0.02}
        async with world(admission={**OFF, **bucket}) as w:
            assert (await w.request("/v1/completions", prompt(60)))[0] == 200
            assert await refused(w, prompt(41)) == (429, "admission_token_bucket", "50")  # a token is missing
            assert (await w.request("/v1/completions", prompt(40)))[0] == 200

    run(scenario())


def test_who_can_never_enter_is_not_invited_to_come_back() -> None:
    """A prompt larger than the bucket can never enter, nor any prompt if the bucket is never refilled."""

    async def scenario() -> None:
        bucket = {"policy": "token-bucket", "token_bucket_capacity": 100, "token_bucket_refill_rate": 0}
        async with world(admission={**OFF, **bucket}) as w:
            assert await for_good(w, prompt(101)) == (413, "admission_prompt_too_large", "invalid_request_error")
            assert (await w.request("/v1/completions", prompt(100)))[0] == 200
            assert await for_good(w, prompt(50)) == (429, "admission_token_bucket", "rate_limit_error")

            default = w.state.classes["default"]
            assert default.refused == {"prompt_too_large": 1, "token_bucket": 1}
            metrics = (await w.request("/metrics", method="GET"))[2].decode()
            assert 'outcome="rejected_prompt_too_large"} 1.0' in metrics

    run(scenario())


def test_a_plug_in_refuses_in_its_own_words() -> None:
    async def scenario() -> None:
        policy = {**OFF, "policy": f"{__name__}:Maintenance('2 to 4 a.m.')"}
        async with world(admission=policy) as w:
            status, headers, body = await w.request("/v1/completions", prompt(9))
            assert (status, headers["retry-after"]) == (503, "59")
            assert msgspec.json.decode(body)["error"] == {
                "message": "closed for maintenance: 2 to 4 a.m.",
                "type": "server_error",
                "code": "admission_maintenance",
                "param": None,
            }
            assert (await for_good(w, prompt(101)))[:2] == (403, "admission_never_here")
            assert w.state.classes["default"].refused == {"maintenance": 1, "never_here": 1}
            metrics = (await w.request("/metrics", method="GET"))[2].decode()
            assert 'outcome="rejected_maintenance"} 1.0' in metrics

    run(scenario())


def test_reject_all_until_a_reload_says_otherwise() -> None:
    def opened(config: GatewayConfig) -> GatewaySettings:
        return GatewaySettings(gateway=config, admission=AdmissionConfig(mode="off"))

    async def scenario() -> None:
        async with world(admission={**OFF, "policy": "reject-all"}, reload=opened) as w:
            assert await refused(w) == (503, "admission_reject_all", "2")
            assert (await w.request("/admin/reload"))[0] == 200
            assert (await w.request())[0] == 200

    run(scenario())


def test_flow_control_keeps_requests_before_a_saturated_backend_and_lets_the_urgent_in_first() -> None:
    async def scenario() -> None:
        flow = {"mode": "flow-control", "classes": {}, "flow_control": {"max_concurrency": 1, "per_band_capacity": 1}}
        async with world(Backend(gate := GatedAnswer()), admission=flow) as w:
            first = await in_flight(w, 1)
            bulk = await w.start_request({"model": "m", "user": "bulk"}, x_smg_priority="bulk")
            await w.wait_until(lambda: w.state.waiting == 1)
            urgent = await w.start_request({"model": "m", "user": "urgent"}, x_smg_priority="interactive")
            await w.wait_until(lambda: w.state.waiting == 2)
            assert await refused(w, x_smg_priority="bulk") == (429, "admission_band_full", "1")
            assert len(w.backends[0].received) == 1
            gate.open.set()
            for connection in (first[0], urgent, bulk):
                assert (await connection.read_response())[0] == 200
            users = [msgspec.json.decode(received.body).get("user") for received in w.backends[0].received]
            assert users == [None, "urgent", "bulk"]

    run(scenario())


def test_flow_control_follows_backends_up_and_down() -> None:
    """A second backend has room for a second request; and no request waits for a backend that is down."""

    async def scenario() -> None:
        flow = {"mode": "flow-control", "classes": {}, "flow_control": {"max_concurrency": 1, "request_ttl_us": 10_000_000}}
        late = Backend(gate := GatedAnswer())
        async with world(Backend(gate), late, admission=flow) as w:
            await late.stop()
            await w.wait_until(lambda: not w.state.backends[1].healthy)
            connections = await in_flight(w, 1)
            connections.append(await w.start_request())
            await w.wait_until(lambda: w.state.waiting == 1)
            await late.start()
            await w.wait_until(lambda: not w.state.waiting)
            gate.open.set()
            assert [(await connection.read_response())[0] for connection in connections] == [200, 200]

    run(scenario())


def test_who_waits_too_long_at_the_gate_is_told_so() -> None:
    async def scenario() -> None:
        flow = {"mode": "flow-control", "classes": {}, "flow_control": {"max_concurrency": 1, "request_ttl_us": 20_000}}
        async with world(Backend(gate := GatedAnswer()), admission=flow) as w:
            first = await in_flight(w, 1)
            assert await refused(w) == (408, "admission_queue_timeout", "1")
            gate.open.set()
            assert (await first[0].read_response())[0] == 200

    run(scenario())
