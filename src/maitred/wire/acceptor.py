"""Acceptor: empties the queue of a listening socket, where the event loop would take one connection per turn.

A turn of the loop (libuv) serves every socket that is ready, and accepts one connection. Beside hundreds of streams a turn
takes milliseconds, so the last of many clients that come together would wait for hundreds of turns. So whenever the loop has
accepted one connection, it asks here for the protocol of that one, and all others in the queue are accepted as well, up to
`MAX_PER_TURN`: then the streams are served, and the rest of the queue comes with the next turn.

    600 streams, turns of 8 ms, 300 clients at once: accepted within 3 turns instead of 300

For a client that comes alone this is one look more, which finds the queue empty. (A reader of the listening socket that accepts
all connections itself would make such a client a third dearer. Over TLS that is not felt: `handshakes`.)
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, cast

from maitred.wire.machine import BACKLOG, ListeningSocket

MAX_PER_TURN: Final = 128
"""Connections that are accepted in one turn of the loop, at most: 5 to 10 ms of work."""


class Acceptor:
    """Accepts the connections of one listening socket, from within one event loop."""

    def __init__(
        self,
        listener: ListeningSocket,
        loop: asyncio.AbstractEventLoop,
        make_protocol: Callable[[], asyncio.Protocol],
        descriptor_mark: int = sys.maxsize,
    ) -> None:
        """`make_protocol` is called for each connection. Once a descriptor has the number `descriptor_mark`, further
        connections wait for the next turn, when others have been closed (`descriptors`)."""
        self._listener = listener
        self._loop = loop
        self._make_protocol = make_protocol
        self._descriptor_mark = descriptor_mark
        self._opening: set[Coroutine[Any, Any, Any]] = set()
        """Accepted connections that are not made yet."""
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Accept connections from now on."""
        listener = cast(Any, self._listener)  # of the loop's own kind
        self._server = await self._loop.create_server(self._on_accepted, sock=listener, backlog=BACKLOG)

    def close(self) -> None:
        """Accept no more connections, and close the listening socket."""
        if self._server is not None:
            self._server.close()

    def _on_accepted(self) -> asyncio.Protocol:
        """Return the protocol of a connection that the loop has accepted, and accept those behind it."""
        for _ in range(MAX_PER_TURN - 1):
            connection = self._listener.accept_waiting()
            if connection is None:
                break
            descriptor = connection.fileno()
            self._open(self._loop.connect_accepted_socket(self._make_protocol, connection))
            if descriptor >= self._descriptor_mark:
                break
        return self._make_protocol()

    def _open(self, opening: Coroutine[Any, Any, Any], _waited_for: asyncio.Future[Any] | None = None) -> None:
        """Go on to make a connection. A task would do the same, but begin with the next turn of the loop."""
        try:
            waits_for: asyncio.Future[Any] = opening.send(None)
        except (StopIteration, OSError):  # It is made, or the client has left.
            self._opening.discard(opening)
        else:
            self._opening.add(opening)
            waits_for.add_done_callback(partial(self._open, opening))
