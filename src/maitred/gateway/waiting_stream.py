"""Comments for the client of a stream while its program waits for memory (`programs.wait_keepalive_secs`).

A program may wait for minutes. Clients and proxies that give up after a silence would not see the end of it. So after each
`wait_keepalive_secs` a comment is sent, which clients of server-sent events skip, behind a head that says 200: what comes of
the request is not known yet, and the head cannot be taken back.

    the request waits           HTTP/1.1 200, content-type: text/event-stream, and `: keepalive`, again and again
    its backend streams         the events, as they come
    it is refused, or fails     `data: {"error": {...}}`: the body that it would have had, as one event, and no [DONE]

A request that has its memory before the first comment is due is answered as without all this. Once the stream has begun,
comments go on until the response comes, also while the request waits for its slot and its prompt is computed. The proxy knows
nothing of it: until a response comes, the request can be retried, preempted and refused.
"""

from __future__ import annotations

import asyncio
from typing import Final

from maitred.gateway.error_responses import upstream_failed
from maitred.gateway.program_driver import ProgramStep
from maitred.gateway.request_fields import REQUEST_ID_HEADER
from maitred.wire import sse
from maitred.wire.errors import ProtocolError
from maitred.wire.exchange import ResponseWriter
from maitred.wire.messages import Headers

_ENCODED: Final = upstream_failed(ProtocolError("the backend has encoded its stream")).body("")
"""What the client gets in place of one, because the head has said that nothing is encoded."""


class WaitingStream:
    """Stands between the proxy and the writer of one streamed response. Must be stopped."""

    def __init__(self, writer: ResponseWriter, secs: float, request_id: bytes) -> None:
        """`secs` is the silence in seconds after which a comment is sent, more than 0."""
        self._writer = writer
        self._secs = secs
        self._request_id = request_id
        self._has_begun = False
        """Whether the client has the head of a stream."""
        self._is_stream = False
        """Whether what follows that head are events of the backend."""
        self._body = b""
        """The part of another response that has come."""
        self._is_encoded = False
        """Whether that cannot be shown."""
        self._timer: asyncio.TimerHandle | None = None
        self._busy: asyncio.Future[None] | None = None
        """Done when the client has taken the last comment, or None if it has."""

    async def wait(self, step: ProgramStep) -> None:
        """Return when a step has memory, and send comments until then. Raises ProgramRejected if it will get none."""
        if step.memory is None and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._secs, self._on_timer)
        try:
            await step.wait()
        finally:
            if not self._has_begun:
                self.stop()

    def stop(self) -> None:
        """Send no more comments. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def start_response(self, status: int, headers: Headers, piece: bytes, more: bool) -> asyncio.Future[None] | None:
        """Send the beginning of the response, as a part of the stream if that has begun."""
        self.stop()
        if not self._has_begun:
            return self._writer.start_response(status, headers, piece, more)
        self._is_encoded = any(name == b"content-encoding" and value != b"identity" for name, value in headers)
        self._is_stream = status == 200 and sse.is_event_stream(headers) and not self._is_encoded
        return self.send_piece(piece, more)

    def send_piece(self, piece: bytes, more: bool) -> asyncio.Future[None] | None:
        """Send a piece of the response, as a part of the stream if that has begun."""
        if not self._has_begun or self._is_stream:
            return self._writer.send_piece(piece, more)
        if more:
            self._body += piece
            return None
        body = _ENCODED if self._is_encoded else b" ".join((self._body + piece).splitlines())
        return self._writer.send_piece(sse.encode_event(body), False)

    def _on_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._secs, self._on_timer)
        if self._busy is not None and not self._busy.done():
            return  # The client has not taken what was sent before.
        if self._has_begun:
            self._busy = self._writer.send_piece(sse.KEEPALIVE_COMMENT, True)
            return
        self._has_begun = True
        headers = [
            (b"content-type", sse.EVENT_STREAM_TYPE),
            (b"cache-control", b"no-cache"),
            (REQUEST_ID_HEADER, self._request_id),
        ]
        self._busy = self._writer.start_response(200, headers, sse.KEEPALIVE_COMMENT, True)
