"""The names of upstreams: looked up apart from the requests, kept, and tried address by address."""

from __future__ import annotations

import asyncio
import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from raw_upstream import Peer, answering, black_hole, client, read_whole, run, upstream

from maitred import is_compiled
from maitred.wire.client import UpstreamClient
from maitred.wire.errors import ConnectError, ConnectTimeout, LocalError
from maitred.wire.machine import Machine
from maitred.wire.origin import Origin
from maitred.wire.resolver import HostAddresses

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
Answer = list[str] | Exception | threading.Event


class NameServer:
    """Stands for the look-ups of the system. A name has a row of answers; the last is repeated, and an event is silence."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Answer]] = {}
        self.asked: list[str] = []
        self.silence = threading.Event()

    def getaddrinfo(self, host: str, port: object, **_: object) -> list[Any]:
        self.asked.append(host)
        row = self.answers.get(host, [socket.gaierror(socket.EAI_NONAME, "Name or service not known")])
        answer = row.pop(0) if len(row) > 1 else row[0]
        if isinstance(answer, threading.Event):
            answer.wait()
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        if isinstance(answer, Exception):
            raise answer
        return [_found(address) for address in answer]


def _found(address: str) -> tuple[Any, ...]:
    if ":" in address:
        return socket.AF_INET6, socket.SOCK_STREAM, 6, "", (address, 0, 0, 0)
    return socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    server = NameServer()
    monkeypatch.setattr("maitred.wire.machine.socket.getaddrinfo", server.getaddrinfo)
    yield server
    server.silence.set()


async def get(c: UpstreamClient, host: str, port: int) -> bytes:
    return await read_whole(await c.request(Origin(host, port), "GET", "/"))


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_names_without_an_answer_hold_up_no_other(names: NameServer) -> None:
    names.answers = {"engine": [["127.0.0.1"]]} | {f"silent-{n}": [names.silence] for n in range(40)}

    async def scenario() -> None:
        async with upstream(answering(OK)) as up, client(connect_secs=10) as c:
            held = [asyncio.create_task(get(c, f"silent-{n}", 80)) for n in range(40)]
            await until(lambda: len(names.asked) == 40)
            assert await get(c, "engine", up.origin.port) == b"ok"
            assert not any(task.done() for task in held)
            for task in held:
                task.cancel()

    run(scenario())


def test_the_first_answer_is_waited_for_once(names: NameServer) -> None:
    names.answers = {"engine": [names.silence]}
    message = r"cannot connect to engine:80: its name server has not answered within 0\.05 s"

    async def scenario() -> None:
        async with client(connect_secs=0.05) as c:
            with pytest.raises(ConnectError, match=message) as raised:
                await get(c, "engine", 80)
            assert not raised.value.was_sent
            at_once = asyncio.create_task(get(c, "engine", 80))
            for _ in range(5):
                await asyncio.sleep(0)
            assert isinstance(at_once.exception(), ConnectError)
            assert names.asked == ["engine"]

    run(scenario())


def test_a_name_that_is_known_later_is_used_then(names: NameServer) -> None:
    failure = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    names.answers = {"engine": [failure, failure, ["127.0.0.1"]]}

    async def scenario() -> None:
        async with upstream(answering(OK)) as up, client(dns_ttl_secs=0.01) as c:
            with pytest.raises(ConnectError, match=r"cannot connect to engine:\d+: name or service not known"):
                await get(c, "engine", up.origin.port)
            await until(lambda: len(names.asked) > 3)
            assert await get(c, "engine", up.origin.port) == b"ok"

    run(scenario())


def test_an_answer_is_kept_while_there_is_no_better_one(names: NameServer, caplog: pytest.LogCaptureFixture) -> None:
    """The log says once that a look-up has failed, and once that one has not."""
    failure = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    names.answers = {"engine": [["127.0.0.1"], failure, failure, failure, ["127.0.0.2"]]}

    async def scenario() -> None:
        host = HostAddresses("engine", 0.01, 1.0, Machine().look_up)
        assert await host.addresses() == ["127.0.0.1"]
        await until(lambda: len(names.asked) > 3)
        assert await host.addresses() == ["127.0.0.1"]
        while await host.addresses() == ["127.0.0.1"]:
            await asyncio.sleep(0.001)
        assert await host.addresses() == ["127.0.0.2"]
        host.close()

    with caplog.at_level(logging.INFO, logger="maitred.wire"):
        run(scenario())
    assert [record.getMessage() for record in caplog.records] == [
        "engine cannot be resolved (temporary failure in name resolution): its last addresses are used, 127.0.0.1",
        "engine is resolved again, to 127.0.0.2",
    ]


def test_nothing_is_looked_up_after_the_end(names: NameServer) -> None:
    names.answers = {"engine": [["127.0.0.1"]]}

    async def scenario() -> int:
        host = HostAddresses("engine", 0.001, 1.0, Machine().look_up)
        await host.addresses()
        host.close()
        await asyncio.sleep(0.01)
        asked = len(names.asked)
        await asyncio.sleep(0.02)
        return len(names.asked) - asked

    assert run(scenario()) == 0


@pytest.mark.parametrize("refusing", [["127.0.0.2"], ["::1"], ["::1", "127.0.0.2", "127.0.0.3"]])
def test_addresses_are_tried_in_turn_and_those_that_failed_last(names: NameServer, refusing: list[str]) -> None:
    names.answers = {"engine": [[*refusing, "127.0.0.1"]]}

    async def scenario() -> None:
        async with upstream(answering(OK)) as up, client() as c:
            assert await get(c, "engine", up.origin.port) == b"ok"
            host = c.pool(Origin("engine", up.origin.port))._host
            assert await host.addresses() == ["127.0.0.1", *refusing]

    run(scenario())


def test_an_address_that_does_not_answer_leaves_time_for_the_next(names: NameServer) -> None:
    async def scenario() -> None:
        async with upstream(answering(OK)) as up, client(connect_secs=0.4) as c:
            with black_hole(("127.0.0.9", up.origin.port)):
                names.answers = {"engine": [["127.0.0.9", "127.0.0.1"]]}
                assert await get(c, "engine", up.origin.port) == b"ok"

    run(scenario())


def test_if_no_address_answers_the_last_failure_is_told(names: NameServer) -> None:
    async def scenario() -> None:
        with black_hole(("127.0.0.9", 0)) as (_, port):
            names.answers = {"engine": [["127.0.0.8", "127.0.0.9"]]}
            async with client(connect_secs=0.1) as c:
                with pytest.raises(ConnectTimeout):
                    await get(c, "engine", port)

    run(scenario())


@pytest.mark.skipif(is_compiled(), reason="replaces a method, which a compiled class does not allow")
@pytest.mark.parametrize("order", [["::1", "127.0.0.2"], ["127.0.0.2", "::1"]])
def test_a_lack_on_this_side_for_one_address_says_nothing_of_the_others(
    names: NameServer, monkeypatch: pytest.MonkeyPatch, order: list[str]
) -> None:
    names.answers = {"engine": [order]}

    async def scenario() -> None:
        async with client() as c:
            pool = c.pool(Origin("engine", 9))

            async def connect_to(address: str, secs: float) -> Any:
                if address == "::1":
                    raise LocalError("cannot assign requested address")
                raise ConnectError("refused")

            monkeypatch.setattr(pool, "_connect_to", connect_to)
            with pytest.raises(ConnectError, match="refused"):
                await pool.acquire()

    run(scenario())


def test_an_upstream_that_cannot_be_reached_is_looked_up_again(names: NameServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has moved, long before its name is due."""
    monkeypatch.setattr("maitred.wire.resolver.RETRY_SECS", 0.01)
    names.answers = {"engine": [["127.0.0.2"], ["127.0.0.1"]]}

    async def scenario() -> None:
        async with upstream(answering(OK)) as up, client(dns_ttl_secs=1e6) as c:
            with pytest.raises(ConnectError, match="refused"):
                await get(c, "engine", up.origin.port)
            await until(lambda: len(names.asked) == 2)
            await until(lambda: c.pool(Origin("engine", up.origin.port))._host._known == ["127.0.0.1"])
            assert await get(c, "engine", up.origin.port) == b"ok"

    run(scenario())


def test_kept_connections_to_an_address_that_a_host_has_left_are_used_no_more(names: NameServer) -> None:
    """Neither the idle one, nor the one in use when that becomes known; its response is not cut."""
    names.answers = {"engine": [["127.0.0.1"]]}

    async def scenario() -> None:
        gate = asyncio.Event()

        async def slow(peer: Peer) -> None:
            await peer.request()
            await gate.wait()
            await peer.send(OK)
            await peer.wait_until_closed()

        async def quick(peer: Peer) -> None:
            await peer.request()
            await peer.send(OK)
            await peer.wait_until_closed()

        async with upstream(slow, quick, answering(OK)) as up, client(dns_ttl_secs=0.01) as c:
            origin = Origin("engine", up.origin.port)
            held = asyncio.create_task(get(c, origin.host, origin.port))
            await until(lambda: up.accepted == 1)
            assert await get(c, origin.host, origin.port) == b"ok"
            assert c.num_connections(origin) == 2
            names.answers = {"engine": [["127.0.0.2"]]}
            await until(lambda: c.num_connections(origin) == 1)
            gate.set()
            assert await held == b"ok"
            await until(lambda: c.num_connections(origin) == 0)
            with pytest.raises(ConnectError, match="refused"):
                await get(c, origin.host, origin.port)

    run(scenario())


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "fe80::1%1"])
def test_an_address_needs_no_look_up(names: NameServer, address: str) -> None:
    async def scenario() -> None:
        host = HostAddresses(address, 0.001, 1.0, Machine().look_up)
        host.note_failure(address)
        assert await host.addresses() == [address]
        await asyncio.sleep(0.01)
        assert names.asked == []
        host.close()

    run(scenario())


def test_a_link_local_address_keeps_its_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fe80::1", 0, 0, 3))]
    monkeypatch.setattr("maitred.wire.machine.socket.getaddrinfo", lambda *_, **__: found)

    async def scenario() -> None:
        host = HostAddresses("engine", 1.0, 1.0, Machine().look_up)
        assert await host.addresses() == ["fe80::1%3"]
        host.close()

    run(scenario())


def test_without_a_thread_the_name_is_not_resolved_now(names: NameServer, monkeypatch: pytest.MonkeyPatch) -> None:
    names.answers = {"engine": [["127.0.0.1"]]}

    def no_thread(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def scenario() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", no_thread)
            host = HostAddresses("engine", 0.01, 1.0, Machine().look_up)
            assert await host.addresses() == []
            assert host.problem == "can't start new thread"
        await until(lambda: host._known)
        host.close()

    run(scenario())


def test_a_process_ends_while_a_name_server_is_silent() -> None:
    code = """
import asyncio, socket, threading
socket.getaddrinfo = lambda *_, **__: threading.Event().wait()
from maitred.wire.client import UpstreamClient
from maitred.wire.errors import ConnectError, UpstreamLimits
from maitred.wire.machine import Machine
from maitred.wire.origin import Origin
async def main():
    client = UpstreamClient(UpstreamLimits(connect_secs=0.01))
    try:
        await client.request(Origin("engine", 80), "GET", "/")
    except ConnectError:
        print("ends")
    await client.close()
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout == "ends\n"
