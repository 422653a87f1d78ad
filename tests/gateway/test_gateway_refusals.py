"""What a rejected request is answered: status, code, message and when to come back."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from world import ANSWER, Backend, BackendRequest, GatewayWorld, run, whole, world

from maitred.admission import Action, AdmissionConfig, Reason
from maitred.core.decisions import Decision
from maitred.core.units import SECOND
from maitred.gateway.error_responses import admission_rejected, program_rejected, retry_after_header
from maitred.programs.enums import ProgramReason
from maitred.programs.program import ProgramRequest
from maitred.scheduler.drivers.admission import AdmissionRejected
from maitred.scheduler.drivers.programs import ProgramRejected

SMG_CLASS = {
    "reserved_floor": 0,
    "queue_size": 0,
    "queue_timeout_secs": 1,
    "starvation_threshold_secs": 9,
    "can_preempt": False,
}
SMG = {"flavour": "smg", "classes": dict.fromkeys(("system", "interactive", "default", "bulk"), SMG_CLASS)}
LEGACY = {"mode": "legacy", "classes": {}}
RATE = {"max_concurrent_requests": 1, "rate_limit_tokens_per_second": 0.02}
FULL, LATE = "request queue is full for this priority class", "timed out waiting for an admission slot"


async def refusals(w: GatewayWorld, gate: asyncio.Event, **headers: str) -> tuple[Any, ...]:
    """Return the error of a second request, while the first is in flight."""
    first = await w.start_request()
    await w.wait_until(lambda: w.backends[0].received)
    status, answered, body = await w.request(**headers)
    error = msgspec.json.decode(body)["error"]
    assert answered["x-smg-error-code"] == error["code"]
    assert error["param"] is None
    gate.set()
    assert (await first.read_response())[0] == 200
    return status, error["type"], error["code"], error["message"], answered["retry-after"]


@pytest.mark.parametrize(
    ("admission", "expected"),
    [
        ({"classes": {"default": {"queue_size": 0}}}, (429, "rate_limit_error", "scheduler_queue_full", FULL, "1")),
        (
            {"classes": {"default": {"queue_timeout_secs": 0.02}}},
            (408, "server_error", "scheduler_queue_timeout", LATE, "1"),
        ),
        (SMG, (429, "rate_limit_error", "scheduler_queue_full", FULL, "2")),
        (
            {"tenant_policies": {"ip:127.0.0.1": {"max_in_flight": 1, "max_queued": 0}}},
            (429, "rate_limit_error", "scheduler_tenant_queue_full", "request queue is full for this tenant", "1"),
        ),
        (
            {"legacy": RATE},
            (429, "rate_limit_error", "scheduler_rate_limited", "more requests per second than are allowed here", "50"),
        ),
        ({**SMG, "legacy": RATE}, (429, "rate_limit_error", "scheduler_queue_full", FULL, "2")),
        (
            {**LEGACY, "legacy": {"max_concurrent_requests": 1, "queue_size": 0}},
            (
                429,
                "rate_limit_error",
                "admission_queue_full",
                "concurrency limit reached and queuing is disabled",
                "1",
            ),
        ),
        (
            {**LEGACY, "legacy": {"max_concurrent_requests": 1, "queue_timeout_secs": 0.02}},
            (408, "server_error", "admission_queue_timeout", LATE, "1"),
        ),
    ],
)
def test_refusals(admission: dict[str, Any], expected: tuple[Any, ...]) -> None:
    async def scenario() -> tuple[Any, ...]:
        gate = asyncio.Event()

        async def respond(received: BackendRequest) -> None:
            await gate.wait()
            await received.send(whole(ANSWER))

        async with world(Backend(respond), slots=1, admission=admission) as w:
            return await refusals(w, gate)

    assert run(scenario()) == expected


def test_the_queue_without_classes_is_full() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()

        async def respond(received: BackendRequest) -> None:
            await gate.wait()
            await received.send(whole(ANSWER))

        admission = {**LEGACY, "flavour": "smg", "legacy": {"max_concurrent_requests": 1, "queue_size": 1}}
        async with world(Backend(respond), admission=admission) as w:
            connections = [await w.start_request(x_smg_priority="bulk") for _ in range(2)]
            await w.wait_until(lambda: (w.state.in_flight, w.state.waiting) == (1, 1))
            status, headers, body = await w.request(x_smg_priority="system")
            error = {
                "message": "admission queue is at capacity",
                "type": "rate_limit_error",
                "param": None,
                "code": "admission_queue_full",
            }
            assert (status, headers["retry-after"], msgspec.json.decode(body)) == (429, "2", {"error": error})
            gate.set()
            assert [(await connection.read_response())[0] for connection in connections] == [200, 200]
            assert [received.headers.get(b"x-smg-priority") for received in w.backends[0].received] == [None, None]

    run(scenario())


def test_without_a_limit_all_enter() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()

        async def respond(received: BackendRequest) -> None:
            await gate.wait()
            await received.send(whole(ANSWER))

        for mode in ("legacy", "off"):
            gate.clear()
            async with world(Backend(respond), slots=1, admission={"mode": mode, "classes": {}}) as w:
                connections = [await w.start_request() for _ in range(20)]
                await w.wait_until(lambda w=w: len(w.backends[0].received) == 20)
                assert (w.state.capacity, w.state.in_flight, w.state.waiting, w.state.mode) == (None, 20, 0, mode)
                gate.set()
                assert {(await connection.read_response())[0] for connection in connections} == {200}

    run(scenario())


@pytest.mark.parametrize(
    ("micros", "secs"),
    [(None, b"2"), (0, b"1"), (1, b"1"), (1_000_000, b"1"), (1_000_001, b"2"), (58_400_000, b"59"), (3_600_000_000, b"59")],
)
def test_seconds_are_rounded_up_to_what_all_sdks_obey(micros: int | None, secs: bytes) -> None:
    assert retry_after_header(micros) == [(b"retry-after", secs)]


@pytest.mark.parametrize("mode", ["priority", "legacy", "flow-control"])
@pytest.mark.parametrize("reason", [*sorted(set(Reason) - {Reason.QUEUE_FULL, Reason.RATE_LIMITED}), "a_reason_of_tomorrow"])
def test_no_other_reason_reads_as_a_full_queue(mode: str, reason: str) -> None:
    config = msgspec.convert({"mode": mode}, AdmissionConfig)
    rejected = AdmissionRejected(Decision(0, 1, Action.REJECT, reason))
    error = admission_rejected(rejected, config, 408)
    assert error.code is not None
    assert error.code.removeprefix("scheduler_").removeprefix("admission_") == reason
    assert "queue is full for this priority class" not in error.message


@pytest.mark.parametrize("reason", ProgramReason)
def test_every_refusal_of_a_program_has_an_answer(reason: ProgramReason) -> None:
    error = program_rejected(ProgramRejected(ProgramRequest(id=1), reason), SECOND)
    assert 400 <= error.status <= 503
    assert error.code
