"""One HTTP request at Envoy: its stream of ext_proc, message by message.

    Envoy says                          the picker answers
    request headers                     at once (BUFFERED), or with the pick (FULL_DUPLEX_STREAMED, and requests without a body)
    request body, whole or in pieces    with the pick, as late as it has to wait
    response headers                    when the request is no victim any more (`PickedAttempts`)
    response body, trailers             as they came, behind that; where the filter does not send them there is none of this
    nothing more                        the HTTP stream has ended, or its client has left

At any time before the answer to the response headers the picker may respond itself (`start_response`): it refuses, or a
preemption stops the request at its backend. Envoy closes the connection to the backend then.

**The end of a stream.** Envoy keeps the stream of ext_proc open as long as the HTTP stream, and does not say why that has
ended. Before the response headers it is the client that has left. Afterwards the request counts as answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, NamedTuple, Protocol

from maitred.gateway.envoy import ext_proc_messages as messages
from maitred.gateway.envoy.ext_proc_messages import Pick, PickedMessages
from maitred.gateway.envoy.ext_proc_schema import BODY_MODES, proto
from maitred.wire.exchange import ApiError, ClientAddress, Exchange, body_too_large
from maitred.wire.messages import Headers, RequestHead, split_target

log = logging.getLogger("maitred.gateway")
_NONE, _BUFFERED, _DUPLEX = (BODY_MODES.index(name) for name in ("NONE", "BUFFERED", "FULL_DUPLEX_STREAMED"))
_FORWARDED_FOR: Final = b"x-forwarded-for"


class Rpc(Protocol):
    """The stream of gRPC that Envoy has opened."""

    async def read(self) -> bytes | None:
        """Return the next message, or None if Envoy says nothing more."""
        ...

    async def write(self, message: bytes) -> None:
        """Say something to Envoy."""
        ...


class ResponseHeaders(NamedTuple):
    """The head of the response to a request that Envoy has sent."""

    status: int
    headers: Mapping[bytes, bytes]
    served: str
    """The endpoint that has answered, or "" if Envoy does not say so."""


class ExtProcStream:
    """The stream of one HTTP request; for its `Exchange` it is the connection."""

    def __init__(
        self, rpc: Rpc, serve: Callable[[ExtProcStream], Coroutine[Any, Any, None]], picked: PickedMessages, max_body: int
    ):
        """`serve` answers the exchange. `max_body` is the size of the largest body, in bytes."""
        self._rpc, self._serve, self._picked, self._max_body = rpc, serve, picked, max_body
        self.exchange: Exchange
        """The request, when it is there whole."""
        self.subset: frozenset[str] | None = None
        """The endpoints among which alone may be picked, or None if any may."""
        self._headers: Headers = []
        self._has_body = False
        self._has_trailers = False
        self._request_mode = _BUFFERED
        self._response_mode = _NONE
        self._body = b""
        self._response: asyncio.Future[ResponseHeaders] | None = None
        self._ended: asyncio.Future[None] | None = None
        self._is_answered = asyncio.Event()
        """Set when Envoy was told what becomes of the response headers: what follows them is answered after that."""
        self._on_body: Callable[[bytes, bool], None] | None = None
        self.has_body_sent = False
        """Whether Envoy has sent anything of the body of the response."""
        self._answer: tuple[int, Headers] | None = None
        self._answer_body = b""

    async def run(self) -> None:
        """Serve the stream until Envoy has nothing more to say."""
        head = await self._read_request()
        if head is None:
            return
        loop = asyncio.get_running_loop()
        self._response, self._ended = loop.create_future(), loop.create_future()
        self.exchange = exchange = Exchange(head, self, _client_of(self._headers))
        if self._has_body:
            exchange.on_whole_body(self._body)
        else:
            exchange.on_body_end()
        task = exchange.task = loop.create_task(self._answer_request())
        try:
            while (data := await self._rpc.read()) is not None:
                await self._on_message(proto.ProcessingRequest.FromString(data))
        finally:
            self._on_end()
            await asyncio.wait({task})

    # The request.

    async def _read_request(self) -> RequestHead | None:
        """Return the head of a request of which the body is whole, or None if its client has left, or it was refused."""
        data = await self._rpc.read()
        if data is None:
            return None
        message = proto.ProcessingRequest.FromString(data)
        modes = message.protocol_config
        self._request_mode, self._response_mode = modes.request_body_mode, modes.response_body_mode
        head = self._take_head(message)
        try:
            if not message.request_headers.end_of_stream and not await self._read_body():
                return None
        except ApiError as error:
            headers, body = error.answer(head.path)
            await self._rpc.write(messages.immediate_response(error.status, headers, body))
            return None
        return head

    def _take_head(self, message: Any) -> RequestHead:
        method, target = "GET", b"/"
        headers: Headers = []
        for header in message.request_headers.headers.headers:
            name, value = header.key.encode("latin-1"), header.raw_value or header.value.encode()
            if name == b":method":
                method = value.decode("latin-1")
            elif name == b":path":
                target = value
            elif name == b":authority":
                headers.append((b"host", value))
            elif not name.startswith(b":"):
                headers.append((name, value))
        self._headers = headers
        self.subset = _subset_of(message)
        path, query = split_target(target)
        return RequestHead(method, target, headers, True, False, None, True, path, query)

    async def _read_body(self) -> bool:
        """Read the body, and return whether it came whole. Raises ApiError for one that is too large, or that this filter does
        not send as a whole."""
        if self._request_mode == _BUFFERED:
            await self._rpc.write(messages.CONTINUE_REQUEST_HEADERS)
        elif self._request_mode != _DUPLEX:
            raise _wrong_mode(self._request_mode)
        pieces: list[bytes] = []
        size = 0
        while (data := await self._rpc.read()) is not None:
            message = proto.ProcessingRequest.FromString(data)
            if message.HasField("request_body"):
                piece = message.request_body.body
                pieces.append(piece)
                size += len(piece)
                if size > self._max_body:
                    raise body_too_large(self._max_body)
            elif message.HasField("request_trailers"):
                self._has_trailers = True
            if self._has_trailers or message.request_body.end_of_stream:
                self._has_body, self._body = True, pieces[0] if len(pieces) == 1 else b"".join(pieces)
                return True
        return False

    async def _answer_request(self) -> None:
        """Have the exchange answered, and tell Envoy a response of the picker's own, if there is one."""
        await self._serve(self)
        if self._answer is not None:
            status, headers = self._answer
            await self._rpc.write(messages.immediate_response(status, headers, self._answer_body))
        self._is_answered.set()

    # What `PickedAttempts` does.

    @property
    def headers(self) -> Headers:
        """The headers of the request, as they came."""
        return self._headers

    async def send_to(self, pick: Pick, own: Headers, body: bytes) -> None:
        """Have Envoy send the request, with this body, and with headers that are its `own` beside those of the pick."""
        picked = self._picked
        if not self._has_body:
            await self._rpc.write(picked.in_headers(pick, own))
        elif self._request_mode == _DUPLEX:
            await self._rpc.write(picked.in_headers(pick, own))
            for chunk in messages.streamed_body(body, ends=not self._has_trailers):
                await self._rpc.write(chunk)
            if self._has_trailers:
                await self._rpc.write(messages.CONTINUE_REQUEST_TRAILERS)
        elif body == self._body:
            await self._rpc.write(picked.in_body(pick, own))
        else:
            await self._rpc.write(picked.with_body(pick, own, body))
        self._body = b""

    def response_headers(self) -> Awaitable[ResponseHeaders]:
        """Return a future of the response's headers, done when the response has begun."""
        assert self._response is not None
        return self._response

    async def pass_response(self, told: Headers, on_body: Callable[[bytes, bool], None] | None = None) -> None:
        """Let the response pass to the client, with these headers. `on_body` gets each piece of its body, and whether that is
        the last one, if Envoy lets a picker ask for it (`allow_mode_override`), or sends bodies anyway; None: nobody asks."""
        self._on_body = on_body
        asks = on_body is not None and self._response_mode == _NONE
        await self._rpc.write(self._picked.response(told) + (messages.ASK_FOR_BODY if asks else b""))
        self._is_answered.set()

    async def wait_until_ended(self) -> None:
        """Return when the response has ended, or its client has left."""
        assert self._ended is not None
        await self._ended

    # What Envoy says after the request.

    async def _on_message(self, message: Any) -> None:
        kind = message.WhichOneof("request")
        if kind == "response_headers":
            assert self._response is not None
            if not self._response.done():
                self._response.set_result(_response_headers(message))
        elif kind == "response_body":
            await self._is_answered.wait()
            body, self.has_body_sent = message.response_body, True
            if self._on_body is not None:
                self._on_body(body.body, body.end_of_stream)
            if self._response_mode == _DUPLEX:
                for chunk in messages.streamed_body(body.body, is_response=True, ends=body.end_of_stream):
                    await self._rpc.write(chunk)
            else:
                await self._rpc.write(messages.CONTINUE_RESPONSE_BODY)
        elif kind == "response_trailers":
            await self._is_answered.wait()
            await self._rpc.write(messages.CONTINUE_RESPONSE_TRAILERS)
        elif kind == "request_trailers":
            await self._rpc.write(messages.CONTINUE_REQUEST_TRAILERS)

    def _on_end(self) -> None:
        assert self._response is not None
        assert self._ended is not None
        if not self._response.done():
            self.exchange.on_disconnect()
        if not self._ended.done():
            self._ended.set_result(None)

    # What the exchange does (`ExchangeConnection`).

    def start_response(self, status: int, headers: Headers, piece: bytes, more: bool) -> None:
        """Take the head and the first piece of a response of the picker's own."""
        self._answer, self._answer_body = (status, headers), piece

    def send_piece(self, piece: bytes, more: bool) -> None:
        """Take a further piece of it."""
        self._answer_body += piece

    def send_continue(self) -> None:
        """Do nothing: the body has come."""

    def on_body_read(self) -> None:
        """Do nothing: the body has come."""


def _response_headers(message: Any) -> ResponseHeaders:
    headers = {
        header.key.encode("latin-1"): header.raw_value or header.value.encode()
        for header in message.response_headers.headers.headers
    }
    served = ""
    metadata = message.metadata_context.filter_metadata
    if messages.NAMESPACE in metadata:
        members = metadata[messages.NAMESPACE].fields
        served = members[messages.SERVED].string_value if messages.SERVED in members else ""
    status = headers.get(b":status", b"")
    return ResponseHeaders(int(status) if status.isdigit() else 502, headers, served)


def _subset_of(message: Any) -> frozenset[str] | None:
    """Return the endpoints that the subset hint names, or None without one."""
    metadata = message.metadata_context.filter_metadata
    if messages.SUBSET_NAMESPACE not in metadata:
        return None
    members = metadata[messages.SUBSET_NAMESPACE].fields
    if messages.SUBSET not in members:
        return None
    hint = members[messages.SUBSET]
    named = [value.string_value for value in hint.list_value.values] or hint.string_value.split(",")
    return frozenset(endpoint.strip() for endpoint in named if endpoint.strip())


def _client_of(headers: Headers) -> ClientAddress:
    """Return the address of the client, as Envoy has added it to `x-forwarded-for`, or None."""
    for name, value in reversed(headers):
        if name == _FORWARDED_FOR:
            return value.rpartition(b",")[2].strip().decode("latin-1"), 0
    return None


def _wrong_mode(mode: int) -> ApiError:
    name = BODY_MODES[mode] if 0 <= mode < len(BODY_MODES) else str(mode)
    log.error("Envoy sends bodies in the mode %s: request_body_mode must be BUFFERED or FULL_DUPLEX_STREAMED", name)
    message = "the proxy in front does not send the bodies of requests as a whole to its endpoint picker"
    return ApiError(500, message, kind="server_error", code="ext_proc_mode")
