"""Keep a client's connection alive while its stream says nothing: a comment for every so many seconds of silence.

A comment is one only between two events. So what passes is followed by its last bytes, and in the middle of an event, where an
upstream may well fall silent, nothing is sent. Nor is it to a client that has not taken what it was sent before.
"""

from __future__ import annotations

import asyncio
from typing import Final

from maitred.wire.asgi import Headers, Message, Send, send_now

COMMENT: Final = b": keepalive\n\n"
"""Clients of server-sent events skip it."""
_ENDS_OF_EVENTS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")
_LONGEST_END: Final = 4
_FORBIDDING: Final = frozenset((b"content-length", b"content-encoding"))


def leaves_room(headers: Headers) -> bool:
    """Whether comments can be put into a body with this head: not where its length is given, or its bytes are encoded."""
    return not any(name in _FORBIDDING for name, _ in headers)


class Heartbeat:
    """Put between an answer and its `send`. It begins with the head, and must be stopped."""

    def __init__(self, send: Send, secs: float) -> None:
        """`secs` of silence, more than 0."""
        self._send = send
        self._secs = secs
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._last = 0.0
        self._tail = b"\n\n"
        self._busy = False
        self._comment: asyncio.Future[None] | None = None

    async def send(self, message: Message) -> None:
        """Hand it on."""
        if message["type"] == "http.response.start":
            self._timer = self._loop.call_later(self._secs, self._ring)
        elif not message["more_body"]:
            self.stop()
        else:
            self._tail = (self._tail + message["body"][-_LONGEST_END:])[-_LONGEST_END:]
        self._busy = True
        await self._send(message)
        self._busy = False
        self._last = self._loop.time()

    def stop(self) -> None:
        """Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        left = self._last + self._secs - self._loop.time()
        if left <= 0:
            self._beat()
            left = self._secs
        self._timer = self._loop.call_later(left, self._ring)

    def _beat(self) -> None:
        taken = not self._busy and (self._comment is None or self._comment.done())
        if taken and self._tail.endswith(_ENDS_OF_EVENTS):
            self._last = self._loop.time()
            self._comment = send_now(self._send, {"type": "http.response.body", "body": COMMENT, "more_body": True})
