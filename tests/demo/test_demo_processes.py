"""Child processes of the demo: they start, say why if they do not, and never survive the `async with` block."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
import uvloop

from maitred.emulator.demo import DemoProcessError, DemoProcesses, _get
from maitred.wire.client import UpstreamClient
from maitred.wire.origin import Origin


def children():
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text()


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_no_child_survives_the_block_even_when_it_fails():
    async def scenario():
        async with DemoProcesses() as processes:
            child = await processes.start("engine", "engine", "--port", "0")
            url = await child.wait_until_listening()
            pids.append(child.pid)
            urls.append(url)
            raise LookupError

    pids, urls = [], []
    with pytest.raises(LookupError):
        asyncio.run(scenario())
    assert urls[0].startswith("http://127.0.0.1:")
    assert not is_alive(pids[0])


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc to see child processes")
@pytest.mark.parametrize("turns", range(4))
def test_a_start_that_is_cancelled_leaves_nothing_behind(turns):
    async def scenario():
        async with DemoProcesses() as processes:
            starting = asyncio.create_task(processes.start("engine", "engine", "--port", "0"))
            for _ in range(turns):
                await asyncio.sleep(0)
            starting.cancel()
            await asyncio.wait({starting})
        assert starting.cancelled()

    before = children()
    uvloop.run(scenario())
    assert children() == before


def test_a_child_that_does_not_come_up_is_quoted():
    async def scenario():
        async with DemoProcesses() as processes:
            child = await processes.start("first engine", "engine", "--port", "0", "--scheduler", "sfj")
            await child.wait_until_listening()

    with pytest.raises(
        DemoProcessError, match=r"^the first engine ended with exit code 2: maitred: error: .*did you mean 'sjf'\?"
    ):
        asyncio.run(scenario())


def test_a_child_that_dies_early_is_noticed():
    async def scenario():
        async with DemoProcesses() as processes:
            children = [await processes.start(name, "engine", "--port", "0") for name in ("first engine", "second engine")]
            for child in children:
                await child.wait_until_listening()
            os.kill(children[1].pid, signal.SIGKILL)
            return str(await processes.wait_for_exit())

    assert (
        asyncio.run(scenario()) == "the second engine was ended by signal 9"
    )  # its last line names the URL, which explains nothing


def test_an_answer_that_is_none_is_said_and_its_connection_used_again():
    async def scenario():
        async with DemoProcesses() as processes:
            server = Origin.parse(await (await processes.start("engine", "engine", "--port", "0")).wait_until_listening())
            client = UpstreamClient()
            with pytest.raises(DemoProcessError, match="answered /ready with the status 404"):
                await _get(client, server, "/ready")
            connections = client.pool(server).num_open
            await client.close()
            return connections

    assert asyncio.run(scenario()) == 1
