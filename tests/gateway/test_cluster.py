"""Gateways and schedulers that are applications of their own, over TCP: who leads, and what happens when one dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from world import CHAT, Backend, ClientConnection, admission_config, run_on_sockets

from maitred.core.errors import ConfigError
from maitred.gateway import GatewayConfig
from maitred.gateway.cluster.link_setup import connecting_context, link_secret, listening_context
from maitred.gateway.cluster.linked_gateway import LinkedGateway
from maitred.gateway.cluster.scheduler_gateway import LinkPort, SchedulerGateway
from maitred.scheduler.interface import (
    Degrading,
    Dialer,
    ElectedAddresses,
    KnownAddresses,
    LinkAddress,
    RemoteScheduler,
    open_election,
)
from maitred.scheduler.link_config import SchedulerConfig
from maitred.scheduler.sharing.elections.election import Candidate, Election, ElectionError, Term
from maitred.wire.machine import Machine
from maitred.wire.server import running_server

SECRET = "a secret of a test"
SLOTS = 2


class Cluster:
    """Schedulers and gateways in one event loop, and a backend that answers when it is told to."""

    def __init__(self, backend: Backend, link: SchedulerConfig) -> None:
        self.backend, self.link = backend, link
        self.settings = GatewayConfig(
            backends=(backend.url,), slots_per_backend=SLOTS, health_interval_secs=0.05, health_timeout_secs=10.0
        )
        self.rules = admission_config()
        self.schedulers: list[SchedulerGateway] = []
        self.gateways: list[LinkedGateway] = []
        self.urls: list[str] = []
        self._stack = contextlib.AsyncExitStack()
        self._stops: dict[SchedulerGateway, contextlib.AsyncExitStack] = {}
        self._turn = count()
        self._connections: list[ClientConnection] = []

    def make_scheduler(self, listen: str, **changes: Any) -> SchedulerGateway:
        link, machine = msgspec.structs.replace(self.link, **changes), Machine()
        port = LinkPort(LinkAddress.parse(listen), None, listening_context(link), link_secret(link), f"s{len(self.schedulers)}")
        election = open_election(link.election, link, machine.random)
        pages = ("127.0.0.1", 0)
        return SchedulerGateway(self.settings, self.rules, port=port, election=election, pages=pages, machine=machine)

    async def add_scheduler(self, listen: str = "127.0.0.1:0", **changes: Any) -> SchedulerGateway:
        scheduler = self.make_scheduler(listen, **changes)
        stop = contextlib.AsyncExitStack()
        await stop.enter_async_context(running_server(scheduler))
        self._stops[scheduler] = stop
        self.schedulers.append(scheduler)
        return scheduler

    async def add_gateway(self, dialer: Dialer | None = None, **changes: Any) -> LinkedGateway:
        link = msgspec.structs.replace(self.link, **changes)
        where = KnownAddresses(*(each.link_address for each in self.schedulers if each.link_address))
        dialer = dialer or Dialer(where, connecting_context(link))
        degrading = Degrading(link.degraded, link.degraded_after_secs)
        make = partial(
            RemoteScheduler, dialer=dialer, name=f"g{len(self.gateways)}", secret=link_secret(link), degrading=degrading
        )
        gateway = LinkedGateway(self.settings, self.rules, make_scheduler=make)
        self.urls.append(await self._stack.enter_async_context(running_server(gateway)))
        self.gateways.append(gateway)
        return gateway

    async def start_request(self, at: int | None = None, body: object = None) -> ClientConnection:
        url = self.urls[next(self._turn) % len(self.urls) if at is None else at]
        host, port = url.removeprefix("http://").split(":")
        connection = ClientConnection(*await asyncio.open_connection(host, int(port)))
        self._connections.append(connection)
        await connection.send_request(CHAT, body)
        return connection

    async def page(self, path: str, at: int = 0) -> Any:
        host, port = self.urls[at].removeprefix("http://").split(":")
        connection = ClientConnection(*await asyncio.open_connection(host, int(port)))
        self._connections.append(connection)
        await connection.send_request(path, b"", "GET")
        return msgspec.json.decode((await connection.read_response())[2])

    async def until(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not true():
                await asyncio.sleep(0.005)  # what is looked at has no event of its own

    async def linked(self) -> None:
        await self.until(
            lambda: all(each.scheduler.unlinked.mode == "linked" and each.scheduler.fleet.healthy for each in self.gateways)
        )

    def leader(self) -> SchedulerGateway | None:
        return next((each for each in self.schedulers if each.host and each.host.mode != "standby"), None)

    async def kill(self, scheduler: SchedulerGateway) -> None:
        """Let a scheduler end as a process that is killed: nobody is told, and the system closes what it had."""
        host = scheduler.host
        assert host is not None
        assert host.elector is not None
        assert host._server is not None
        host.elector._task.cancel()  # type: ignore[union-attr]
        if hasattr(host.elector._election, "_descriptor"):
            await host.elector._election.resign()
        host.elector._term = None
        host._server.close()
        for connection in [*host._connections.values()]:
            connection.close(b"")
        self.schedulers.remove(scheduler)

    async def close(self) -> None:
        for connection in self._connections:
            connection.disconnect()
        await self._stack.aclose()
        for stop in self._stops.values():
            await stop.aclose()


@contextlib.asynccontextmanager
async def cluster(handler: Any = None, schedulers: int = 0, gateways: int = 0, **link: Any) -> AsyncIterator[Cluster]:
    backend = Backend(handler) if handler else Backend()
    await backend.start()
    here = Cluster(backend, SchedulerConfig(**{"secret": SECRET, **link}))
    try:
        for _ in range(schedulers):
            await here.add_scheduler()
        for _ in range(gateways):
            await here.add_gateway()
        yield here
    finally:
        await here.close()
        await backend.stop()


class HeldAnswers:
    """A backend that begins each answer at once, and ends it when it is told to."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.go_on = asyncio.Event()

    async def __call__(self, received: Any) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        await received.send(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab")
        gone = asyncio.create_task(received.wait_until_disconnected())
        opened = asyncio.create_task(self.go_on.wait())
        await asyncio.wait({gone, opened}, return_when=asyncio.FIRST_COMPLETED)
        for task in (gone, opened):
            task.cancel()
        self.now -= 1
        await received.send(b"cd")


def test_the_next_leader_grants_what_is_free_and_streams_go_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        engine = HeldAnswers()
        async with cluster(engine, 2, 3, election=f"file:{tmp_path}/leader") as c:
            await c.linked()
            first = c.leader()
            assert first is c.schedulers[0]
            streams = [await c.start_request(at) for at in (0, 1)]
            await c.until(lambda: engine.now == SLOTS)
            waiting = [await c.start_request(at) for at in (0, 1, 2)]
            await c.kill(first)
            await c.until(lambda: c.leader() is c.schedulers[0])
            await c.linked()
            assert c.schedulers[0].host is not None
            assert c.schedulers[0].host.epoch == 2
            assert (await c.page("/ready", 2))["cluster"]["epoch"] == 2
            shown = {family.name: family for family in c.schedulers[0].metric_families()}
            assert sum(each.value for each in shown["maitred_cluster_gateway_slots"].samples) == SLOTS
            assert {each.labels["mode"]: each.value for each in shown["maitred_cluster_mode"].samples}["standby"] == 0
            shown = {family.name: family for family in c.gateways[0].metric_families()}
            assert {each.labels["mode"]: each.value for each in shown["maitred_cluster_mode"].samples}["linked"] == 1
            assert [each.value for each in shown["maitred_link_grants"].samples] == [1]
            engine.go_on.set()
            answers = [await each.read_response() for each in (*streams, *waiting)]
            assert {(status, body) for status, _, body in answers} == {(200, b"abcd")}
            assert engine.most == SLOTS
            for scheduler in c.schedulers:
                assert scheduler.host is not None
                await c.until(lambda host=scheduler.host: not host.requests)
                scheduler.host.end.check()

    run_on_sockets(scenario())


def test_a_scheduler_that_ends_hands_over_and_one_that_is_started_anew_stands_by(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster(None, 2, 1, election=f"file:{tmp_path}/leader") as c:
            await c.linked()
            first, second = c.schedulers
            await c._stops.pop(first).aclose()  # as on SIGTERM
            await c.until(lambda: second.host and second.host.mode == "leading")
            third = await c.add_scheduler()
            assert third.host is not None
            assert third.host.mode == "standby"
            await c.linked()
            assert (await (await c.start_request()).read_response())[0] == 200

    run_on_sockets(scenario())


def test_a_scheduler_alone_learns_what_its_gateways_hold_when_it_is_started_anew() -> None:
    async def scenario() -> None:
        engine = HeldAnswers()
        async with cluster(engine, 1, 2) as c:
            await c.linked()
            streams = [await c.start_request(at) for at in (0, 1)]
            await c.until(lambda: engine.now == SLOTS)
            first = c.schedulers[0]
            address = str(first.link_address)
            await c.kill(first)
            late = await c.start_request(0)
            again = await c.add_scheduler(address)
            await c.linked()
            assert again.host is not None
            assert again.host.mode == "learning"
            engine.go_on.set()
            answers = [await each.read_response() for each in (*streams, late)]
            assert [status for status, _, _ in answers] == [200, 200, 200]
            assert engine.most == SLOTS

    run_on_sockets(scenario())


@pytest.mark.parametrize(
    ("changes", "theirs", "ours"),
    [
        (
            {"secret": "another secret of a test"},
            "no link to the scheduler at {}: the scheduler does not know the secret of this gateway (tried again every 5 s)",
            "a peer was turned away: closed by the peer: the scheduler does not know the secret of this gateway"
            " (from 127.0.0.1)",
        ),
    ],
)
def test_both_ends_say_in_one_line_why_there_is_no_link(
    changes: dict[str, Any], theirs: str, ours: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with cluster(None, 1) as c:
            with caplog.at_level(logging.WARNING, "maitred.gateway"):
                gateway = await c.add_gateway(**changes)
                await c.until(lambda: gateway.scheduler.link.problem and ours in caplog.messages)
                await asyncio.sleep(0.4)  # in which it would come again four times
            address = c.schedulers[0].link_address
            assert [each for each in caplog.messages if "link" in each or "turned" in each or "secret" in each] == [
                *sorted([theirs.format(address), ours], key=caplog.messages.index)
            ]
            ready = await c.page("/ready")
            assert "does not know the secret" in ready["cluster"]["problem"]
            assert c.schedulers[0].host is not None
            assert c.schedulers[0].host._last_connection == 1

    run_on_sockets(scenario())


def test_a_gateway_with_other_backends_is_told_which() -> None:
    async def scenario() -> None:
        async with cluster(None, 1) as c:
            c.settings = msgspec.structs.replace(c.settings, backends=(c.backend.url, "http://127.0.0.1:1"))
            gateway = await c.add_gateway()
            await c.until(lambda: gateway.scheduler.link.problem)
            words = "the backends of this gateway are not those of the scheduler: only it has http://127.0.0.1:1"
            assert words in str(gateway.scheduler.link.problem)

    run_on_sockets(scenario())


def test_of_several_schedulers_none_is_obeyed_that_has_no_election() -> None:
    async def scenario() -> None:
        async with cluster(None, 2) as c:
            gateway = await c.add_gateway()
            await c.until(lambda: gateway.scheduler.link.problem)
            assert "this scheduler leads without an election (scheduler.election)" in str(gateway.scheduler.link.problem)
            assert gateway.scheduler.unlinked.mode == "waiting"

    run_on_sockets(scenario())


def test_a_port_that_is_taken_ends_the_start_in_one_line() -> None:
    async def scenario() -> None:
        async with cluster(None, 1) as c:
            address = str(c.schedulers[0].link_address)
            with pytest.raises(ConfigError, match=f"cannot listen on {address}: address already in use") as refused:
                c.make_scheduler(address).open_link()
            assert str(refused.value).startswith("--listen: ")

    run_on_sockets(scenario())


def test_a_gateway_waits_for_a_scheduler_that_is_not_there_yet() -> None:
    async def scenario() -> None:
        async with cluster(None, 1) as c:
            address = str(c.schedulers[0].link_address)
            await c._stops.pop(c.schedulers.pop()).aclose()
            gateway = await c.add_gateway(Dialer(KnownAddresses(LinkAddress.parse(address))))
            await c.until(lambda: gateway.scheduler.link.problem)
            assert gateway.scheduler.link.problem == f"no scheduler can be reached at {address}: connection refused"
            await c.add_scheduler(address)
            await c.linked()
            assert (await (await c.start_request()).read_response())[0] == 200

    run_on_sockets(scenario())


def test_a_gateway_that_has_no_scheduler_for_long_says_so_in_mode_closed() -> None:
    async def scenario() -> None:
        async with cluster(None, 1, 1, degraded_after_secs=0.3) as c:
            await c.linked()
            await c.kill(c.schedulers[0])
            status, headers, body = await (await c.start_request()).read_response()
            assert (status, headers["retry-after"]) == (503, "5")
            assert b"this gateway has no scheduler at present" in body
            ready = await c.page("/ready")
            assert (ready["ready"], ready["cluster"]["mode"]) == (False, "closed")

    run_on_sockets(scenario())


def test_in_mode_share_each_gateway_has_its_part_of_the_slots_and_the_next_scheduler_knows_it() -> None:
    async def scenario() -> None:
        engine = HeldAnswers()
        async with cluster(engine, 1, 2, degraded="share", degraded_after_secs=0.2) as c:
            await c.linked()
            address = str(c.schedulers[0].link_address)
            await c.kill(c.schedulers[0])
            requests = [await c.start_request(at) for at in (0, 0, 1, 1)]
            await c.until(lambda: engine.now == SLOTS)
            assert (await c.page("/ready"))["cluster"]["mode"] == "share"
            again = await c.add_scheduler(address)
            await c.linked()
            assert again.host is not None
            assert sum(request.holds_slot for request in again.host.requests) == SLOTS
            engine.go_on.set()
            assert [(await each.read_response())[0] for each in requests] == [200] * 4
            assert engine.most == SLOTS

    run_on_sockets(scenario())


def test_a_request_waits_no_longer_than_its_class_allows_where_there_is_no_scheduler() -> None:
    async def scenario() -> None:
        async with cluster() as c:
            c.rules = admission_config(classes={"default": {"queue_timeout_secs": 0.3}})
            await c.add_scheduler()
            await c.add_gateway(degraded="wait")
            await c.linked()
            await c.kill(c.schedulers[0])
            assert (await (await c.start_request()).read_response())[0] == 408

    run_on_sockets(scenario())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command to make a certificate")
def test_the_link_over_tls_takes_only_ends_whose_certificate_is_trusted(tmp_path: Path) -> None:
    cert, key = _certificate(tmp_path, "here")
    other, other_key = _certificate(tmp_path, "elsewhere")

    async def scenario() -> None:
        async with cluster(None, tls_cert=cert, tls_key=key, tls_ca=cert) as c:
            await c.add_scheduler()
            await c.add_gateway()
            await c.linked()
            assert (await (await c.start_request()).read_response())[0] == 200
            deaf = await c.add_gateway(tls_ca=other, tls_cert=other, tls_key=other_key)
            plain = await c.add_gateway(tls_ca=None, tls_cert=None, tls_key=None)
            await c.until(lambda: deaf.scheduler.link.problem and plain.scheduler.link.problem)
            assert "TLS: self-signed certificate" in str(deaf.scheduler.link.problem)
            assert "do both ends speak TLS, or neither?" in str(plain.scheduler.link.problem)

    run_on_sockets(scenario())


def _certificate(folder: Path, name: str) -> tuple[str, str]:
    cert, key = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
    made = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    names = ("-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run(["openssl", "req", "-x509", *made, *names, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


@pytest.mark.parametrize(
    ("link", "words"),
    [
        ({}, "gateways and schedulers need a secret that they share"),
        ({"secret": "short"}, "the secret has 5 characters"),
        ({"secret_file": "/nowhere/secret"}, "cannot read /nowhere/secret: no such file or directory"),
    ],
)
def test_a_link_without_a_good_secret_is_refused(link: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        link_secret(SchedulerConfig(**link))


def test_a_secret_in_a_file_may_end_with_a_line(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    assert link_secret(SchedulerConfig(secret_file=str(tmp_path / "secret"))) == SECRET.encode()


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
            c = await stack.enter_async_context(cluster(None, 2, election=url, lease_secs=1.0))
            election = open_election(url, c.link, Machine().random)
            stack.push_async_callback(election.close)
            await c.add_gateway(Dialer(ElectedAddresses(election)))
            await c.linked()
            first, second = c.schedulers
            assert (await (await c.start_request()).read_response())[0] == 200
            await c.kill(first)
            await c.until(lambda: second.host and second.host.mode == "leading" and second.host.epoch == 2)
            await c.linked()
            assert (await (await c.start_request()).read_response())[0] == 200
            await redis.aclose()
            assert second.host is not None
            await c.until(lambda: second.host and second.host.mode == "standby")  # Its lease is over.
            assert second.host.elector is not None
            assert f"the store at redis://127.0.0.1:{port} cannot be asked" in str(second.host.elector.problem)
            late = await c.start_request()
            await stack.enter_async_context(redis_server(tmp_path, "--requirepass", "a-word", port=port))  # and empty
            assert (await late.read_response())[0] == 200
            assert second.host.epoch == 3

    run_on_sockets(scenario())


def test_a_wrong_password_of_redis_is_said_without_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with redis_server(tmp_path, "--requirepass", "a-word") as port, cluster() as c:
            scheduler = await c.add_scheduler(election=f"redis://:another@127.0.0.1:{port}")
            assert scheduler.host is not None
            assert scheduler.host.elector is not None
            assert f"the store at redis://127.0.0.1:{port} refuses the password" in str(scheduler.host.elector.problem)
            assert "another" not in caplog.text
            assert scheduler.host.mode == "standby"

    run_on_sockets(scenario())


def test_an_election_behind_sentinel_and_one_in_a_cluster(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            port = await stack.enter_async_context(redis_server(tmp_path, "--requirepass", "a-word"))
            (tmp_path / "sentinel.conf").write_text(
                f"sentinel monitor here 127.0.0.1 {port} 1\nsentinel auth-pass here a-word\n"
            )
            sentinel = await stack.enter_async_context(redis_server(tmp_path, config=tmp_path / "sentinel.conf"))
            clustered = await stack.enter_async_context(redis_server(tmp_path, "--cluster-enabled", "yes"))
            subprocess.run(["redis-cli", "-p", str(clustered), "cluster", "addslotsrange", "0", "16383"], check=True)
            asking = ["redis-cli", "-p", str(clustered), "cluster", "info"]
            while b"cluster_state:ok" not in subprocess.run(asking, check=True, capture_output=True).stdout:
                await asyncio.sleep(0.05)
            for url in (f"redis+sentinel://:a-word@127.0.0.1:{sentinel}/here", f"redis+cluster://127.0.0.1:{clustered}"):
                one, other = (open_election(url, SchedulerConfig(), Machine().random) for _ in range(2))
                stack.push_async_callback(one.close)
                stack.push_async_callback(other.close)
                term = await _campaign(one, "one:1")
                assert (term.epoch, term.gateways) == (1, [("", "")])
                assert await other.campaign(Candidate("other", "other:1"), 0) is None
                assert await one.renew([("g", "boot")])
                assert not await other.renew([])
                leader = await other.leader()
                assert leader is not None
                assert leader.address == "one:1"
                await one.resign()
                term = await _campaign(other, "other:1")
                assert (term.epoch, term.gateways) == (2, [("g", "boot")])
                assert not await one.renew([])

    run_on_sockets(scenario())


async def _campaign(election: Election, address: str) -> Term:
    while True:  # A cluster takes a moment to find that it is whole.
        with contextlib.suppress(ElectionError):
            term = await election.campaign(Candidate("name", address), 0)
            assert term is not None
            return term
        await asyncio.sleep(0.05)
