"""TlsAcceptor: accepts the connections of a port that speaks TLS, and may give up those whose handshake is under way.

The event loop tells a protocol of its connection when the handshake has ended. Until then nobody could close the connection: a
client that opens connections and says nothing would keep each of their descriptors for 20 s, and shut out all others. So each
handshake is known here, and to the context of the server. It counts as idle since its connection was accepted, and it is given
up like an idle connection where descriptors are short (`descriptors`).

    400 connections without a handshake, 256 descriptors    each further connection ends the oldest; a client that begins its
                                                            handshake at once has ended it long before its turn comes

Connections are accepted by a reader of the listening socket, up to `MAX_PER_TURN` in a turn of the loop (`acceptor`). A
handshake costs so much more that the reader is not felt.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from typing import Any, Final, cast

from maitred.wire.acceptor import MAX_PER_TURN
from maitred.wire.certificate import FLUSH_SECS, HANDSHAKE_SECS, ServerCertificate
from maitred.wire.machine import ListeningSocket
from maitred.wire.protocol import ServerConnection
from maitred.wire.server_context import ServerContext

_PAUSE_SECS: Final = 0.02
"""For how long nothing is accepted after a connection could not be."""


class TlsAcceptor:
    """Accepts the connections of one listening socket."""

    def __init__(
        self,
        listener: ListeningSocket,
        context: ServerContext,
        make_protocol: Callable[[], ServerConnection],
        certificate: ServerCertificate,
    ) -> None:
        """`make_protocol` is called for each connection."""
        self._listener = cast(Any, listener)  # a socket of the system
        self._context, self._make_protocol = context, make_protocol
        self._tls: dict[str, Any] = {
            "ssl": certificate.context,
            "ssl_handshake_timeout": HANDSHAKE_SECS,
            "ssl_shutdown_timeout": FLUSH_SECS,
        }
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Accept connections from now on."""
        self._listener.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Accept no more connections, and close the listening socket. Handshakes under way go on."""
        self._pause()
        self._listener.close()

    def _resume(self) -> None:
        self._timer = None
        self._context.loop.add_reader(self._listener, self._on_readable)

    def _pause(self) -> None:
        self._context.loop.remove_reader(self._listener)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_readable(self) -> None:
        """Accept what waits in the queue, as far as there are descriptors."""
        for number in range(MAX_PER_TURN):
            connection = self._listener.accept_waiting()
            if connection is None:
                if not number:  # No descriptor is left, or the client has gone. The queue would call again at once.
                    self._pause()
                    self._timer = self._context.loop.call_later(_PAUSE_SECS, self._resume)
                return
            is_short = connection.fileno() >= self._context.descriptors.mark
            if is_short and not self._context.make_room(connection.fileno()):
                connection.close()
                return
            self._begin(connection)
            if is_short:  # The others wait for the next turn, when what was closed has gone.
                return

    def _begin(self, connection: socket.socket) -> None:
        protocol = self._make_protocol()
        opening = self._context.loop.connect_accepted_socket(lambda: protocol, connection, **self._tls)
        Handshake(self._context, protocol, opening).go_on()


class Handshake:
    """One handshake, from the acceptance of its connection until the protocol of that has it, or it has failed."""

    def __init__(self, context: ServerContext, protocol: ServerConnection, opening: Coroutine[Any, Any, Any]) -> None:
        """`opening` waits for the end of the handshake, and closes the connection if it is cancelled. `protocol` is told of the
        connection a moment before."""
        self._context, self._protocol, self._opening = context, protocol, opening
        self._is_over = False
        self._accepted_at = context.clock.time()
        context.handshakes[self] = None

    @property
    def idle_since(self) -> float | None:
        """When the connection was accepted, in seconds of the clock of deadlines; None once its protocol says that."""
        return None if self._protocol in self._context.connections else self._accepted_at

    def go_on(self, _waited_for: asyncio.Future[Any] | None = None) -> None:
        """Go on when what was waited for is there. (A task would do the same, but begin with the next turn of the loop.)"""
        if self._is_over:
            return
        try:
            waits_for: asyncio.Future[Any] = self._opening.send(None)
        except (StopIteration, OSError):  # It has ended; or the client has left, or has not said what it should.
            self._end()
        else:
            waits_for.add_done_callback(self.go_on)

    def abort(self) -> None:
        """Give the handshake up, and close its connection. Idempotent."""
        if self._is_over:
            return
        self._is_over = True
        try:
            self._opening.throw(asyncio.CancelledError())
        except (asyncio.CancelledError, StopIteration, OSError):
            self._context.loop.call_soon(self._end)  # The descriptor is free in the next turn.

    def _end(self) -> None:
        self._is_over = True
        self._context.on_handshake_end(self)
