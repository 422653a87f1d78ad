"""The disk of a machine: slow, full, hung, torn; and what files that are written for long make of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any

import pytest

from maitred.files.append_file import AppendFile
from maitred.files.line_file import LineFile
from maitred.testing.world import Network, VirtualLoop
from maitred.testing.world.behaviours import ClientPlan, SimulatedClient
from maitred.testing.world.invariants import check_end
from maitred.testing.world.machine import MemoryMachine, tear
from maitred.testing.world.scenario import GATEWAY, PORT, Scenario
from maitred.testing.world.stage import Stage


def play(program: Callable[[MemoryMachine, VirtualLoop], Coroutine[Any, Any, None]]) -> None:
    loop = VirtualLoop(1)
    machine = MemoryMachine(loop, Network(loop), "gateway", "10.0.0.2")

    async def main() -> None:
        await machine.run(program(machine, loop))

    loop.run_until_complete(main())


@pytest.mark.parametrize("fault", ["is_full", "is_hung"])
def test_no_line_is_lost_or_written_twice_while_a_disk_is_full_or_hangs(fault: str, tmp_path: Path) -> None:
    path = tmp_path / "lines"

    async def program(machine: MemoryMachine, loop: VirtualLoop) -> None:
        file = AppendFile(LineFile(path, where="log"), "lines")
        file.start()
        for number in range(40):
            if number == 10:
                setattr(machine.disk, fault, True)
            if number == 30:
                machine.disk.heal()
            file.write(b"line %d\n" % number)
            await asyncio.sleep(0.1)
        await file.close()

    play(program)
    assert path.read_bytes() == b"".join(b"line %d\n" % number for number in range(40))


def test_a_slow_disk_holds_up_its_own_work_and_nothing_else() -> None:
    async def program(machine: MemoryMachine, loop: VirtualLoop) -> None:
        machine.disk.slow_secs = 30.0
        began_at, work = loop.time(), loop.run_in_executor(None, loop.time)
        assert await loop.run_in_executor(None, machine.look_up, "localhost") == ["127.0.0.1"]
        assert loop.time() - began_at < 5
        assert await work - began_at > 30

    play(program)


def test_a_torn_file_is_a_beginning_of_it(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"line\n" * 2_000)
    lost = tear(path, Random(3))
    assert 0 < lost <= 4_096
    assert path.read_bytes() == (b"line\n" * 2_000)[:-lost]
    file = LineFile(path, where="log", begins=(b"line",))
    file.append(b"line\n")
    file.close()
    assert set(path.read_bytes().splitlines(keepends=True)) == {b"line\n"}


def test_nothing_is_held_against_a_life_whose_lines_never_reached_the_disk(tmp_path: Path) -> None:
    stage = Stage(Scenario(seed=1, clients=()), tmp_path)
    client = SimulatedClient(stage.loop, "polite", ClientPlan(kind="polite"), (GATEWAY, PORT), stage.ledger)

    async def live() -> None:
        await stage.process.start()
        while not (connection := await client.connect()):
            await asyncio.sleep(0.1)
        await asyncio.sleep(1.0)
        assert (await client.ask(connection, streams=False)).status == 200
        await stage.process.stop()

    async def play() -> None:
        for engine in stage.engines:
            engine.boot()
        stage.settings = stage.scenario.settings([engine.url for engine in stage.engines], str(stage.decision_log))
        stage.machine.disk.is_full = True
        stage.process.on_ended = stage.machine.disk.heal  # in the turn in which it has given up
        await live()
        await live()  # It begins in the instant in which the first life has ended.
        for engine in stage.engines:
            await engine.close()
        await asyncio.sleep(1.0)  # until all connections are closed

    stage.loop.run_until_complete(play())
    assert [life.may_lack_lines for life in stage.process.lives] == [True, False]
    assert list(check_end(stage)) == []


def test_a_life_whose_lines_were_lost_with_those_of_the_next_one_may_lack_them(tmp_path: Path) -> None:
    stage = Stage(Scenario(seed=1, clients=()), tmp_path)

    async def play() -> None:
        stage.settings = stage.scenario.settings([engine.url for engine in stage.engines], str(stage.decision_log))
        for _ in range(2):
            await stage.process.start()
            await asyncio.sleep(1.0)
            await stage.process.stop()
        first, second = stage.process.lives
        stage.process.lose_log_behind(first.num_log_bytes)
        assert (first.may_lack_lines, second.may_lack_lines) == (False, True)
        stage.process.lose_log_behind(first.num_log_bytes - 1)
        assert first.may_lack_lines

    stage.loop.run_until_complete(play())
