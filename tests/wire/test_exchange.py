"""A request and its response, between a handler and a connection of a few lines."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec
import pytest
from raw_upstream import run

from maitred.wire.exchange import ApiError, ClientDisconnected, Exchange, send_error
from maitred.wire.messages import FramingMisuse, Headers, RequestHead, split_target


class Incoming:
    """A connection on which a body arrives piece by piece, each when the handler has read the ones before."""

    def __init__(self, *pieces: bytes, whole: bool = True, length: int | None = None, waits: bool = False) -> None:
        head = RequestHead(
            "POST",
            b"/a%20b?c=%20d",
            [(b"a", b"1"), (b"b", b"2"), (b"b", b"3")],
            True,
            waits,
            length,
            True,
            *split_target(b"/a%20b?c=%20d"),
        )
        self.exchange = Exchange(head, self)
        self.pieces = list(pieces)
        self.whole = whole
        self.sent: list[tuple[object, ...]] = []

    def on_body_read(self) -> None:
        asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        if self.pieces:
            self.exchange.on_body(self.pieces.pop(0))
        if not self.pieces and self.whole:
            self.exchange.on_body_end()

    def start_response(self, status: int, headers: Headers, piece: bytes, more: bool) -> None:
        self.sent.append((status, headers, piece, more))

    def send_piece(self, piece: bytes, more: bool) -> None:
        self.sent.append((piece, more))

    def send_continue(self) -> None:
        self.sent.append(("continue",))


def test_the_path_is_decoded_and_the_query_is_not() -> None:
    exchange = Incoming().exchange
    assert (exchange.path, exchange.query) == ("/a b", b"c=%20d")


@pytest.mark.parametrize("pieces", [[b"abcde"], [b"ab", b"", b"cde"], [b"", b"abcde"]])
def test_a_body_within_the_limit(pieces: Iterable[bytes]) -> None:
    async def scenario() -> bytes:
        return await Incoming(*pieces).exchange.read_body(5)

    assert run(scenario()) == b"abcde"


def test_the_size_of_each_piece_is_told() -> None:
    async def scenario() -> list[int]:
        sizes: list[int] = []
        assert await Incoming(b"ab", b"", b"cde").exchange.read_body(5, sizes.append) == b"abcde"
        return sizes

    assert run(scenario()) == [2, 0, 3]


def test_a_piece_may_be_refused_and_the_rest_stays_unread() -> None:
    async def scenario() -> int:
        incoming, refusal = Incoming(b"ab", b"cd", b"e"), LookupError()

        def take(size: int) -> None:
            if len(incoming.pieces) == 1:
                raise refusal

        with pytest.raises(LookupError):
            await incoming.exchange.read_body(5, take)
        return len(incoming.pieces)

    assert run(scenario()) == 1


@pytest.mark.parametrize(
    ("length", "pieces", "left"),
    [
        pytest.param(None, [b"abcdef"], 0, id="in one piece"),
        pytest.param(None, [b"abc", b"def", b"ghi"], 1, id="no further than where it is known"),
        pytest.param(6, [b"abc", b"def"], 2, id="declared: nothing is read"),
    ],
)
def test_a_body_beyond_the_limit(length: int | None, pieces: list[bytes], left: int) -> None:
    async def scenario() -> int:
        incoming = Incoming(*pieces, length=length)
        with pytest.raises(ApiError, match="5 bytes") as caught:
            await incoming.exchange.read_body(5)
        assert (caught.value.status, caught.value.code) == (413, "request_too_large")
        return len(incoming.pieces)

    assert run(scenario()) == left


def test_a_client_that_leaves_in_the_middle_of_its_body() -> None:
    async def scenario() -> None:
        incoming = Incoming(b"abc", whole=False)
        asyncio.get_running_loop().call_later(0.01, incoming.exchange.on_disconnect)
        with pytest.raises(ClientDisconnected):
            await incoming.exchange.read_body(5)

    run(scenario())


@pytest.mark.parametrize(("waits", "told"), [(True, [("continue",)]), (False, [])])
def test_a_client_that_waits_for_it_is_told_to_go_on(waits: bool, told: list[object]) -> None:
    async def scenario() -> list[tuple[object, ...]]:
        incoming = Incoming(b"ab", waits=waits)
        assert await incoming.exchange.read_body(5) == b"ab"
        return incoming.sent

    assert run(scenario()) == told


def test_errors_are_openais() -> None:
    incoming = Incoming()
    send_error(
        incoming,
        ApiError(429, "too many", kind="rate_limit_error", code="full", headers=[(b"retry-after", b"2")]),
        "/v1/models",
    )
    ((status, headers, body, more),) = incoming.sent
    assert isinstance(body, bytes)
    assert isinstance(headers, list)
    error = {"message": "too many", "type": "rate_limit_error", "param": None, "code": "full"}
    assert msgspec.json.decode(body) == {"error": error}
    assert (status, more) == (429, False)
    assert dict(headers) == {
        b"content-type": b"application/json",
        b"content-length": str(len(body)).encode(),
        b"x-smg-error-code": b"full",
        b"retry-after": b"2",
    }


def test_the_first_of_repeated_headers_counts() -> None:
    exchange = Incoming().exchange
    assert exchange.get_header(b"b") == b"2"
    assert exchange.get_header(b"c") is None


def test_a_departure_is_told_once_and_nothing_is_sent_after_it() -> None:
    incoming, told = Incoming(), list[str]()
    incoming.exchange.watch_disconnect(lambda: told.append("gone"))
    incoming.exchange.on_disconnect()
    incoming.exchange.on_disconnect()
    assert incoming.exchange.start_response(200, [], b"", False) is None
    assert (told, incoming.sent, incoming.exchange.is_disconnected) == (["gone"], [], True)


def test_a_client_that_had_left_already() -> None:
    incoming, told = Incoming(), list[str]()
    incoming.exchange.on_disconnect()
    incoming.exchange.watch_disconnect(lambda: told.append("gone"))
    assert told == ["gone"]


def test_a_watch_that_was_stopped_is_never_told() -> None:
    incoming = Incoming()
    incoming.exchange.watch_disconnect(lambda: pytest.fail("told"))
    incoming.exchange.stop_watching()
    incoming.exchange.on_disconnect()


def test_a_response_starts_once_and_ends_once() -> None:
    exchange = Incoming().exchange
    exchange.start_response(200, [], b"", True)
    with pytest.raises(FramingMisuse):
        exchange.start_response(200, [], b"", True)
    exchange.send_piece(b"", False)
    with pytest.raises(FramingMisuse):
        exchange.send_piece(b"", False)
