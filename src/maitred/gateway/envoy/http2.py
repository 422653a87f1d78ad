"""HTTP/2 as far as a server of gRPC needs it (RFC 9113), without I/O: bytes come in, messages come out, and the other way.

Frames, flow control of the connection and header blocks (`hpack`) are here; the messages of one call are in `http2_stream`.
What is to be sent is collected in `output`, and `on_output` is called when there is the first of it. Why not grpcio or `h2`:
docs/decisions.md.

**Memory.** Of a stream it is bounded by the window and by `max_message` (`http2_stream`). Streams are bounded by
`_MAX_STREAMS`, and the blocks of headers by `_MAX_HEADER_BYTES`. Who drives the connection reads no more of it while its output
is not taken.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from hpack import Decoder, HPACKError

from maitred.gateway.envoy.http2_stream import STREAM_WINDOW, Http2Stream

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _PRIORITY, _RESET, _SETTINGS, _PUSH, _PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = range(10)
_END_STREAM, _ACK, _END_HEADERS, _PADDED, _HAS_PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, FRAME_SIZE_ERROR, REFUSED_STREAM = 0, 1, 3, 6, 7
COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 9, 11
_RESOURCE_EXHAUSTED: Final = 8
"""The status of gRPC for a message that is not taken."""
_MAX_FRAME: Final = 16_384
_MAX_WINDOW: Final = 2**31 - 1
_MAX_STREAMS: Final = 1_000_000
_MAX_HEADER_BYTES: Final = 65_536
_FIRST_WINDOW: Final = 65_535
"""The window of a connection, and of streams before the first SETTINGS."""
_INITIAL_WINDOW_SIZE: Final = 4
_MAX_KEPT_BLOCKS: Final = 64
_FRAME = struct.Struct(">HBBBL")
_SETTING = struct.Struct(">HL")

# Header blocks without the dynamic table: `:status: 200` of the static one, and literals that are not indexed.
_HEAD: Final = b"\x88\x0f\x10\x10application/grpc"
_STATUS: Final = b"\x00\x0bgrpc-status"
_MESSAGE: Final = b"\x00\x0cgrpc-message"


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return a frame."""
    size = len(payload)
    return _FRAME.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


class Http2Error(Exception):
    """The peer does not keep to the protocol: the connection is of no use any more."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Http2Connection:
    """The server's end of a connection."""

    def __init__(
        self, on_stream: Callable[[Http2Stream, str], object], on_output: Callable[[], object], max_message: int
    ) -> None:
        """`on_stream` is called with each stream that the peer opens, and its path."""
        self._on_stream, self._on_output, self._max_message = on_stream, on_output, max_message
        self.streams: dict[int, Http2Stream] = {}
        self.output: list[bytes] = []
        self._received = bytearray()
        """What has come of a frame that is not whole."""
        self._needed = 0
        """How many bytes of it there must be before it is worth a look."""
        self._has_preface = False
        self._last_stream = 0
        self._is_leaving = False
        self._window = self._peers_window = _FIRST_WINDOW
        self._debt = 0
        self._blocked: dict[int, Http2Stream] = {}
        """Those that wait for room."""
        self._block: tuple[int, int, bytearray] | None = None
        """Stream, flags and bytes of a header block that goes on."""
        self._decoder = Decoder(max_header_list_size=_MAX_HEADER_BYTES)
        self._paths: dict[bytes, str] = {}
        """Paths by the blocks that have them, as long as what their indexes stand for stays the same."""
        settings = ((3, _MAX_STREAMS), (_INITIAL_WINDOW_SIZE, STREAM_WINDOW), (6, _MAX_HEADER_BYTES))
        self._send(frame(_SETTINGS, 0, 0, b"".join(_SETTING.pack(*setting) for setting in settings)))
        self._send(frame(_WINDOW_UPDATE, 0, 0, (_MAX_WINDOW - _FIRST_WINDOW).to_bytes(4, "big")))

    # What comes.

    def receive(self, data: bytes) -> None:
        """Take over what the peer has sent. Raises Http2Error, and then `go_away` says so."""
        if self._received:
            self._received.extend(data)  # in place: of single octets each would cost a copy of the frame so far
            if len(self._received) < self._needed:
                return
            data = bytes(self._received)
        at, self._needed = 0, 9
        if not self._has_preface:
            if data[: len(PREFACE)] != PREFACE[: len(data)]:
                raise Http2Error(PROTOCOL_ERROR, "it is no HTTP/2")
            if len(data) < len(PREFACE):
                self._received, self._needed = bytearray(data), 0
                return
            self._has_preface, at = True, len(PREFACE)
        while len(data) - at >= 9:
            high, low, kind, flags, number = _FRAME.unpack_from(data, at)
            size = high << 8 | low
            if size > _MAX_FRAME:
                raise Http2Error(FRAME_SIZE_ERROR, f"a frame has {size} bytes")
            end = at + 9 + size
            if len(data) < end:
                self._needed = 9 + size
                break
            self._on_frame(kind, flags, number & _MAX_WINDOW, data[at + 9 : end])
            at = end
        if at < len(data) or self._received:
            self._received = bytearray(data[at:])

    def _on_frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if self._block is not None and (kind != _CONTINUATION or number != self._block[0]):
            raise Http2Error(PROTOCOL_ERROR, "a block of headers breaks off")
        if kind == _DATA:
            self._on_data(flags, number, payload)
        elif kind == _HEADERS:
            self._on_headers(flags, number, payload)
        elif kind == _CONTINUATION:
            self._on_continuation(flags, payload)
        elif kind == _RESET:
            self._on_reset(number)
        elif kind == _WINDOW_UPDATE:
            self._on_window_update(number, payload)
        elif kind == _SETTINGS:
            self._on_settings(flags, number, payload)
        elif kind == _PING:
            if len(payload) != 8 or number:
                raise Http2Error(FRAME_SIZE_ERROR, "a ping is no ping")
            if not flags & _ACK:
                self._send(frame(_PING, _ACK, 0, payload))
        elif kind == _PUSH:
            raise Http2Error(PROTOCOL_ERROR, "a client pushes")

    def _on_data(self, flags: int, number: int, payload: bytes) -> None:
        self._debt += len(payload)
        if self._debt >= _MAX_WINDOW // 2:
            self._send(frame(_WINDOW_UPDATE, 0, 0, self._debt.to_bytes(4, "big")))
            self._debt = 0
        stream = self._find(number)
        if stream is None or stream.is_ended:
            return
        if flags & _PADDED:
            payload = _without_padding(payload)
        try:
            has_come = stream.take(payload, self._max_message)
        except ValueError as error:
            stream.pending.clear()
            self.end(stream, _RESOURCE_EXHAUSTED, str(error))
            return
        if stream.is_over_window:
            raise Http2Error(FLOW_CONTROL_ERROR, "a stream has more than its window")
        if flags & _END_STREAM:
            self._end_of_input(stream)
        elif has_come:
            assert stream.listener is not None
            stream.listener.on_readable()
        else:
            self._give_back(stream)

    def _on_headers(self, flags: int, number: int, payload: bytes) -> None:
        if flags & _PADDED:
            payload = _without_padding(payload)
        if flags & _HAS_PRIORITY:
            payload = payload[5:]
        if not number % 2:
            raise Http2Error(PROTOCOL_ERROR, "a stream has an even number")
        if flags & _END_HEADERS:
            self._on_block(flags, number, payload)
        else:
            self._block = number, flags, bytearray(payload)

    def _on_continuation(self, flags: int, payload: bytes) -> None:
        if self._block is None:
            raise Http2Error(PROTOCOL_ERROR, "nothing goes on here")
        number, first_flags, block = self._block
        block += payload
        if len(block) > _MAX_HEADER_BYTES:
            raise Http2Error(ENHANCE_YOUR_CALM, "a block of headers is too large")
        if flags & _END_HEADERS:
            self._block = None
            self._on_block(first_flags, number, bytes(block))

    def _on_block(self, flags: int, number: int, block: bytes) -> None:
        path = self._path_of(block)
        if number <= self._last_stream:  # trailers, or of a stream that is gone
            stream = self.streams.get(number)
            if stream is not None and flags & _END_STREAM:
                self._end_of_input(stream)
            return
        self._last_stream = number
        if self._is_leaving or len(self.streams) >= _MAX_STREAMS:
            self._send(frame(_RESET, 0, number, REFUSED_STREAM.to_bytes(4, "big")))
            return
        stream = self.streams[number] = Http2Stream(number, self._peers_window)
        self._on_stream(stream, path)
        if flags & _END_STREAM:
            self._end_of_input(stream)

    def _path_of(self, block: bytes) -> str:
        """Return the `:path` that a block has, or ""."""
        found = self._paths.get(block)
        if found is not None:
            return found
        table = self._decoder.header_table
        before = table.maxsize, [*table.dynamic_entries]
        try:
            headers = self._decoder.decode(block, raw=True)
        except HPACKError as error:
            raise Http2Error(COMPRESSION_ERROR, "a block of headers cannot be read") from error
        path = next((value.decode("latin-1") for name, value in headers if name == b":path"), "")
        # To decode a block takes longer than all the rest that a stream needs here, and those of Envoy are the same again and
        # again: a path that is in no table, and indexes.
        if (table.maxsize, [*table.dynamic_entries]) != before or len(self._paths) >= _MAX_KEPT_BLOCKS:
            self._paths.clear()
        else:
            self._paths[block] = path
        return path

    def _end_of_input(self, stream: Http2Stream) -> None:
        stream.is_ended = True
        if stream.listener is not None:
            stream.listener.on_readable()

    def _on_reset(self, number: int) -> None:
        stream = self._find(number)
        if stream is not None:
            self._forget(stream)

    def _find(self, number: int) -> Http2Stream | None:
        """Return a stream that is there, or None if it is gone. Raises Http2Error for one that was never there."""
        stream = self.streams.get(number)
        if stream is None and (number > self._last_stream or not number % 2):
            raise Http2Error(PROTOCOL_ERROR, f"there is no stream {number}")
        return stream

    def _forget(self, stream: Http2Stream) -> None:
        del self.streams[stream.id]
        self._blocked.pop(stream.id, None)
        stream.die()

    def _on_settings(self, flags: int, number: int, payload: bytes) -> None:
        if number or len(payload) % 6:
            raise Http2Error(FRAME_SIZE_ERROR, "settings are no settings")
        if flags & _ACK:
            return
        for key, value in _SETTING.iter_unpack(payload):
            if key == _INITIAL_WINDOW_SIZE:
                difference, self._peers_window = value - self._peers_window, value
                for stream in self.streams.values():
                    stream.window += difference
                if max([value, *(stream.window for stream in self.streams.values())]) > _MAX_WINDOW:
                    raise Http2Error(FLOW_CONTROL_ERROR, "a window is too large")
        self._send(frame(_SETTINGS, _ACK, 0, b""))
        self._send_blocked()

    def _on_window_update(self, number: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(FRAME_SIZE_ERROR, "a window has no size")
        added = int.from_bytes(payload, "big") & _MAX_WINDOW
        if not number:
            self._window += added
            if self._window > _MAX_WINDOW:
                raise Http2Error(FLOW_CONTROL_ERROR, "a window is too large")
            self._send_blocked()
            return
        stream = self._find(number)
        if stream is not None:
            stream.window += added
            if stream.window > _MAX_WINDOW:
                raise Http2Error(FLOW_CONTROL_ERROR, "a window is too large")
            if number in self._blocked:
                self._send_pending(stream)

    # What is said.

    def read(self, stream: Http2Stream) -> bytes:
        """Return the next message of a stream that has one, and give back its room."""
        message = stream.inbox.popleft()
        self._give_back(stream)
        return message

    def _give_back(self, stream: Http2Stream) -> None:
        credit = stream.take_credit()
        if credit and not stream.is_ended:
            self._send(frame(_WINDOW_UPDATE, 0, stream.id, credit.to_bytes(4, "big")))

    def send(self, stream: Http2Stream, message: bytes) -> None:
        """Send a message, as soon as there is room. Nothing is sent of a stream that is dead."""
        if stream.is_dead or stream.trailers is not None:
            return
        head = b""
        if not stream.has_head:
            stream.has_head, head = True, frame(_HEADERS, _END_HEADERS, stream.id, _HEAD)
        size = len(message) + 5
        if size <= _MAX_FRAME and not stream.pending and size <= stream.window and size <= self._window:
            stream.window -= size
            self._window -= size
            frame_head = _FRAME.pack(size >> 8, size & 0xFF, _DATA, 0, stream.id)
            self._send(b"".join((head, frame_head, b"\x00", (size - 5).to_bytes(4, "big"), message)))
            return
        if head:
            self._send(head)
        stream.pending += b"\x00" + len(message).to_bytes(4, "big")
        stream.pending += message
        self._send_pending(stream)

    def end(self, stream: Http2Stream, status: int = 0, message: str = "") -> None:
        """End a call with a status of gRPC."""
        if stream.is_dead or stream.trailers is not None:
            return
        words, number = message.encode("ascii", "replace")[:100], str(status).encode()
        said = _MESSAGE + bytes((len(words),)) + words if words else b""
        block = (b"" if stream.has_head else _HEAD) + _STATUS + bytes((len(number),)) + number + said
        trailers = frame(_HEADERS, _END_HEADERS | _END_STREAM, stream.id, block)
        stream.trailers = trailers if stream.is_ended else trailers + frame(_RESET, 0, stream.id, NO_ERROR.to_bytes(4, "big"))
        if not stream.pending:
            self._finish(stream)

    def _send_pending(self, stream: Http2Stream) -> None:
        pending = stream.pending
        frames: list[bytes] = []
        while pending and (room := min(_MAX_FRAME, stream.window, self._window)) > 0:
            piece = bytes(pending[:room])
            del pending[:room]
            stream.window -= len(piece)
            self._window -= len(piece)
            frames.append(frame(_DATA, 0, stream.id, piece))
        if frames:
            self._send(*frames)
        if pending:
            self._blocked[stream.id] = stream
            return
        self._blocked.pop(stream.id, None)
        if stream.trailers is not None:
            self._finish(stream)
        elif stream.listener is not None:
            stream.listener.on_writable()

    def _send_blocked(self) -> None:
        for stream in list(self._blocked.values()):
            if self._window <= 0:
                return
            self._send_pending(stream)

    def _finish(self, stream: Http2Stream) -> None:
        assert stream.trailers is not None
        self._send(stream.trailers)
        self._forget(stream)

    def leave(self) -> None:
        """Take no new streams."""
        if not self._is_leaving:
            self._is_leaving = True
            self.go_away(NO_ERROR, "")

    def go_away(self, code: int, message: str) -> None:
        """Say that the connection ends, and why."""
        payload = self._last_stream.to_bytes(4, "big") + code.to_bytes(4, "big") + message.encode("ascii", "replace")
        self._send(frame(_GOAWAY, 0, 0, payload))

    def lose(self) -> None:
        """The connection is lost, and all streams with it."""
        for stream in list(self.streams.values()):
            self._forget(stream)

    def _send(self, *frames: bytes) -> None:
        is_first = not self.output
        self.output += frames
        if is_first:
            self._on_output()


def _without_padding(payload: bytes) -> bytes:
    padding = payload[0] if payload else 0
    if not payload or padding >= len(payload):
        raise Http2Error(PROTOCOL_ERROR, "there is more padding than frame")
    return payload[1 : len(payload) - padding]
