"""Elections in Redis: one server, one behind Sentinel, and a cluster."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cluster_world import cluster
from world import run_on_sockets

from maitred.core.units import SECOND
from maitred.scheduler.interface import Dialer, ElectedAddresses, open_election
from maitred.scheduler.link_config import SchedulerConfig
from maitred.scheduler.sharing.elections.election import Election, ElectionCandidate, ElectionError, Term
from maitred.wire.machine import Machine


@contextlib.asynccontextmanager
async def redis_server(folder: Path, *flags: str, port: int = 0, config: Path | None = None) -> AsyncIterator[int]:
    """Run a server of Redis, or skip the test where there is none."""
    command = shutil.which("redis-server") or shutil.which("valkey-server")
    if command is None or shutil.which("redis-cli") is None:
        pytest.skip("needs redis-server, or valkey-server, and redis-cli")
    if not port:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1] - 10_000  # A cluster takes that number as well.
    process = await asyncio.create_subprocess_exec(
        *((command,) if config is None else (command, str(config), "--sentinel")),
        *("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder), *flags),
        stdout=asyncio.subprocess.DEVNULL,
    )
    try:
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            await asyncio.sleep(0.01)
        yield port
    finally:
        process.kill()
        await process.wait()


def test_redis_names_the_leader_and_its_loss_is_none_of_the_requests(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            redis = contextlib.AsyncExitStack()
            port = await redis.enter_async_context(redis_server(tmp_path, "--requirepass", "a-word"))
            url = f"redis://:a-word@127.0.0.1:{port}"
            c = await stack.enter_async_context(cluster(None, 2, election=url, lease_secs=0.5))
            election = open_election(url, c.link, Machine().random)
            stack.push_async_callback(election.close)
            await c.add_gateway(Dialer(ElectedAddresses(election)))
            await c.linked()
            first, second = c.schedulers
            assert first.host is not None
            epoch = first.host.leadership.epoch or 0
            assert (await (await c.start_request()).read_response())[0] == 200
            await c.kill(first)
            await c.until(lambda: second.host and second.host.leadership.mode == "leading")
            assert second.host is not None
            assert (second.host.leadership.epoch or 0) > epoch
            epoch = second.host.leadership.epoch or 0
            await c.linked()
            assert (await (await c.start_request()).read_response())[0] == 200
            await redis.aclose()
            await c.until(lambda: second.host and second.host.leadership.mode == "standby")  # Its lease is over.
            assert second.host.leadership.elector is not None
            assert f"the store at redis://127.0.0.1:{port} cannot be asked" in str(second.host.leadership.elector.problem)
            late = await c.start_request()
            await stack.enter_async_context(redis_server(tmp_path, "--requirepass", "a-word", port=port))  # and empty
            assert (await late.read_response())[0] == 200
            assert (second.host.leadership.epoch or 0) > epoch

    run_on_sockets(scenario())


def test_a_wrong_password_of_redis_is_said_without_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with redis_server(tmp_path, "--requirepass", "a-word") as port, cluster() as c:
            scheduler = await c.add_scheduler(election=f"redis://:another@127.0.0.1:{port}")
            assert scheduler.host is not None
            assert scheduler.host.leadership.elector is not None
            assert f"the store at redis://127.0.0.1:{port} refuses the password" in str(
                scheduler.host.leadership.elector.problem
            )
            assert "another" not in caplog.text
            assert scheduler.host.leadership.mode == "standby"

    run_on_sockets(scenario())


@contextlib.asynccontextmanager
async def sentinel_and_cluster(folder: Path) -> AsyncIterator[tuple[str, str]]:
    """Run a server with a password behind Sentinel, and a cluster, and yield their URLs."""
    async with contextlib.AsyncExitStack() as stack:
        port = await stack.enter_async_context(redis_server(folder, "--requirepass", "a-word"))
        (folder / "sentinel.conf").write_text(f"sentinel monitor here 127.0.0.1 {port} 1\nsentinel auth-pass here a-word\n")
        sentinel = await stack.enter_async_context(redis_server(folder, config=folder / "sentinel.conf"))
        clustered = await stack.enter_async_context(redis_server(folder, "--cluster-enabled", "yes"))
        subprocess.run(["redis-cli", "-p", str(clustered), "cluster", "addslotsrange", "0", "16383"], check=True)
        asking = ["redis-cli", "-p", str(clustered), "cluster", "info"]
        while b"cluster_state:ok" not in subprocess.run(asking, check=True, capture_output=True).stdout:
            await asyncio.sleep(0.05)
        yield f"redis+sentinel://:a-word@127.0.0.1:{sentinel}/here", f"redis+cluster://127.0.0.1:{clustered}"


def test_an_election_behind_sentinel_and_one_in_a_cluster(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            urls = await stack.enter_async_context(sentinel_and_cluster(tmp_path))
            for url in urls:
                one, other = (open_election(url, SchedulerConfig(), Machine().random) for _ in range(2))
                stack.push_async_callback(one.close)
                stack.push_async_callback(other.close)
                term = await _campaign(one, "one:1")
                first = term.epoch
                assert abs(first - Machine().clock.wall() // SECOND) < 100, (
                    "the time of day, since nothing tells of an epoch before"
                )
                assert (term.gateways, term.is_first) == ([("", "")], True)
                assert await other.campaign(ElectionCandidate("other", "other:1"), 0) is None
                assert await one.renew([("g", "boot")])
                assert not await other.renew([])
                leader = await other.leader()
                assert leader is not None
                assert leader.address == "one:1"
                await one.resign()
                term = await _campaign(other, "other:1")
                assert term.epoch > first
                assert (term.gateways, term.is_first) == ([("g", "boot")], False)
                assert not await one.renew([])

    run_on_sockets(scenario())


async def _campaign(election: Election, address: str) -> Term:
    while True:  # A cluster takes a moment to find that it is whole.
        with contextlib.suppress(ElectionError):
            term = await election.campaign(ElectionCandidate("name", address), 0)
            assert term is not None
            return term
        await asyncio.sleep(0.05)
