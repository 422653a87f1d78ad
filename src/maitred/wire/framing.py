"""HTTP/1.1 framing without I/O: where messages begin and end, in both directions of one connection.

Both ends of a connection are in a state. What an end sends moves it on, and only what is in its row may be sent:

    client    IDLE -request-> SEND_BODY -data-> SEND_BODY -end-> DONE
    server    IDLE -request from the client-> SEND_RESPONSE -response-> SEND_BODY -data-> SEND_BODY -end-> DONE
              IDLE -response-> SEND_BODY: an error, when no request could be read

When both ends are DONE, `next_exchange` takes both back to IDLE. An end that may send nothing more after its message is in
MUST_CLOSE instead of DONE, one that has broken the rules in ERROR, one whose connection has ended in CLOSED.

`receive_data` takes what a read has brought, and returns events: a head, pieces of a body (bytes), `END`, or a `FramingError`
as the last one. It never returns events of a second message: what follows the end of a request is kept as it came, unparsed
(`pending_bytes`), until its answer has ended. The parser stops at the first slice of `SLICE_BYTES` in which a message ends, so
a read of many requests makes objects of a slice, and no more.

Example, on the server: the bytes of two requests come in one read. `receive_data` returns [RequestHead, END] for the first;
client DONE, server SEND_RESPONSE. The answer is sent (`start_response`, `send_data`), both are DONE, and `next_exchange`
returns [RequestHead, END] for the second.

HTTP is parsed by httptools, in its strict mode. What RFC 9112 asks beyond that is in `server_framing` and `client_framing`.
Limits hold for what a message has beside its body, so that none of it can grow without end:

    head        `max_head` bytes (request line, or none, and all headers)
    one line    `max_head` bytes without a complete header or a piece of a body: an endless line, an endless chunk extension
    trailers    `max_head` bytes; they are dropped, and never become headers
    chunks      what is no data may be `max_head` bytes and 16 bytes for each byte of data

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import httptools

from maitred.wire.messages import Event, FramingError, FramingMisuse, Headers, MessageKind, State

SLICE_BYTES: Final = 4_096
"""Bytes that the parser of a server is given at once, unless the body that it reads is known to be longer."""
_FRAMING_BYTES_PER_BYTE: Final = 16
"""Bytes of chunk framing that each byte of data allows; a chunk of one byte needs five."""

TRANSITIONS: Final[dict[State, dict[MessageKind, State]]] = {
    State.IDLE: {MessageKind.REQUEST: State.SEND_BODY, MessageKind.RESPONSE: State.SEND_BODY, MessageKind.CLOSE: State.CLOSED},
    State.SEND_RESPONSE: {MessageKind.RESPONSE: State.SEND_BODY, MessageKind.CLOSE: State.CLOSED},
    State.SEND_BODY: {MessageKind.END: State.DONE, MessageKind.CLOSE: State.CLOSED},
    State.DONE: {MessageKind.CLOSE: State.CLOSED},
    State.MUST_CLOSE: {MessageKind.CLOSE: State.CLOSED},
    State.CLOSED: {MessageKind.CLOSE: State.CLOSED},
    State.ERROR: {MessageKind.CLOSE: State.CLOSED},
}
"""The state of an end after what it has sent. Data leaves it in SEND_BODY, and a request that is received takes the server from
IDLE to SEND_RESPONSE. What a row lacks, its state does not allow."""

LF: Final = 0x0A
CR: Final = 0x0D
JOIN_FIELD: Final = b": ".join
"""Makes the line of a header of its name and value."""
_IDLE: Final = State.IDLE
_DONE: Final = State.DONE
_MUST_CLOSE: Final = State.MUST_CLOSE
_SEND_BODY: Final = State.SEND_BODY


class MessageFraming:
    """The common part of both ends: states, the parser and its limits, pieces of bodies. The parser calls the `on_` methods."""

    # Slots, because more than thirty attributes would be a dictionary for each connection.
    __slots__ = (
        *("_bytes_left_out", "_framing_bytes", "_has_body_out", "_head_bytes", "_headers", "_in_body", "_inbox", "_is_chunked"),
        *("_is_chunked_out", "_length", "_max_head", "_may_parse", "_num_ends", "_parser", "_pending", "_quiet_bytes"),
        *("body_bytes", "keep_alive", "own", "peer", "pending_bytes"),
    )

    def __init__(self, max_head: int) -> None:
        """`max_head` is the largest head, in bytes."""
        self.own = _IDLE
        """This end."""
        self.peer = _IDLE
        """The other end."""
        self.keep_alive = True
        """Whether the connection may be used again after this exchange."""
        self._max_head = max_head
        self._parser: Any = None
        """Made for the first bytes that it must see: those of a known head are none (`known_heads`)."""
        self._may_parse = True
        """Whether more may be parsed: nothing may after a fault, or the end of the connection."""
        self._inbox: list[Event] = []
        """Events that were parsed and not returned yet."""
        self._num_ends = 0
        """Messages that end in the inbox."""
        self._pending: deque[bytes] = deque()
        self.pending_bytes = 0
        """Bytes that were received and wait, unparsed, for the end of the exchange before them."""
        self._has_body_out = True
        """Whether the own message may have a body; if not, its data is dropped."""
        self._is_chunked_out = False
        self._bytes_left_out: int | None = None
        """Bytes of the own body that are still to be sent; None if its length was not declared."""
        # Of the message that the peer sends; `_begin_message` sets it back.
        self._headers: Headers = []
        self._head_bytes = 0
        """Bytes of the head, or of its trailers once the head is complete."""
        self.body_bytes = 0
        """Bytes of the body under way that the peer has sent."""
        self._quiet_bytes = 0
        """Bytes since the last header or piece of a body."""
        self._framing_bytes = 0
        """Bytes that are no data, less what the data allows."""
        self._in_body = False
        """Whether the head is complete, and the message is not."""
        self._length: int | None = None
        """The declared length of the body, or None."""
        self._is_chunked = False

    def _make_parser(self) -> Any:
        raise NotImplementedError

    def _begin_message(self) -> None:
        self._headers = []
        self._head_bytes = self.body_bytes = self._quiet_bytes = self._framing_bytes = 0
        self._in_body = self._is_chunked = False
        self._length = None

    def _move_own(self, kind: MessageKind) -> None:
        """Move this end on. Raises FramingMisuse if its state does not allow it."""
        following = TRANSITIONS[self.own].get(kind)
        if following is None:
            raise FramingMisuse(f"{kind.name} cannot be sent in the state {self.own.name}")
        if following is _DONE and not self.keep_alive:
            following = _MUST_CLOSE
        self.own = following

    def _move_peer(self, kind: MessageKind) -> None:
        following = TRANSITIONS[self.peer][kind]
        if following is _DONE and not self.keep_alive:
            following = _MUST_CLOSE
        self.peer = following

    def send_data(self, piece: bytes, more: bool) -> bytes:
        """Return the bytes of a piece of the body; `more` is False for the last one, which may be empty.

        Raises FramingMisuse if the body gets longer than declared, or ends before.
        """
        if self.own is not _SEND_BODY:
            raise FramingMisuse(f"data cannot be sent in the state {self.own.name}")
        left = self._bytes_left_out
        if not self._has_body_out:
            piece = b""
        elif left is not None:
            left -= len(piece)
            if left < 0 or (left and not more):
                raise FramingMisuse(f"the body is not as long as declared: {left} bytes are missing")
            self._bytes_left_out = left
        elif self._is_chunked_out:
            if more:  # an empty piece is not sent: a chunk without bytes would be the end of the body
                return b"%x\r\n%b\r\n" % (len(piece), piece) if piece else b""
            self.own = _DONE if self.keep_alive else _MUST_CLOSE
            return b"%x\r\n%b\r\n0\r\n\r\n" % (len(piece), piece) if piece else b"0\r\n\r\n"
        if not more:
            self.own = _DONE if self.keep_alive else _MUST_CLOSE
        return piece

    def _feed_parser(self, data: bytes) -> None:
        """Parse `data` into the inbox; a fault ends up there as the last event."""
        size, head_bytes, body_bytes = len(data), self._head_bytes, self.body_bytes
        switched_at = -1
        if self._parser is None:
            self._parser = self._make_parser()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            switched_at = upgrade.args[0]
        except httptools.HttpParserCallbackError as error:
            self._on_fault(_fault_in_callback(error))
            return
        except httptools.HttpParserError as error:
            self._on_fault(FramingError(f"this is no HTTP/1.1: {error}"))
            return
        if switched_at >= 0:  # Not within the handler, which would be the context of each further error.
            self._on_upgrade(data[switched_at:])
            return
        # An endless line brings neither a header nor a piece of a body, so no other limit would ever be reached.
        if self.body_bytes == body_bytes and self._head_bytes == head_bytes:
            self._quiet_bytes += size
            if self._quiet_bytes > self._max_head:
                self._on_fault(self._too_large())
        else:
            self._quiet_bytes = 0
        if self._is_chunked and self._in_body:
            self._framing_bytes += size - (1 + _FRAMING_BYTES_PER_BYTE) * (self.body_bytes - body_bytes)
            if self._framing_bytes > self._max_head:
                self._on_fault(FramingError("the chunks of the body are hardly anything but framing"))

    def _on_upgrade(self, rest: bytes) -> None:
        """Go on behind a head at which the parser has stopped, because it switches protocols; `rest` is what follows it."""
        self._on_fault(FramingError("the protocol was switched without being asked to"))

    def _on_fault(self, error: FramingError) -> None:
        """Parse no more. What has been parsed stands."""
        self._drop_pending()
        if self._may_parse:
            self._stop_parsing()  # What follows a fault may mean one thing here and another behind a proxy.
            self._inbox.append(error)

    def _stop_parsing(self) -> None:
        self._may_parse = False
        self._parser = None  # It refers to this object: without the circle both are freed at once.

    def _drop_pending(self) -> None:
        self._pending.clear()
        self.pending_bytes = 0

    def _too_large(self) -> FramingError:
        if self._in_body:
            return FramingError(f"what the body has beside its data is larger than {self._max_head} bytes")
        return FramingError(f"the head is larger than the {self._max_head} bytes allowed here", 431)

    def on_body(self, body: bytes) -> None:
        self.body_bytes += len(body)
        self._inbox.append(body)


def _fault_in_callback(error: httptools.HttpParserCallbackError) -> FramingError:
    """Return the error that a callback of the parser has raised, without its traceback: its frames refer to the connection."""
    cause = error.__context__
    if isinstance(cause, FramingError):
        return FramingError(str(cause), cause.status)
    return FramingError(f"this is no HTTP/1.1: {cause}")
