"""The same rules over sockets: what a gateway refuses never reaches its backend, and what it forwards is framed by itself."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import pytest
from test_framing_requests import CHUNK, CHUNKED, REFUSED
from test_framing_responses import REFUSED as REFUSED_RESPONSES
from world import CHAT, Backend, BackendRequest, GatewayWorld, run, world

BODY = b'{"model":"m"}'
PATH = CHAT.encode()


async def exchange(w: GatewayWorld, pieces: list[bytes]) -> bytes:
    """Send `pieces` on a connection of their own, and return all that comes until the gateway closes it."""
    connection = await w.connect()
    for piece in pieces:
        connection.writer.write(piece)
        await asyncio.sleep(0)
    return await connection.reader.read()


@pytest.mark.parametrize("what", [*REFUSED, *CHUNK])
def test_what_is_refused_ends_the_connection_and_no_backend_sees_it(what: str) -> None:
    data, status = REFUSED[what] if what in REFUSED else (CHUNKED + CHUNK[what], 400)
    data = data.replace(b"POST / ", b"POST %b " % PATH)
    smuggled = b"POST %b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (PATH, len(BODY), BODY)

    async def scenario() -> None:
        async with world() as w:
            for pieces in ([data + smuggled], [data[at : at + 1] for at in range(len(data))]):
                answer = await exchange(w, pieces)
                assert answer.startswith(b"HTTP/1.1 %d " % status), pieces
                assert answer.count(b"HTTP/1.1 ") == 1
                error = msgspec.json.decode(answer.partition(b"\r\n\r\n")[2])["error"]
                assert error["type"] == "invalid_request_error"
            assert w.backends[0].received == []

    run(scenario())


@pytest.mark.parametrize("what", REFUSED_RESPONSES)
def test_an_answer_that_is_none_is_a_502_and_its_connection_is_not_used_again(what: str) -> None:
    data = REFUSED_RESPONSES[what]

    async def scenario(pieces: list[bytes]) -> None:
        writers = []

        async def respond(received: BackendRequest) -> None:
            writers.append(received.writer)
            with contextlib.suppress(ConnectionError):
                for piece in pieces:
                    await received.send(piece)
                    await asyncio.sleep(0)
            await received.wait_until_disconnected()

        async with world(Backend(respond)) as w:
            for _ in range(2):
                status, headers, _ = await w.request()
                assert (status, headers["x-smg-error-code"]) == (502, "upstream_protocol_error")
            assert len(set(writers)) == 2

    run(scenario([data]))
    run(scenario([data[at : at + 1] for at in range(len(data))]))


def forwarded(request: bytes, **config: object) -> BackendRequest:
    """Return what the backend has received of one request."""

    async def scenario() -> BackendRequest:
        async with world(**config) as w:
            connection = await w.connect()
            connection.writer.write(request)
            assert (await connection.read_response())[0] == 200
            (received,) = w.backends[0].received
            return received

    return run(scenario())


CHUNKS = b"5;x=y\r\n" + BODY[:5] + b"\r\n%x\r\n" % len(BODY[5:]) + BODY[5:] + b"\r\n0\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(BODY)
FORWARDED = {
    "chunks": b"POST %b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n%b\r\n" % (PATH, CHUNKS),
    "a URL": b"POST http://other%b HTTP/1.1\r\nHost: a\r\n%b\r\n%b" % (PATH, LENGTH, BODY),
    "an offer to upgrade": b"POST %b HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\n%b\r\n%b"
    % (PATH, LENGTH, BODY),
    "HTTP/1.0": b"POST %b HTTP/1.0\r\n%b\r\n%b" % (PATH, LENGTH, BODY),
    "a header named by Connection": b"POST %b HTTP/1.1\r\nHost: a\r\nConnection: x-y\r\nX-Y: z\r\n%b\r\n%b"
    % (PATH, LENGTH, BODY),
}


@pytest.mark.parametrize("what", FORWARDED)
def test_what_is_forwarded_has_one_length_and_one_host(what: str) -> None:
    received = forwarded(FORWARDED[what])
    names = [line.split(b":")[0] for line in received.head.split(b"\r\n")[1:]]
    assert received.body == BODY
    assert received.head.startswith(b"POST %b HTTP/1.1\r\nhost: 127.0.0.1:" % PATH)
    assert (names.count(b"host"), names.count(b"content-length")) == (1, 1)
    assert not {b"transfer-encoding", b"connection", b"upgrade", b"x-y", b"trailer"} & set(names)


def test_a_trailer_gives_no_key_no_tenant_and_no_class_and_is_not_forwarded() -> None:
    trailers = b"authorization: Bearer secret\r\nx-smg-tenant-id: rich\r\nx-smg-priority: system\r\nx-other: y\r\n"
    request = b"POST %b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" % PATH + CHUNKS + trailers + b"\r\n"

    async def locked() -> int:
        async with world(api_key="secret") as w:
            connection = await w.connect()
            connection.writer.write(request)
            return (await connection.read_response())[0]

    async def open_to_all() -> tuple[dict[bytes, bytes], list[str], int]:
        async with world(trust_tenant_header=True) as w:
            connection = await w.connect()
            connection.writer.write(request)
            await connection.read_response()
            system = w.state.classes["system"].arrived
            return w.backends[0].received[0].headers, list(w.state.tenants), system

    assert run(locked()) == 401
    headers, tenants, system = run(open_to_all())
    assert not {b"authorization", b"x-smg-tenant-id", b"x-smg-priority", b"x-other"} & set(headers)
    assert (tenants, system) == ([], 0)
