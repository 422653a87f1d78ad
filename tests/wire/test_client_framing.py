"""Where a response begins and ends: every framing of HTTP/1.1, and everything that must be refused."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest
from raw_upstream import Peer, answering, client, read_into, read_whole, run, upstream

from maitred.wire.errors import Disconnected, ProtocolError, Truncated, UpstreamError

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n1;ext=1\r\nd\r\n0\r\n\r\n"


async def fetch(answer: bytes, method: str = "POST", **limits: int) -> tuple[int, bytes]:
    async with upstream(answering(answer)) as up, client(**limits) as c:
        response = await c.request(up.origin, method, "/")
        return response.status, await read_whole(response)


def test_content_length() -> None:
    assert run(fetch(b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\nhello")) == (404, b"hello")


def test_empty_body() -> None:
    assert run(fetch(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")) == (200, b"")


def test_the_request_as_it_goes_out() -> None:
    async def scenario() -> tuple[bytes, bytes]:
        seen: list[tuple[bytes, bytes]] = []

        async def script(peer: Peer) -> None:
            seen.append(await peer.request())
            await peer.send(OK)

        async with upstream(script) as up, client() as c:
            await read_whole(await c.request(up.origin, "POST", "/v1/x?y=1", [(b"a", b"b")], b"body"))
            port = str(up.origin.port).encode()
            return seen[0][0].replace(port, b"PORT"), seen[0][1]

    head, body = run(scenario())
    assert head == b"POST /v1/x?y=1 HTTP/1.1\r\nhost: 127.0.0.1:PORT\r\na: b\r\ncontent-length: 4\r\n\r\n"
    assert body == b"body"


def test_header_names_come_in_lower_case_in_order_and_repeated() -> None:
    async def scenario() -> list[tuple[bytes, bytes]]:
        answer = b"HTTP/1.1 200 OK\r\nX-B: 1\r\nset-cookie: a\r\nSet-Cookie: b\r\nContent-Length: 0\r\n\r\n"
        async with upstream(answering(answer)) as up, client() as c:
            return (await c.request(up.origin, "POST", "/")).headers

    names = [(b"x-b", b"1"), (b"set-cookie", b"a"), (b"set-cookie", b"b"), (b"content-length", b"0")]
    assert run(scenario()) == names


def test_chunked_split_at_every_byte() -> None:
    async def scenario() -> None:
        async def script(peer: Peer) -> None:
            for cut in range(1, len(CHUNKED)):
                await peer.request()
                await peer.send(CHUNKED[:cut])
                await let_peer_read()
                await peer.send(CHUNKED[cut:])

        async with upstream(script) as up, client() as c:
            for _ in range(1, len(CHUNKED)):
                assert await read_whole(await c.request(up.origin, "POST", "/")) == b"abcd"
            assert up.accepted == 1

    run(scenario())


async def let_peer_read() -> None:
    """Let the client read what was sent so far, so that it arrives alone."""
    for _ in range(5):
        await asyncio.sleep(0.0005)


def test_chunked_byte_by_byte() -> None:
    async def scenario() -> bytes:
        async def script(peer: Peer) -> None:
            await peer.request()
            for byte in CHUNKED:
                await peer.send(bytes([byte]))
                await let_peer_read()

        async with upstream(script) as up, client() as c:
            return await read_whole(await c.request(up.origin, "POST", "/"))

    assert run(scenario()) == b"abcd"


def test_pieces_that_arrive_together_are_one() -> None:
    async def scenario() -> list[bytes]:
        async with upstream(answering(CHUNKED)) as up, client() as c:
            return [piece async for piece in await c.request(up.origin, "POST", "/")]

    assert run(scenario()) == [b"abcd"]


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    assert run(fetch(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nall there is")) == (200, b"all there is")


def test_a_body_without_a_length_that_ends_in_a_reset_is_cut_short() -> None:
    async def scenario() -> None:
        async def script(peer: Peer) -> None:
            await peer.request()
            await peer.send(b"HTTP/1.1 200 OK\r\n\r\nsome")
            await let_peer_read()
            sock = peer.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            peer.reset()

        async with upstream(script) as up, client() as c:
            await read_whole(await c.request(up.origin, "POST", "/"))

    with pytest.raises(Truncated):
        run(scenario())


@pytest.mark.parametrize("informational", [b"100 Continue", b"102 Processing", b"103 Early Hints\r\nlink: </x>"])
def test_informational_responses_are_skipped(informational: bytes) -> None:
    assert run(fetch(b"HTTP/1.1 " + informational + b"\r\n\r\n" + OK)) == (200, b"ok")


def test_informational_headers_do_not_reach_the_final_response() -> None:
    async def scenario() -> list[tuple[bytes, bytes]]:
        async with upstream(answering(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" + OK)) as up, client() as c:
            return (await c.request(up.origin, "POST", "/")).headers

    assert run(scenario()) == [(b"content-length", b"2")]


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_statuses_that_have_no_body_leave_the_connection_usable(status: bytes) -> None:
    async def scenario() -> int:
        async with upstream(answering(b"HTTP/1.1 " + status + b"\r\n\r\n", OK)) as up, client() as c:
            assert await read_whole(await c.request(up.origin, "POST", "/")) == b""
            assert await read_whole(await c.request(up.origin, "POST", "/")) == b"ok"
            return up.accepted

    assert run(scenario()) == 1


def test_head_has_no_body_whatever_its_length_says() -> None:
    assert run(fetch(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n", method="HEAD")) == (200, b"")


REFUSED = {
    "garbage": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "both a length and chunks": b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and then a length": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
    "two lengths in one": b"HTTP/1.1 200 OK\r\nContent-Length: 4, 5\r\n\r\nabcde",
    "a negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
    "another coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nabc",
    "chunked twice": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a switch of protocols": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    "a switch of protocols that does not say to which": b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    "a status of three zeros": b"HTTP/1.1 000 What\r\nContent-Length: 0\r\n\r\n",
    "a status that is none": b"HTTP/1.1 999 What\r\nContent-Length: 0\r\n\r\n",
    "a large header": b"HTTP/1.1 200 OK\r\nx: " + b"a" * 2_000 + b"\r\nContent-Length: 0\r\n\r\n",
    "many headers": b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 300 + b"Content-Length: 0\r\n\r\n",
    "a header without an end": b"HTTP/1.1 200 OK\r\nx: " + b"a" * 2_000,
    "endless informational responses": b"HTTP/1.1 100 Continue\r\nx: y\r\n\r\n" * 300,
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    with pytest.raises(ProtocolError):
        run(fetch(REFUSED[what], max_head=1_000))


SECRET = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nSECRET"
CHUNKED_SECRET = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nSECRET\r\n0\r\n\r\n"


@pytest.mark.parametrize("answer", [OK, CHUNKED])
@pytest.mark.parametrize("after", [SECRET, CHUNKED_SECRET, b"SECRET", OK + SECRET])
def test_what_follows_a_response_in_the_same_read_is_no_part_of_it(answer: bytes, after: bytes) -> None:
    assert run(fetch(answer + after)) == run(fetch(answer))


def test_a_bad_chunk_ends_the_response_with_an_error_after_what_was_good() -> None:
    async def scenario() -> list[bytes]:
        answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n"
        pieces: list[bytes] = []
        async with upstream(answering(answer)) as up, client() as c:
            response = await c.request(up.origin, "POST", "/")
            with pytest.raises(ProtocolError):
                await read_into(pieces, response)
        return pieces

    assert run(scenario()) == [b"abc"]


CUT_SHORT = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc",
    "chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
    "last chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    "end of the last chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n",
}


@pytest.mark.parametrize("what", CUT_SHORT)
def test_a_body_cut_short_is_never_a_clean_end(what: str) -> None:
    async def scenario() -> list[bytes]:
        pieces: list[bytes] = []
        async with upstream(answering(CUT_SHORT[what])) as up, client() as c:
            response = await c.request(up.origin, "POST", "/")
            with pytest.raises(Truncated):
                await read_into(pieces, response)
        return pieces

    assert run(scenario()) == [b"abc"]


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 2", b"HTTP/1.1 200 OK\r\ncontent-le"])
def test_closed_before_the_head(begun: bytes) -> None:
    with pytest.raises(Disconnected):
        run(fetch(begun))


def test_a_header_with_a_line_end_is_never_sent() -> None:
    async def scenario() -> None:
        async with upstream(answering(OK)) as up, client() as c:
            await c.request(up.origin, "POST", "/", [(b"a", b"b\r\nevil: 1")])

    with pytest.raises(ValueError, match="line end"):
        run(scenario())


def test_every_failure_is_an_upstream_error_with_a_reason() -> None:
    kinds = [UpstreamError, *UpstreamError.__subclasses__()]
    assert len({kind.reason for kind in kinds}) == len(kinds) >= 7
