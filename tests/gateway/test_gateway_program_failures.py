"""Programs whose backend fails: the program moves, its request goes with it or waits, and nothing is ended twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from test_gateway_programs import Counted, body, driver, program, refusal, start, waiting
from test_gateway_retries import says
from world import STREAM_HEAD, Backend, BackendRequest, GatedAnswer, GatewayWorld, chunk, run, world

from maitred.programs import ProgramAction, ProgramPhase, ProgramReason, ProgramState
from maitred.testing.world.invariants import check_replay

ROOMY = {"backend_capacity_tokens": 10_000}


async def disconnects(received: BackendRequest) -> None:
    """Close the connection instead of an answer."""
    raise ConnectionError


class FirstOnly:
    """A responder that fails each request after the first one, which it answers."""

    def __init__(self) -> None:
        self.num_seen = 0

    async def __call__(self, received: BackendRequest) -> None:
        self.num_seen += 1
        if self.num_seen > 1:
            raise ConnectionError
        await Counted()(received)


def down(w: GatewayWorld, index: int) -> bool:
    return not w.state.backends[index].healthy


@pytest.mark.parametrize("mode", ["tr", "default"])
def test_a_program_moves_when_its_backend_is_gone(mode: str) -> None:
    async def scenario() -> None:
        async with world(Backend(Counted()), Backend(Counted()), programs={"mode": mode, **ROOMY}) as w:
            await w.request(body=body("a", 1000))
            assert program(w, "a").backend == 0
            tokens = program(w, "a").tokens
            await w.backends[0].stop()
            assert (await w.request(body=body("a", 1200)))[0] == 200

            assert (program(w, "a").backend, program(w, "a").state) == (1, ProgramState.ACTIVE)
            assert driver(w).core.lost_kv_tokens >= tokens > 0
            assert [len(backend.received) for backend in w.backends] == [1, 1]

    run(scenario())


def test_an_idle_program_leaves_a_backend_that_goes_down() -> None:
    async def scenario() -> None:
        async with world(Backend(Counted()), Backend(Counted()), programs=ROOMY) as w:
            await w.request(body=body("a", 1000))
            w.backends[0].status = b"500 Internal Server Error"
            await w.wait_until(lambda: down(w, 0))
            await w.wait_until(lambda: program(w, "a").backend == 1)  # It fits at the other one, and is resumed there.

    run(scenario())


def test_a_backend_that_breaks_before_its_answer_is_tried_again_and_then_given_up() -> None:
    async def scenario() -> None:
        backend = Backend(disconnects)
        async with world(backend, programs=ROOMY) as w:
            assert refusal(await w.request(body=body("a"))) == (502, "upstream_disconnected", "2")
            assert w.gateway.counters.upstream_failures["disconnected"] == 3  # max_attempts
            assert program(w, "a").phase is ProgramPhase.ACTING

    run(scenario())


def test_what_a_backend_fails_is_answered_by_another_although_its_program_finds_no_room_there() -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        failing, full = Backend(Counted()), Backend(gated)
        async with world(failing, full, programs={"backend_capacity_tokens": 2000}) as w:
            assert (await w.request(body=body("a", 1000)))[0] == 200
            other = await start(w, "b", 1500)
            await w.wait_until(lambda: full.received)
            failing.respond, full.respond = says("500 Internal Server Error"), Counted()
            assert (await w.request(body=body("a", 1200)))[0] == 200
            assert program(w, "a").backend == 0  # It stays where it has memory.
            assert (len(failing.received), len(full.received)) == (2, 2)
            gated.open.set()
            assert (await other.read_response())[0] == 200

    run(scenario())


def test_a_program_whose_backends_all_rest_gets_a_503_that_says_for_how_long() -> None:
    """It could be moved from one to the other for ever."""

    async def scenario() -> None:
        backends = Backend(Counted()), Backend(Counted())
        async with world(*backends, programs=ROOMY) as w:
            assert (await w.request(body=body("a", 1000)))[0] == 200
            for backend in backends:
                backend.respond = says("503 Service Unavailable", headers=b"retry-after: 30\r\n")
            assert (await w.request(body=body("a", 1000)))[0] == 503  # asks both
            status, headers, answer = await w.request(body=body("a", 1000))
            assert (status, headers["retry-after"]) == (503, "30")
            assert b"upstream_busy" in answer
            assert [len(backend.received) for backend in backends] == [2, 1]

    run(scenario())


def test_a_backend_that_stands_in_may_fail_too() -> None:
    async def scenario() -> None:
        gates = GatedAnswer(), GatedAnswer()
        async with world(*(Backend(Counted()) for _ in range(3)), programs={"backend_capacity_tokens": 2000}) as w:
            assert (await w.request(body=body("a", 1000)))[0] == 200
            first, second, third = sorted(w.backends, key=lambda backend: not backend.received)
            second.respond, third.respond = gates
            others = [await start(w, "b", 1500), await start(w, "c", 1500)]
            await w.wait_until(lambda: second.received and third.received)
            first.respond, second.respond = says("500 Internal Server Error"), says("429 Too Many Requests")
            third.respond = Counted()
            assert (await w.request(body=body("a", 1200)))[0] == 200
            assert w.backends[program(w, "a").backend or 0] is first
            assert [len(backend.received) for backend in (first, second, third)] == [2, 2, 2]
            for gate, client in zip(gates, others, strict=True):
                gate.open.set()
                assert (await client.read_response())[0] == 200

    run(scenario())


def test_a_request_waits_for_memory_elsewhere_and_holds_no_slot_meanwhile() -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        first, second = Backend(gated), Backend(gated)
        async with world(first, second, programs={"backend_capacity_tokens": 2000}) as w:
            await start(w, "a")
            other = await start(w, "b")
            await w.wait_until(lambda: first.received and second.received)
            await first.stop()
            await waiting(w, 1)  # a has moved away from the first backend, and does not fit beside b.

            await w.wait_until(lambda: (w.state.in_flight, w.state.waiting) == (1, 0))
            assert program(w, "a").state is ProgramState.PAUSED
            gated.open.set()
            assert (await other.read_response())[0] == 200
            driver(w).release("ip:127.0.0.1", "b")
            await w.wait_until(lambda: program(w, "a").phase is ProgramPhase.ACTING)
            assert program(w, "a").backend == 1

    run(scenario())


def test_a_program_that_waits_for_a_backend_that_comes_back_is_resumed_there() -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        backend = Backend(gated)
        async with world(backend, programs=ROOMY) as w:
            client = await start(w, "a", 1000)
            await w.wait_until(lambda: backend.received)
            await backend.stop()
            await waiting(w, 1)
            gated.open.set()
            await backend.start()

            assert (await client.read_response())[0] == 200
            assert program(w, "a").num_requests == 1

    run(scenario())


def test_concurrent_requests_of_a_program_move_together() -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        first, second = Backend(gated), Backend(Counted())
        async with world(first, second, programs=ROOMY) as w:
            clients = [await start(w, "a", 1000) for _ in range(3)]
            await w.wait_until(lambda: len(first.received) == 3)
            await first.stop()

            assert [(await client.read_response())[0] for client in clients] == [200] * 3
            assert len(second.received) == 3
            assert (program(w, "a").backend, program(w, "a").phase) == (1, ProgramPhase.ACTING)

    run(scenario())


def test_nothing_is_sent_twice_after_the_first_byte() -> None:
    async def scenario() -> None:
        async def breaks(received: BackendRequest) -> None:
            await received.send(STREAM_HEAD + chunk(b'data: {"choices":[{}]}\n\n'))
            raise ConnectionError

        async with world(Backend(breaks), Backend(Counted()), programs=ROOMY) as w:
            client = await w.start_request(body("a", 1000, stream=True))
            assert b"upstream_truncated" in (await client.read_response())[2]
            await w.wait_until(lambda: not driver(w).leases)

            assert program(w, "a").phase is ProgramPhase.ACTING
            assert [len(backend.received) for backend in w.backends] == [1, 0]

    run(scenario())


def test_in_mode_default_a_program_without_any_backend_gets_a_503() -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        first, second = Backend(gated), Backend(gated)
        # A request may be sent to both.
        config = {"slots": 1, "admission": {"mode": "priority"}, "max_attempts": 3}
        async with world(first, second, programs={"mode": "default"}, **config) as w:
            clients = [await start(w, name, 100) for name in "ab"]
            await w.wait_until(lambda: first.received and second.received)
            await first.stop()
            await second.stop()
            answers = [refusal(await client.read_response()) for client in clients]

            assert answers == [(503, "no_healthy_backend", "2")] * 2
            assert all(p.phase is ProgramPhase.ACTING for p in driver(w).core.programs)

    run(scenario())


def test_a_program_moves_while_its_request_waits_for_a_slot() -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        first, second = Backend(gated), Backend(gated)
        async with world(first, second, slots=1, programs=ROOMY) as w:
            clients = [await start(w, name, 100) for name in "xya"]
            await w.wait_until(lambda: first.received and second.received and w.state.waiting)
            assert program(w, "a").backend == 0
            await first.stop()
            gated.open.set()

            assert [(await client.read_response())[0] for client in clients] == [200] * 3
            assert {p.backend for p in driver(w).core.programs} == {1}

    run(scenario())


def test_a_backend_that_serves_the_model_no_more_is_left() -> None:
    async def scenario() -> None:
        first, second = Backend(Counted(), models=("m", "n")), Backend(Counted())
        async with world(first, second, programs=ROOMY) as w:
            await w.request(body=body("a", 1000))
            assert program(w, "a").backend == 0
            first.models = ("n",)
            await w.wait_until(lambda: w.state.backends[0].models == ["n"])
            assert (await w.request(body=body("a", 1000)))[0] == 200
            assert program(w, "a").backend == 1

    run(scenario())


def test_a_program_that_was_released_under_way_ends_with_its_backend() -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        first = Backend(gated)
        async with world(first, Backend(Counted()), programs=ROOMY) as w:
            client = await start(w, "a", 1000)
            await w.wait_until(lambda: first.received)
            driver(w).release("ip:127.0.0.1", "a")
            await first.stop()

            assert refusal(await client.read_response()) == (499, "program_released", None)
            assert not driver(w).core.programs

    run(scenario())


def test_many_programs_lose_a_backend_and_all_finish_and_the_log_replays(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def scenario() -> None:
        first, second = Backend(Counted()), Backend(Counted())
        programs = {"backend_capacity_tokens": 6000}
        async with world(first, second, slots=2, programs=programs, admission={}, decision_log=str(log)) as w:

            async def agent(name: str) -> list[int]:
                statuses = [(await w.request(body=body(name, 200 * step)))[0] for step in range(1, 6)]
                driver(w).release("ip:127.0.0.1", name)
                return statuses

            agents = asyncio.gather(*(agent(f"p{number}") for number in range(24)))
            await w.wait_until(lambda: len(first.received) >= 10)
            await first.stop()
            assert await agents == [[200] * 5] * 24
            assert driver(w).decision_counts[ProgramAction.PAUSE, ProgramReason.BACKEND_DOWN] > 0

    run(scenario())
    lines = log.read_bytes().splitlines(keepends=True)
    assert list(check_replay(lines, may_lack_lines=False)) == []
    rooms = Counter(msgspec.json.decode(line)["room"] for line in lines)
    assert min(rooms["admission"], rooms["programs"]) > 100
