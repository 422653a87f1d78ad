"""Serving over TLS: the limits and idle times of plain connections, and a certificate that is replaced."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from raw_upstream import run

from maitred.core.errors import ConfigError
from maitred.wire import certificate as certificate_module
from maitred.wire import handshakes, protocol
from maitred.wire.certificate import ServerCertificate, read_certificate
from maitred.wire.exchange import Exchange, send_bytes
from maitred.wire.server import App, running_server
from maitred.wire.server_context import ServerContext

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command to make a certificate")


def make_certificate(folder: Path, name: str, *more: str) -> tuple[str, str]:
    """Make a certificate for localhost; return the paths of the certificate and of its key."""
    cert, key = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
    names = ["-subj", f"/CN={name}", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    made = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "1"]
    command = ["openssl", "req", "-x509", *made, *(more or ("-nodes",)), *names, "-keyout", key, "-out", cert]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return make_certificate(tmp_path_factory.mktemp("tls"), "first")


@pytest.fixture
def served(files: tuple[str, str]) -> ServerCertificate:
    return ServerCertificate(*files, where="gateway")


class Answers(App):
    """Answers with the body of the request; /large with 32 MiB, more than a system keeps for a client that takes nothing."""

    send_timeout_secs = 0.2

    async def start(self, server: ServerContext) -> None:
        self.connections = server.connections

    async def __call__(self, exchange: Exchange) -> None:
        body = await exchange.read_body(1 << 20)
        if exchange.path == "/large":
            exchange.start_response(200, [(b"content-length", b"%d" % (512 * 65_536))], b"", True)
            for number in range(512):
                busy = exchange.send_piece(b"x" * 65_536, number < 511)
                if busy is not None:
                    await busy
            return
        send_bytes(exchange, 200, body, b"text/plain")


class Client:
    """A connection over TLS that trusts whatever it meets."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, head: bytes = b"POST / HTTP/1.1", body: bytes = b"hello") -> bytes:
        self.writer.write(head + b"\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        answer = await self.reader.readuntil(b"\r\n\r\n")
        return answer + await self.reader.readexactly(int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))

    @property
    def subject(self) -> str:
        """The name in the certificate of the server."""
        der: bytes = self.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return "second" if b"second" in der else "first"

    async def read_to_end(self) -> bytes:
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            return await self.reader.read(-1)
        return b""


class Serving:
    """A server over TLS, and the connections to it."""

    def __init__(self, app: Answers, url: str) -> None:
        self.app = app
        assert url.startswith("https://127.0.0.1:")
        self._port = int(url.rsplit(":", 1)[1])
        self.clients: list[Client] = []

    async def connect(self, *, tls: bool = True) -> Client:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        opened = await asyncio.open_connection("127.0.0.1", self._port, ssl=context if tls else None)
        self.clients.append(Client(*opened))
        return self.clients[-1]


@contextlib.asynccontextmanager
async def serving(certificate: ServerCertificate) -> AsyncIterator[Serving]:
    app = Answers()
    async with running_server(app, certificate=certificate) as url:
        here = Serving(app, url)
        try:
            yield here
        finally:
            for client in here.clients:
                client.writer.transport.abort()


def test_requests_and_large_answers(served: ServerCertificate) -> None:
    async def scenario() -> None:
        async with serving(served) as here:
            client = await here.connect()
            for _ in range(3):
                assert (await client.ask()).endswith(b"\r\n\r\nhello")
            assert len(await client.ask(b"GET /large HTTP/1.1", b"")) > 512 * 65_536
            assert (await client.ask(b"GET /?\xff HTTP/1.1" + b"x" * 70_000, b"")).startswith(b"HTTP/1.1 4")
            # A client that speaks plain HTTP is no trouble for the others.
            plain = await here.connect(tls=False)
            plain.writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            assert b"HTTP/1.1 200" not in await plain.read_to_end()
            assert (await (await here.connect()).ask()).endswith(b"hello")

    run(scenario())


def test_idle_and_slow_clients_are_treated_as_on_plain_connections(
    served: ServerCertificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head that does not end is a 408, an idle connection is closed, a client that takes nothing is cut off."""
    monkeypatch.setattr(protocol, "HEAD_SECS", 0.1)
    monkeypatch.setattr(App, "keep_alive_secs", 0.1)
    monkeypatch.setattr(protocol, "LINGER_SECS", 0.1)
    monkeypatch.setattr(certificate_module, "CONFIRM_SECS", 0.1)

    async def scenario() -> None:
        async with serving(served) as here:
            slow = await here.connect()
            slow.writer.write(b"GET / HTTP/1.1\r\nhost:")
            assert (await slow.read_to_end()).startswith(b"HTTP/1.1 408 ")
            idle = await here.connect()
            assert (await idle.ask()).endswith(b"hello")
            assert await idle.read_to_end() == b""
            taking_nothing = await here.connect()
            taking_nothing.writer.write(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
            taking_nothing.writer.transport.pause_reading()
            await asyncio.sleep(0.9)
            taking_nothing.writer.transport.resume_reading()
            assert len(await taking_nothing.read_to_end()) < 512 * 65_536

    run(scenario())


def test_a_client_that_does_not_confirm_the_end_is_not_waited_for(
    served: ServerCertificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle connection is closed, and its client, which reads nothing any more, says nothing to that."""
    monkeypatch.setattr(App, "keep_alive_secs", 0.1)
    monkeypatch.setattr(certificate_module, "CONFIRM_SECS", 0.1)

    async def scenario() -> None:
        async with serving(served) as here:
            idle = await here.connect()
            assert (await idle.ask()).endswith(b"hello")
            idle.writer.transport.pause_reading()
            async with asyncio.timeout(30):
                while here.app.connections:
                    await asyncio.sleep(0.01)

    run(scenario())


def test_a_handshake_has_a_limit(served: ServerCertificate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "HANDSHAKE_SECS", 0.1)

    async def scenario() -> bytes:
        async with serving(served) as here:
            mute = await here.connect(tls=False)
            async with asyncio.timeout(30):
                return await mute.read_to_end()

    assert run(scenario()) == b""


def test_a_new_certificate_is_that_of_the_next_connection(files: tuple[str, str], tmp_path: Path) -> None:
    cert, key = (shutil.copy(path, tmp_path) for path in files)
    second = make_certificate(tmp_path, "second")
    served = ServerCertificate(cert, key, where="gateway")

    async def scenario() -> None:
        async with serving(served) as here:
            before = await here.connect()
            assert before.subject == "first"
            shutil.copy(second[0], cert)
            with pytest.raises(ConfigError, match="is not that of the certificate"):
                read_certificate(cert, key, where="gateway")
            assert (await here.connect()).subject == "first"
            shutil.copy(second[1], key)
            served.use(read_certificate(cert, key, where="gateway"))
            assert (await here.connect()).subject == "second"
            assert (await before.ask()).endswith(b"hello")

    run(scenario())


def test_files_that_are_no_certificate(files: tuple[str, str], tmp_path: Path) -> None:
    cert, key = files
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    locked = make_certificate(tmp_path, "locked", "-passout", "pass:secret")
    cases = [
        ((str(tmp_path / "none"), key), "gateway.tls_cert: cannot read .*none: no such file"),
        ((cert, str(tmp_path)), "gateway.tls_key: cannot read"),
        ((str(empty), key), r"gateway\.tls_cert: .*empty.pem holds no certificate in PEM"),
        ((cert, cert), r"gateway\.tls_key: .* holds no private key in PEM"),
        ((locked[0], key), "gateway.tls_key: the key in .*first.key is not that of the certificate in .*locked.pem"),
        (locked, "gateway.tls_key: the key in .*locked.key is encrypted"),
    ]
    for given, problem in cases:
        with pytest.raises(ConfigError, match=problem):
            ServerCertificate(*given, where="gateway")


def test_clients_that_come_together_each_get_a_handshake_and_one_without_tls_is_dropped(
    files: tuple[str, str], served: ServerCertificate
) -> None:
    trusted = ssl.create_default_context(cafile=files[0])

    async def scenario() -> None:
        async with running_server(Answers(), certificate=served) as url:
            port = int(url.rpartition(":")[2])
            connected = [socket.create_connection(("127.0.0.1", port)) for _ in range(9)]  # They wait until the loop turns.
            plain = connected.pop(4)
            plain.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            opening = [asyncio.open_connection(sock=client, ssl=trusted, server_hostname="localhost") for client in connected]
            for reader, writer in await asyncio.gather(*opening):
                writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello")
                assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")
                writer.close()
            reader, writer = await asyncio.open_connection(sock=plain)
            assert not (await reader.read()).startswith(b"HTTP")
            writer.close()

    run(scenario())


def connect_again(port: int, trusted: ssl.SSLContext, session: ssl.SSLSession | None) -> tuple[bool, ssl.SSLSession | None]:
    """Send a request. Return whether the handshake resumed `session`, and the session for the next one."""
    plain = socket.create_connection(("127.0.0.1", port))
    with trusted.wrap_socket(plain, server_hostname="localhost", session=session) as client:
        client.sendall(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello")
        assert client.recv(1000).startswith(b"HTTP/1.1 200")  # In TLS 1.3 the ticket comes before it.
        return bool(client.session_reused), client.session


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_client_that_comes_again_resumes_its_session_also_after_a_reload(
    version: ssl.TLSVersion, files: tuple[str, str], served: ServerCertificate, tmp_path: Path
) -> None:
    trusted = ssl.create_default_context(cafile=files[0])
    trusted.maximum_version = version

    async def scenario() -> list[bool]:
        resumed, session = list[bool](), None
        async with running_server(Answers(), certificate=served) as url:
            port = int(url.rpartition(":")[2])
            for _ in range(2):
                reused, session = await asyncio.to_thread(connect_again, port, trusted, session)
                resumed.append(reused)
            served.use(read_certificate(*make_certificate(tmp_path, "second"), where="gateway"))
            resumed.append((await asyncio.to_thread(connect_again, port, trusted, session))[0])
        return resumed

    assert run(scenario()) == [False, True, True]
