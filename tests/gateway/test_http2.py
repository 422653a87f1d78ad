"""HTTP/2 of the endpoint picker: frames by hand, no socket; and a client of grpcio against it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools

import pytest

pytest.importorskip("hpack", reason="needs maitred[envoy]")

from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from maitred.gateway.envoy.http2 import PREFACE, Http2Connection, Http2Error, frame
from maitred.gateway.envoy.http2_stream import Http2Stream

DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS, PADDED = 1, 4, 8
PATH = "/a.Service/Call"
KIB = 1024


class Call:
    """Keeps what a stream has said."""

    def __init__(self, stream: Http2Stream, path: str) -> None:
        self.stream, self.path = stream, path
        self.told = 0

    def on_readable(self) -> None:
        self.told += 1

    def on_writable(self) -> None:
        pass


class Peer:
    """A connection, and the client's end of it."""

    def __init__(self, max_message: int = 1024 * KIB) -> None:
        self.calls: list[Call] = []
        self.http2 = Http2Connection(self._begin, lambda: None, max_message)
        self.encoder = Encoder()

    def _begin(self, stream: Http2Stream, path: str) -> None:
        stream.listener = call = Call(stream, path)
        self.calls.append(call)

    def start(self) -> Peer:
        self.http2.receive(PREFACE + frame(SETTINGS, 0, 0, b""))
        self.sent()
        return self

    def open(self, number: int = 1, path: str = PATH, flags: int = END_HEADERS) -> Http2Stream:
        self.http2.receive(frame(HEADERS, flags, number, self.block(path)))
        return self.calls[-1].stream

    def block(self, path: str) -> bytes:
        return self.encoder.encode([(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "here")])

    def sent(self) -> list[tuple[int, int, int, bytes]]:
        """Return the frames that were sent since the last time: kind, flags, stream, payload."""
        data, self.http2.output = b"".join(self.http2.output), []
        found = []
        while data:
            size = int.from_bytes(data[:3], "big")
            found.append((data[3], data[4], int.from_bytes(data[5:9], "big"), data[9 : 9 + size]))
            data = data[9 + size :]
        return found

    def sent_bytes(self) -> int:
        return sum(len(payload) for kind, _, _, payload in self.sent() if kind == DATA)


def message(data: bytes) -> bytes:
    return b"\x00" + len(data).to_bytes(4, "big") + data


def window_update(number: int, size: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, number, size.to_bytes(4, "big"))


@given(st.lists(st.binary(max_size=300), max_size=6), st.lists(st.integers(1, 400), min_size=1, max_size=20), st.data())
def test_messages_are_the_same_however_they_are_cut(messages: list[bytes], cuts: list[int], data: st.DataObject) -> None:
    body = b"".join(map(message, messages))
    at = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=4)))
    frames = [frame(DATA, 0, 1, body[begin:end]) for begin, end in itertools.pairwise([0, *at, len(body)])]
    peer = Peer()
    coming = PREFACE + frame(SETTINGS, 0, 0, b"") + frame(HEADERS, END_HEADERS, 1, peer.block(PATH)) + b"".join(frames)
    coming += frame(DATA, END_STREAM | PADDED, 1, b"\x03abc")
    sizes = itertools.cycle(cuts)
    while coming:
        size = next(sizes)
        peer.http2.receive(coming[:size])
        coming = coming[size:]
    (call,) = peer.calls
    assert (call.path, [*call.stream.inbox], call.stream.is_ended) == (PATH, messages, True)


KINDS = st.integers(0, 11)
FRAMES = st.lists(st.tuples(KINDS, st.integers(0, 255), st.integers(0, 7), st.binary(max_size=40)), max_size=12)


@given(FRAMES)
def test_garbage_is_no_error_of_ours(frames: list[tuple[int, int, int, bytes]]) -> None:
    peer = Peer(max_message=64).start()
    with contextlib.suppress(Http2Error):
        for kind, flags, number, payload in frames:
            peer.http2.receive(frame(kind, flags, number, payload))
    peer.http2.lose()
    assert not peer.http2.streams
    assert all(call.stream.is_dead for call in peer.calls)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        PREFACE + b"\x00\x40\x01" + bytes(6),  # a frame of more than 16,384 bytes
        PREFACE + frame(DATA, 0, 1, b""),  # a stream that was never opened
        PREFACE + frame(HEADERS, END_HEADERS, 2, b""),
        PREFACE + frame(HEADERS, END_HEADERS, 1, b"\xff\xff\xff\xff\xff\x7f"),  # an index that is not there
        PREFACE + frame(HEADERS, 0, 1, b"") + frame(PING, 0, 0, bytes(8)),  # a block that breaks off
        PREFACE + frame(HEADERS, 0, 1, b"") + b"".join(frame(CONTINUATION, 0, 1, bytes(16_000)) for _ in range(5)),
        PREFACE + window_update(0, 2**31 - 1),
    ],
)
def test_what_is_no_http2_ends_the_connection(data: bytes) -> None:
    peer = Peer()
    with pytest.raises(Http2Error):
        peer.http2.receive(data)


def test_what_the_peer_does_not_take_waits_until_there_is_room() -> None:
    peer = Peer().start()
    stream = peer.open()
    peer.http2.send(stream, bytes(100 * KIB))
    peer.http2.end(stream)
    assert peer.sent_bytes() == 65_535
    peer.http2.receive(window_update(1, 10 * KIB))
    assert peer.sent_bytes() == 0  # The connection has no room.
    peer.http2.receive(window_update(0, 100 * KIB))
    assert peer.sent_bytes() == 10 * KIB
    peer.http2.receive(frame(SETTINGS, 0, 0, (4).to_bytes(2, "big") + (200 * KIB).to_bytes(4, "big")))
    rest = peer.sent()
    assert sum(len(payload) for kind, _, _, payload in rest if kind == DATA) == 90 * KIB + 5 - 65_535
    assert [kind for kind, flags, *_ in rest if kind == HEADERS and flags & END_STREAM] == [HEADERS]
    assert stream.is_dead


def test_messages_that_nobody_reads_take_no_more_than_a_window() -> None:
    peer = Peer().start()
    stream = peer.open()
    peer.sent()
    for _ in range(60):
        peer.http2.receive(frame(DATA, 0, 1, message(bytes(16_000))))
    assert not peer.sent()
    while stream.inbox:
        peer.http2.read(stream)
    (given_back,) = [payload for kind, _, number, payload in peer.sent() if (kind, number) == (WINDOW_UPDATE, 1)]
    assert int.from_bytes(given_back, "big") == 60 * 16_005


def test_a_peer_that_sends_beyond_the_window_loses_its_connection() -> None:
    peer = Peer().start()
    peer.open()
    piece = frame(DATA, 0, 1, message(bytes(16_000)))
    for _ in range(1024 * KIB // 16_005):
        peer.http2.receive(piece)
    with pytest.raises(Http2Error, match="more than its window"):
        peer.http2.receive(piece)


def test_a_message_above_the_window_comes_whole() -> None:
    peer = Peer(max_message=3 * 1024 * KIB).start()
    stream = peer.open()
    body, room = message(bytes(range(256)) * (10 * KIB)), 1024 * KIB
    for at in range(0, len(body), 16_000):
        piece = body[at : at + 16_000]
        room -= len(piece)
        assert room >= 0
        peer.http2.receive(frame(DATA, 0, 1, piece))
        room += sum(int.from_bytes(payload, "big") for kind, _, number, payload in peer.sent() if number)
    assert peer.http2.read(stream) == body[5:]


@pytest.mark.parametrize("data", [b"\x00" + (10**6).to_bytes(4, "big"), b"\x01\x00\x00\x00\x01x"])
def test_a_message_that_is_too_large_or_compressed_ends_its_call_alone(data: bytes) -> None:
    peer = Peer(max_message=1000).start()
    peer.open(1)
    peer.open(3)
    peer.sent()
    peer.http2.receive(frame(DATA, 0, 1, data))
    kinds = [(kind, number) for kind, _, number, _ in peer.sent()]
    assert kinds == [(HEADERS, 1), (RESET, 1)]
    assert [*peer.http2.streams] == [3]


def test_a_path_follows_the_table_of_the_peer_and_not_an_older_block() -> None:
    peer = Peer().start()
    for number, path in enumerate((PATH, PATH, PATH, "/other", PATH, "/other", "/other")):
        peer.open(2 * number + 1, path)
        assert peer.calls[-1].path == path


BLOCKS = st.tuples(st.sampled_from((PATH, "/b", "/" + "c" * 40)), st.booleans(), st.sampled_from((None, 0, 70, 150, 4096)))


@given(st.lists(BLOCKS, max_size=12))
def test_a_path_is_that_of_its_block_whatever_becomes_of_the_table(blocks: list[tuple[str, bool, int | None]]) -> None:
    peer = Peer().start()
    for number, (path, is_literal, table_size) in enumerate(blocks):
        if table_size is not None:
            peer.encoder.header_table_size = table_size
        block = peer.encoder.encode([(":method", "POST", False), (":path", path, is_literal), ("te", "trailers", False)])
        peer.http2.receive(frame(HEADERS, END_HEADERS, 2 * number + 1, block))
        assert peer.calls[-1].path == path


def test_a_block_that_changes_no_table_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Envoy's path is a literal that is not indexed."""
    peer, decoded = Peer().start(), list[bytes]()
    decode = peer.http2._decoder.decode
    monkeypatch.setattr(peer.http2._decoder, "decode", lambda block, raw: decoded.append(block) or decode(block, raw=raw))
    for number in range(1, 9, 2):
        block = peer.encoder.encode([(":method", "POST", False), (":path", PATH, True), ("te", "trailers", False)])
        peer.http2.receive(frame(HEADERS, END_HEADERS, number, block))
    assert [call.path for call in peer.calls] == [PATH] * 4
    assert len(decoded) == 2


def test_octets_of_a_frame_do_not_copy_what_came_before_them() -> None:
    """A frame that comes octet by octet took 16,384 copies of 8 KiB."""
    joined = 0

    class Octet(bytes):
        def __radd__(self, before: bytes) -> bytes:
            nonlocal joined
            joined += len(before)
            return bytes(before) + bytes(self)

    peer, body = Peer().start(), bytes(16_000)
    stream = peer.open()
    for octet in frame(DATA, 0, 1, message(body)):
        peer.http2.receive(Octet([octet]))
    assert peer.http2.read(stream) == body
    assert joined == 0


def test_streams_that_are_reset_leave_nothing() -> None:
    peer = Peer().start()
    for number in range(1, 2001, 2):
        peer.open(number)
        peer.http2.receive(frame(RESET, 0, number, bytes(4)))
        peer.http2.send(peer.calls[-1].stream, b"nobody hears this")
    assert not peer.http2.streams
    assert not peer.sent()
    peer.http2.receive(frame(DATA, 0, 1, message(b"late")))


def test_a_connection_that_ends_refuses_new_streams_and_finishes_the_others() -> None:
    peer = Peer().start()
    stream = peer.open(1)
    peer.http2.leave()
    peer.http2.receive(frame(HEADERS, END_HEADERS, 3, peer.block(PATH)))
    peer.http2.send(stream, b"yes")
    kinds = [(kind, number) for kind, _, number, _ in peer.sent()]
    assert kinds == [(GOAWAY, 0), (RESET, 3), (HEADERS, 1), (DATA, 1)]
    assert len(peer.calls) == 1


class Written(asyncio.Transport):
    """Keeps what is written at once."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []

    def write(self, data: bytes | bytearray | memoryview[int]) -> None:
        self.pieces.append(bytes(data))

    def close(self) -> None:
        pass


def test_what_few_streams_are_told_at_once_is_one_write() -> None:
    """Else a message of 1 MB is 64 system calls, and as many warnings of asyncio where Envoy has just gone."""
    from maitred.gateway.envoy.grpc_services import GrpcRpc, GrpcServer, _Connection

    large = bytes(1000 * KIB)

    async def answer(rpc: GrpcRpc) -> None:
        while await rpc.read() is not None:
            await rpc.write(b"")
            await rpc.write(large)

    async def scenario() -> None:
        connection, written = _Connection(GrpcServer(answer, lambda: True, 1024 * KIB)), Written()
        connection.connection_made(written)
        window = (2**30).to_bytes(4, "big")
        connection.data_received(PREFACE + frame(SETTINGS, 0, 0, b"\x00\x04" + window) + frame(WINDOW_UPDATE, 0, 0, window))
        path = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
        connection.data_received(frame(HEADERS, END_HEADERS, 1, Peer().block(path)) + frame(DATA, 0, 1, message(b"x")))
        written.pieces.clear()
        for _ in range(3):
            await asyncio.sleep(0)
        assert [len(piece) > len(large) for piece in written.pieces] == [False, True]
        written.pieces.clear()
        connection.data_received(frame(PING, 0, 0, bytes(8)) * 100)
        assert written.pieces == [frame(PING, 1, 0, bytes(8)) * 100]
        connection.data_received(frame(PING, 0, 0, bytes(8)) * 2 + frame(PING, 0, 0, b""))
        assert [piece.count(frame(PING, 1, 0, bytes(8))) for piece in written.pieces[1:]] == [2]
        connection.connection_lost(None)

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_client_of_grpc_sends_and_gets_large_messages_on_many_streams() -> None:
    grpc = pytest.importorskip("grpc.aio")

    from maitred.gateway.envoy.grpc_services import EXT_PROC_SERVICE, GrpcRpc, GrpcServer
    from maitred.wire.machine import Machine

    async def echo(rpc: GrpcRpc) -> None:
        while (data := await rpc.read()) is not None:
            await rpc.write(data)

    async def scenario() -> None:
        server = GrpcServer(echo, lambda: True, 8 * 1024 * KIB)
        server.listen("127.0.0.1", 0, Machine())
        await server.start(None)
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        async with grpc.insecure_channel(f"127.0.0.1:{server.port}", options=options) as channel:

            async def call(size: int) -> None:
                stream = channel.stream_stream(f"/{EXT_PROC_SERVICE}/Process")()
                for data in (b"x" * size, b"", b"y"):
                    await stream.write(data)
                    assert await stream.read() == data
                await stream.done_writing()
                assert await stream.read() is grpc.EOF
                assert (await stream.code()).name == "OK"

            await asyncio.gather(*(call(size) for size in (0, 1, 4 * 1024 * KIB, 3 * 1024 * KIB, *range(90))))
            unknown = channel.unary_unary("/a.B/C")
            with pytest.raises(grpc.AioRpcError) as raised:
                await unknown(b"")
            assert raised.value.code().name == "UNIMPLEMENTED"
        await server.stop(1.0)

    asyncio.run(asyncio.wait_for(scenario(), 60))
