"""The KV memory of backends at the gateway: read from their pages, by rank, again when it changes, and lost with a restart."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import msgspec
import pytest
from test_gateway_programs import body, program, small, usage
from world import STREAM_HEAD, Backend, BackendRequest, GatedAnswer, GatewayWorld, chunk, run, whole, world

from maitred.programs import BackendStatus, ProgramPhase, ProgramRequest, Programs, ProgramsConfig, ProgramState
from maitred.scheduler.engines.kv_pages import KvMemory
from maitred.scheduler.programs.memories import measure_shared_tokens


def page(capacity: object, engine: int = 0, **series: object) -> bytes:
    """Return a page of vLLM with blocks of one token, and these series."""
    config = f'vllm:cache_config_info{{engine="{engine}",block_size="1",num_gpu_blocks="{capacity}"}} 1.0\n'
    return (config + "".join(f'vllm:{name}{{engine="{engine}"}} {value}\n' for name, value in series.items())).encode()


def backend(metrics: bytes | None, respond: Any = small) -> Backend:
    made = Backend(respond)
    made.metrics = metrics
    return made


def memories(w: GatewayWorld) -> dict[int, tuple[BackendStatus, int | None]]:
    assert w.gateway.programs is not None
    return {memory.index: (memory.status, memory.capacity) for memory in w.gateway.programs.core.backends}


UP, DOWN = BackendStatus.UP, BackendStatus.DOWN


def test_the_capacity_is_known_before_a_backend_is_up_and_follows_its_page() -> None:
    async def scenario() -> None:
        async with world(backend(page(5000)), programs={}) as w:
            assert memories(w) == {0: (UP, 5000)}
            w.backends[0].metrics = page(7000)
            await w.wait_until(lambda: memories(w) == {0: (UP, 7000)})
            w.backends[0].metrics = page("None")
            await w.wait_until(lambda: memories(w) == {0: (UP, None)})
            w.backends[0].metrics = None
            await w.wait_until(lambda: w.gateway.scheduler.fleet.backends[0].kv is None)
            w.backends[0].metrics = page(3000)
            await w.wait_until(lambda: memories(w) == {0: (UP, 3000)})

    run(scenario())


def test_a_backend_that_is_down_at_the_start_has_its_capacity_when_it_comes() -> None:
    """ThunderAgent gives it an infinite one for ever, and puts 50,000 tokens into 10,000 (its scenario s17)."""

    async def scenario() -> None:
        late = backend(page(10_000))
        async with world(late, backend(page(10_000)), programs={}, ready=False) as w:
            await late.stop()
            await w.wait_until(lambda: memories(w).get(1) == (UP, 10_000))
            await late.start()
            await w.wait_until(lambda: memories(w).get(0) == (UP, 10_000))
            refused, _, answer = await w.request(body=body("A", 20_000))
            assert (refused, msgspec.json.decode(answer)["error"]["code"]) == (400, "context_length_exceeded")
            assert (await w.request(body=body("C", 100)))[0] == 200

    run(scenario())


def test_a_page_that_fails_for_a_moment_changes_nothing() -> None:
    class Failing(Backend):
        fails = False

        async def _answer(self, received: BackendRequest) -> None:
            if self.fails and received.head.startswith(b"GET /metrics"):
                self.metrics_polls += 1
                await received.send(whole(b"busy", b"500 Internal Server Error"))
            else:
                await super()._answer(received)

    async def scenario() -> None:
        failing = Failing(small)
        failing.metrics = page(5000)
        async with world(failing, programs={}) as w:
            failing.fails = True
            polls = failing.metrics_polls
            await w.wait_until(lambda: failing.metrics_polls > polls + 3)
            assert memories(w) == {0: (UP, 5000)}

    run(scenario())


def test_each_rank_is_a_memory_and_its_requests_go_there() -> None:
    async def scenario() -> None:
        ranked = backend(page(1500) + page(1500, engine=1))
        async with world(backend(page(50)), ranked, programs={}) as w:
            # Index: number of the backend + 2 backends * rank.
            assert memories(w) == {0: (UP, 50), 1: (UP, 1500), 3: (UP, 1500)}
            for name in ("a", "b", "a", "b"):
                # The client's own rank is not forwarded: the gateway chooses.
                assert (await w.request(body=body(name, 1000), x_data_parallel_rank="7"))[0] == 200
            assert (program(w, "a").backend, program(w, "b").backend) == (1, 3)
            assert [r.headers[b"x-data-parallel-rank"] for r in ranked.received] == [b"0", b"1", b"0", b"1"]
            assert all(list(r.headers).count(b"x-data-parallel-rank") == 1 for r in ranked.received)

            ranked.metrics = page(1500)  # One rank is left, so there is nothing to choose.
            await w.wait_until(lambda: memories(w)[3][0] is DOWN)
            await w.request(body=body("a", 1000))
            assert b"x-data-parallel-rank" not in ranked.received[-1].headers
            assert program(w, "b").state is ProgramState.PAUSED

    run(scenario())


def test_a_restart_loses_the_kv(caplog: Any) -> None:
    async def scenario() -> None:
        engine = backend(page(5000, prompt_tokens_total=900))
        async with world(engine, programs={}) as w:
            assert w.gateway.programs is not None
            await w.request(body=body("p", 1000))
            engine.metrics = page(5000, prompt_tokens_total=1900)
            polls = engine.metrics_polls
            await w.wait_until(lambda: engine.metrics_polls > polls + 2)
            assert w.gateway.programs.core.lost_kv_tokens == 0
            engine.metrics = page(4000, prompt_tokens_total=0)
            await w.wait_until(lambda: w.gateway.programs and w.gateway.programs.core.lost_kv_tokens == 1000)
            await w.wait_until(lambda: memories(w) == {0: (UP, 4000)})
            assert any("has restarted" in record.message for record in caplog.records)
            assert program(w, "p").backend == 0  # There is room, so it has a place again.
            assert (await w.request(body=body("p", 1000)))[0] == 200

    with caplog.at_level(logging.WARNING, "maitred.gateway"):
        run(scenario())


def test_programs_of_a_backend_that_goes_down_move() -> None:
    async def scenario() -> None:
        async with world(backend(page(5000)), backend(page(5000)), programs={}) as w:
            assert w.gateway.programs is not None
            await w.request(body=body("p", 1000))
            await w.backends[0].stop()
            await w.wait_until(lambda: memories(w)[0][0] is DOWN)
            assert w.gateway.programs.core.lost_kv_tokens == 1000
            assert (await w.request(body=body("p", 1000)))[0] == 200
            assert program(w, "p").backend == 1

    run(scenario())


def test_sglang_says_its_capacity_in_server_info_and_needs_no_metrics() -> None:
    async def scenario() -> None:
        sglang = backend(None)
        sglang.info = {"max_total_num_tokens": 6000, "max_running_requests": 4}
        async with world(sglang, programs={"backend_type": "sglang"}) as w:
            assert memories(w) == {0: (UP, 6000)}
            assert w.state.backends[0].source == "configured"
        async with world(sglang, programs={}, slots=None) as w:
            assert memories(w) == {0: (UP, 6000)}
            assert (w.state.backends[0].slots, w.state.backends[0].source) == (4, "reported")

    run(scenario())


def test_each_rank_of_sglang_is_a_memory() -> None:
    async def scenario() -> None:
        sglang = backend(b'sglang:token_usage{dp_rank="0"} 0\nsglang:token_usage{dp_rank="1"} 0\n')
        sglang.info = {"max_total_num_tokens": 1500, "dp_size": 2}
        async with world(sglang, programs={}, slots=None) as w:
            await w.wait_until(lambda: memories(w) == {0: (UP, 1500), 1: (UP, 1500)})
            for name in ("a", "b"):
                assert (await w.request(body=body(name, 1000)))[0] == 200
            assert [r.headers[b"x-data-parallel-rank"] for r in sglang.received] == [b"0", b"1"]

    run(scenario())


def test_in_mode_default_the_page_is_read_only_if_asked_for() -> None:
    async def scenario() -> None:
        async with world(backend(page(5000)), programs={"mode": "default"}) as w:
            await w.request(body=body("p"))
            assert (memories(w), w.backends[0].metrics_polls) == ({0: (UP, None)}, 0)
        async with world(backend(page(5000)), programs={"mode": "default", "metrics": True}) as w:
            assert memories(w) == {0: (UP, 5000)}

    run(scenario())


def test_the_interval_of_readings() -> None:
    async def scenario() -> None:
        async with world(backend(page(5000)), programs={"metrics_interval_secs": 3600}) as w:
            polls = w.backends[0].health_polls
            await w.wait_until(lambda: w.backends[0].health_polls > polls + 5)
            assert w.backends[0].metrics_polls == 1
        async with world(backend(page(5000)), programs={"metrics_interval_secs": 0.01}, health_interval_secs=3600) as w:
            await w.wait_until(lambda: w.backends[0].metrics_polls > 3)

    run(scenario())


def test_shared_tokens_make_room() -> None:
    """Two programs of 3,000 tokens share 2,000: with buffers they need 4,200, and a third one of 700 fits into 5,000."""

    async def scenario() -> None:
        gated = GatedAnswer()
        engine = backend(page(5500, kv_cache_usage_perc=0, num_requests_running=0, num_requests_waiting=0), gated)
        async with world(engine, programs={"headroom": 0}) as w:
            assert w.gateway.programs is not None
            await w.start_request(body("a", 2500))
            await w.start_request(body("b", 2500))
            await w.wait_until(lambda: len(engine.received) == 2)
            third = await w.start_request(body("c", 700))
            await w.wait_until(lambda: w.gateway.programs and w.gateway.programs.core.num_waiting)
            engine.metrics = page(5500, kv_cache_usage_perc=3000 / 5500, num_requests_running=2, num_requests_waiting=0)
            await w.wait_until(lambda: len(engine.received) == 3)
            (memory,) = w.gateway.programs.core.backends
            assert memory.shared_tokens >= 1000
            gated.open.set()
            assert (await third.read_response())[0] == 200

    run(scenario())


def registered(*tokens: int) -> Any:
    """Return a memory with reasoning programs of these tokens, and an acting one of 9,000."""
    core = Programs(ProgramsConfig(mode="tr"))
    core.set_backend(0, 0, models=["m"], capacity=None)
    for number, size in enumerate((*tokens, 9000)):
        core.begin(ProgramRequest(id=number, model="m", program=f"p{number}", prompt_tokens=size), 0)
    core.end(len(tokens), None, 0)
    (memory,) = core.backends
    assert [p.phase for p in memory.programs].count(ProgramPhase.ACTING) == 1
    return memory


@pytest.mark.parametrize(
    ("tokens", "reported", "shared"),
    [
        ((4000, 4000, 4000), {}, 3000),  # 12,000 counted, 9,000 used
        ((4000, 4000, 4000), {"usage": 0.1}, 8000),  # 10,000 would be more than all without the largest
        ((4000, 4000, 4000), {"usage": 0.9}, 0),  # other clients use more than the programs share
        ((4000, 4000, 4000), {"waiting": 1}, 0),
        ((4000, 4000, 4000), {"waiting": None}, 0),
        ((4000, 4000, 4000), {"running": 2}, 0),
        ((4000, 4000, 4000), {"running": None}, 0),
        ((4000, 4000, 4000), {"usage": 0.0}, 0),
        ((4000, 4000, 4000), {"usage": None}, 0),
        ((4000, 4000, 4000), {"capacity": None}, 0),
        ((12_000,), {}, 0),  # one program shares with none
        ((), {}, 0),
    ],
)
def test_when_shared_tokens_are_believed(tokens: tuple[int, ...], reported: dict[str, Any], shared: int) -> None:
    memory = KvMemory(**{"capacity": 20_000, "usage": 0.45, "running": 3, "waiting": 0, **reported})
    assert measure_shared_tokens(registered(*tokens), memory, set()) == shared


def test_a_program_that_may_not_be_in_memory_whole_is_left_out() -> None:
    """The fourth has computed 1,000 of its 8,000 tokens: 10,000 are used, of which 2,000 at least are shared by the others."""
    programs = registered(4000, 4000, 4000, 8000)
    fourth = next(program.serial for program in programs.programs if program.key.name == "p3")
    memory = KvMemory(capacity=20_000, usage=0.5, running=4, waiting=0)
    assert measure_shared_tokens(programs, memory, {fourth}) == 2000


def test_a_stream_that_has_not_begun_may_not_be_in_memory_whole() -> None:
    """Two programs of 4,000 tokens are in memory, and nothing yet of a third one: they share nothing."""

    may_begin, may_end = asyncio.Event(), asyncio.Event()

    async def respond(received: BackendRequest) -> None:
        if b"stream" in received.body:
            await may_begin.wait()
            await received.send(STREAM_HEAD + chunk(b"data: {}\n\n"))
        await may_end.wait()
        await received.send(chunk(b"") if b"stream" in received.body else whole(usage(4000)))

    async def scenario() -> None:
        engine = backend(page(20_000, kv_cache_usage_perc=0.4, num_requests_running=3, num_requests_waiting=0), respond)
        async with world(engine, programs={}) as w:
            assert w.gateway.programs is not None
            for name in ("a", "b"):
                await w.start_request(body(name, 4000))
            await w.start_request(body("c", 4000, stream=True))
            await w.wait_until(lambda: len(engine.received) == 3)
            (memory,) = w.gateway.programs.core.backends
            polls = engine.metrics_polls
            await w.wait_until(lambda: engine.metrics_polls > polls + 4)
            assert memory.shared_tokens == 0
            may_begin.set()
            await w.wait_until(lambda: memory.shared_tokens == 4000)
            may_end.set()

    run(scenario())


def test_the_least_of_three_readings_counts() -> None:
    async def scenario() -> None:
        gated = GatedAnswer()
        engine = backend(page(20_000, kv_cache_usage_perc=0.2, num_requests_running=2, num_requests_waiting=0), gated)
        async with world(engine, programs={"metrics_interval_secs": 3600}) as w:
            parts = w.gateway.scheduler.program_parts
            assert parts is not None
            assert w.gateway.programs is not None
            for name in ("a", "b"):
                await w.start_request(body(name, 4000))
            await w.wait_until(lambda: len(engine.received) == 2)
            (memory,) = w.gateway.programs.core.backends
            fleet = w.gateway.scheduler.fleet.backends[0]
            assert fleet.kv is not None
            seen = []
            for usage in (0.2, 0.2, 0.25, 0.2, 0.2, 0.2):
                (reported,) = fleet.kv.memories
                fleet.kv = msgspec.structs.replace(fleet.kv, memories=(msgspec.structs.replace(reported, usage=usage),))
                parts.memories.on_backend_polled(fleet)
                parts.memories.on_backend_polled(fleet)  # the same reading counts once
                seen.append(memory.shared_tokens)
            gated.open.set()
        # The first reading, before the programs came, showed nothing shared.
        assert seen == [0, 0, 3000, 3000, 3000, 4000]

    run(scenario())
