"""Agent programs of several gateways that share one scheduler: a program is one, whichever gateway its requests take."""

from __future__ import annotations

import asyncio
from typing import Any

from shared_world import SharedWorld, shared_world
from world import ANSWER, Backend, BackendRequest, run, whole

from maitred.core.units import SECOND
from maitred.programs import Programs, ProgramsConfig, ProgramState
from maitred.scheduler.drivers.programs import RealTimePrograms
from maitred.scheduler.link.gateway_books import BookedGateway
from maitred.scheduler.link.linked_programs import LinkedPrograms
from maitred.scheduler.link.messages import BeginProgram, EndProgram, Memory
from maitred.scheduler.link.terms import LiveMemory, ProgramTerms
from maitred.scheduler.sharing.hosted_programs import HostedPrograms
from maitred.wire.machine import Machine

PAGE = """\
vllm:num_requests_running{{engine="0"}} {running}
vllm:num_requests_waiting{{engine="0"}} 0
vllm:kv_cache_usage_perc{{engine="0"}} 0.0
vllm:cache_config_info{{engine="0",block_size="1",num_gpu_blocks="{capacity}"}} 1.0
"""
CONFIG = ProgramsConfig(mode="tr", headroom=0.0, metrics_interval_secs=0.01, state="none")


def prompt(program: str, tokens: int) -> dict[str, Any]:
    """Return a body of about so many tokens; one that names no program is a program of its own."""
    return {"model": "m", "prompt": "x" * (5 * tokens), **({"program_id": program} if program else {})}


def core(w: SharedWorld) -> Programs:
    assert w.scheduler.programs is not None
    return w.scheduler.programs.core


async def wait_for_capacity(w: SharedWorld) -> None:
    await w.wait_until(lambda: core(w).backends and all(memory.capacity for memory in core(w).backends))


class Gated:
    """Answers when `open` is set, and says how many requests it has."""

    def __init__(self, capacity: int) -> None:
        self.backend = Backend(self)
        self.capacity = capacity
        self.open = asyncio.Event()
        self.now = 0
        self.show()

    async def __call__(self, received: BackendRequest) -> None:
        self.now += 1
        self.show()
        gone = asyncio.create_task(received.wait_until_disconnected())
        opened = asyncio.create_task(self.open.wait())
        await asyncio.wait({gone, opened}, return_when=asyncio.FIRST_COMPLETED)
        self.now -= 1
        self.show()
        if gone.done():
            opened.cancel()
            raise ConnectionError
        gone.cancel()
        await received.send(whole(ANSWER))

    def show(self) -> None:
        self.backend.metrics = PAGE.format(running=self.now, capacity=self.capacity).encode()


def test_requests_of_a_program_go_where_it_has_memory_whichever_gateway_they_take() -> None:
    async def scenario() -> None:
        first, second = Gated(10_000), Gated(10_000)
        first.open.set()
        second.open.set()
        async with shared_world(first.backend, second.backend, programs=CONFIG) as w:
            await wait_for_capacity(w)
            for at in (0, 1, 2, 0):
                for name in ("a", "b"):
                    assert (await w.request(prompt(name, 100), at=at))[0] == 200
            for program in core(w).programs:
                assert program.num_requests == 4
            assert [len(one.backend.received) for one in (first, second)] == [4, 4]

    run(scenario())


def test_a_program_that_does_not_fit_waits_whichever_gateway_its_request_has_come_to() -> None:
    async def scenario() -> None:
        engine = Gated(1_000)
        async with shared_world(engine.backend, programs=CONFIG) as w:
            await wait_for_capacity(w)
            large = await w.start_request(prompt("", 800), at=0)
            await w.wait_until(lambda: engine.now == 1)
            other = await w.start_request(prompt("other", 800), at=1)
            await w.wait_until(lambda: core(w).num_waiting == 1)
            assert (w.in_flight, w.waiting) == (1, 0)  # A paused program holds no slot, and waits for none.
            engine.open.set()
            assert [(await client.read_response())[0] for client in (large, other)] == [200, 200]

    run(scenario())


def test_a_gateway_that_has_died_gives_back_what_its_programs_held_when_the_engine_shows_them_gone() -> None:
    async def scenario() -> None:
        engine = Gated(1_000)
        async with shared_world(engine.backend, programs=CONFIG) as w:
            await wait_for_capacity(w)
            await w.start_request(prompt("", 800), at=0)
            await w.wait_until(lambda: engine.now == 1)
            await w.start_request(prompt("gone", 800), at=0)
            await w.wait_until(lambda: core(w).num_waiting == 1)
            waiting = await w.start_request(prompt("other", 800), at=1)
            await w.wait_until(lambda: core(w).num_waiting == 2)
            link = w.gateways[0].scheduler.link  # type: ignore[attr-defined]
            link._task.cancel()  # It does not come back.
            link._writer.transport.abort()
            await w.wait_until(lambda: core(w).num_waiting == 1)  # Who waited there has left at once.
            w.host.note_death("gateway-0")
            polls = engine.backend.metrics_polls
            await w.wait_until(lambda: engine.backend.metrics_polls >= polls + 3)
            assert (w.in_flight, core(w).num_waiting) == (1, 1)  # The engine still has the other.
            engine.backend.metrics = PAGE.format(running=0, capacity=1_000).encode()
            await w.wait_until(lambda: core(w).num_waiting == 0)
            engine.open.set()
            assert (await waiting.read_response())[0] == 200
            assert [program.key.name for program in core(w).programs if program.state is ProgramState.ACTIVE] == ["other"]

    run(scenario())


def test_a_request_that_waits_for_memory_while_the_link_breaks_gets_it_afterwards() -> None:
    async def scenario() -> None:
        engine = Gated(1_000)
        async with shared_world(engine.backend, programs=CONFIG) as w:
            await wait_for_capacity(w)
            large = await w.start_request(prompt("", 800), at=1)
            await w.wait_until(lambda: engine.now == 1)
            waiting = await w.start_request(prompt("small", 400), at=0)
            await w.wait_until(lambda: core(w).num_waiting == 1)
            link = w.gateways[0].scheduler.link  # type: ignore[attr-defined]
            before = link._writer
            before.transport.abort()
            await w.wait_until(lambda: core(w).num_waiting == 0)
            await w.wait_until(lambda: core(w).num_waiting == 1)
            engine.open.set()
            assert [(await client.read_response())[0] for client in (large, waiting)] == [200, 200]

    run(scenario())


def test_a_program_moves_when_its_backend_fails_its_request() -> None:
    async def scenario() -> None:
        async def broken(received: BackendRequest) -> None:
            raise ConnectionError

        failing, well = Gated(10_000), Gated(10_000)
        well.open.set()
        async with shared_world(failing.backend, well.backend, programs=CONFIG) as w:
            await wait_for_capacity(w)
            failing.backend.respond = broken
            assert (await w.request(prompt("a", 100), at=0))[0] == 200
            assert (await w.request(prompt("a", 100), at=1))[0] == 200
            (program,) = core(w).programs
            assert program.backend == 1
            assert len(well.backend.received) == 2

    run(scenario())


def test_a_scheduler_that_does_not_know_a_program_leaves_it_where_its_gateway_says_it_is() -> None:
    """The memories of a hello: one that was granted stays, and one that waits asks anew."""

    async def scenario() -> None:
        clock, told, ids = Machine().clock, list[object](), iter(range(1, 10))
        driver = RealTimePrograms(Programs(CONFIG, clock.now()), clock)
        for index in (0, 1):
            driver.core.set_backend(index, clock.now(), models=["m"], capacity=1_000)
        host = HostedPrograms(driver, lambda: next(ids), lambda: None)
        host.say = lambda gateway, message: told.append(message)
        linked, gateway = LinkedPrograms(host), BookedGateway(("g", "1"), SECOND)
        gateway.connection = 1
        named = [
            LiveMemory(1, 0, ProgramTerms("m", "t", "here", "", 1, 3_000), memory=1),
            LiveMemory(2, 0, ProgramTerms("m", "t", "there", "", 1, 4_500)),
            LiveMemory(3, 0, ProgramTerms("m", "t", "", "", 1, 4_500)),
        ]
        linked.reconcile(gateway, named, clock.now())
        assert [(m.number, m.memory) for m in told if isinstance(m, Memory)] == [(1, 1), (2, 0), (3, None)]
        linked.reconcile(gateway, named[2:], clock.now())  # The others have ended meanwhile.
        driver.release("t", "here")
        assert told[-1] == Memory(3, 1)
        assert [program.key.name for program in driver.core.programs if program.contexts] == [""]
        linked.abandon(gateway, clock.now())
        assert not gateway.memories
        driver.core.check()
        driver.close()

    asyncio.run(scenario())


def test_no_request_has_memory_before_the_programs_of_the_last_run_are_known() -> None:
    async def scenario() -> None:
        clock, told, ids = Machine().clock, list[object](), iter(range(1, 10))
        driver = RealTimePrograms(Programs(CONFIG, clock.now()), clock)
        driver.core.set_backend(0, clock.now(), models=["m"], capacity=1_000)
        driver.restored.clear()
        heard = asyncio.Event()
        host = HostedPrograms(driver, lambda: next(ids), heard.set)
        host.say = lambda gateway, message: told.append(message)
        linked, gateway = LinkedPrograms(host), BookedGateway(("g", "1"), SECOND)
        for number in (1, 2):
            linked.take(gateway, BeginProgram(number, ProgramTerms("m", "t", f"p{number}", "", 1, 500)), clock.now())
        linked.take(gateway, EndProgram(1), clock.now())  # Its client has left.
        assert not driver.core.programs
        assert not told
        driver.restored.set()
        await heard.wait()
        assert told == [Memory(2, 0)]
        host.close()
        driver.close()

    asyncio.run(scenario())
