"""Gateways that share one scheduler over a Unix socket: together they do what one gateway does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from shared_world import shared_world
from world import ANSWER, CHAT, STREAM_HEAD, Backend, BackendRequest, GatedAnswer, chunk, run, whole

from maitred.core.decisions import DecisionLog
from maitred.replay import ROOMS
from maitred.replay.story import in_sentences
from maitred.replay.why import tell
from maitred.routing import RoutingConfig, asked_block_sizes
from maitred.scheduler.ejection import EjectionConfig

PREEMPTING = {"classes": {"interactive": {"can_preempt": True}}}
BULK, INTERACTIVE = {"x_smg_priority": "bulk"}, {"x_smg_priority": "interactive"}
STREAM = {"model": "m", "stream": True}


class Counting:
    """A responder that notes how many requests it has at once, and answers when `open` is set."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.now = self.most = 0

    async def __call__(self, received: BackendRequest) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await self.open.wait()
            await received.send(whole(ANSWER))
        finally:
            self.now -= 1


def test_a_request_is_answered_by_each_of_the_gateways() -> None:
    async def scenario() -> None:
        async with shared_world() as w:
            for number in range(3):
                status, _, body = await w.request(at=number)
                assert (status, body) == (200, ANSWER)
            assert len(w.backends[0].received) == 3

    run(scenario())


def test_a_number_that_the_link_cannot_carry_does_not_hold_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine may say anything of its models."""
    monkeypatch.setattr(Backend, "created", 1 << 70)

    async def scenario() -> None:
        async with shared_world() as w:
            assert (await w.request(at=1))[0] == 200

    run(scenario())


def test_no_more_requests_are_admitted_over_all_gateways_than_there_are_slots() -> None:
    async def scenario() -> None:
        engine = Counting()
        async with shared_world(Backend(engine), slots=4) as w:
            clients = [await w.start_request() for _ in range(24)]
            await w.wait_until(lambda: w.in_flight == 4 and w.waiting == 20 and engine.now == 4)
            engine.open.set()
            assert [(await client.read_response())[0] for client in clients] == [200] * 24
            assert engine.most == 4

    run(scenario())


def test_a_waiting_request_of_a_higher_class_goes_first_whichever_gateway_it_came_to() -> None:
    async def scenario() -> None:
        order: list[bytes] = []
        gate = asyncio.Event()

        async def engine(received: BackendRequest) -> None:
            order.append(received.headers[b"x-name"])
            await gate.wait()
            await received.send(whole(ANSWER))

        async with shared_world(Backend(engine), slots=1) as w:
            first = await w.start_request(at=0, x_name="first")
            await w.wait_until(lambda: order)
            waiting = []
            for at, name, headers in ((0, "bulk", BULK), (1, "default", {}), (2, "interactive", INTERACTIVE)):
                waiting.append(await w.start_request(at=at, x_name=name, **headers))
                await w.wait_until(lambda: w.waiting == len(waiting))
            gate.set()
            for client in (first, *waiting):
                assert (await client.read_response())[0] == 200
            assert order == [b"first", b"interactive", b"default", b"bulk"]

    run(scenario())


@pytest.mark.parametrize("on_preempt", ["reject", "retry"])
def test_a_request_of_one_gateway_preempts_one_of_another(on_preempt: str) -> None:
    async def scenario() -> None:
        held = asyncio.Event()

        async def engine(received: BackendRequest) -> None:
            if received.headers.get(b"x-class") == b"bulk" and not held.is_set():
                held.set()
                await received.wait_until_disconnected()
                raise ConnectionError
            await received.send(whole(ANSWER))

        async with shared_world(Backend(engine), slots=1, admission={**PREEMPTING, "on_preempt": on_preempt}) as w:
            victim = await w.start_request(STREAM, at=0, x_class="bulk", **BULK)
            await held.wait()
            assert (await w.request(at=1, **INTERACTIVE))[0] == 200
            status, headers, _ = await victim.read_response()
            if on_preempt == "retry":
                assert status == 200
            else:
                assert (status, headers["x-smg-error-code"]) == (503, "scheduler_preempted")
                assert headers["x-smg-preempted"] == "true"

    run(scenario())


def test_a_stream_that_has_begun_is_no_victim() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()

        async def engine(received: BackendRequest) -> None:
            if received.headers.get(b"x-class") != b"bulk":
                await received.send(whole(ANSWER))
                return
            await received.send(STREAM_HEAD + chunk(b"data: 1\n\n"))
            await gate.wait()
            await received.send(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

        async with shared_world(Backend(engine), slots=1, admission=PREEMPTING) as w:
            stream = await w.start_request(STREAM, at=0, x_class="bulk", **BULK)
            assert (await stream.read_head())[0] == 200
            assert await stream.read_chunk() == b"data: 1\n\n"
            vip = await w.start_request(at=1, **INTERACTIVE)
            await w.wait_until(lambda: w.waiting == 1)
            gate.set()
            assert await stream.read_chunk() == b"data: [DONE]\n\n"
            assert (await vip.read_response())[0] == 200

    run(scenario())


def test_refusals_are_those_of_one_gateway() -> None:
    async def scenario() -> None:
        engine = GatedAnswer()
        classes = {"default": {"queue_size": 1}}
        async with shared_world(Backend(engine), slots=1, admission={"classes": classes}) as w:
            running = await w.start_request(at=0)
            await w.wait_until(lambda: w.in_flight == 1)
            waiting = await w.start_request(at=1)
            await w.wait_until(lambda: w.waiting == 1)
            status, headers, _ = await w.request(at=2)
            assert (status, headers["x-smg-error-code"]) == (429, "scheduler_queue_full")
            assert int(headers["retry-after"]) >= 1
            assert (await w.request({"model": "other"}, at=2))[0] == 404
            engine.open.set()
            assert [(await client.read_response())[0] for client in (running, waiting)] == [200, 200]

    run(scenario())


def test_a_client_that_leaves_frees_its_place_or_slot() -> None:
    async def scenario() -> None:
        async def engine(received: BackendRequest) -> None:
            await received.wait_until_disconnected()
            raise ConnectionError

        async with shared_world(Backend(engine), slots=1) as w:
            running, waiting = await w.start_request(at=0), await w.start_request(at=1)
            await w.wait_until(lambda: (w.in_flight, w.waiting) == (1, 1))
            waiting.disconnect()
            await w.wait_until(lambda: (w.in_flight, w.waiting) == (1, 0))
            running.disconnect()
            await w.wait_until(lambda: not w.host.requests)

    run(scenario())


def failing(times: int) -> tuple[Sequence[Backend], list[int]]:
    """Return two backends, of which the one that is asked first closes the connection, so many times in all."""
    asked: list[int] = []

    def responder(number: int) -> object:
        async def respond(received: BackendRequest) -> None:
            asked.append(number)
            if len(asked) <= times:
                raise ConnectionError
            await received.send(whole(ANSWER))

        return respond

    return [Backend(responder(0)), Backend(responder(1))], asked  # type: ignore[arg-type]


def test_a_request_that_its_backend_fails_is_granted_another() -> None:
    async def scenario() -> None:
        backends, asked = failing(1)
        async with shared_world(*backends, slots=1) as w:
            assert (await w.request())[0] == 200
            assert sorted(asked) == [0, 1]

    run(scenario())


def test_an_error_that_is_passed_on_is_no_success_of_its_backend() -> None:
    """Without further attempts the error of a backend reaches the client, and its first byte the scheduler."""

    async def fails(received: BackendRequest) -> None:
        await received.send(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 2\r\n\r\n{}")

    async def scenario() -> None:
        ejection = EjectionConfig(consecutive_failures=3, min_requests=1_000)
        async with shared_world(Backend(fails), Backend(), ejection=ejection, max_attempts=1) as w:
            statuses = [(await w.request(at=number % 2))[0] for number in range(24)]
            assert 3 <= statuses.count(500) < 12
            assert w.scheduler.fleet.backends[0].circuit.is_ejected

    run(scenario())


def test_a_backend_that_fails_the_requests_of_all_gateways_is_ejected_for_all() -> None:
    async def scenario() -> None:
        async def broken(received: BackendRequest) -> None:
            await received.send(whole(b"{}", b"500 Internal Server Error"))

        well = Backend()
        ejection = EjectionConfig(consecutive_failures=3, base_ejection_secs=60.0)
        async with shared_world(Backend(broken), well, ejection=ejection) as w:
            for _ in range(30):
                assert (await w.request())[0] == 200
            assert w.scheduler.fleet.backends[0].circuit.is_ejected
            assert len(w.backends[0].received) == 3

    run(scenario())


def test_requests_are_spread_by_what_all_gateways_have_sent() -> None:
    async def scenario() -> None:
        engines = [Counting(), Counting()]
        async with shared_world(*map(Backend, engines), slots=8) as w:
            clients = [await w.start_request() for _ in range(8)]
            await w.wait_until(lambda: w.in_flight == 8 and engines[0].now + engines[1].now == 8)
            assert [engine.now for engine in engines] == [4, 4]
            for engine in engines:
                engine.open.set()
            assert [(await client.read_response())[0] for client in clients] == [200] * 8

    run(scenario())


def test_a_session_stays_where_it_is_whichever_gateway_it_comes_to() -> None:
    async def scenario() -> None:
        backends = [Backend() for _ in range(4)]
        async with shared_world(*backends, routing=RoutingConfig(policy="session-affinity")) as w:
            for session in ("one", "two", "three"):
                for _ in range(6):
                    assert (await w.request(x_session_id=session))[0] == 200
                asked = [len(backend.received) for backend in backends]
                assert sorted(asked)[-1] % 6 == 0
                assert sum(asked) % 6 == 0
                assert all(number % 6 == 0 for number in asked)

    run(scenario())


def test_a_backend_that_goes_down_is_down_for_all_gateways() -> None:
    async def scenario() -> None:
        backend = Backend()
        async with shared_world(backend) as w:
            await backend.stop()
            await w.wait_until(lambda: not any(gateway.scheduler.fleet.healthy for gateway in w.gateways))
            for number in range(3):
                status, headers, _ = await w.request(at=number)
                assert (status, headers["x-smg-error-code"]) == (503, "no_healthy_backend")

    run(scenario())


def test_the_scheduler_hears_of_a_backend_that_streams_also_where_no_slots_are_learned() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()

        async def engine(received: BackendRequest) -> None:
            await received.send(STREAM_HEAD)
            while not gate.is_set():
                await received.send(chunk(b"data: 1\n\n"))
                await asyncio.sleep(0.01)
            await received.send(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

        async with shared_world(Backend(engine), slots=2, ejection=EjectionConfig(silence_secs=0.1)) as w:
            stream = await w.start_request(STREAM, at=0)
            assert (await stream.read_head())[0] == 200
            await w.wait_until(lambda: w.scheduler.fleet.backends[0].requests)
            (sent,) = w.scheduler.fleet.backends[0].requests
            await w.wait_until(lambda: sent.is_committed)
            began_at = sent.last_data_at
            async with asyncio.timeout(5):
                await w.wait_until(lambda: sent.last_data_at > began_at)
            gate.set()

    run(scenario())


def test_a_gateway_whose_link_breaks_keeps_its_streams_and_its_slots() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()

        async def engine(received: BackendRequest) -> None:
            await received.send(STREAM_HEAD + chunk(b"data: 1\n\n"))
            await gate.wait()
            await received.send(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

        async with shared_world(Backend(engine), slots=2) as w:
            streams = [await w.start_request(STREAM, at=0) for _ in range(2)]
            for stream in streams:
                assert (await stream.read_head())[0] == 200
            waiting = await w.start_request(STREAM, at=0)
            await w.wait_until(lambda: w.waiting == 1)
            link = w.gateways[0].scheduler.link  # type: ignore[attr-defined]
            before = link._writer
            before.transport.abort()
            await w.wait_until(lambda: link._writer is not before)
            await w.wait_until(lambda: link.end.may_start(link._clock.now()) and (w.in_flight, w.waiting) == (2, 1))
            gate.set()
            for stream in streams:
                assert await stream.read_chunk() == b"data: 1\n\n"
                assert await stream.read_chunk() == b"data: [DONE]\n\n"
            assert (await waiting.read_response())[0] == 200

    run(scenario())


PAGE = b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running %d\nvllm:num_requests_waiting 0\n"


def test_slots_of_a_gateway_that_has_died_come_back_when_the_engine_shows_its_requests_gone() -> None:
    async def scenario() -> None:
        gate = asyncio.Event()
        backend = Backend()

        async def engine(received: BackendRequest) -> None:
            await gate.wait()
            await received.send(whole(ANSWER))

        backend.respond, backend.metrics = engine, PAGE % 2
        async with shared_world(backend, slots=2) as w:
            dead = [await w.start_request(at=0) for _ in range(2)]
            await w.wait_until(lambda: w.in_flight == 2)
            waiting = await w.start_request(at=1)
            await w.wait_until(lambda: w.waiting == 1)
            link = w.gateways[0].scheduler.link  # type: ignore[attr-defined]
            link._task.cancel()  # It does not come back.
            link._writer.transport.abort()
            await w.wait_until(lambda: not w.host.end.settling.is_settled)
            w.host.note_death("gateway-0")
            polls = backend.metrics_polls
            await w.wait_until(lambda: backend.metrics_polls >= polls + 3)
            assert (w.in_flight, w.waiting) == (2, 1)  # The engine still has them.
            backend.metrics = PAGE % 0
            await w.wait_until(lambda: (w.in_flight, w.waiting) == (1, 0))
            gate.set()
            assert (await waiting.read_response())[0] == 200
            assert len(dead) == 2

    run(scenario())


@pytest.mark.parametrize("policy", ["cache-aware", "prefix-hash"])
def test_a_prompt_goes_where_its_beginning_was_sent_whichever_gateway_it_takes(policy: str) -> None:
    async def scenario() -> None:
        backends = [Backend() for _ in range(4)]
        async with shared_world(*backends, routing=RoutingConfig(policy=policy)) as w:
            for turn in range(3):
                for name in range(8):
                    said = f"{name} " * 600 + "and more " * 20 * turn
                    body = {"model": "m", "messages": [{"role": "user", "content": said}]}
                    assert (await w.request(body, at=(turn + name) % 3))[0] == 200
            for name in range(8):
                places = [any(f"{name} {name} ".encode() in got.body for got in backend.received) for backend in backends]
                assert places.count(True) == 1
            assert sum(bool(backend.received) for backend in backends) > 1
            link = w.gateways[0].scheduler.link  # type: ignore[attr-defined]
            assert link.block_sizes == asked_block_sizes(RoutingConfig(policy=policy)) != ()

    run(scenario())


def test_flow_control_counts_what_all_gateways_have_sent() -> None:
    async def scenario() -> None:
        engine = Counting()
        backend = Backend(engine)
        backend.metrics = b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
        flow = {"saturation_detector": "concurrency", "max_concurrency": 2}
        async with shared_world(backend, slots=None, admission={"mode": "flow-control", "flow_control": flow}) as w:
            clients = [await w.start_request() for _ in range(9)]
            await w.wait_until(lambda: engine.now == 2 and w.waiting == 7)
            engine.open.set()
            assert [(await client.read_response())[0] for client in clients] == [200] * 9
            assert engine.most == 2

    run(scenario())


def test_the_path_of_a_request_is_not_that_of_another() -> None:
    """A route that needs no slot is placed by its gateway."""

    async def scenario() -> None:
        async with shared_world() as w:
            connection = await w.connect(0)
            await connection.send_request("/tokenize", {"model": "m", "prompt": "x"})
            assert (await connection.read_response())[0] == 200
            assert b"POST /tokenize" in w.backends[0].received[0].head
            assert CHAT.encode() not in w.backends[0].received[0].head

    run(scenario())


def test_the_log_of_the_scheduler_tells_which_class_a_request_has_asked_for() -> None:
    lines: list[bytes] = []
    asked = {"x_smg_priority": "system", "x_request_id": "job-1"}, {"x_request_id": "job-2"}

    async def scenario() -> None:
        async with shared_world(admission={"default_max_class": "interactive"}, decisions=DecisionLog(lines.append)) as w:
            for number, headers in enumerate(asked):
                assert (await w.request(at=number, **headers))[0] == 200

    run(scenario())
    said = []
    for name in ("job-1", "job-2"):
        ((story,), _) = tell((("log", number, line) for number, line in enumerate(lines, 1)), ROOMS, name)
        said.append(list(in_sentences(story))[1].strip())
    assert said == [
        "It asked for class system and was given interactive, the highest that tenant ip:127.0.0.1 may have.",
        "It asked for class default and was given default, as it named none.",
    ]


def test_no_note_is_kept_at_a_gateway_whose_scheduler_has_no_log() -> None:
    async def scenario() -> None:
        async with shared_world(gateways=1) as w:
            assert (await w.request())[0] == 200
            notes = w.gateways[0].scheduler.notes
            assert notes is not None
            assert not notes.takes_notes

    run(scenario())
