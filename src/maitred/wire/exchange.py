"""A request and its response, as their handler sees them, and the answers that every server of ours gives.

A handler is called once per request with an `Exchange`, in a task of its own. Header names come in lower case.

    read_body          the whole body, within a limit
    start_response     the head and the first piece of the body, in one write
    send_piece         every further piece; returns a future while the client is too slow to take more
    watch_disconnect   calls back when the client leaves

What is sent to a client that has left is dropped. A handler that returns without the end of a response has its connection cut,
because a response that breaks off must not look whole. Compiled (`tools/compile.py`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from io import BytesIO
from typing import Final, Protocol, TypeAlias

import msgspec

from maitred.core.errors import MaitredError
from maitred.wire.messages import FramingMisuse, Headers, RequestHead

_encode = msgspec.json.Encoder().encode
_LONE_SURROGATE = re.compile(rb"\\u[dD][89abAB]", re.ASCII)


_MESSAGES: Final = "/v1/messages"
_ANTHROPIC_TYPES: Final = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""Anthropic's `type` by status; of other statuses `invalid_request_error` below 500, and `api_error` from there."""


def is_messages_path(path: str) -> bool:
    """Return whether a path, which may have a query behind it, is of Anthropic's API: /v1/messages and what is below."""
    return path.startswith(_MESSAGES) and path[len(_MESSAGES) :][:1] in ("", "/", "?")


def messages_error_type(status: int) -> str:
    """Return Anthropic's `type` of an error with this status."""
    return _ANTHROPIC_TYPES.get(status) or ("invalid_request_error" if status < 500 else "api_error")


class ApiError(MaitredError):
    """An error response: a status and an error object, in the words of the API that the request was for.

    `kind` is OpenAI's `type` (`invalid_request_error`, `rate_limit_error`, `server_error`); `code` is a stable word for
    programs. Anthropic's type follows from the status.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str,
        code: str | None = None,
        param: str | None = None,
        headers: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        self.status, self.message, self.kind, self.code, self.param = status, message, kind, code, param
        self.headers = tuple(headers)
        self._answers: dict[bool, tuple[Headers, bytes]] = {}
        """What `answer` has returned, by whether it was for Anthropic's API."""
        super().__init__(message)

    def answer(self, path: str) -> tuple[Headers, bytes]:
        """Return the headers and the body of the answer to a request to `path`, as `body` takes it: with X-SMG-Error-Code if
        there is a code. They are made once for each API, and must not be changed."""
        is_messages = is_messages_path(path)
        made = self._answers.get(is_messages)
        if made is None:
            body = self.body(path)
            headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
            if self.code:
                headers.append((b"x-smg-error-code", self.code.encode()))
            made = self._answers[is_messages] = [*headers, *self.headers], body
        return made

    def body(self, path: str) -> bytes:
        """Return the JSON error object for a request to `path`, which may have a query behind it, or be "" if it is unknown: an
        object of Anthropic's API, or of OpenAI's."""
        if is_messages_path(path):
            return _encode({"type": "error", "error": {"type": messages_error_type(self.status), "message": self.message}})
        return _encode({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}})


class ClientDisconnected(Exception):  # noqa: N818  (an event, not an error)
    """The client disconnected before its request was complete: no answer can be sent."""


class ResponseWriter(Protocol):
    """What takes a response. Both methods return a future while the client cannot take more: send nothing until it is done."""

    def start_response(self, status: int, headers: Headers, piece: bytes, more: bool) -> asyncio.Future[None] | None:
        """Send the head and the first piece of the body; `more` is False if that is all of it."""
        ...

    def send_piece(self, piece: bytes, more: bool) -> asyncio.Future[None] | None:
        """Send a further piece; `more` is False for the last one, which may be empty."""
        ...


class ExchangeConnection(ResponseWriter, Protocol):
    """The connection of an exchange."""

    def send_continue(self) -> None:
        """Tell a client that waits for it to send the body."""
        ...

    def on_body_read(self) -> None:
        """Take note that all pieces of the body that have arrived were read."""
        ...


def _ignore_size(size: int) -> None:
    """Do nothing."""


ClientAddress: TypeAlias = tuple[str, int] | None
"""Address and port of a client, or None if it came over no network."""


class Exchange:
    """One request and its response. Its connection calls `on_body`, `on_body_end` and `on_disconnect`."""

    # Slots: what is set for the first time after thirty others were begun would cost each of them a dictionary of its own.
    __slots__ = (
        *("_body_is_aborted", "_body_is_whole", "_connection", "_expects_continue", "_head", "_on_disconnect", "_waiter"),
        *(
            "added_headers",
            "client",
            "cors_headers",
            "headers",
            "is_disconnected",
            "memo",
            "method",
            "path",
            "query",
            "refusal",
        ),
        *("response_ended", "response_started", "status", "target", "task", "unread", "unread_bytes"),
    )

    def __init__(self, head: RequestHead, connection: ExchangeConnection, client: ClientAddress = None) -> None:
        self.method = head.method
        self.headers = head.headers
        self.target = head.target
        """The target as it came, in origin-form (`/path?query`), or `*`."""
        self.path = head.path
        """That of the target, decoded."""
        self.query = head.query
        self.memo = head.memo
        self.client = client
        self.task: asyncio.Task[None] | None = None
        """The task of its handler."""
        self.unread: list[bytes] = []
        """Pieces of the body that have arrived and were not read."""
        self.unread_bytes = 0
        self.status = 0
        """The status of the response, or 0 before it."""
        self.is_disconnected = self.response_started = self.response_ended = False
        """Whether the client has left before the end of the response; how far that is."""
        self.refusal: ApiError | None = None
        """What the connection has answered in place of the handler, because the rest of the request came too slowly, or was not
        HTTP; None: nothing."""
        self.cors_headers: Headers | None = None
        """What the answer says to a browser in place of its own Access-Control headers, or None to leave it as it is."""
        self.added_headers: Headers | None = None
        """Further headers of the answer, also of one with which the connection refuses the rest of the request; None: none."""
        self._head = head
        self._connection = connection
        self._expects_continue = head.expects_continue
        self._body_is_whole = self._body_is_aborted = False
        self._waiter: asyncio.Future[None] | None = None
        self._on_disconnect: Callable[[], object] | None = None

    def get_header(self, name: bytes) -> bytes | None:
        """Return the first value of the header `name` (lower case), or None."""
        # As bytes: decoding all headers would cost more than the rest of a small request.
        for key, value in self.headers:
            if key == name:
                return value
        return None

    def get_list(self, name: bytes) -> bytes | None:
        """Return the list that the header `name` (lower case) is, or None: several lines of it are one list (RFC 9110, 5.3)."""
        values = [value for key, value in self.headers if key == name]
        return b", ".join(values) if values else None

    def take_whole_body(self, limit: int) -> bytes | None:
        """Return the body if it came whole and in one piece, within `limit` bytes: the usual small request. Otherwise None:
        `read_body` is next."""
        if not self._body_is_whole or len(self.unread) != 1 or self.unread_bytes > limit:
            return None
        self.unread_bytes = 0
        return self.unread.pop()

    async def read_body(self, limit: int, on_piece: Callable[[int], object] = _ignore_size) -> bytes:
        """Return the whole body, at most `limit` bytes. `on_piece` is called with the size of what has come, and may raise.

        Raises ApiError 413 as soon as the body is known to be longer, 408 after `abort_body`, ClientDisconnected, and what
        `on_piece` raises. The rest of a refused body is read and dropped: if the connection is closed while a client sends, it
        may miss the answer.
        """
        declared = self._head.length
        if declared is not None and declared > limit:
            raise body_too_large(limit)
        if self._expects_continue and not (self.unread or self._body_is_whole):
            self._connection.send_continue()
        self._expects_continue = False
        # Not a list of pieces: an object for each chunk of a few bytes takes ten times their memory. Nor a bytearray, all of
        # which must be copied in the end.
        taken = BytesIO()
        while True:
            if self._body_is_aborted:
                raise body_too_slow()
            if self.unread:
                pieces, self.unread, self.unread_bytes = self.unread, [], 0
                size = sum(map(len, pieces))
                if taken.tell() + size > limit:
                    raise body_too_large(limit)
                on_piece(size)
                if self._body_is_whole and not taken.tell():
                    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
                for piece in pieces:
                    taken.write(piece)
            if self._body_is_whole:
                return _take_all(taken)
            if self.is_disconnected:
                raise ClientDisconnected
            self._connection.on_body_read()
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def abort_body(self) -> None:
        """Read the body no further: `read_body` raises ApiError 408. What it has taken is free in the next turn of the loop."""
        self._body_is_aborted = True
        self._wake()

    def start_response(self, status: int, headers: Headers, piece: bytes, more: bool) -> asyncio.Future[None] | None:
        """Send the head and the first piece of the body, as `ResponseWriter` says."""
        if self.is_disconnected:
            return None  # and no error: the handler learns of it by `watch_disconnect`, perhaps later than it sends
        if self.response_started:
            raise FramingMisuse("the response has started already")
        self.response_started, self.response_ended, self.status = True, not more, status
        if self.cors_headers is not None:
            headers = [*self.cors_headers, *(header for header in headers if not header[0].startswith(b"access-control-"))]
        if self.added_headers is not None:
            headers = [*headers, *self.added_headers]
        return self._connection.start_response(status, headers, piece, more)

    def send_piece(self, piece: bytes, more: bool) -> asyncio.Future[None] | None:
        """Send a further piece of the body, as `ResponseWriter` says."""
        if self.is_disconnected:
            return None
        if self.response_ended:
            raise FramingMisuse("the response has ended already")
        self.response_ended = not more
        return self._connection.send_piece(piece, more)

    def watch_disconnect(self, on_disconnect: Callable[[], object]) -> None:
        """Call `on_disconnect` once if the client leaves before the end of the response; at once if it has left already."""
        self._on_disconnect = on_disconnect
        if self.is_disconnected:
            self._tell_disconnect()

    def stop_watching(self) -> None:
        """Do not call `on_disconnect` any more. Idempotent."""
        self._on_disconnect = None

    def on_whole_body(self, body: bytes) -> None:
        """Take all of the body, of a request of which the handler has not begun."""
        self.unread.append(body)
        self.unread_bytes, self._body_is_whole = len(body), True

    def on_body(self, piece: bytes) -> None:
        """Take a piece of the body."""
        self.unread.append(piece)
        self.unread_bytes += len(piece)
        if self._waiter is not None:
            self._wake()

    def on_body_end(self) -> None:
        """Take note that the body is whole."""
        self._body_is_whole = True
        if self._waiter is not None:
            self._wake()

    def on_refused(self, error: ApiError) -> None:
        """Take note that the connection answers with `error` in place of the handler, unless a response has started, and takes
        nothing more."""
        if not self.response_started:
            self.refusal = error
        self.on_disconnect()

    def on_disconnect(self) -> None:
        """Take note that the client has left, or cannot be understood any more."""
        self.is_disconnected = True
        self._wake()
        self._tell_disconnect()

    def _tell_disconnect(self) -> None:
        on_disconnect, self._on_disconnect = self._on_disconnect, None
        if on_disconnect is not None:
            on_disconnect()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def _take_all(taken: BytesIO) -> bytes:
    """Return what was taken, and empty it: compiled, the locals of a coroutine live as long as what has awaited it."""
    body = taken.getvalue()
    taken.close()
    return body


Handler: TypeAlias = Callable[[Exchange], Awaitable[None]]


def body_too_large(limit: int) -> ApiError:
    """Return the error for a request body of more than `limit` bytes."""
    return ApiError(
        413,
        f"the request body is larger than the {limit} bytes allowed here",
        kind="invalid_request_error",
        code="request_too_large",
    )


def body_too_slow() -> ApiError:
    """Return the error for a request body that is read no further, because it comes slowly and others need its memory."""
    message = "the request body came too slowly for the memory that it held while others needed it"
    return ApiError(408, message, kind="invalid_request_error", code="body_too_slow")


def describe_body_error(error: msgspec.DecodeError | UnicodeDecodeError, body: bytes) -> str:
    """Return in a few words what is wrong with a body that msgspec could not decode."""
    if _LONE_SURROGATE.search(body[-11:]) and "truncated" in str(error):  # msgspec waits for the other half of the pair.
        return "half of a surrogate pair in a text is no character"
    return str(error)


def send_bytes(
    writer: ResponseWriter, status: int, body: bytes, content_type: bytes, headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Send a whole response, with its Content-Length."""
    own = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    writer.start_response(status, [*own, *headers], body, False)


def send_json(writer: ResponseWriter, status: int, payload: object, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """Send `payload`, anything that msgspec can encode, as JSON."""
    send_bytes(writer, status, _encode(payload), b"application/json", headers)


def send_error(writer: ResponseWriter, error: ApiError, path: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """Send `error` as the response to a request to `path`, with further headers."""
    own, body = error.answer(path)
    writer.start_response(error.status, [*own, *headers], body, False)
