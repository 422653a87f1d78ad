"""The rules of RFC 9112 that protect a proxy, for requests: bytes in, events out, whole and cut at every byte."""

from __future__ import annotations

import pytest
from exchanges import MAX_HEAD, cuts, serve

from maitred.wire.framing import SLICE_BYTES
from maitred.wire.messages import END, FramingError, FramingMisuse, State
from maitred.wire.server_framing import ServerFraming

HOST = b"Host: a\r\n"
GET = b"GET / HTTP/1.1\r\n"
POST = b"POST / HTTP/1.1\r\n" + HOST
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"

REFUSED = {
    # RFC 9112, 2.3 and 3: the request line
    "no version": (b"GET /\r\n\r\n", 400),
    "HTTP/0.9": (b"GET / HTTP/0.9\r\n" + HOST + b"\r\n", 400),
    "HTTP/2.0": (b"GET / HTTP/2.0\r\n" + HOST + b"\r\n", 505),
    "HTTP/1.2": (b"GET / HTTP/1.2\r\n" + HOST + b"\r\n", 400),
    "RTSP": (b"GET / RTSP/1.0\r\n" + HOST + b"\r\n", 400),
    "RTSP/1.1": (b"POST / RTSP/1.1\r\n" + HOST + b"Content-Length: 0\r\n\r\n", 400),
    "a method of RTSP": (b"DESCRIBE / RTSP/1.0\r\n" + HOST + b"\r\n", 400),
    "ICE": (b"SOURCE / ICE/1.0\r\n" + HOST + b"\r\n", 400),
    "RTSP with an offer to upgrade": (b"GET / RTSP/1.1\r\n" + HOST + b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\n", 400),
    "two spaces before the target": (b"GET  / HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "http in lower case": (b"GET / http/1.1\r\n" + HOST + b"\r\n", 400),
    "the preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "a space behind the version": (b"GET / HTTP/1.1 \r\n" + HOST + b"\r\n", 400),
    "a tab behind the method": (b"GET\t/ HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "a method in lower case": (b"get / HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    # 3.2: targets
    "a fragment": (b"GET /a#b HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "another scheme": (b"GET ftp://a/b HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "a tunnel": (b"CONNECT a:80 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "bytes above ASCII": (b"GET /\xc3\xa9 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "a space in the target": (b"GET /a b HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "a tab in the target": (b"GET /a\tb HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "a carriage return in the target": (b"GET /a\rb HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "a control character in the target": (b"GET /a\x7fb HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "no target": (b"GET HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "a target without a slash": (b"GET a/b HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "a URL without a host": (b"GET http:///a HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "a host and a port without CONNECT (3.2.3)": (b"GET a:80 HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    "an asterisk without OPTIONS (3.2.4)": (b"GET * HTTP/1.1\r\n" + HOST + b"\r\n", 400),
    # 3.2: Host
    "a Host with a user": (GET + b"Host: u@a\r\n\r\n", 400),
    "a Host with a space": (GET + b"Host: a b\r\n\r\n", 400),
    "a Host with a port that is none": (GET + b"Host: a:x\r\n\r\n", 400),
    "no Host": (GET + b"\r\n", 400),
    "two Hosts": (GET + HOST + HOST + b"\r\n", 400),
    "two Hosts that differ": (GET + HOST + b"Host: b\r\n\r\n", 400),
    "a Host that is none": (GET + b"Host: a/b\r\n\r\n", 400),
    "two Hosts with an offer to upgrade": (GET + HOST + HOST + b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\n", 400),
    "two Hosts in one": (GET + b"Host: a, b\r\n\r\n", 400),
    "two Hosts with HTTP/1.0": (b"GET / HTTP/1.0\r\n" + HOST + HOST + b"\r\n", 400),
    # 2.2 and 5: lines and fields
    "a bare line feed behind the request line": (b"GET / HTTP/1.1\n" + HOST + b"\r\n", 400),
    "a bare line feed behind a header": (GET + b"Host: a\nx: y\r\n\r\n", 400),
    "a bare carriage return in a header": (GET + b"Host: a\rb\r\n\r\n", 400),
    "a space before the first header": (GET + b" Host: a\r\n\r\n", 400),
    "a space before a colon": (GET + HOST + b"Content-Length : 3\r\n\r\nabc", 400),
    "a space before the colon of a coding": (POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400),
    "a tab before the colon of a coding": (POST + b"Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n", 400),
    "a coding in a folded line": (POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", 400),
    "a space in a name": (GET + HOST + b"x y: z\r\n\r\n", 400),
    "a zero byte in a name": (GET + HOST + b"x\0y: z\r\n\r\n", 400),
    "a parenthesis in a name": (GET + HOST + b"x(y): z\r\n\r\n", 400),
    "a byte above ASCII in a name": (GET + HOST + b"x\xe9: z\r\n\r\n", 400),
    "a control character in a value": (GET + HOST + b"x: a\x01b\r\n\r\n", 400),
    "two carriage returns behind a header": (GET + b"Host: a\r\r\n\r\n", 400),
    "a bare line feed behind the head": (GET + HOST + b"\n", 400),
    "a folded line": (GET + HOST + b"x: a\r\n b\r\n\r\n", 400),
    "no colon": (GET + HOST + b"x\r\n\r\n", 400),
    "no name": (GET + HOST + b": x\r\n\r\n", 400),
    "a zero byte": (GET + HOST + b"x: a\0b\r\n\r\n", 400),
    # 6.1: transfer codings
    "gzip, chunked": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    "gzip, chunked, with an offer to upgrade": (
        POST + b"Connection: upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        501,
    ),
    "gzip and chunked in two lines": (POST + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501),
    "chunked, gzip": (POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", 400),
    "chunked twice": (POST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 400),
    "two lines with chunked": (POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "identity": (POST + b"Transfer-Encoding: identity\r\n\r\nabc", 501),
    "xchunked": (POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501),
    "chunked in quotes": (POST + b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n', 501),
    "chunked with a parameter": (POST + b"Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n", 501),
    "chunked behind a vertical tab": (POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400),
    "chunked and nothing": (POST + b"Transfer-Encoding: chunked,\r\n\r\n0\r\n\r\n", 400),
    "nothing and chunked": (POST + b"Transfer-Encoding: , chunked\r\n\r\n0\r\n\r\n", 501),
    "no coding": (POST + b"Transfer-Encoding:\r\n\r\n0\r\n\r\n", 400),
    "chunked with HTTP/1.0": (b"POST / HTTP/1.0\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    # 6.3: lengths
    "a length and chunks": (POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "chunks and a length": (POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 400),
    "two lengths": (POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
    "the same length twice": (POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400),
    "a list of lengths": (POST + b"Content-Length: 3, 3\r\n\r\nabc", 400),
    "a length with a sign": (POST + b"Content-Length: +3\r\n\r\nabc", 400),
    "a negative length": (POST + b"Content-Length: -3\r\n\r\nabc", 400),
    "a length in hexadecimal": (POST + b"Content-Length: 0x3\r\n\r\nabc", 400),
    "an empty length": (POST + b"Content-Length:\r\n\r\nabc", 400),
    "two lengths with a space between": (POST + b"Content-Length: 3 3\r\n\r\nabc", 400),
    "a length with letters behind it": (POST + b"Content-Length: 3abc\r\n\r\nabc", 400),
    "a length with an underscore": (POST + b"Content-Length: 1_0\r\n\r\nabcdefghij", 400),
    "a length with a point": (POST + b"Content-Length: 3.0\r\n\r\nabc", 400),
    "a length in digits of another script": (POST + b"Content-Length: \xd9\xa3\r\n\r\nabc", 400),
    "a length that no number holds": (POST + b"Content-Length: 99999999999999999999\r\n\r\nabc", 400),
}

CHUNK = {
    "a size with a prefix": b"0x1\r\na\r\n",
    "a negative size": b"-1\r\na\r\n",
    "a size that no number holds": b"10000000000000001\r\na\r\n",
    "no size": b"\r\na\r\n",
    "a space behind the size": b"1 \r\na\r\n",
    "a bare line feed behind the size": b"1\na\r\n",
    "a bare line feed in an extension": b"1;a\nb\r\na\r\n",
    "more data than declared": b"1\r\nab\r\n",
    "a bare line feed behind the data": b"1\r\na\n",
    "a size with a sign": b"+1\r\na\r\n",
    "a size with an underscore": b"1_0\r\naaaaaaaaaaaaaaaa\r\n",
    "a space before the size": b" 1\r\na\r\n",
    "a bare carriage return in an extension": b"1;a\rb\r\na\r\n",
    "a line end in quotes in an extension": b'1;a="\r\n"\r\na\r\n',
    "a bare line feed behind the last size": b"0\n\r\n",
    "a bare line feed behind the trailers": b"0\r\n\n",
    "a bare line feed in the trailers": b"0\r\nx: y\n\r\n",
    "a space before the colon of a trailer": b"0\r\nx : y\r\n\r\n",
    "a folded trailer": b"0\r\nx: y\r\n z\r\n\r\n",
    "a trailer without a colon": b"0\r\nx\r\n\r\n",
    "a zero byte in a trailer": b"0\r\nx: \0\r\n\r\n",
    "a length in the trailers": b"0\r\nContent-Length: 9\r\n\r\n",
    "a coding in the trailers": b"0\r\nTransfer-Encoding: chunked\r\n\r\n",
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_proxy_must_refuse(what: str) -> None:
    data, status = REFUSED[what]
    for pieces in cuts(data):
        assert serve(pieces) == [status], pieces


@pytest.mark.parametrize("what", CHUNK)
def test_chunks_that_are_none(what: str) -> None:
    for pieces in cuts(CHUNKED + CHUNK[what]):
        events = serve(pieces)
        assert events[0] == ("POST", b"/", [(b"host", b"a"), (b"transfer-encoding", b"chunked")])
        assert events[-1] == 400
        assert "end" not in events


HEAD = ("GET", b"/", [(b"host", b"a")])
ACCEPTED = {
    "a request": (GET + HOST + b"\r\n", [HEAD, "end"]),
    "empty lines before it (2.2)": (b"\r\n\r\n" + GET + HOST + b"\r\n", [HEAD, "end"]),
    "a URL (3.2.2)": (b"GET http://b/x?y HTTP/1.1\r\n" + HOST + b"\r\n", [("GET", b"/x?y", [(b"host", b"a")]), "end"]),
    "a URL with its scheme in capitals": (
        b"GET HTTP://b/x HTTP/1.1\r\n" + HOST + b"\r\n",
        [("GET", b"/x", [(b"host", b"a")]), "end"],
    ),
    "a URL without a path": (b"GET http://b HTTP/1.1\r\n" + HOST + b"\r\n", [HEAD, "end"]),
    "an asterisk (3.2.4)": (b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n", [("OPTIONS", b"*", [(b"host", b"a")]), "end"]),
    "an empty Host": (GET + b"Host:\r\n\r\n", [("GET", b"/", [(b"host", b"")]), "end"]),
    "an IPv6 Host": (GET + b"Host: [::1]:80\r\n\r\n", [("GET", b"/", [(b"host", b"[::1]:80")]), "end"]),
    "HTTP/1.0 without a Host": (b"GET / HTTP/1.0\r\n\r\n", [("GET", b"/", []), "end"]),
    "names in any case (5.1)": (GET + b"hOSt: a\r\nX-Y: Z\r\n\r\n", [("GET", b"/", [(b"host", b"a"), (b"x-y", b"Z")]), "end"]),
    "chunked in any case (7)": (
        POST + b"Transfer-Encoding: CHUNKED\r\n\r\n1\r\na\r\n0\r\n\r\n",
        [("POST", b"/", [(b"host", b"a"), (b"transfer-encoding", b"CHUNKED")]), b"a", "end"],
    ),
    "a length": (
        POST + b"Content-Length: 3\r\n\r\nabc",
        [("POST", b"/", [(b"host", b"a"), (b"content-length", b"3")]), b"abc", "end"],
    ),
    "chunks, extensions ignored (7.1.1)": (
        CHUNKED + b"3;a=b\r\nabc\r\n2\r\nde\r\n0;x\r\n\r\n",
        [("POST", b"/", [(b"host", b"a"), (b"transfer-encoding", b"chunked")]), b"abcde", "end"],
    ),
    "a length with zeros before it (6.2)": (
        POST + b"Content-Length: 003\r\n\r\nabc" + GET + HOST + b"\r\n",
        [("POST", b"/", [(b"host", b"a"), (b"content-length", b"003")]), b"abc", "end", HEAD, "end"],
    ),
    "a body of GET is a body (6)": (
        GET + HOST + b"Content-Length: 3\r\n\r\nabc" + GET + HOST + b"\r\n",
        [("GET", b"/", [(b"host", b"a"), (b"content-length", b"3")]), b"abc", "end", HEAD, "end"],
    ),
    "no length is no body (6.3)": (POST + b"\r\n" + GET + HOST + b"\r\n", [("POST", b"/", HEAD[2]), "end", HEAD, "end"]),
    "a close among other options, in any case (9.6)": (
        GET + HOST + b"Connection: x, CLOSE\r\n\r\n" + GET + HOST + b"\r\n",
        [("GET", b"/", [(b"host", b"a"), (b"connection", b"x, CLOSE")]), "end"],
    ),
    "a connection of HTTP/1.0 is not kept, whatever it says (9.3)": (
        b"GET / HTTP/1.0\r\n" + HOST + b"Connection: keep-alive\r\n\r\n" + GET + HOST + b"\r\n",
        [("GET", b"/", [(b"host", b"a"), (b"connection", b"keep-alive")]), "end"],
    ),
    "bytes above ASCII in a value (5.5)": (
        GET + HOST + b"x: \xe9\r\n\r\n",
        [("GET", b"/", [(b"host", b"a"), (b"x", b"\xe9")]), "end"],
    ),
    "two requests (9.3.2)": ((GET + HOST + b"\r\n") * 2, [HEAD, "end"] * 2),
    "what follows a close is not looked at (9.6)": (
        GET + HOST + b"Connection: close\r\n\r\n" + GET + HOST + b"\r\n",
        [("GET", b"/", [(b"host", b"a"), (b"connection", b"close")]), "end"],
    ),
    "an offer to upgrade is ignored (RFC 9110, 7.8)": (
        POST + b"Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 2\r\n\r\nab" + GET + HOST + b"\r\n",
        [("POST", b"/", [(b"host", b"a"), (b"connection", b"upgrade"), (b"content-length", b"2")]), b"ab", "end", HEAD, "end"],
    ),
}


@pytest.mark.parametrize("what", ACCEPTED)
def test_what_is_served_and_how_it_is_understood(what: str) -> None:
    data, expected = ACCEPTED[what]
    for pieces in cuts(data):
        assert serve(pieces) == expected, pieces


def test_a_large_body_ends_where_its_length_says() -> None:
    body = bytes(range(256)) * 40
    head = POST + b"Content-Length: %d\r\n" % len(body)
    for further in (b"", b"Connection: close\r\n"):
        data = head + further + b"\r\n" + body + GET + HOST + b"\r\n"
        begin = len(head + further) + 2
        ends = {begin, begin + 1, begin + SLICE_BYTES, begin + len(body) - 1, begin + len(body), begin + len(body) + 1}
        cut = [[data[:at], data[at:]] for at in sorted({*ends, *range(1, len(data), 997)})]
        for pieces in ([data], [data[at : at + 1000] for at in range(0, len(data), 1000)], *cut):
            (method, _, _), received, *rest = serve(pieces)
            assert (method, received) == ("POST", body)
            assert rest == (["end"] if further else ["end", HEAD, "end"])


def test_a_large_body_is_copied_once() -> None:
    body = b"x" * 200_000
    head = POST + b"Content-Length: %d\r\n\r\n" % len(body)
    framing = ServerFraming(MAX_HEAD)
    assert framing.receive_data(head + body)[1:] == [body, END]  # One piece, which needs no joining.
    framing = ServerFraming(MAX_HEAD)
    framing.receive_data(head + body[:1])
    rest = body[1:]
    assert framing.receive_data(rest)[0] is rest


def test_trailers_are_never_headers() -> None:
    data = CHUNKED + b"1\r\na\r\n0\r\nAuthorization: Bearer x\r\nx-smg-priority: system\r\n\r\n" + GET + HOST + b"\r\n"
    for pieces in cuts(data):
        head, *rest = serve(pieces)
        assert head == ("POST", b"/", [(b"host", b"a"), (b"transfer-encoding", b"chunked")])
        assert rest == [b"a", "end", HEAD, "end"]


def endless(*pieces: bytes, repeated: bytes, status: int) -> int:
    """Return how many bytes of an endless message are taken before it is refused."""
    framing = ServerFraming(MAX_HEAD)
    for piece in pieces:
        framing.receive_data(piece)
    size = 0
    while size < 100 * MAX_HEAD:
        events = framing.receive_data(repeated)
        size += len(repeated)
        if framing.peer is State.ERROR:
            assert getattr(events[-1], "status", None) == status
            return size
    raise AssertionError("it was never refused")


ENDLESS = {
    "a target": ((b"GET /",), b"a" * 1000, 431),
    "a header": ((GET + b"x: ",), b"a" * 1000, 431),
    "the name of a header": ((GET,), b"a" * 1000, 431),
    "headers": ((GET,), b"x: y\r\n" * 100, 431),
    "trailers": ((CHUNKED + b"1\r\na\r\n0\r\n",), b"x: y\r\n" * 100, 400),
    "trailers behind much data": ((CHUNKED, b"fff0\r\n%b\r\n0\r\n" % bytes(0xFFF0)), b"x: y\r\n" * 100, 400),
    "a trailer": ((CHUNKED + b"1\r\na\r\n0\r\nx: ",), b"a" * 1000, 400),
    "an extension": ((CHUNKED + b"1;",), b"a" * 1000, 400),
    "extensions": ((CHUNKED,), (b"1;" + b"x" * 500 + b"\r\na\r\n") * 10, 400),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_nothing_beside_the_body_is_endless(what: str) -> None:
    begin, repeated, status = ENDLESS[what]
    assert endless(*begin, repeated=repeated, status=status) <= 2 * MAX_HEAD + 10_000


def test_small_chunks_are_no_offence() -> None:
    framing = ServerFraming(MAX_HEAD)
    framing.receive_data(CHUNKED)
    for _ in range(100):
        assert len(framing.receive_data(b"1\r\na\r\n" * 1000)) >= 1000 - 1
    assert framing.receive_data(b"0\r\n\r\n")[-1] is END


def test_a_flood_of_requests_is_parsed_one_slice_at_a_time() -> None:
    framing, one = ServerFraming(MAX_HEAD), GET + HOST + b"\r\n"
    assert len(framing.receive_data(one * 14_000)) == 2
    parsed = len(framing._inbox) // 2 + 1
    assert parsed <= SLICE_BYTES // len(one) + 1
    assert framing.pending_bytes >= len(one) * (14_000 - parsed - 1)
    framing.receive_data(one)
    assert len(framing._inbox) // 2 + 1 == parsed  # what comes later is not parsed either
    framing.receive_eof()
    assert (framing.pending_bytes, framing._parser) == (0, None)


def test_a_fault_behind_a_request_waits_for_its_answer() -> None:
    framing = ServerFraming(MAX_HEAD)
    assert framing.receive_data(GET + HOST + b"\r\n" + b"\0\0\r\n")[-1] is END
    assert framing.peer is State.DONE
    framing.start_response(200, [])
    framing.send_data(b"", False)
    (fault,) = framing.next_exchange()
    assert getattr(fault, "status", None) == 400


def test_what_the_server_sends_depends_on_the_client() -> None:
    def answered(request: bytes, status: int = 200, *headers: tuple[bytes, bytes]) -> bytes:
        framing = ServerFraming(MAX_HEAD)
        framing.receive_data(request)
        return framing.start_response(status, list(headers)) + framing.send_data(b"ab", False)

    length = (b"content-length", b"2")
    assert answered(GET + HOST + b"\r\n") == b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"
    assert answered(GET + HOST + b"\r\n", 200, length) == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nab"
    assert answered(b"GET / HTTP/1.0\r\n\r\n") == b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nab"
    assert answered(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", 200, length) == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"
    assert answered(GET + HOST + b"\r\n", 204) == b"HTTP/1.1 204 No Content\r\n\r\n"
    close = GET + HOST + b"Connection: close\r\n\r\n"
    assert answered(close, 200, length) == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nab"


@pytest.mark.parametrize("value", [b"a\r\nx: y", b"a\nb", b"a\rb"])
def test_a_line_end_in_a_header_of_a_response_is_never_sent(value: bytes) -> None:
    framing = ServerFraming(MAX_HEAD)
    framing.receive_data(GET + HOST + b"\r\n")
    with pytest.raises(FramingMisuse):
        framing.start_response(200, [(b"x", value)])


@pytest.mark.parametrize("body", [b"abc", b"a"])
def test_a_body_is_as_long_as_its_head_says(body: bytes) -> None:
    framing = ServerFraming(MAX_HEAD)
    framing.receive_data(GET + HOST + b"\r\n")
    framing.start_response(200, [(b"content-length", b"2")])
    with pytest.raises(FramingMisuse):
        framing.send_data(body, False)


def test_an_end_sends_only_what_its_state_allows() -> None:
    framing = ServerFraming(MAX_HEAD)
    with pytest.raises(FramingMisuse):
        framing.send_data(b"", True)
    framing.receive_data(GET + HOST + b"\r\n")
    with pytest.raises(FramingMisuse):
        framing.next_exchange()
    framing.start_response(200, [])
    with pytest.raises(FramingMisuse):
        framing.start_response(200, [])
    framing.send_data(b"", False)
    with pytest.raises(FramingMisuse):
        framing.send_data(b"", True)


@pytest.mark.parametrize("line", [b"Host: a\r\n", b"Transfer-Encoding: chunked\r\n"])
def test_of_a_header_that_may_stand_once_thousands_are_not_kept(line: bytes) -> None:
    framing = ServerFraming(65_536)
    (error,) = framing.receive_data(GET + line * 1_500 + b"\r\n")
    assert isinstance(error, FramingError)
    assert len(framing._headers) < 20
