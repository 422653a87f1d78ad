"""The framing of a client: requests out, response heads in. States and limits are in `framing`.

The end of a response must never be guessed: what follows it would be taken for the next response, which belongs to another
request. A response ends

    1. by its `Transfer-Encoding: chunked`,
    2. by its one `Content-Length`,
    3. at once (204, 304, HEAD), or else
    4. at the end of the connection.

A response with both of the first two, with two lengths, or with another coding, is refused. The connection may be used again
only if its response ended in one of the first three ways, and nothing followed it (RFC 9112, 6.3 and 9.3).

Interim responses, such as 103, are dropped. Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import httptools

from maitred.wire.framing import CR, JOIN_FIELD, LF, MessageFraming
from maitred.wire.known_heads import KnownHead, KnownHeads, SeenHead, find_head
from maitred.wire.messages import END, Event, FramingError, FramingMisuse, Headers, HeadMemo, MessageKind, ResponseHead, State

_PROTOCOL: Final = b"HTTP/"
_INTERIM_BYTES: Final = 32
"""Bytes that an interim response counts for, beside its headers."""

_BODILESS: Final = (204, 304)
"""Statuses of responses that have no body, whatever their head says (RFC 9112, 6.3)."""

_DONE: Final = State.DONE
_MUST_CLOSE: Final = State.MUST_CLOSE
_SEND_RESPONSE: Final = State.SEND_RESPONSE
_CLOSED: Final = State.CLOSED
_IDLE: Final = State.IDLE
_SEND_BODY: Final = State.SEND_BODY
_ERROR: Final = State.ERROR
_REQUEST: Final = MessageKind.REQUEST
_RESPONSE: Final = MessageKind.RESPONSE
_END: Final = MessageKind.END


class HeaderBlock:
    """Headers that many requests have in common, encoded once. Raises ValueError for one with a line end in it."""

    __slots__ = ("headers", "lines")

    def __init__(self, headers: Headers) -> None:
        self.headers = headers
        self.lines = _join_lines([*map(JOIN_FIELD, headers)])


def _join_lines(lines: list[bytes]) -> bytes:
    """Return lines with their ends. Raises ValueError for one with a line end in it."""
    # A line end in a name or value would let a client add headers, or a whole request, to what a connection sends.
    text = b"".join(lines)
    if LF in text or CR in text:  # A byte as a number is found at once, and `count` looks at each.
        raise ValueError("a header with a line end in it")
    return b"\r\n".join(lines) + b"\r\n" if lines else b""


NO_BLOCK: Final = HeaderBlock([])
_NO_HEAD: Final[SeenHead] = (b"", None, 0)


class ClientFraming(MessageFraming):
    """The framing of one connection to a server."""

    __slots__ = (
        *("_begin", "_bodiless", "_has_interim", "_is_at_start", "_is_over", "_known_heads", "_last_head", "_until_close"),
    )

    def __init__(self, max_head: int, known_heads: KnownHeads[ResponseHead] | None = None) -> None:
        """`known_heads` are those of all connections of a client."""
        super().__init__(max_head)
        self._known_heads = known_heads or KnownHeads[ResponseHead]()
        self._last_head: KnownHead[ResponseHead] | None = None
        """The one that has come last of those that are kept."""
        # Of the response under way; `send_request` sets it back.
        self._bodiless = self._until_close = self._is_at_start = self._has_interim = self._is_over = False
        """Whether it may have no body; whether the end of the connection ends it; whether nothing of it has been received;
        whether an interim response came before it; whether it has ended: further bytes belong to no request."""
        self._begin = b""
        """Its first bytes."""

    def _make_parser(self) -> Any:
        return httptools.HttpResponseParser(self)

    def send_request(
        self,
        method: str,
        target: str,
        authority: str,
        headers: Iterable[tuple[bytes, bytes]],
        body_bytes: int,
        block: HeaderBlock = NO_BLOCK,
    ) -> bytes:
        """Return the head of a request. Its body must follow as it is; nothing more may be sent then.

        `headers` and `block` must contain neither Host nor headers about framing or the connection. Raises ValueError if a
        header contains a line end.
        """
        lines = [f"{method} {target} HTTP/1.1".encode("latin-1"), b"host: " + authority.encode("latin-1")]
        lines += map(JOIN_FIELD, headers)
        if body_bytes or method not in ("GET", "HEAD"):
            lines.append(b"content-length: %d" % body_bytes)
        head = _join_lines(lines)
        if self.own is not _IDLE:
            self._move_own(_REQUEST)  # This raises FramingMisuse.
        self.own = _DONE  # The body follows as it is.
        self.peer = _SEND_RESPONSE
        self._bodiless = method == "HEAD"
        self._is_at_start = True
        self._begin = b""
        self._until_close = self._has_interim = self._is_over = False
        return head + block.lines + b"\r\n"

    def receive_data(self, data: bytes) -> list[Event]:
        """Return the events in what a read has brought."""
        if not self._is_at_start:
            return self._parse(data)
        self._is_at_start = False
        last = self._last_head
        # Behind the head of an answer to HEAD is no body, whatever the head says.
        again = None if last is None or self._bodiless else last.find_again(data)
        if last is not None and again is not None and len(data) - again[1] == again[0]:
            return self._take_known(last.head, again[0], data[again[1] :])
        seen = None if self._bodiless else find_head(data)
        key, length, end = seen or _NO_HEAD
        if length is None or len(data) - end != length:
            self._begin_message()
            return self._parse(data)
        known = self._known_heads.get(key)
        if known is not None:
            self._last_head = known
            return self._take_known(known.head, length, data[end:])
        self._begin_message()
        events = self._parse(data)
        if events and events[-1] is END:
            self._keep_head(key, data[:end], events[0], length)
        return events

    def _take_known(self, known: ResponseHead, length: int, body: bytes) -> list[Event]:
        """Return the events of a whole response with a head that was parsed before. The parser sees nothing of it."""
        self.keep_alive, self._is_over = known.keep_alive, True
        self.peer = _DONE if known.keep_alive else _MUST_CLOSE
        head = known if length == known.length else known.with_length(length)
        return [head, body, END] if length else [head, END]

    def _keep_head(self, key: bytes, seen: bytes, head: Event, length: int) -> None:
        """Keep the head of a response that was the whole of a read, so that all that it means is known.

        What was seen is the first head of the read. If that was an interim response, or bytes follow the response (which end
        the keep-alive of this connection alone), the head that was parsed is not what was seen, or means more than it says.
        """
        if type(head) is ResponseHead and not self._has_interim and head.length == length and head.status not in _BODILESS:
            head.keep_alive, head.memo = self.keep_alive, HeadMemo()
            self._known_heads.keep(key, seen, head)

    def _parse(self, data: bytes) -> list[Event]:
        if not self._in_body:
            self._begin = (self._begin + data).lstrip(b"\r\n")[: len(_PROTOCOL)]
        self._feed_parser(data)
        events, self._inbox = self._inbox, []
        return events

    def receive_eof(self) -> list[Event]:
        """Take note that the server sends nothing more, and return the end of a response that it ends."""
        if not self._until_close or self._is_over:
            self.peer = _CLOSED
            return []
        self._end_response(is_reusable=False)
        events, self._inbox = self._inbox, []
        return events

    def next_exchange(self) -> None:
        """Begin the next exchange, when both ends are DONE."""
        if self.own is not _DONE or self.peer is not _DONE:
            raise FramingMisuse(f"there is no next exchange: {self.own.name}, {self.peer.name}")
        self.own = self.peer = _IDLE

    def close(self) -> None:
        """Take note that the connection is closed."""
        self._move_own(MessageKind.CLOSE)
        self._stop_parsing()

    def _on_fault(self, error: FramingError) -> None:
        super()._on_fault(error)
        self.peer = _ERROR

    def on_message_begin(self) -> None:
        if self._is_over:  # Something follows the response.
            self.keep_alive = False
            if self.peer is _DONE:
                self.peer = _MUST_CLOSE

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_over:
            return
        self._head_bytes += len(name) + len(value) + 4  # with the colon, a space and the line end
        if self._head_bytes > self._max_head:
            raise self._too_large()
        if self._in_body:  # A trailer is never a header.
            return
        name = name.lower()
        self._headers.append((name, value))
        if name == b"content-length":
            self._length = int(value)
        elif name == b"transfer-encoding":
            # Another coding, or chunked twice, would make the end of the body a matter of interpretation.
            if self._is_chunked or value.strip().lower() != b"chunked":
                raise FramingError("the upstream's response has a transfer coding other than chunked")
            self._is_chunked = True

    def on_headers_complete(self) -> None:
        if self._is_over:
            return
        status, version = self._parser.get_status_code(), self._parser.get_http_version()
        if self._begin != _PROTOCOL:  # The parser takes RTSP and ICE as well, and does not say which it was.
            raise FramingError("the upstream's response is not one of HTTP")
        if version != "1.1" and (version != "1.0" or self._is_chunked):
            raise FramingError(f"the upstream speaks HTTP/{version}, and this is no such response")
        if status == 101:
            raise FramingError("the upstream switched protocols without being asked to")
        if not 100 <= status <= 599:
            raise FramingError(f"the upstream answered with the status {status}, which there is not")
        if status < 200:  # The final response follows, with headers of its own.
            self._headers, self._length, self._is_chunked, self._has_interim = [], None, False, True
            self._head_bytes += _INTERIM_BYTES  # towards the limit of the head: a row of them must have an end
            if self._head_bytes > self._max_head:
                raise self._too_large()
            return
        self._in_body, self._head_bytes = True, 0
        self._inbox.append(ResponseHead(status, self._headers, self._length))
        self._move_peer(_RESPONSE)
        if self._bodiless:
            self._end_response(is_reusable=False)  # The parser cannot be told that no body follows.
        else:
            # By the end of the connection alone: a response that breaks off looks whole then, and nobody can tell.
            self._until_close = not self._is_chunked and self._length is None and status not in _BODILESS

    def on_body(self, body: bytes) -> None:
        if not self._is_over:
            self.body_bytes += len(body)
            self._inbox.append(body)

    def on_message_complete(self) -> None:
        if self._in_body and not self._is_over:
            self._end_response(is_reusable=self._parser.should_keep_alive())

    def _end_response(self, *, is_reusable: bool) -> None:
        self._is_over = True
        self.keep_alive = is_reusable
        self._move_peer(_END)
        self._inbox.append(END)
