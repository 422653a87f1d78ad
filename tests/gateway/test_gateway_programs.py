"""Programs at the gateway: a request waits for its program's place in KV memory, and goes to the backend of that place."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from world import (
    STREAM_HEAD,
    Backend,
    BackendRequest,
    ClientConnection,
    GatedAnswer,
    GatewayWorld,
    chunk,
    run,
    whole,
    world,
)

from maitred.programs import Program, ProgramAction, ProgramPhase, ProgramReason, ProgramState
from maitred.scheduler.drivers.programs import RealTimePrograms

ONE_AT_A_TIME = {"backend_capacity_tokens": 2000}
"""Of two programs of 1,500 tokens, one waits."""


def usage(total: int) -> bytes:
    """Return an answer of a prompt with this many tokens."""
    return msgspec.json.encode({"usage": {"prompt_tokens": total, "completion_tokens": 0, "total_tokens": total}})


async def small(received: BackendRequest) -> None:
    """Answer with a usage of 1,000 tokens."""
    await received.send(whole(usage(1000)))


class Counted:
    """A responder that says how many tokens a prompt has: a fifth of its characters."""

    async def __call__(self, received: BackendRequest) -> None:
        await received.send(whole(usage(len(received.body) // 5)))


def body(program: str | None = None, tokens: int = 100, **members: object) -> bytes:
    """Return a request that is estimated at `tokens`."""
    members = {"model": "m", **({} if program is None else {"program_id": program}), **members}
    bare = len(msgspec.json.encode({**members, "x": ""}))
    return msgspec.json.encode({**members, "x": "x" * (5 * tokens - bare)})


def driver(w: GatewayWorld) -> RealTimePrograms:
    assert w.gateway.programs is not None
    return w.gateway.programs


def program(w: GatewayWorld, name: str) -> Program:
    return next(program for program in driver(w).core.programs if program.key.name == name)


async def waiting(w: GatewayWorld, count: int) -> None:
    await w.wait_until(lambda: driver(w).core.num_waiting == count)


async def start(w: GatewayWorld, name: str, tokens: int = 1500, **headers: str) -> ClientConnection:
    """Start a request of a program, and return when it is at a backend or waits for memory."""
    known = len(driver(w).leases)
    connection = await w.start_request(body(name, tokens), **headers)
    await w.wait_until(lambda: len(driver(w).leases) > known)
    return connection


def test_a_program_waits_until_another_is_released() -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        async with world(Backend(gated), programs=ONE_AT_A_TIME) as w:
            first = await start(w, "a")
            second = await start(w, "b")
            await waiting(w, 1)

            assert (program(w, "a").state, program(w, "a").phase) == (ProgramState.ACTIVE, ProgramPhase.REASONING)
            assert (program(w, "b").state, program(w, "b").phase) == (ProgramState.PAUSED, ProgramPhase.REASONING)
            assert (w.state.in_flight, w.state.waiting) == (1, 0)  # What waits for memory holds no slot, and asks for none.

            gated.open.set()
            assert (await first.read_response())[0] == 200
            assert program(w, "a").phase is ProgramPhase.ACTING
            assert driver(w).core.num_waiting == 1  # An acting program keeps its place.
            assert driver(w).release("ip:127.0.0.1", "a")
            assert (await second.read_response())[0] == 200
            assert len(w.backends[0].received) == 2

    run(scenario())


def test_a_program_stays_with_its_backend_and_others_go_where_fewer_tokens_are() -> None:
    async def scenario() -> None:
        async with world(Backend(Counted()), Backend(Counted()), programs={"backend_capacity_tokens": 10_000}) as w:
            for name, tokens in (("A", 1000), ("B", 300), ("C", 200), ("D", 600), ("E", 200), ("F", 5000), ("A", 2000)):
                assert (await w.request(body=body(name, tokens)))[0] == 200

            assert [len(backend.received) for backend in w.backends] == [3, 4]
            assert {name: program(w, name).backend for name in "ABCDEF"} == {"A": 0, "B": 1, "C": 1, "D": 1, "E": 0, "F": 1}

    run(scenario())


def test_mode_default_counts_programs_and_has_no_capacity() -> None:
    async def scenario() -> None:
        config = {"mode": "default", "backend_capacity_tokens": 100}
        async with world(Backend(Counted()), Backend(Counted()), programs=config) as w:
            for name, tokens in (("A", 5000), ("B", 100), ("C", 100), ("D", 100), ("A", 6000)):
                assert (await w.request(body=body(name, tokens)))[0] == 200

            assert {name: program(w, name).backend for name in "ABCD"} == {"A": 0, "B": 1, "C": 0, "D": 1}
            assert len(w.backends[0].received) == 3

    run(scenario())


def test_a_request_without_an_id_is_a_program_of_its_own() -> None:
    async def scenario() -> None:
        async with world(Backend(Counted()), programs={}) as w:
            assert (await w.request(body=body()))[0] == 200
            assert (await w.request(body=body()))[0] == 200
            assert not driver(w).core.programs
            assert driver(w).decision_counts[ProgramAction.GRANT, ProgramReason.PLACED] == 2

    run(scenario())


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank", "/tokenize"])
def test_what_generates_nothing_needs_no_memory(path: str) -> None:
    async def scenario() -> None:
        async with world(Backend(Counted()), programs={"backend_capacity_tokens": 10}) as w:
            assert (await w.request(path, body("a", 1000)))[0] == 200
            assert not driver(w).core.programs
            assert b"program_id" not in w.backends[0].received[0].body

    run(scenario())


def test_a_program_that_fits_no_backend_is_refused_with_the_error_of_a_context_that_is_too_long() -> None:
    async def scenario() -> None:
        async with world(Backend(), programs=ONE_AT_A_TIME) as w:
            status, headers, answer = await w.request(body=body("a", 3000))
            error = msgspec.json.decode(answer)["error"]

            assert (status, error["code"], error["type"]) == (400, "context_length_exceeded", "invalid_request_error")
            assert "retry-after" not in headers
            assert not driver(w).core.programs

    run(scenario())


def refusal(answer: tuple[int, dict[str, str], bytes]) -> tuple[int, str, str | None]:
    status, headers, text = answer
    return status, msgspec.json.decode(text)["error"]["code"], headers.get("retry-after")


def test_more_than_may_wait_are_refused() -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        config = {**ONE_AT_A_TIME, "max_waiting": 1, "scheduler_interval_secs": 3.0}
        async with world(Backend(gated), programs=config) as w:
            for name in "ab":
                await start(w, name)
            await waiting(w, 1)
            assert refusal(await w.request(body=body("c", 1500))) == (429, "program_queue_full", "3")
            gated.open.set()

    run(scenario())


def test_more_programs_than_a_tenant_may_have_are_refused() -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        async with world(Backend(gated), programs={"max_programs_per_tenant": 1}) as w:
            await start(w, "a")
            assert refusal(await w.request(body=body("b"))) == (429, "program_limit", "5")
            gated.open.set()

    run(scenario())


def test_a_request_that_waits_is_refused_when_its_program_is_released() -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        async with world(Backend(gated), programs=ONE_AT_A_TIME) as w:
            await start(w, "a")
            second = await start(w, "b")
            await waiting(w, 1)
            assert driver(w).release("ip:127.0.0.1", "b")

            assert refusal(await second.read_response()) == (499, "program_released", None)
            assert len(w.backends[0].received) == 1
            gated.open.set()

    run(scenario())


def test_a_request_goes_after_the_longest_wait_whether_it_fits_or_not() -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        async with world(Backend(gated), programs={**ONE_AT_A_TIME, "max_wait_secs": 0.05}) as w:
            await start(w, "a")
            await start(w, "b")
            await w.wait_until(lambda: len(w.backends[0].received) == 2)
            assert driver(w).decision_counts[ProgramAction.RESUME, ProgramReason.MAX_WAIT] == 1
            gated.open.set()

    run(scenario())


def test_a_client_that_leaves_while_it_waits_frees_its_place_at_once() -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        config = {**ONE_AT_A_TIME, "max_waiting": 1}
        async with world(Backend(gated), programs=config) as w:
            first = await start(w, "a")
            second = await start(w, "b")
            await waiting(w, 1)
            second.disconnect()
            await waiting(w, 0)
            third = await start(w, "c")  # There would be no place for it if the second one had kept its own.
            await waiting(w, 1)

            assert [p.key.name for p in driver(w).core.programs] == ["a", "c"]
            gated.open.set()
            assert (await first.read_response())[0] == 200
            driver(w).release("ip:127.0.0.1", "a")
            assert (await third.read_response())[0] == 200
            assert len(w.backends[0].received) == 2

    run(scenario())


def test_a_step_ends_when_its_client_leaves_in_the_middle_of_the_answer() -> None:
    async def stream(received: BackendRequest) -> None:
        await received.send(STREAM_HEAD + chunk(b'data: {"choices":[{}]}\n\n'))
        await received.wait_until_disconnected()

    async def scenario() -> None:
        async with world(Backend(stream), programs={}) as w:
            client = await w.start_request(body("a", stream=True))
            await client.read_head()
            assert program(w, "a").phase is ProgramPhase.REASONING
            client.disconnect()
            await w.wait_until(lambda: program(w, "a").phase is ProgramPhase.ACTING)

    run(scenario())


def error_500(received: BackendRequest) -> Any:
    return received.send(whole(b'{"error":{}}', b"500 Internal Server Error"))


async def breaks_off(received: BackendRequest) -> None:
    await received.send(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
    raise ConnectionError


async def garbage(received: BackendRequest) -> None:
    await received.send(b"this is not HTTP\r\n\r\n")
    raise ConnectionError


@pytest.mark.parametrize("respond", [error_500, breaks_off, garbage])
def test_a_step_ends_however_its_answer_fails(respond: Any) -> None:
    async def scenario() -> None:
        async with world(Backend(respond), programs={}) as w:
            await w.start_request(body("a"))
            await w.wait_until(lambda: w.backends[0].received and not driver(w).leases)
            assert program(w, "a").phase is ProgramPhase.ACTING

    run(scenario())


def test_concurrent_requests_of_one_program_are_counted() -> None:
    async def scenario() -> None:
        gates: list[asyncio.Event] = []

        async def respond(received: BackendRequest) -> None:
            gates.append(asyncio.Event())
            await gates[-1].wait()
            await received.send(whole(usage(100)))

        async with world(Backend(respond), programs={}) as w:
            first = await start(w, "a", 100)
            await w.wait_until(lambda: len(gates) == 1)
            second = await start(w, "a", 100)
            await w.wait_until(lambda: len(gates) == 2)
            gates[0].set()
            await first.read_response()
            assert program(w, "a").phase is ProgramPhase.REASONING
            gates[1].set()
            await second.read_response()
            assert program(w, "a").phase is ProgramPhase.ACTING

    run(scenario())


def test_memory_comes_before_the_slot() -> None:
    """With one slot and memory for both, the second program has memory while it waits for the slot."""

    async def scenario() -> None:
        gated = GatedAnswer()
        async with world(Backend(gated), slots=1, programs={}) as w:
            first = await start(w, "a")
            second = await start(w, "b")
            await w.wait_until(lambda: w.state.waiting == 1)

            assert driver(w).core.num_waiting == 0
            assert (program(w, "b").state, program(w, "b").phase) == (ProgramState.ACTIVE, ProgramPhase.REASONING)
            second.disconnect()
            await w.wait_until(lambda: program(w, "b").phase is ProgramPhase.ACTING)
            gated.open.set()
            assert (await first.read_response())[0] == 200

    run(scenario())


def test_the_step_of_a_request_that_admission_refuses_ends() -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        async with world(
            Backend(gated),
            slots=1,
            admission={"mode": "legacy", "legacy": {"max_concurrent_requests": 1, "queue_size": 0}},
            programs={},
        ) as w:
            await start(w, "a")
            await w.wait_until(lambda: w.backends[0].received)
            assert refusal(await w.request(body=body("b")))[:2] == (429, "admission_queue_full")
            assert program(w, "b").phase is ProgramPhase.ACTING
            gated.open.set()

    run(scenario())


def test_a_higher_class_resumes_first() -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        async with world(Backend(gated), programs=ONE_AT_A_TIME) as w:
            first = await start(w, "a")
            low = await start(w, "low", x_smg_priority="bulk")
            await waiting(w, 1)
            high = await start(w, "high", x_smg_priority="interactive")
            await waiting(w, 2)
            gated.open.set()
            await first.read_response()
            driver(w).release("ip:127.0.0.1", "a")
            await high.read_response()

            assert program(w, "low").state is ProgramState.PAUSED
            driver(w).release("ip:127.0.0.1", "high")
            await low.read_response()

    run(scenario())


def test_a_victim_of_slot_preemption_that_waits_again_keeps_its_memory() -> None:
    admission = {"on_preempt": "retry", "classes": {"interactive": {"can_preempt": True}}}

    async def scenario() -> None:
        gated = GatedAnswer()
        async with world(Backend(gated), slots=1, admission=admission, programs={}) as w:
            victim = await start(w, "v", x_smg_priority="bulk")
            await w.wait_until(lambda: len(w.backends[0].received) == 1)
            preemptor = await start(w, "p", x_smg_priority="interactive")
            await w.wait_until(lambda: len(w.backends[0].received) == 2)

            assert (program(w, "v").state, program(w, "v").phase) == (ProgramState.ACTIVE, ProgramPhase.REASONING)
            gated.open.set()
            assert [(await c.read_response())[0] for c in (preemptor, victim)] == [200, 200]
            assert program(w, "v").num_requests == 1

    run(scenario())
