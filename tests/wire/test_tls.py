"""Upstreams over TLS: the same responses, through aiohttp, in a process that trusts the certificate made here."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from maitred.wire.client import UpstreamClient, UpstreamLimits
from maitred.wire.errors import ConnectError
from maitred.wire.origin import Origin

CASES = r"""
import asyncio, sys
from maitred.wire.client import UpstreamClient
from maitred.wire.origin import Origin
from maitred.wire.errors import ConnectError, Truncated, UpstreamLimits, UpstreamTimeout

async def main(port):
    client, origin = UpstreamClient(), Origin("localhost", port, tls=True)
    response = await client.request(origin, "POST", "/echo?a=%20b", [(b"x-a", b"b")], b"body")
    print(response.status, dict(response.headers)[b"x-head"], await response.read_piece(), await response.read_piece())
    response = await client.request(origin, "POST", "/cut")
    try:
        async for piece in response: print(piece)
    except Truncated as error: print("cut", response.is_complete)
    response = await client.request(origin, "POST", "/mute")
    response.close()
    asking = asyncio.create_task(client.request(origin, "POST", "/nothing"))
    await asyncio.sleep(0.1)
    asking.cancel()
    hasty = UpstreamClient(UpstreamLimits(idle_secs=0.1))
    response = await hasty.request(origin, "POST", "/mute")
    try: await response.read_piece()
    except UpstreamTimeout as error: print(error)
    await hasty.close()
    hasty = UpstreamClient(UpstreamLimits(head_secs=0.1))
    try: await hasty.request(origin, "POST", "/nothing")
    except UpstreamTimeout as error: print("no head")
    await hasty.close()
    pieces = []
    response = await client.request(origin, "POST", "/echo", (), b"piped")
    await response.pipe_body(lambda piece, more: pieces.append((piece, more)))
    print(b"".join(piece for piece, _ in pieces), pieces[-1][1])
    try: await client.request(Origin("127.0.0.2", port, tls=True), "POST", "/")
    except ConnectError: print("not trusted")
    await client.close()

asyncio.run(main(int(sys.argv[1])))
"""


async def upstream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Echo the request, cut the response short, or fall silent, by the path."""
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next((int(x[15:]) for x in head.lower().split(b"\r\n") if x.startswith(b"content-length:")), 0)
            body = await reader.readexactly(length)
            path = head.split(b" ")[1]
            if path.startswith(b"/echo"):
                writer.write(b"HTTP/1.1 200 OK\r\nx-head: %b\r\ncontent-length: %d\r\n\r\n%b" % (path, len(body), body))
            elif path == b"/cut":
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc")
                break
            elif path == b"/mute":
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n")
                await reader.read()
                break
            else:
                await reader.read()
                break
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command to make a certificate")
def test_requests_over_tls(tmp_path: Path) -> None:
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    made = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"]
    files = ["-keyout", str(tmp_path / "key"), "-out", str(tmp_path / "cert")]
    subprocess.run(["openssl", "req", "-x509", *made, *names, *files], check=True, capture_output=True)

    async def scenario() -> str:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
        server = await asyncio.start_server(upstream, "localhost", 0, ssl=context, family=2)
        port = server.sockets[0].getsockname()[1]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", CASES, str(port)),
            env={**os.environ, "SSL_CERT_FILE": str(tmp_path / "cert")},
            stdout=subprocess.PIPE,
        )
        out, _ = await asyncio.wait_for(process.communicate(), 20)
        server.close()
        return out.decode()

    lines = asyncio.run(scenario()).splitlines()
    silent = ["the upstream was silent for too long: TimeoutError", "no head"]
    assert lines == ["200 b'/echo?a=%20b' b'body' b''", "b'abc'", "cut False", *silent, "b'piped' False", "not trusted"]


def test_a_refused_connection_is_known_by_its_cause() -> None:
    async def scenario() -> ConnectError:
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))  # and nothing listens
            client = UpstreamClient(UpstreamLimits(connect_secs=5))
            with pytest.raises(ConnectError) as raised:
                await client.request(Origin.parse(f"https://127.0.0.1:{nobody.getsockname()[1]}"), "GET", "/")
            await client.close()
            return raised.value

    cause = asyncio.run(scenario()).__cause__
    assert isinstance(cause, OSError)
    assert cause.errno == errno.ECONNREFUSED
