"""What a server does with requests that are large, slow, old or broken, or that offer to switch protocols."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
import pytest
from raw_upstream import run

from maitred.wire import protocol
from maitred.wire.client_limits import MAX_PARKED_BYTES
from maitred.wire.exchange import ClientDisconnected, Exchange, send_bytes
from maitred.wire.server import App, running_server
from maitred.wire.server_context import ServerContext

T = TypeVar("T")
Wire = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[T]]


class Echo(App):
    """Answers with the path and the body, in two pieces without a declared length."""

    send_timeout_secs = 0.1

    async def __call__(self, exchange: Exchange) -> None:
        path = exchange.path
        if path == "/unread":
            send_bytes(exchange, 401, b"", b"text/plain")
            return
        try:
            body = await exchange.read_body(1 << 20)
        except ClientDisconnected:
            GONE.append(path)
            return
        if path == "/slow":
            await asyncio.sleep(0.15)
        if path == "/large":
            exchange.watch_disconnect(lambda: GONE.append(path))
            busy = exchange.start_response(200, [], bytes(LARGE_BYTES), True)
            if busy is not None:
                await busy
            exchange.send_piece(b"", False)
        elif path == "/measured":
            send_bytes(exchange, 200, body, b"text/plain")
        elif path in ("/hangs", "/waits"):
            left = asyncio.Event()
            exchange.watch_disconnect(left.set)
            if path == "/hangs":
                exchange.start_response(200, [], b"begun", True)
            await left.wait()
            GONE.append(path)
        else:
            exchange.start_response(200, [], path.encode() + b":", True)
            exchange.send_piece(body, False)


GONE: list[str] = []
LARGE_BYTES = 16 << 20
"""More than the buffers of both sockets hold."""


def with_server(script: Script[T]) -> T:
    async def scenario() -> T:
        async with running_server(Echo(), drain_secs=0.1) as url:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
            try:
                return await script(reader, writer)
            finally:
                writer.close()

    return run(scenario())


def exchange(*pieces: bytes) -> bytes:
    """Send `pieces` one by one, and return all that the server sends until it closes the connection."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0.005)
        return await reader.read(-1)

    return with_server(script)


def refusal(answer: bytes) -> tuple[int, str]:
    """Return status and code of a response that is an OpenAI error object."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"\r\nconnection: close" in head
    assert b"\r\ncontent-type: application/json\r\n" in head
    error = msgspec.json.decode(body)["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    return int(head.split(b" ")[1]), error["code"]


CURL = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\n"
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
    b"Content-Type: application/json\r\nContent-Length: 12\r\n\r\n"
)
"""What `curl --http2` sends."""
BODY = b'{"say":"hi"}'
ANSWER = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n15\r\n/v1/chat/completions:\r\nc\r\n" + BODY + b"\r\n0\r\n\r\n"


@pytest.mark.parametrize("cut", [0, 1, 100, len(CURL) - 1, len(CURL), len(CURL) + 5])
def test_an_offer_to_upgrade_is_ignored_and_the_body_kept(cut: int) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        read_whole = CURL + BODY
        writer.write(read_whole[:cut])
        await asyncio.sleep(0.005)
        writer.write(read_whole[cut:] + CURL + BODY)  # and another one on the same connection
        return await reader.readexactly(2 * len(ANSWER))

    assert with_server(script) == ANSWER * 2


def test_a_web_socket_gets_an_answer_too() -> None:
    request = b"GET /x HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n"

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(request)
        return await reader.readuntil(b"0\r\n\r\n")

    assert with_server(script).startswith(b"HTTP/1.1 200 OK")


START = b"GET / HTTP/1.1\r\nhost: x\r\n"
LARGE = {
    "one header without an end": (START + b"x: ", *[b"a" * 10_000] * 8),
    "many headers": (START, *[b"x: y\r\n" * 1_000] * 20),
    "a long path": (b"GET /" + b"a" * 70_000, b" HTTP/1.1\r\nhost: x\r\n\r\n"),
    "all in one read": (START + b"x: " + b"a" * 65_536 + b"\r\n\r\n",),
    "the last piece": (START + b"x: " + b"a" * 40_000, b"a" * 26_000 + b"\r\n\r\n"),
    "an upgrade": (START + b"connection: upgrade\r\nupgrade: h2c\r\nx: " + b"a" * 40_000, b"a" * 26_000 + b"\r\n\r\n"),
}


@pytest.mark.parametrize("what", LARGE)
def test_a_head_has_a_limit(what: str) -> None:
    assert refusal(exchange(*LARGE[what])) == (431, "headers_too_large")


@pytest.mark.parametrize("size", [1_000, 65_000])
def test_large_heads_within_the_limit_and_large_bodies_are_served(size: int) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        for _ in range(3):  # bodies and heads that share reads
            request = b"POST /measured HTTP/1.1\r\nhost: x\r\nx: %b\r\ncontent-length: 500000\r\n\r\n" % (b"a" * size)
            writer.write(request + b"b" * 500_000)
        answers = [await reader.readuntil(b"\r\n\r\n" + b"b" * 500_000) for _ in range(3)]
        return answers[-1][:15]

    async def scenario() -> bytes:
        async with running_server(Echo(), drain_secs=0.1) as url:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]), limit=1 << 20)
            try:
                return await script(reader, writer)
            finally:
                writer.close()

    assert run(scenario()) == b"HTTP/1.1 200 OK"


def test_a_head_has_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECS", 0.05)
    assert refusal(exchange(b"GET / HT", b"TP/1.1\r\nhost")) == (408, "request_timeout")


def test_the_time_of_a_head_is_over_when_the_head_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECS", 0.05)
    answer = exchange(b"GET /slow HTTP/1.1\r\nho", b"st: x\r\nconnection: close\r\n\r\n")
    assert answer.endswith(b"0\r\n\r\n")


def test_a_second_head_may_be_incomplete_as_long_as_the_first_answer_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECS", 0.05)
    first = b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n"
    answer = exchange(first + b"GET /sec")
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert refusal(answer.partition(b"0\r\n\r\n")[2]) == (408, "request_timeout")


def test_a_body_that_falls_silent_is_refused_and_the_app_is_told_that_its_client_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "BODY_SECS", 0.05)
    GONE.clear()
    head = b"POST /silent HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n"
    assert refusal(exchange(head)) == (408, "request_timeout")
    assert refusal(exchange(head + b"abc", b"def")) == (408, "request_timeout")
    assert GONE == ["/silent"] * 2


def test_a_body_that_comes_by_single_bytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "BODY_SECS", 0.1)

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"POST /silent HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1")
        answer = asyncio.ensure_future(reader.read())
        while not answer.done():
            writer.write(b";a\r\nx\r\n1")  # An extension is no data.
            await asyncio.sleep(0.01)
        return answer.result()

    assert refusal(with_server(script)) == (408, "request_timeout")


def test_a_body_may_take_longer_than_its_rate_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "BODY_SECS", 0.3)

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"POST /slow HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 900\r\n\r\n")
        for _ in range(9):
            await asyncio.sleep(0.05)
            writer.write(b"x" * 100)
        return await reader.read()

    answer = with_server(script)
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert b"xxxxxxxxx" in answer


def test_the_rest_of_a_refused_body_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that has its response gets no second one."""
    monkeypatch.setattr(protocol, "BODY_SECS", 0.05)
    answer = exchange(b"POST /unread HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nabc")
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert answer.count(b"HTTP/1.1") == 1


BEHIND = {
    "nothing": b"",
    "a request": b"GET /next HTTP/1.1\r\nhost: x\r\n\r\n",
    "nine requests": b"GET /next HTTP/1.1\r\nhost: x\r\n\r\n" * 9,
    "10,000 requests": b"GET /next HTTP/1.1\r\nhost: x\r\n\r\n" * 10_000,
    "65 KB of a body": b"POST /next HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n" + b"x" * 66_000,
    "more than is parked": b"POST /next HTTP/1.1\r\nhost: x\r\ncontent-length: 9000000\r\n\r\n" + b"x" * 400_000,
}


@pytest.mark.parametrize("path", ["/hangs", "/waits"])
@pytest.mark.parametrize("what", BEHIND)
def test_a_client_that_leaves_is_noticed_whatever_it_has_asked_beside(
    what: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "PARKED_SECS", 1_000.0)  # It is noticed at once, and not when what is parked is dropped.
    GONE.clear()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n" % path.encode() + BEHIND[what])
        if path == "/hangs":
            await reader.readuntil(b"begun")
        await writer.drain()
        await asyncio.sleep(0.02)
        writer.close()
        while not GONE:
            await asyncio.sleep(0.001)

    with_server(script)
    assert [path] == GONE


def test_an_incomplete_body_behind_an_answer_that_takes_long_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "BODY_SECS", 0.05)
    first = b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n"
    answer = exchange(first + b"POST /next HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nabc")
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert refusal(answer.partition(b"0\r\n\r\n")[2]) == (408, "request_timeout")


BROKEN = {
    "garbage": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "a path that is none": b"GET http://[ HTTP/1.1\r\nhost: x\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
    "a tunnel": b"CONNECT example.com:80 HTTP/1.1\r\nhost: x\r\n\r\n",
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_no_http_is_told_so_as_an_error_object(what: str) -> None:
    assert refusal(exchange(BROKEN[what])) == (400, "bad_request")


def test_a_body_that_breaks_off_badly_is_refused_and_the_app_is_told_that_its_client_left() -> None:
    GONE.clear()
    answer = exchange(b"POST /bad HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n", b"zz\r\n")
    assert refusal(answer) == (400, "bad_request")
    assert GONE == ["/bad"]


def test_what_follows_a_request_is_not_looked_at_before_its_answer_has_ended() -> None:
    answer = exchange(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n", b"\x00\x00\r\n")
    whole, _, rest = answer.partition(b"0\r\n\r\n")
    assert whole.startswith(b"HTTP/1.1 200 OK")
    assert refusal(rest) == (400, "bad_request")


@pytest.mark.parametrize("keep_alive", [b"", b"connection: keep-alive\r\n"])
def test_an_old_client_gets_no_chunks(keep_alive: bytes) -> None:
    answer = exchange(b"POST /x HTTP/1.0\r\n" + keep_alive + b"content-length: 2\r\n\r\nhi")
    assert answer == b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n/x:hi"


def test_an_old_client_gets_a_length_where_there_is_one() -> None:
    answer = exchange(b"POST /measured HTTP/1.0\r\ncontent-length: 2\r\n\r\nhi")
    assert answer.endswith(b"content-length: 2\r\nconnection: close\r\n\r\nhi")


@pytest.mark.parametrize("taken", [0, 2_000_000])
def test_a_client_that_takes_nothing_of_an_answer_that_waits_is_cut_off(taken: int) -> None:
    GONE.clear()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
        await reader.readexactly(taken)
        while not GONE:
            await asyncio.sleep(0.01)
        with contextlib.suppress(ConnectionError):
            assert len(await reader.read()) < LARGE_BYTES

    with_server(script)


def test_a_client_that_takes_its_answer_slowly_gets_all_of_it() -> None:
    GONE.clear()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
        writer.write(b"GET /large HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        size = 0
        while piece := await reader.read(1 << 20):
            size += len(piece)
            await asyncio.sleep(0.03)  # longer, all in all, than the send timeout
        return size

    assert with_server(script) > LARGE_BYTES
    assert GONE == []


@pytest.mark.parametrize("behind", [b"zz\r\n", b"1;" + b"x" * 70_000, b"0\r\nx y: z\r\n\r\n"])
def test_a_client_that_expects_to_be_told_to_go_on_and_sends_a_bad_chunk_at_once(
    behind: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    head = b"POST /x HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n"
    assert refusal(exchange(head + behind)) == (400, "bad_request")
    assert caplog.records == []


def test_a_client_that_expects_to_be_told_to_go_on_is_told() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"POST /measured HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n")
        told = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"hi")
        return told + await reader.readuntil(b"\r\n\r\nhi")

    answer = with_server(script)
    assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")


def test_a_flood_of_requests_behind_one_is_kept_as_bytes_and_dropped_with_its_connection() -> None:
    """Objects would take twenty times as much memory."""

    async def scenario() -> tuple[int, int]:
        shared: list[ServerContext] = []

        class Watched(Echo):
            async def start(self, server: ServerContext) -> None:
                shared.append(server)

        async with running_server(Watched(), drain_secs=0.1) as url:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
            writer.write(b"GET /hangs HTTP/1.1\r\nhost: x\r\n\r\n" + b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 100_000)
            await reader.readuntil(b"begun")
            await asyncio.sleep(0.05)
            kept = shared[0].parked_bytes
            writer.transport.abort()
            while shared[0].connections:
                await asyncio.sleep(0.001)
            return kept, shared[0].parked_bytes

    kept, left = run(scenario())
    assert MAX_PARKED_BYTES <= kept <= 3 * MAX_PARKED_BYTES
    assert left == 0


def test_a_body_that_the_handler_does_not_take_is_not_read_until_it_does() -> None:
    async def scenario() -> tuple[int, int]:
        kept: list[int] = []

        class Late(App):
            async def __call__(self, exchange: Exchange) -> None:
                await asyncio.sleep(0.1)
                kept.append(exchange.unread_bytes)
                send_bytes(exchange, 200, b"%d" % len(await exchange.read_body(LARGE_BYTES)), b"text/plain")

        async with running_server(Late(), drain_secs=0.1) as url:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]))
            writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % LARGE_BYTES + bytes(LARGE_BYTES))
            read = int((await reader.readuntil(b"%d" % LARGE_BYTES)).rsplit(b"\r\n\r\n", 1)[1])
            writer.close()
            return kept[0], read

    kept, read = run(scenario())
    assert MAX_PARKED_BYTES <= kept <= 3 * MAX_PARKED_BYTES
    assert read == LARGE_BYTES


def test_a_client_that_leaves_behind_more_than_all_buffers_hold_is_noticed_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end stands behind bytes that were never taken."""
    monkeypatch.setattr(protocol, "PARKED_SECS", 0.1)
    GONE.clear()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = b"POST /next HTTP/1.1\r\nhost: x\r\ncontent-length: 90000000\r\n\r\n"
        writer.write(b"GET /waits HTTP/1.1\r\nhost: x\r\n\r\n" + head + bytes(LARGE_BYTES))
        writer.close()
        while not GONE:
            await asyncio.sleep(0.01)

    with_server(script)
    assert GONE == ["/waits"]


def test_an_answer_is_whole_though_what_was_sent_behind_its_request_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "PARKED_SECS", 0.02)
    answer = exchange(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n" + b"GET /next HTTP/1.1\r\nhost: x\r\n\r\n" * 20_000)
    assert answer == b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n6\r\n/slow:\r\n0\r\n\r\n"
