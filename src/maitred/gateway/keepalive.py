"""Keep a client's connection alive while it waits for the first token: comments between the head of a stream and its data."""

from __future__ import annotations

import asyncio

from maitred.wire.asgi import Send, send_now

COMMENT = b": keepalive\n\n"
"""Clients of server-sent events skip it."""


class Heartbeat:
    """Sends a comment every `secs` seconds until it is stopped. A client that is too slow to take one gets no second."""

    def __init__(self, send: Send, secs: float) -> None:
        self._send = send
        self._secs = secs
        self._sending: asyncio.Future[None] | None = None
        self._set()

    def stop(self) -> None:
        self._timer.cancel()

    def _set(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._secs, self._beat)

    def _beat(self) -> None:
        if self._sending is None or self._sending.done():
            self._sending = send_now(self._send, {"type": "http.response.body", "body": COMMENT, "more_body": True})
        self._set()
