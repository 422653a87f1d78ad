"""The framing of a server: request heads in, responses out. States and limits are in `framing`.

A proxy and its backend must see the same requests in the same bytes. Beyond what the parser refuses (two lengths, a length
beside chunks, folded lines, bare line feeds, spaces before a colon), a request is refused with

    505   another version than 1.1 and 1.0 (RFC 9112, 2.3); 400 for a request line without any, or of RTSP or ICE
    400   no Host, two, or one that is none (3.2); with HTTP/1.0 it may be missing
    501   another transfer coding than `chunked`, or two (6.1); 400 for any with HTTP/1.0
    400   a target that is neither a path, nor a URL, nor the `*` of OPTIONS; a tunnel (CONNECT)
    431   a head beyond the limit

An offer to switch protocols is ignored, as RFC 9110 (7.8) allows: `GET / HTTP/1.1`, `upgrade: h2c`, `host: a` is read as
`GET / HTTP/1.1`, `host: a`.

A response has the length that its headers declare, else chunks. A response to HEAD, and one with 204 or 304, has no body,
whatever is sent. Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

import httptools

from maitred.wire.framing import CR, JOIN_FIELD, LF, SLICE_BYTES, MessageFraming
from maitred.wire.known_heads import KnownHead, KnownHeads, find_head
from maitred.wire.messages import (
    END,
    Event,
    FramingError,
    FramingMisuse,
    Headers,
    HeadMemo,
    MessageKind,
    RequestHead,
    State,
    split_target,
)
from maitred.wire.request_rules import check_codings, check_hosts, check_version, origin_form

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}".encode() for status in HTTPStatus}
_FRAMING_HEADERS: Final = frozenset((b"host", b"content-length", b"transfer-encoding", b"expect", b"upgrade"))
_AFTER_REQUEST: Final = frozenset((State.DONE, State.MUST_CLOSE, State.CLOSED, State.ERROR))

_DONE: Final = State.DONE
_IDLE: Final = State.IDLE
_MUST_CLOSE: Final = State.MUST_CLOSE
_SEND_RESPONSE: Final = State.SEND_RESPONSE
_SEND_BODY: Final = State.SEND_BODY
_ERROR: Final = State.ERROR
_REQUEST: Final = MessageKind.REQUEST
_RESPONSE: Final = MessageKind.RESPONSE


class ServerFraming(MessageFraming):
    """The framing of one connection from a client."""

    __slots__ = (
        *("_codings", "_expects_continue", "_hosts", "_is_at_start", "_is_head_request", "_is_http_11", "_is_restarting"),
        *("_known_heads", "_last_head", "_skips_parser", "_slice", "_target", "_upgrade_was_offered"),
        *("drops_further", "is_in_head"),
    )

    def __init__(self, max_head: int, known_heads: KnownHeads[RequestHead] | None = None) -> None:
        """`known_heads` are those of all connections of a server."""
        super().__init__(max_head)
        self._known_heads = known_heads or KnownHeads[RequestHead]()
        self._last_head: KnownHead[RequestHead] | None = None
        """The one that has come last of those that are kept."""
        self.is_in_head = False
        """Whether the first bytes of a head have been parsed, and not the last."""
        self.drops_further = False
        """Whether what follows the exchange under way is dropped."""
        self._is_http_11, self._is_head_request = True, False
        self._skips_parser = False
        """Whether the parser is not given the body under way."""
        self._slice = b""
        """The bytes that the parser was given last; of a head that came in several slices, all of them."""
        self._is_at_start = True
        """Whether the next head is the first thing in there."""
        # Of the head under way.
        self._target = b""
        self._hosts: tuple[bytes, ...] = ()
        self._codings: tuple[bytes, ...] = ()
        self._expects_continue = self._upgrade_was_offered = self._is_restarting = False
        """The last: whether the parser is about to stop behind an offer to upgrade."""

    def _make_parser(self) -> Any:
        parser = httptools.HttpRequestParser(self)
        # What follows a request with `Connection: close` is no error: it is not looked at.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def _begin_message(self) -> None:
        super()._begin_message()
        self._target = b""
        self._hosts = self._codings = ()
        self._expects_continue = self._upgrade_was_offered = self._is_restarting = False

    def receive_data(self, data: bytes) -> list[Event]:
        """Return the events in what a read has brought, as far as the exchange before it has ended."""
        if self.peer is not _IDLE or self.is_in_head:
            return self._receive_more(data)
        last = self._last_head
        if last is not None:
            again = last.find_again(data)
            if again is not None:
                return self._take_known(last.head, again[0], data[again[1] :])
        seen = find_head(data)
        if seen is None:
            self._feed(data)
            return self._take_events()
        key, length, end = seen
        known = self._known_heads.get(key)
        if known is not None:
            self._last_head = known
            return self._take_known(known.head, length, data[end:])
        self._feed(data)
        events = self._take_events()
        head = events[0] if events and (length is not None or events[-1] is END) else None
        if type(head) is RequestHead and head.length == length:
            head.memo = HeadMemo()
            self._known_heads.keep(key, data[:end], head)
        return events

    def _receive_more(self, data: bytes) -> list[Event]:
        """Return the events in a read behind the beginning of a request."""
        if self.peer in _AFTER_REQUEST:
            # Bytes, and not requests: of a pipeline nobody knows yet whether this connection will answer it.
            if self.peer is _DONE and self._may_parse:
                self._pending.append(data)
                self.pending_bytes += len(data)
            return []
        self._feed(data)
        return self._take_events()

    def _take_known(self, known: RequestHead, declared: int | None, body: bytes) -> list[Event]:
        """Return the events of a request with a head that was parsed before. The parser sees nothing of it."""
        length = declared or 0
        head = known if declared == known.length else known.with_length(length)
        self.own, self.peer, self.keep_alive = _SEND_RESPONSE, _SEND_BODY, head.keep_alive
        self._is_http_11, self._is_head_request = head.is_http_11, head.method == "HEAD"
        if len(body) < length:
            self._begin_message()
            self._length, self._in_body, self._skips_parser = length, True, True
            self.body_bytes = len(body)
            return [head, body] if body else [head]
        self.peer = _DONE if self.keep_alive else _MUST_CLOSE
        if len(body) > length:
            if self.keep_alive:
                self._pending.append(body[length:])
                self.pending_bytes += len(body) - length
            body = body[:length]
        return [head, body, END] if body else [head, END]

    @property
    def path_in_head(self) -> str:
        """The path in the head that is being parsed, or that has broken the rules, as far as it has come; "" if none has."""
        return split_target(self._target)[0] if self.is_in_head else ""

    def next_exchange(self) -> list[Event]:
        """Begin the next exchange, when both ends are DONE, and return the events in what was received of it."""
        if self.own is not _DONE or self.peer is not _DONE:
            raise FramingMisuse(f"there is no next exchange: {self.own.name}, {self.peer.name}")
        self.own = self.peer = _IDLE
        while self._pending and not self._num_ends and self._may_parse:
            data = self._pending.popleft()
            self.pending_bytes -= len(data)
            self._feed(data)
        return self._take_events() if self._inbox else []

    def drop_further(self) -> None:
        """Take no further request: what waits and what comes is dropped, and the connection ends with this exchange."""
        self.drops_further, self.keep_alive = True, False
        if self.peer is _DONE:
            self.peer = _MUST_CLOSE
        self._inbox.clear()
        self._num_ends = 0
        self._drop_pending()

    def receive_eof(self) -> None:
        """Take note that the client sends nothing more: what waits is dropped."""
        self._move_peer(MessageKind.CLOSE)
        self._drop_pending()
        self._stop_parsing()

    def _feed(self, data: bytes) -> None:
        """Parse `data` as far as the slice in which a message ends; the rest goes back in front of what waits."""
        size, at = len(data), 0
        if size <= SLICE_BYTES and not self._skips_parser:
            self._feed_slice(data)
            return
        while at < size and not self._num_ends and self._may_parse:
            left = self._length - self.body_bytes if self._in_body and self._length is not None else None
            if left is not None and (self._skips_parser or left > SLICE_BYTES):
                begun = self._take_back_body() if at else 0
                whole = at == begun and left >= size - at
                self._take_body(data if whole else data[at - begun : at + left])  # compiled, a slice is always a copy
            else:
                self._feed_slice(data[at : at + (left or SLICE_BYTES)])
            at += left or SLICE_BYTES
        if at < size and self._may_parse:
            self._pending.appendleft(data[at:])
            self.pending_bytes += size - at

    def _feed_slice(self, data: bytes) -> None:
        if self.is_in_head:
            self._slice += data
        else:
            self._slice, self._is_at_start = data, not self._in_body
        self._feed_parser(data)

    def _take_back_body(self) -> int:
        """Take back what the parser has copied of a body behind its head, and return its size: it is part of a larger piece."""
        size, self.body_bytes = self.body_bytes, 0
        if size:
            self._inbox.pop()
        return size

    def _take_body(self, piece: bytes) -> None:
        """Take a piece of a body of known length as it is: the parser would copy it."""
        self._skips_parser = True
        self.body_bytes += len(piece)
        self._inbox.append(piece)
        if self.body_bytes == self._length:
            self._parser, self._skips_parser = None, False  # It waits for the body.
            self.on_message_complete()

    def _take_events(self) -> list[Event]:
        """Return the events up to the end of the first message, and move the states by them."""
        events, self._inbox = self._inbox, []
        if self._num_ends:
            self._num_ends -= 1
            end = events.index(END) + 1
            if end < len(events):
                events, self._inbox = events[:end], events[end:]
        for event in events:
            if type(event) is RequestHead:
                self._move_peer(_REQUEST)
                self.own = _SEND_RESPONSE
                self._is_http_11, self._is_head_request = event.is_http_11, event.method == "HEAD"
                self.keep_alive = event.keep_alive
            elif event is END:
                self.peer = _DONE
                if not self.keep_alive:
                    self.peer = _MUST_CLOSE
                    self._drop_pending()
            elif type(event) is FramingError:
                self.peer, self.keep_alive = _ERROR, False
        return events

    def on_message_begin(self) -> None:
        self._begin_message()
        self.is_in_head = True

    def on_url(self, url: bytes) -> None:
        self._head_bytes += len(url)
        if self._head_bytes > self._max_head:
            raise self._too_large()
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + 4  # with the colon, a space and the line end
        if self._head_bytes > self._max_head:
            raise self._too_large()
        if self._in_body:  # A trailer is never a header.
            return
        name = name.lower()
        if name in _FRAMING_HEADERS:
            self._note_header(name, value)
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        parser = self._parser
        version, method = parser.get_http_version(), parser.get_method()
        is_http_11 = check_version(version)
        # The parser takes RTSP/1.0 and ICE/1.0 as well, and does not say which it was.
        line = b"%b %b HTTP/%b\r\n" % (method, self._target, version.encode())
        if not (self._slice.lstrip(b"\r\n").startswith(line) if self._is_at_start else line in self._slice):
            raise FramingError("the request line is not that of HTTP")
        self._is_at_start = False
        if method == b"CONNECT":
            raise FramingError("CONNECT is for proxies, and this is none")
        if self._upgrade_was_offered and parser.should_upgrade():
            self._is_restarting = True
            return
        check_hosts(self._hosts, is_http_11)
        if self._codings:
            check_codings(self._codings, is_http_11)
            self._is_chunked = True
        self._in_body, self._head_bytes, self.is_in_head = True, 0, False
        target = self._target
        if not target.startswith(b"/") or b"#" in target:
            target = origin_form(target, method)
        expects_continue = self._expects_continue and is_http_11
        keep_alive = is_http_11 and parser.should_keep_alive()
        name = method.decode("ascii")
        length, (path, query) = self._length, split_target(target)
        self._inbox.append(
            RequestHead(name, target, self._headers, is_http_11, expects_continue, length, keep_alive, path, query)
        )

    def on_message_complete(self) -> None:
        if not self._is_restarting:
            self._inbox.append(END)
            self._num_ends += 1
            self._in_body = False

    def _note_header(self, name: bytes, value: bytes) -> None:
        if name == b"host":
            self._hosts += (value.strip(),)
            if len(self._hosts) > _MAX_HOSTS:
                raise FramingError("a request must have one Host header, and this one has more")
        elif name == b"content-length":
            self._length = int(value)
        elif name == b"transfer-encoding":
            self._codings += (value.strip().lower(),)
            if len(self._codings) > _MAX_CODINGS:
                raise FramingError("the only transfer coding that is understood here is chunked", 501)
        elif name == b"expect":
            self._expects_continue = value.strip().lower() == b"100-continue"
        else:
            self._upgrade_was_offered = True

    def _on_upgrade(self, rest: bytes) -> None:
        # The parser has stopped behind the head for good, so another one reads the head again, without the offer.
        method, version = self._parser.get_method(), self._parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (method, self._target, version)]
        lines += [b"%b: %b" % header for header in self._headers if header[0] != b"upgrade"]
        self._parser, self.is_in_head = None, False
        self._feed_slice(b"\r\n".join(lines) + b"\r\n\r\n" + rest)

    def start_response(self, status: int, headers: Headers) -> bytes:
        """Return the head of a response. Raises FramingMisuse, also for a header with a line end in it."""
        if self.own is _SEND_RESPONSE:  # The usual case, without a call.
            self.own = _SEND_BODY
        else:
            self._move_own(_RESPONSE)
        lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d " % status, *map(JOIN_FIELD, headers)]
        length = None
        for name, value in headers:
            if name == b"content-length":
                length = int(value)
        self._bytes_left_out, self._is_chunked_out = length, False
        self._has_body_out = not (self._is_head_request or status in _BODILESS)
        if self._has_body_out and length is None:
            if self._is_http_11:
                self._is_chunked_out = True
                lines.append(b"transfer-encoding: chunked")
            else:
                self.keep_alive = False  # HTTP/1.0 knows no chunks: the end of the connection is that of the body
        if not self.keep_alive:
            lines.append(b"connection: close")
        text = b"".join(lines)
        # A line end in a value would add headers, or a whole response, to what this connection sends.
        if LF in text or CR in text:  # A byte as a number is found at once, and `count` looks at each.
            raise FramingMisuse("a header with a line end in it")
        lines.append(b"\r\n")
        return b"\r\n".join(lines)


_BODILESS: Final = (204, 304)
_MAX_HOSTS: Final = 8
_MAX_CODINGS: Final = 8
"""Headers that are kept to say what is wrong with them: a head may have thousands, and each would be copied with the next."""
