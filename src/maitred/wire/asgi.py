"""Raw ASGI without a framework: bodies within a limit, JSON answers, OpenAI error objects, disconnects.

An ASGI server calls `app(scope, receive, send)` once per request. Header names come in lower case, names and values as bytes,
and they are compared as bytes: decoding them all would cost more than the rest of a small request.

Two coroutines of the server rarely have to wait, or must be awaited *beside* something else. A task for each would cost several
microseconds per request. So they are stepped by hand here, which is all that a task does:

    `DisconnectWatcher`  steps `receive()` to the future it waits for, and calls back when the client has disconnected
    `send_eagerly`       steps `send(message)`, and makes a task only if the client is too slow to take it at once
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, MutableMapping
from typing import Any, TypeAlias

import msgspec

from maitred.core.errors import MaitredError

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers: TypeAlias = list[tuple[bytes, bytes]]
"""In the order of the wire; names in lower case."""

_encode = msgspec.json.Encoder().encode
_LONE_SURROGATE = re.compile(rb"\\u[dD][89abAB]", re.ASCII)


class ApiError(MaitredError):
    """An error response as OpenAI's clients expect it: a status and an error object.

    `kind` is OpenAI's `type` (`invalid_request_error`, `rate_limit_error`, `server_error`); `code` is a stable word for
    programs.
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
        super().__init__(message)

    def body(self) -> bytes:
        """Return the JSON error object."""
        return _encode({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}})


class ClientDisconnected(Exception):  # noqa: N818  (an event, not an error)
    """The client disconnected before its request was complete: no answer can be sent."""


def get_header(scope: Scope, name: bytes) -> bytes | None:
    """Return the first value of the header `name` (lower case), or None."""
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found
    return None


def _ignore_size(size: int) -> None:
    """Do nothing."""


async def read_body(scope: Scope, receive: Receive, limit: int, on_piece: Callable[[int], object] = _ignore_size) -> bytes:
    """Return the whole request body, at most `limit` bytes. `on_piece` is called with the size of each piece, and may raise.

    Raises ApiError 413 as soon as the body is known to be longer, ClientDisconnected, and what `on_piece` raises. The server
    reads the rest of a refused body and drops it: if the connection is closed while a client sends, it may miss the answer.
    """
    declared = get_header(scope, b"content-length")
    if declared is not None and declared.isdigit() and int(declared) > limit:
        raise body_too_large(limit)
    # Most bodies arrive in one piece, and are returned without a copy.
    message = await receive()
    body: bytes = message.get("body", b"")
    if message["type"] == "http.request" and not message.get("more_body", False) and len(body) <= limit:
        on_piece(len(body))
        return body
    pieces, size = [], 0
    while message["type"] == "http.request":
        piece = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise body_too_large(limit)
        on_piece(len(piece))
        pieces.append(piece)
        if not message.get("more_body", False):
            return b"".join(pieces)
        message = await receive()
    raise ClientDisconnected


def body_too_large(limit: int) -> ApiError:
    """Return the error for a request body of more than `limit` bytes."""
    return ApiError(
        413,
        f"the request body is larger than the {limit} bytes allowed here",
        kind="invalid_request_error",
        code="request_too_large",
    )


def describe_json_error(error: msgspec.DecodeError | UnicodeDecodeError, body: bytes) -> str:
    """Return in a few words what is wrong with a body that msgspec could not decode."""
    if _LONE_SURROGATE.search(body[-11:]) and "truncated" in str(error):  # msgspec waits for the other half of the pair.
        return "half of a surrogate pair in a text is no character"
    return str(error)


async def send_bytes(
    send: Send, status: int, body: bytes, content_type: bytes, headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Send a whole response, with its Content-Length."""
    own = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": [*own, *headers]})
    await send({"type": "http.response.body", "body": body})


async def send_json(send: Send, status: int, payload: object, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """Send `payload`, anything that msgspec can encode, as JSON."""
    await send_bytes(send, status, _encode(payload), b"application/json", headers)


async def send_error(send: Send, error: ApiError, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """Send `error` as a response, with the header X-SMG-Error-Code if it has a code."""
    code = [(b"x-smg-error-code", error.code.encode())] if error.code else []
    await send_bytes(send, error.status, error.body(), b"application/json", [*code, *error.headers, *headers])


async def run_lifespan(
    receive: Receive, send: Send, start: Callable[[], Awaitable[None]], stop: Callable[[], Awaitable[None]]
) -> None:
    """Serve an ASGI `lifespan` scope: await `start` before the first request is accepted, `stop` after the last has ended."""
    await receive()
    await start()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await stop()
    await send({"type": "lifespan.shutdown.complete"})


class DisconnectWatcher:
    """Calls `on_disconnect` once if the client disconnects.

    Watch from when the body of the request has been read until its response is complete, then `stop`. A server reports a
    disconnect through `receive()` alone: after a disconnect `send` silently does nothing.
    """

    __slots__ = ("_on_disconnect", "_receive", "_receiving", "is_disconnected")

    def __init__(self, receive: Receive, on_disconnect: Callable[[], object]) -> None:
        self._receive = receive
        self._on_disconnect = on_disconnect
        self.is_disconnected = False
        self._receiving: Coroutine[Any, Any, Message] | None = receive()  # type: ignore[assignment]
        self._step()

    def stop(self) -> None:
        """Stop watching: `on_disconnect` is not called any more. Idempotent."""
        waiting, self._receiving = self._receiving, None
        if waiting is not None:
            waiting.close()

    def _step(self, _: object = None) -> None:
        if self._receiving is None:
            return
        try:
            blocker = self._receiving.send(None)
        except StopIteration as returned:
            self._on_message(returned.value)
        else:
            blocker._asyncio_future_blocking = False  # A task that awaits a future does the same.
            blocker.add_done_callback(self._step)

    def _on_message(self, message: Message) -> None:
        if message["type"] == "http.disconnect":
            self._receiving = None
            self.is_disconnected = True
            self._on_disconnect()
        else:
            self._receiving = self._receive()  # type: ignore[assignment]
            self._step()


def send_eagerly(send: Send, message: Message) -> asyncio.Task[None] | None:
    """Send `message` now if the client can take it, and return None.

    Otherwise return a task that ends when the client has taken it. Send nothing more until then, and pause what feeds the
    response.
    """
    sending: Coroutine[Any, Any, None] = send(message)  # type: ignore[assignment]
    try:
        blocker = sending.send(None)
    except StopIteration:
        return None
    return asyncio.get_running_loop().create_task(_finish_sending(_StartedCoroutine(sending, blocker)))


async def _finish_sending(started: _StartedCoroutine) -> None:
    await started


class _StartedCoroutine(Generator[object, None, None]):
    """A coroutine that was stepped to its first wait, for the future `blocker`; a task can await the rest.

    A task learns what to wait for from what its coroutine yields. The coroutine has yielded `blocker` already, so the first
    `send` yields it once more.
    """

    __slots__ = ("_blocker", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, None], blocker: object) -> None:
        self._coroutine = coroutine
        self._blocker: object = blocker

    def __await__(self) -> _StartedCoroutine:
        return self

    def send(self, value: None) -> object:
        blocker, self._blocker = self._blocker, None
        return self._coroutine.send(value) if blocker is None else blocker

    def throw(self, *error: Any) -> object:
        return self._coroutine.throw(*error)
