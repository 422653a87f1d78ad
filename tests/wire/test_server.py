"""Serving: addresses that cannot be listened on, and how a server is told to stop."""

from __future__ import annotations

import asyncio
import inspect
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from raw_upstream import run

from maitred.core.errors import ConfigError
from maitred.wire import server_context
from maitred.wire.client_limits import MAX_PARKED_BYTES
from maitred.wire.exchange import Exchange, send_bytes
from maitred.wire.machine import Machine
from maitred.wire.server import App, Listener, _Server, open_listener, run_server, running_server
from maitred.wire.server_context import ServerContext

SERVER = """
import asyncio
from maitred.wire.exchange import send_json
from maitred.wire.server import App, Listener, open_ports, run_server, serve

class Sleepy(App):
    async def start(self, server): print("start", flush=True)

    async def stop(self): print("stop", flush=True)

    async def __call__(self, exchange):
        print("asked", flush=True)
        await asyncio.sleep(float(exchange.path.strip("/")))
        send_json(exchange, 200, "done")

app = Sleepy()
ports = open_ports([Listener("127.0.0.1", 0, app)])
run_server(serve(app, ports, drain_secs=DRAIN, settle_secs=SETTLE, on_ready=lambda url: print(url, flush=True)))
print("after", flush=True)
"""


@contextmanager
def server(drain_secs: float = 10, settle_secs: float = 0) -> Iterator[tuple[subprocess.Popen[str], int]]:
    code = SERVER.replace("DRAIN", str(drain_secs)).replace("SETTLE", str(settle_secs))
    running = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert running.stdout is not None
        assert running.stdout.readline() == "start\n"
        yield running, int(running.stdout.readline().rsplit(":", 1)[1])
    finally:
        running.kill()
        running.communicate()


def ask(running: subprocess.Popen[str], port: int, secs: float) -> socket.socket:
    """Send a request that takes `secs`, and wait until the app has it."""
    asking = socket.create_connection(("127.0.0.1", port))
    asking.sendall(b"GET /%g HTTP/1.1\r\nhost: x\r\n\r\n" % secs)
    assert running.stdout is not None
    assert running.stdout.readline() == "asked\n"
    return asking


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_told_to_stop_it_finishes_what_is_in_flight_and_accepts_no_more(number: signal.Signals) -> None:
    with server() as (running, port), ask(running, port, 0.5) as asking:
        running.send_signal(number)
        time.sleep(0.2)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        answer = b"".join(iter(lambda: asking.recv(65_536), b""))
        assert answer.endswith(b'"done"')
        assert running.communicate(timeout=30) == ("stop\nafter\n", "")
        assert running.returncode == 0


def test_terminated_it_accepts_connections_for_a_while_and_keeps_none() -> None:
    with server(settle_secs=60) as (running, port), ask(running, port, 0.5) as before:
        running.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        with ask(running, port, 0) as later:
            for asking in (before, later):
                answer = b"".join(iter(partial(asking.recv, 65_536), b""))  # up to its end: no connection is kept
                assert answer.endswith(b'"done"')
                assert b"connection: close" in answer
        assert running.poll() is None
        running.send_signal(signal.SIGTERM)  # The second one ends it at once.
        assert running.communicate(timeout=30)[0].endswith("after\n")


def test_settling_ends_by_itself_and_an_interrupted_server_has_none() -> None:
    for settle_secs, number in ((0.2, signal.SIGTERM), (60, signal.SIGINT)):
        with server(settle_secs=settle_secs) as (running, port):
            with ask(running, port, 0):
                pass
            running.send_signal(number)
            assert running.communicate(timeout=10) == ("stop\nafter\n", "")
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port))


def test_a_connection_that_is_new_when_the_server_ends_may_ask_once() -> None:
    with server() as (running, port), ask(running, port, 0), socket.create_connection(("127.0.0.1", port)) as asking:
        time.sleep(0.2)
        running.send_signal(signal.SIGINT)
        time.sleep(0.2)
        asking.sendall(b"GET /0 HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"".join(iter(partial(asking.recv, 65_536), b"")).endswith(b'"done"')
        assert running.communicate(timeout=30)[0].endswith("after\n")


def test_told_twice_it_ends_at_once() -> None:
    with server() as (running, port), ask(running, port, 60):
        running.send_signal(signal.SIGINT)
        time.sleep(0.2)
        assert running.poll() is None
        running.send_signal(signal.SIGINT)
        assert running.communicate(timeout=30)[0].endswith("after\n")
        assert running.returncode == 0


def test_draining_has_a_limit() -> None:
    with server(drain_secs=0.2) as (running, port), ask(running, port, 60):
        running.send_signal(signal.SIGTERM)
        assert running.communicate(timeout=30)[0].endswith("after\n")


def test_a_port_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"--port: port {port} is in use"):
            open_listener(Listener("127.0.0.1", port, App()), Machine())


@pytest.mark.parametrize(("host", "port", "where"), [("nowhere.invalid", 0, "--host"), ("192.0.2.1", 0, "--host")])
def test_addresses_that_cannot_be_had(host: str, port: int, where: str) -> None:
    with pytest.raises(ConfigError, match=where):
        open_listener(Listener(host, port, App()), Machine())


class TwoParts(App):
    async def __call__(self, exchange: Exchange) -> None:
        at_once = exchange.path != "/slow"
        exchange.start_response(200, [(b"content-length", b"4")], b"ab" if at_once else b"", True)
        if not at_once:
            await asyncio.sleep(0.05)
            exchange.send_piece(b"ab", True)
        exchange.send_piece(b"HT", False)


@pytest.mark.parametrize("path", ["/", "/slow"])
def test_head_and_body_arrive_whole_and_in_order(path: str) -> None:
    async def scenario() -> tuple[bytes, bytes]:
        async with running_server(TwoParts()) as url:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
            writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode() * 2)  # two, pipelined
            answers = [await reader.readuntil(b"\r\n\r\nabHT") for _ in range(2)]
            writer.close()
            return answers[0], answers[1]

    assert run(scenario()) == (b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nabHT",) * 2


def test_a_head_alone_is_not_held_back() -> None:
    async def scenario() -> bytes:
        async with running_server(TwoParts()) as url:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
            writer.write(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
            first = await reader.read(1_000)
            await reader.readexactly(4)
            writer.close()
            return first

    assert run(scenario()).endswith(b"\r\n\r\n")


def test_a_body_that_no_handler_reads_is_not_taken_either() -> None:
    """It would fill the memory: a handler may wait for something else before it reads."""

    async def scenario() -> tuple[int, bytes]:
        may_read, unread = asyncio.Event(), list[Exchange]()

        class Late(App):
            async def __call__(self, exchange: Exchange) -> None:
                unread.append(exchange)
                await may_read.wait()
                body = await exchange.read_body(1 << 30)
                send_bytes(exchange, 200, b"%d" % len(body), b"text/plain")

        async with running_server(Late(), drain_secs=0.1) as url:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
            writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 16000000\r\n\r\n" + bytes(16_000_000))
            before = -1
            while not unread or before != unread[0].unread_bytes:  # until nothing more comes
                before = unread[0].unread_bytes if unread else -1
                await asyncio.sleep(0.02)
            may_read.set()
            answer = await reader.readuntil(b"16000000")
            writer.close()
            return before, answer

    kept, answer = run(scenario())
    assert MAX_PARKED_BYTES < kept < 4 * MAX_PARKED_BYTES
    assert answer.startswith(b"HTTP/1.1 200")


class _Watched:
    """A connection that waits for being told to set its timer."""

    def __init__(self) -> None:
        self.is_told = asyncio.Event()

    def watch(self) -> None:
        self.is_told.set()


def test_only_a_connection_that_stays_sets_a_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        context = ServerContext(asyncio.get_running_loop())
        stays, leaves, comes_later = _Watched(), _Watched(), _Watched()
        for connection in (leaves, stays):
            context.watch_soon(connection)  # type: ignore[arg-type]
        context.on_closed(leaves)  # type: ignore[arg-type]
        await stays.is_told.wait()
        context.watch_soon(comes_later)  # type: ignore[arg-type]
        await comes_later.is_told.wait()
        assert not leaves.is_told.is_set()

    monkeypatch.setattr(server_context, "_WATCH_SECS", 0.001)
    run(scenario())


def test_an_interrupt_before_the_loop_begins_leaves_nothing_that_was_never_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    async def serving() -> None:
        raise AssertionError

    monkeypatch.setattr("maitred.wire.server.tune_process", interrupted)
    begun = serving()
    run_server(begun)
    assert inspect.getcoroutinestate(begun) == inspect.CORO_CLOSED


@pytest.mark.parametrize("settle_secs", [0.0, 600.0])
@pytest.mark.parametrize("begins", ["the loss of its ports", "SIGTERM"])
def test_a_server_that_lets_its_ports_go_takes_one_signal_without_hurry(begins: str, settle_secs: float) -> None:
    """As for a worker whose parent has died, of which a service manager then ends all processes: its requests end."""

    async def scenario() -> None:
        server = _Server(App(), Machine(), drain_secs=60, settle_secs=settle_secs)
        steps = [server.leave_ports, server.on_termination]
        for step in steps if begins == "the loss of its ports" else steps[::-1]:
            step()
        await server.settle()
        assert server.told_to_stop.is_set()
        assert not server._skips.is_set()
        server.on_termination()
        assert server._skips.is_set(), "a further signal ends the drain"

    run(scenario())


def test_the_loop_makes_the_tasks_of_requests() -> None:
    """One that is made past it would outlive its process in a world in memory, and a task factory would not see it."""
    made: list[Any] = []

    def factory(loop: asyncio.AbstractEventLoop, coro: Any, **named: Any) -> asyncio.Task[Any]:
        made.append(coro)
        return asyncio.Task(coro, loop=loop, **named)

    class Answering(App):
        async def __call__(self, exchange: Exchange) -> None:
            send_bytes(exchange, 200, b"done", b"text/plain")

    async def scenario() -> None:
        async with running_server(Answering()) as url:
            asyncio.get_running_loop().set_task_factory(factory)
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
            made.clear()  # Here the test makes none, so those that follow are requests'.
            writer.write(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            assert (await reader.read()).endswith(b"done")
            assert len(made) == 1
            writer.close()

    run(scenario())
