"""What the connections of a server share."""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from maitred.wire.known_heads import KnownHeads
from maitred.wire.loop_clock import clock_of
from maitred.wire.messages import RequestHead
from maitred.wire.sockets import HangupWatch

SEND_TIMEOUT_SECS: Final = 60.0


class OpenConnection(Protocol):
    """A connection from a client."""

    def drain(self) -> None:
        """Close the connection now if it is idle, else after the response under way."""
        ...

    def abort(self) -> None:
        """Close the connection at once."""
        ...

    def drop_parked(self) -> None:
        """Drop what waits behind the request that is being answered, if anything does: the connection ends with its answer."""
        ...


class ServerContext:
    """What all connections of a server share, on whichever of its ports they came."""

    def __init__(self, loop: asyncio.AbstractEventLoop, send_timeout_secs: float = SEND_TIMEOUT_SECS) -> None:
        """`send_timeout_secs` is the time over which the rate of a slow client is measured."""
        self.loop = loop
        self.clock = clock_of(loop)
        self.send_timeout_secs = send_timeout_secs
        self.connections: set[OpenConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        """The handlers that run."""
        self.parked_bytes = 0
        """Bytes of requests that wait behind others."""
        self.known_heads: KnownHeads[RequestHead] = KnownHeads()
        self.hangups = HangupWatch(loop)
        self.is_draining = False
        """Whether no connection may be used for a further request."""
        self.all_closed = asyncio.Event()
        """Set each time the last connection has ended."""

    def drop_parked(self) -> None:
        """Drop the requests that wait behind others: their memory is needed."""
        for connection in list(self.connections):
            connection.drop_parked()
