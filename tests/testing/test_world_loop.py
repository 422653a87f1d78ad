"""The event loop in virtual time: its clock jumps, its order follows from a seed, and a wait for ever is found."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from maitred.testing.world.draws import Draws
from maitred.testing.world.loop import START, Deadlock, Livelock, VirtualLoop
from maitred.testing.world.machine import MemoryMachine
from maitred.testing.world.network import Network


def test_the_clock_jumps_to_the_next_event_and_no_timer_is_early() -> None:
    loop = VirtualLoop()
    began_at = loop.time()
    late: list[float] = []

    async def main() -> None:
        for number in range(1, 500):
            when = loop.time() + number / 7
            loop.call_at(when, lambda when=when: late.append(loop.time() - when))
        await asyncio.sleep(24 * 3600)

    loop.run_until_complete(main())
    assert loop.time() - began_at == pytest.approx(24 * 3600)
    assert len(late) == 499
    assert all(0 <= each < 2e-6 for each in late)


def test_a_timeout_of_asyncio_ends_at_its_instant() -> None:
    loop = VirtualLoop()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(40):
                await asyncio.sleep(50)

    loop.run_until_complete(main())
    assert loop.micros == START + 40_000_000


def test_a_loop_with_nothing_due_says_which_tasks_wait() -> None:
    loop = VirtualLoop()

    async def wait_for_ever() -> None:
        await loop.create_future()

    async def main() -> None:
        helper = asyncio.create_task(wait_for_ever(), name="the helper")
        await helper

    main_task = loop.create_task(main())
    with pytest.raises(Deadlock, match=r"(?s)the helper: .*wait_for_ever at .*test_world_loop.py") as raised:
        loop.run_until_complete(main_task)
    assert "main at" in str(raised.value)
    main_task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(main_task)


def events_in_order(seed: int) -> list[str]:
    """Return the order in which things of one instant happen."""
    loop, order = VirtualLoop(seed), list[str]()

    async def main() -> None:
        for name in "abcd":
            loop.call_at(loop.time() + 1, order.append, name)
        loop.call_at(loop.time() + 1, lambda: [loop.call_soon(order.append, number) for number in "123"])
        await asyncio.sleep(2)

    loop.run_until_complete(main())
    return order


def test_the_order_of_one_instant_is_drawn_and_callbacks_stay_in_theirs() -> None:
    orders = [events_in_order(seed) for seed in range(40)]
    assert events_in_order(7) == orders[7]
    assert len({tuple(name for name in order if name.isalpha()) for order in orders}) > 12
    for order in orders:
        assert [name for name in order if name.isdigit()] == ["1", "2", "3"]


def test_work_of_a_thread_is_done_later_in_the_loop() -> None:
    loop = VirtualLoop()

    async def main() -> None:
        began_at = loop.time()
        assert await asyncio.to_thread(lambda: loop.time() > began_at)
        with pytest.raises(OSError, match="full"):
            await asyncio.to_thread(_fail)

    loop.run_until_complete(main())


def _fail() -> None:
    raise OSError("full")


def test_a_signal_calls_its_handler_and_one_without_is_refused() -> None:
    loop, got = VirtualLoop(), list[int]()

    async def main() -> None:
        loop.add_signal_handler(signal.SIGHUP, got.append, 1)
        loop.send_signal(signal.SIGHUP)
        loop.send_signal(signal.SIGHUP)
        await asyncio.sleep(0)
        assert loop.remove_signal_handler(signal.SIGHUP)
        with pytest.raises(ValueError, match="no handler"):
            loop.send_signal(signal.SIGHUP)

    loop.run_until_complete(main())
    assert got == [1, 1]


def test_what_nothing_catches_is_kept() -> None:
    loop = VirtualLoop()
    loop.call_soon(_fail)
    loop.run_until_complete(asyncio.sleep(1))
    assert [str(each["exception"]) for each in loop.errors] == ["full"]


def test_cancelled_timers_are_dropped_and_what_is_left_is_told() -> None:
    loop = VirtualLoop()
    for _ in range(5_000):
        loop.call_later(3600, print).cancel()
    kept = loop.call_later(60, print)
    assert loop.pending() == [kept]
    assert len(loop._events) < 600


def test_each_concern_draws_from_a_generator_of_its_own() -> None:
    one, other = Draws(3), Draws(3)
    one.of("faults").random()
    assert one.of("order").random() == other.of("order").random()
    assert one.of("delays").random() != Draws(4).of("delays").random()


def test_the_same_seed_gives_the_same_order_in_a_process_with_another_hash_seed() -> None:
    code = "from test_world_loop import events_in_order; print(events_in_order(11))"
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            check=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": _path()},
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert told == {f"{events_in_order(11)}\n"}


def _path() -> str:
    return ":".join(path for path in sys.path if path)


def test_callbacks_that_go_on_without_time_are_found() -> None:
    loop = VirtualLoop()

    def again() -> None:
        loop.call_soon(again)

    again()
    with pytest.raises(Livelock, match="no time passes"):
        loop.run_until_complete(asyncio.sleep(1))


def test_a_paused_program_runs_nothing_until_it_goes_on_and_others_run() -> None:
    loop, ran, network = VirtualLoop(), list[tuple[str, float]](), Network(VirtualLoop())
    began_at = loop.time()

    async def beat(name: str) -> None:
        for _ in range(4):
            await asyncio.sleep(1)
            ran.append((name, round(loop.time() - began_at)))

    async def main() -> None:
        one, other = (MemoryMachine(loop, network, name, name) for name in ("one", "other"))
        tasks = [machine.run(beat(machine.name)) for machine in (one, other)]
        await asyncio.sleep(1.5)
        loop.pause(one.place)
        await asyncio.sleep(5)
        loop.resume(one.place)
        await asyncio.gather(*tasks)

    loop.run_until_complete(main())
    assert sorted(at for name, at in ran if name == "other") == [1, 2, 3, 4]
    first, late, *others = (at for name, at in ran if name == "one")
    assert (first, late) == (1, 6)
    assert len(others) == 2


def test_a_signal_goes_to_the_program_at_its_place() -> None:
    loop, got, network = VirtualLoop(), list[str](), Network(VirtualLoop())

    async def program(name: str) -> None:
        loop.add_signal_handler(signal.SIGTERM, got.append, name)

    async def main() -> None:
        one, other = (MemoryMachine(loop, network, name, name) for name in ("one", "other"))
        await asyncio.gather(*(machine.run(program(machine.name)) for machine in (one, other)))
        loop.send_signal(signal.SIGTERM, other.place)

    loop.run_until_complete(main())
    assert got == ["other"]
