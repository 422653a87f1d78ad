"""Heads that are known: what is found again, and what is not."""

from __future__ import annotations

import msgspec
import pytest

from maitred.wire.client_framing import ClientFraming
from maitred.wire.known_heads import MAX_HEADS, KnownHeads
from maitred.wire.messages import END, Event, FramingError, RequestHead, ResponseHead
from maitred.wire.server_framing import ServerFraming

MAX_HEAD = 65_536


def post(length: int, *headers: bytes, body: bytes | None = None) -> bytes:
    lines = [b"POST /a%20b?c=d HTTP/1.1", b"Host: a", b"Content-Length: %d" % length, *headers]
    return b"\r\n".join([*lines, b"", b""]) + (b"x" * length if body is None else body)


def receive(known_heads: KnownHeads[RequestHead], data: bytes) -> RequestHead:
    """Return the head of a request that is received on a connection of its own."""
    head = ServerFraming(MAX_HEAD, known_heads).receive_data(data)[0]
    assert type(head) is RequestHead
    return head


def test_a_head_is_known_whatever_the_length_of_the_body() -> None:
    known: KnownHeads[RequestHead] = KnownHeads()
    first, second, third = (receive(known, post(length)) for length in (3, 12_345, 3))
    assert first.memo is not None
    assert first.memo is second.memo is third.memo
    assert (second.length, second.headers) == (12_345, [(b"host", b"a"), (b"content-length", b"12345")])
    assert (third.length, third.headers, third.path, third.query) == (3, first.headers, "/a b", b"c=d")


OTHERS = {
    "another header": post(3, b"x: y"),
    "another value": post(3).replace(b"Host: a", b"Host: b"),
    "another target": post(3).replace(b"c=d", b"c=e"),
    "another version": post(3).replace(b"HTTP/1.1", b"HTTP/1.0"),
    "another case": post(3).replace(b"Content", b"content"),
    "another order": post(3).replace(b"Host: a\r\nContent-Length: 3", b"Content-Length: 3\r\nHost: a"),
}


@pytest.mark.parametrize("what", OTHERS)
def test_a_head_with_anything_else_in_it_is_another(what: str) -> None:
    known: KnownHeads[RequestHead] = KnownHeads()
    assert receive(known, post(3)).memo is not receive(known, OTHERS[what]).memo


@pytest.mark.parametrize(
    "head",
    [
        2 * b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length:3\r\n\r\n",
        post(3, b"x: " + b"y" * 5_000),
        post(3).replace(b"Content-Length: ", b"Content-Length:"),
    ],
    ids=[
        "two requests",
        "the head of chunks",
        "chunks",
        "the head of an unusual length",
        "a long head",
        "written in an unusual way",
    ],
)
def test_a_head_that_is_not_kept(head: bytes) -> None:
    assert receive(KnownHeads(), head).memo is None


PROBE = b"GET /health?a=b HTTP/1.1\r\nHost: a\r\n\r\n"


def test_a_head_without_a_length_is_known_as_it_is() -> None:
    known: KnownHeads[RequestHead] = KnownHeads()
    first, second = receive(known, PROBE), receive(known, PROBE)
    assert first.memo is not None
    assert first.memo is second.memo
    assert (second.length, second.path, second.headers) == (None, "/health", [(b"host", b"a")])
    framing = ServerFraming(MAX_HEAD, known)
    for _ in range(2):
        assert [type(event) for event in framing.receive_data(PROBE)] == [RequestHead, type(END)]
        framing.start_response(200, [])
        framing.send_data(b"", False)
        assert framing.next_exchange() == []
    # What follows in the same read is the next request, and a head in two reads is parsed.
    assert [type(event) for event in framing.receive_data(PROBE + PROBE)] == [RequestHead, type(END)]
    assert framing.pending_bytes or framing._inbox
    halves = ServerFraming(MAX_HEAD, known)
    assert halves.receive_data(PROBE[:20]) == []
    assert [type(event) for event in halves.receive_data(PROBE[20:])] == [RequestHead, type(END)]


def test_a_parser_is_made_with_the_first_bytes_that_it_must_see() -> None:
    known: KnownHeads[RequestHead] = KnownHeads()
    receive(known, PROBE)
    framing = ServerFraming(MAX_HEAD, known)
    framing.receive_data(PROBE)
    assert framing._parser is None
    framing.start_response(200, [])
    framing.send_data(b"", False)
    framing.next_exchange()
    (head, end) = framing.receive_data(PROBE.replace(b"/health", b"/other"))
    assert framing._parser is not None
    assert type(head) is RequestHead
    assert (head.path, end) == ("/other", END)


def test_a_length_without_digits_is_not_found_under_the_head_that_had_some() -> None:
    known: KnownHeads[RequestHead] = KnownHeads()
    receive(known, post(3))
    without = post(3, body=b"").replace(b"Content-Length: 3", b"Content-Length: ")
    for _ in range(2):
        events = ServerFraming(MAX_HEAD, known).receive_data(without)
        assert getattr(events[-1], "status", None) == 400


def test_a_refused_head_is_refused_again() -> None:
    known: KnownHeads[RequestHead] = KnownHeads()
    for _ in range(2):
        events = ServerFraming(MAX_HEAD, known).receive_data(post(3, b"Host: b"))
        assert getattr(events[-1], "status", None) == 400


def test_the_body_of_a_known_head_may_come_in_pieces_with_the_next_request_behind_it() -> None:
    known: KnownHeads[RequestHead] = KnownHeads()
    receive(known, post(3))
    framing = ServerFraming(MAX_HEAD, known)
    head, piece = framing.receive_data(post(6, body=b"ab"))
    assert (getattr(head, "length", None), piece) == (6, b"ab")
    assert framing.receive_data(b"cd") == [b"cd"]
    assert framing.receive_data(b"ef" + post(1, b"x: y")) == [b"ef", END]
    framing.start_response(200, [])
    framing.send_data(b"", False)
    following = framing.next_exchange()
    assert [type(event) for event in following] == [RequestHead, bytes, type(END)]
    assert framing.peer.name == "DONE"


def test_no_more_heads_are_kept_than_the_bound() -> None:
    known: KnownHeads[RequestHead] = KnownHeads()
    for number in range(2 * MAX_HEADS + 5):
        receive(known, post(1, b"x: %d" % number))
    assert len(known._heads) <= MAX_HEADS


def answer(head: bytes, body: bytes = b"") -> bytes:
    return head + b"\r\ncontent-length: %d\r\n\r\n" % len(body) + body


OK = b"HTTP/1.1 200 OK"
INTERIM = {
    "103 with a length of none": answer(b"HTTP/1.1 103 Early Hints"),
    "100 with a length of none": answer(b"HTTP/1.1 100 Continue"),
    "103 with the length of the whole answer": b"HTTP/1.1 103 Early Hints\r\ncontent-length: 38\r\n\r\n",
}


def ask(known: KnownHeads[ResponseHead], *reads: bytes, method: str = "POST") -> tuple[list[Event], ClientFraming]:
    """Return the events of a response on a connection of its own."""
    framing = ClientFraming(MAX_HEAD, known)
    framing.send_request(method, "/", "a", [], 0)
    return [event for read in reads for event in framing.receive_data(read)], framing


@pytest.mark.parametrize("what", INTERIM)
def test_an_interim_response_never_passes_for_the_response_of_a_request(what: str) -> None:
    known: KnownHeads[ResponseHead] = KnownHeads()
    ask(known, INTERIM[what] + answer(OK))
    before, framing = ask(known, INTERIM[what])
    assert before == []
    assert framing.peer.name == "SEND_RESPONSE"
    events = framing.receive_data(answer(OK, b"mine"))
    assert [event for event in events if type(event) is bytes] == [b"mine"]


def test_bytes_behind_one_response_close_its_connection_alone() -> None:
    known: KnownHeads[ResponseHead] = KnownHeads()
    _, first = ask(known, answer(OK, b"{}") + b"HTTP/1.1 200 OK\r\n")
    assert first.peer.name == "MUST_CLOSE"
    for _ in range(2):
        _, later = ask(known, answer(OK, b"{}"))
        assert later.peer.name == "DONE"


@pytest.mark.parametrize(
    ("method", "status"), [("HEAD", b"200 OK"), ("POST", b"304 Not Modified"), ("POST", b"204 No Content")]
)
def test_the_head_of_a_response_without_a_body_serves_no_other(method: str, status: bytes) -> None:
    known: KnownHeads[ResponseHead] = KnownHeads()
    ask(known, answer(b"HTTP/1.1 " + status), method=method)
    assert not known._heads


@pytest.mark.parametrize("status", [b"200 OK", b"404 Not Found", b"503 Service Unavailable"])
def test_a_kept_head_means_for_another_body_what_the_parser_says(status: bytes) -> None:
    known: KnownHeads[ResponseHead] = KnownHeads()
    ask(known, answer(b"HTTP/1.1 " + status, b"a"))
    kept, _ = ask(known, answer(b"HTTP/1.1 " + status, b"bcd"))
    parsed, _ = ask(KnownHeads(), answer(b"HTTP/1.1 " + status, b"bcd"))
    assert known._heads
    assert [getattr(event, "status", event) for event in kept] == [getattr(event, "status", event) for event in parsed]


def plain(events: list[Event]) -> list[object]:
    """Return events as they can be compared, whatever is kept beside them."""
    shown: list[object] = []
    for event in events:
        if isinstance(event, RequestHead | ResponseHead):
            shown.append(msgspec.structs.replace(event, memo=None, keep_alive=True))
        else:
            shown.append((str(event), event.status) if isinstance(event, FramingError) else event)
    return shown


def end_exchange(framing: ServerFraming) -> None:
    framing.start_response(200, [(b"content-length", b"0")])
    framing.send_data(b"", False)
    assert framing.next_exchange() == []


FURTHER = {
    **OTHERS,
    "the same": post(3),
    "another length": post(12_345),
    "no body": post(0),
    "nine digits": post(123_456_789, body=b""),
    "ten digits": post(1_234_567_890, body=b""),
    "no digits": post(3).replace(b"Length: 3", b"Length: "),
    "no number": post(3).replace(b"Length: 3", b"Length: 3x"),
    "a sign": post(3).replace(b"Length: 3", b"Length: +3"),
    "a part of the head": post(3)[:-10],
    "a part of the body": post(3)[:-1],
    "digits before it": b"12" + post(3),
    "a line end before it": b"\r\n" + post(3),
    "a probe": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "a probe with digits behind it": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n12\r\n",
}


@pytest.mark.parametrize("before", ["the same", "a probe"])
@pytest.mark.parametrize("what", FURTHER)
def test_after_a_known_head_a_connection_reads_what_a_new_one_does(what: str, before: str) -> None:
    framing = ServerFraming(MAX_HEAD)
    for _ in range(3):  # It is kept, found, and found as the last one.
        assert framing.receive_data(FURTHER[before])[-1] is END
        end_exchange(framing)
    assert plain(framing.receive_data(FURTHER[what])) == plain(ServerFraming(MAX_HEAD).receive_data(FURTHER[what]))


ANSWERS = {
    "the same": answer(OK, b"{}"),
    "another length": answer(OK, b"x" * 12_345),
    "no body": answer(OK),
    "another status": answer(b"HTTP/1.1 201 Created", b"{}"),
    "another version": answer(b"HTTP/1.0 200 OK", b"{}"),
    "a part of the body": answer(OK, b"{}")[:-1],
    "bytes behind it": answer(OK, b"{}") + b"x",
    "no digits": answer(OK, b"{}").replace(b"length: 2", b"length: "),
}


@pytest.mark.parametrize("method", ["POST", "HEAD"])
@pytest.mark.parametrize("what", ANSWERS)
def test_after_a_known_answer_a_connection_reads_what_a_new_one_does(what: str, method: str) -> None:
    _, framing = ask(KnownHeads(), answer(OK, b"{}"))
    for _ in range(2):
        framing.next_exchange()
        framing.send_request("POST", "/", "a", [], 0)
        assert framing.receive_data(answer(OK, b"{}"))[-1] is END
    framing.next_exchange()
    framing.send_request(method, "/", "a", [], 0)
    fresh, _ = ask(KnownHeads(), ANSWERS[what], method=method)
    assert plain(framing.receive_data(ANSWERS[what])) == plain(fresh)
