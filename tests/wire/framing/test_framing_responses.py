"""The rules of RFC 9112 that protect a proxy, for responses: bytes in, events out, whole and cut at every byte."""

from __future__ import annotations

import pytest
from exchanges import MAX_HEAD, ask, cuts
from test_framing_requests import CHUNK

from maitred.wire.client_framing import ClientFraming
from maitred.wire.messages import END, FramingMisuse, State

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"

REFUSED = {
    "HTTP/2.0": b"HTTP/2.0 200 OK\r\nContent-Length: 1\r\n\r\na",
    "HTTP/0.9": b"abc",
    "RTSP": b"RTSP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na",
    "RTSP/1.1": b"RTSP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na",
    "ICE": b"ICE/1.0 200 OK\r\nContent-Length: 1\r\n\r\na",
    "another protocol": b"ICY 200 OK\r\n\r\n",
    "a switch of protocols": b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    "a status of four digits": b"HTTP/1.1 0200 OK\r\n\r\n",
    "a status of two digits": b"HTTP/1.1 99 OK\r\n\r\n",
    "a status beyond 599": b"HTTP/1.1 600 X\r\n\r\n",
    "a length and chunks (6.3)": OK + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths (6.3)": OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "the same length twice": OK + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\na",
    "a list of lengths": OK + b"Content-Length: 1, 1\r\n\r\na",
    "a length with a sign": OK + b"Content-Length: +1\r\n\r\na",
    "another coding (6.1)": OK + b"Transfer-Encoding: gzip\r\n\r\nabc",
    "gzip, chunked": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunks with HTTP/1.0 (6.1)": b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a bare line feed": b"HTTP/1.1 200 OK\nContent-Length: 1\n\na",
    "a folded line": OK + b"x: a\r\n b\r\n\r\n",
    "a space before a colon": OK + b"Content-Length : 1\r\n\r\na",
    "a space before the first header": OK + b" x: y\r\n\r\n",
    "no colon": OK + b"x\r\n\r\n",
    "no name": OK + b": x\r\n\r\n",
    "a space in a name": OK + b"x y: z\r\n\r\n",
    "a bare carriage return in a header": OK + b"x: a\rb\r\n\r\n",
    "a zero byte": OK + b"x: a\0b\r\n\r\n",
    "no status": b"HTTP/1.1 OK\r\n\r\n",
    "a letter in the status": b"HTTP/1.1 2x0 OK\r\n\r\n",
    "a tab before the status": b"HTTP/1.1\t200 OK\r\n\r\n",
    "HTTP/1.2": b"HTTP/1.2 200 OK\r\nContent-Length: 1\r\n\r\na",
    "a length with an underscore": OK + b"Content-Length: 1_0\r\n\r\nabcdefghij",
    "a negative length": OK + b"Content-Length: -1\r\n\r\n",
    "an empty length": OK + b"Content-Length:\r\n\r\n",
    "chunks and a length (6.3)": OK + b"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n0\r\n\r\n",
    "chunked twice": OK + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "two lines with chunked": OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked behind a vertical tab": OK + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "no coding": OK + b"Transfer-Encoding:\r\n\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_proxy_must_refuse(what: str) -> None:
    for pieces in cuts(REFUSED[what]):
        events, reusable = ask(pieces)
        assert isinstance(events[-1], int), pieces
        assert "end" not in events
        assert not reusable


@pytest.mark.parametrize("what", sorted(CHUNK.keys() - {"a coding in the trailers"}))  # It is dropped like any other trailer.
def test_chunks_that_are_none(what: str) -> None:
    for pieces in cuts(CHUNKED + CHUNK[what]):
        events, reusable = ask(pieces)
        assert isinstance(events[-1], int), pieces
        assert "end" not in events
        assert not reusable


HEAD = (200, [(b"content-length", b"1")])
ENDED = {
    "a length": (OK + b"Content-Length: 1\r\n\r\na", [HEAD, b"a", "end"], True),
    "chunks": (CHUNKED + b"1\r\na\r\n0\r\n\r\n", [(200, [(b"transfer-encoding", b"chunked")]), b"a", "end"], True),
    "no body (204)": (b"HTTP/1.1 204 X\r\n\r\n", [(204, []), "end"], True),
    "no body, whatever the head says (304)": (
        b"HTTP/1.1 304 X\r\nContent-Length: 5\r\n\r\n",
        [(304, [(b"content-length", b"5")]), "end"],
        True,
    ),
    "no body, whatever the head says (204)": (
        b"HTTP/1.1 204 X\r\nContent-Length: 5\r\n\r\n",
        [(204, [(b"content-length", b"5")]), "end"],
        True,
    ),
    "no body, though chunks are declared (204)": (
        b"HTTP/1.1 204 X\r\nTransfer-Encoding: chunked\r\n\r\n",
        [(204, [(b"transfer-encoding", b"chunked")]), "end"],
        True,
    ),
    "an interim response with a length": (
        b"HTTP/1.1 103 X\r\nContent-Length: 5\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\na",
        [HEAD, b"a", "end"],
        True,
    ),
    "an interim response before it": (
        b"HTTP/1.1 103 X\r\nx: y\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\na",
        [HEAD, b"a", "end"],
        True,
    ),
    "a close": (
        OK + b"Content-Length: 1\r\nConnection: close\r\n\r\na",
        [(200, [*HEAD[1], (b"connection", b"close")]), b"a", "end"],
        False,
    ),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na", [HEAD, b"a", "end"], False),
    "trailers, which are dropped": (
        CHUNKED + b"1\r\na\r\n0\r\nx: y\r\nset-cookie: z\r\n\r\n",
        [(200, [(b"transfer-encoding", b"chunked")]), b"a", "end"],
        True,
    ),
    "no reason": (b"HTTP/1.1 200\r\nContent-Length: 1\r\n\r\na", [HEAD, b"a", "end"], True),
}


@pytest.mark.parametrize("what", ENDED)
def test_where_a_response_ends(what: str) -> None:
    data, expected, expected_reusable = ENDED[what]
    for pieces in cuts(data):
        assert ask(pieces) == (expected, expected_reusable), pieces


@pytest.mark.parametrize("more", [b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nb", b"H", b"\0", b"\r\n"])
def test_what_follows_a_response_spoils_the_connection_and_not_the_response(more: bytes) -> None:
    events, reusable = ask([OK + b"Content-Length: 1\r\n\r\na" + more])
    assert events == [HEAD, b"a", "end"]
    assert reusable is (more == b"\r\n")  # empty lines before a response belong to none


def test_a_response_to_head_has_no_body_and_its_connection_ends() -> None:
    assert ask([OK + b"Content-Length: 5\r\n\r\n"], "HEAD") == ([(200, [(b"content-length", b"5")]), "end"], False)


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    framing = ClientFraming(MAX_HEAD)
    framing.send_request("GET", "/", "a", [], 0)
    assert END not in framing.receive_data(OK + b"\r\nabc")
    assert framing.receive_eof() == [END]
    assert framing.peer is State.MUST_CLOSE


@pytest.mark.parametrize("what", [b"Content-Length: 5\r\n\r\nabc", b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", b""])
def test_any_other_body_does_not(what: bytes) -> None:
    framing = ClientFraming(MAX_HEAD)
    framing.send_request("GET", "/", "a", [], 0)
    framing.receive_data(OK + what)
    assert END not in framing.receive_eof()


ENDLESS = {
    "a header": (OK + b"x: ", b"a" * 1000),
    "headers": (OK, b"x: y\r\n" * 100),
    "interim responses": (b"", b"HTTP/1.1 103 X\r\n\r\n" * 100),
    "trailers": (CHUNKED + b"1\r\na\r\n0\r\n", b"x: y\r\n" * 100),
    "trailers behind much data": (CHUNKED + b"fff0\r\n%b\r\n0\r\n" % bytes(0xFFF0), b"x: y\r\n" * 100),
    "a trailer": (CHUNKED + b"1\r\na\r\n0\r\nx: ", b"a" * 1000),
    "an extension": (CHUNKED + b"1;", b"a" * 1000),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_nothing_beside_the_body_is_endless(what: str) -> None:
    begin, repeated = ENDLESS[what]
    framing = ClientFraming(MAX_HEAD)
    framing.send_request("GET", "/", "a", [], 0)
    framing.receive_data(begin)
    size = 0
    while framing.peer is not State.ERROR:
        framing.receive_data(repeated)
        size += len(repeated)
        assert size <= 2 * MAX_HEAD + 10_000


def test_a_request_is_written_as_it_must_be() -> None:
    framing = ClientFraming(MAX_HEAD)
    assert framing.send_request("POST", "/x", "a:1", [(b"x", b"y")], 3) == (
        b"POST /x HTTP/1.1\r\nhost: a:1\r\nx: y\r\ncontent-length: 3\r\n\r\n"
    )
    with pytest.raises(FramingMisuse):  # one request at a time
        framing.send_request("GET", "/", "a", [], 0)


@pytest.mark.parametrize("target", ["/\r\nx: y", "/\n"])
def test_a_line_end_never_goes_out(target: str) -> None:
    with pytest.raises(ValueError, match="line end"):
        ClientFraming(MAX_HEAD).send_request("GET", target, "a", [], 0)
    with pytest.raises(ValueError, match="line end"):
        ClientFraming(MAX_HEAD).send_request("GET", "/", "a", [(b"x", target.encode())], 0)
