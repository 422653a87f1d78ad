"""Upstreams over TLS: the same connections as without, which certificates are trusted, and sessions that are resumed."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop
from raw_upstream import Peer, answering, read_whole, upstream
from test_certificate import make_certificate

from maitred.core.errors import ConfigError
from maitred.wire.certificate import close_transport
from maitred.wire.client import UpstreamClient
from maitred.wire.errors import ConnectError, ConnectTimeout, Truncated, UpstreamLimits, UpstreamTimeout
from maitred.wire.origin import Origin
from maitred.wire.tls import trusting_context

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command to make a certificate")
LOOPS: list[Callable[[], asyncio.AbstractEventLoop]] = [uvloop.new_event_loop, asyncio.new_event_loop]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return make_certificate(tmp_path_factory.mktemp("tls"), "engine")


@pytest.mark.parametrize("kind", ["a pipe", "a folder", "/dev/zero"])
def test_authorities_in_something_other_than_a_file_are_an_error_at_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "authorities.pem"
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    trusting_context()  # A file that is not there says nothing.
    {"a pipe": lambda: os.mkfifo(path), "a folder": path.mkdir, "/dev/zero": lambda: path.symlink_to("/dev/zero")}[kind]()
    with pytest.raises(ConfigError, match=r"^SSL_CERT_FILE: .*authorities.pem cannot be read: "):
        trusting_context()


@pytest.fixture(params=LOOPS, ids=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, Any]], Any]:
    def run_in_loop(scenario: Coroutine[Any, Any, Any]) -> Any:
        async def bounded() -> Any:
            async with asyncio.timeout(15):
                return await scenario

        with asyncio.Runner(loop_factory=request.param) as runner:
            return runner.run(bounded())

    return run_in_loop


class TlsUpstream:
    """What an upstream has seen that answers by the path of the request, and closes its connections as the path says."""

    def __init__(self) -> None:
        self.resumed: list[bool] = []
        """For each connection, whether it went on from an earlier session."""
        self.heads: list[bytes] = []

    async def serve(self, peer: Peer) -> None:
        self.resumed.append(peer.writer.get_extra_info("ssl_object").session_reused)
        try:
            while await self._answer(peer):
                pass
        finally:
            peer.reset()  # what ends without the words of TLS; all that was sent is with the client by then

    async def _answer(self, peer: Peer) -> bool:
        head, body = await peer.request()
        self.heads.append(head)
        path = head.split(b" ")[1]
        if path != b"/nothing":
            declared = 9 if path in (b"/cut", b"/mute") else len(body)
            await peer.send(b"HTTP/1.1 200 OK\r\nx-path: %b\r\ncontent-length: %d\r\n\r\n%b" % (path, declared, body))
        if path in (b"/nothing", b"/mute"):
            await peer.wait_until_closed()
        return path.startswith(b"/echo")


@asynccontextmanager
async def serving(files: tuple[str, str]) -> AsyncIterator[tuple[TlsUpstream, Origin]]:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*files)
    seen = TlsUpstream()
    async with upstream(seen.serve, tls=context) as up:
        yield seen, up.origin


@pytest.fixture
def trusted(files: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    monkeypatch.setenv("SSL_CERT_FILE", files[0])
    return files


@needs_openssl
def test_requests_over_tls(trusted: tuple[str, str], run: Callable[[Any], Any]) -> None:
    async def scenario() -> None:
        async with serving(trusted) as (up, origin):
            client, pieces = UpstreamClient(), []
            response = await client.request(origin, "POST", "/echo?a=%20b", [(b"x-a", b"b")], b"body")
            assert (response.status, dict(response.headers)[b"x-path"]) == (200, b"/echo?a=%20b")
            assert await read_whole(response) == b"body"
            assert b"host: 127.0.0.1:%d\r\n" % origin.port in up.heads[0].lower()
            response = await client.request(origin, "POST", "/echo", (), b"x" * 300_000)
            await response.pipe_body(lambda piece, more: pieces.append(piece))
            assert b"".join(pieces) == b"x" * 300_000
            assert len(up.resumed) == client.num_connections(origin) == 1
            await client.close()

    run(scenario())


@needs_openssl
def test_an_answer_over_tls_that_is_cut_or_late(trusted: tuple[str, str], run: Callable[[Any], Any]) -> None:
    async def scenario() -> None:
        async with serving(trusted) as (_, origin):
            client = UpstreamClient(UpstreamLimits(idle_secs=0.1, head_secs=0.2))
            response = await client.request(origin, "POST", "/cut", (), b"abc")
            assert await response.read_piece() == b"abc"
            with pytest.raises(Truncated):
                await response.read_piece()
            with pytest.raises(UpstreamTimeout, match="in the middle"):
                await read_whole(await client.request(origin, "POST", "/mute"))
            with pytest.raises(UpstreamTimeout, match="before its response"):
                await client.request(origin, "POST", "/nothing")
            while client.num_connections(origin):
                await asyncio.sleep(0.001)
            await client.close()

    run(scenario())


@needs_openssl
def test_a_server_that_closes_each_kept_connection_without_a_word(trusted: tuple[str, str], run: Callable[[Any], Any]) -> None:
    """Whether the client has seen the end or not, the next request is answered, over a new connection that resumes."""

    async def scenario() -> None:
        async with serving(trusted) as (up, origin):
            client = UpstreamClient()
            for number in range(6):
                response = await client.request(origin, "POST", "/once", (), b"%d" % number)
                assert await read_whole(response) == b"%d" % number
                if number % 2:
                    await asyncio.sleep(0.01)
            assert up.resumed == [False, True, True, True, True, True]
            await client.close()

    run(scenario())


@needs_openssl
def test_a_session_is_resumed_with_its_own_host_only(trusted: tuple[str, str], run: Callable[[Any], Any]) -> None:
    async def scenario() -> None:
        async with serving(trusted) as (up, origin):
            client = UpstreamClient()
            for host in ("127.0.0.1", "localhost", "127.0.0.1"):
                await read_whole(await client.request(Origin(host, origin.port, tls=True), "POST", "/once"))
                client.pool(Origin(host, origin.port, tls=True)).close_idle()
            assert up.resumed == [False, False, True]
            await client.close()

    run(scenario())


async def connect_failure(origin: Origin) -> str:
    client = UpstreamClient()
    with pytest.raises(ConnectError) as raised:
        await client.request(origin, "GET", "/")
    await client.close()
    assert not raised.value.is_refusal
    return str(raised.value).replace("self signed", "self-signed")  # as OpenSSL 3 has it


@needs_openssl
def test_a_certificate_of_an_authority_that_is_not_trusted(files: tuple[str, str], run: Callable[[Any], Any]) -> None:
    async def scenario() -> None:
        async with serving(files) as (up, origin):
            expected = f"cannot connect to 127.0.0.1:{origin.port}: its certificate is not trusted: self-signed certificate"
            assert await connect_failure(origin) == expected
            assert not up.heads

    run(scenario())


@needs_openssl
def test_a_certificate_for_another_host(
    trusted: tuple[str, str], run: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with serving(trusted) as (up, origin):
            found = [(socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 0))]
            monkeypatch.setattr("maitred.wire.machine.socket.getaddrinfo", lambda *_, **__: found)
            assert "'other-engine'" in await connect_failure(Origin("other-engine", origin.port, tls=True))
            assert not up.heads

    run(scenario())


def test_an_upstream_without_tls(run: Callable[[Any], Any]) -> None:
    async def scenario() -> None:
        async with upstream(lambda peer: peer.send(b"HTTP/1.1 400 Bad\r\n\r\n")) as up:
            origin = Origin(up.origin.host, up.origin.port, tls=True)
            assert f"cannot connect to 127.0.0.1:{origin.port}: no TLS is agreed on: " in await connect_failure(origin)

    run(scenario())


def test_a_server_that_falls_silent_or_leaves_in_the_handshake(run: Callable[[Any], Any]) -> None:
    async def scenario() -> None:
        async def leaves(peer: Peer) -> None:
            await peer.reader.read(1)

        for script, kind in ((leaves, ConnectError), (Peer.wait_until_closed, ConnectTimeout)):
            async with upstream(script) as up:
                client = UpstreamClient(UpstreamLimits(connect_secs=0.2))
                with pytest.raises(kind) as raised:
                    await client.request(Origin(up.origin.host, up.origin.port, tls=True), "GET", "/")
                assert type(raised.value) is kind
                assert not raised.value.was_sent
                assert not str(raised.value).endswith(": ")
                await client.close()

    run(scenario())


def test_a_refused_connection_is_known_by_its_cause(run: Callable[[Any], Any]) -> None:
    async def scenario() -> ConnectError:
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))  # and nothing listens
            client = UpstreamClient(UpstreamLimits(connect_secs=5))
            with pytest.raises(ConnectError) as raised:
                await client.request(Origin.parse(f"https://127.0.0.1:{nobody.getsockname()[1]}"), "GET", "/")
            await client.close()
            return raised.value

    cause = run(scenario()).__cause__
    assert isinstance(cause, OSError)
    assert cause.errno == errno.ECONNREFUSED


def test_a_connection_that_is_closing_may_be_closed_once_more(files: tuple[str, str], run: Callable[[Any], Any]) -> None:
    """The peer has closed a kept connection, and the client closes all, before it is told."""

    async def scenario() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*files)
        anyone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
        loop = asyncio.get_running_loop()
        async with upstream(answering(), tls=context) as up:
            transport, _ = await loop.create_connection(asyncio.Protocol, up.origin.host, up.origin.port, ssl=anyone)
            for _ in range(3):
                close_transport(transport, loop)

    run(scenario())
