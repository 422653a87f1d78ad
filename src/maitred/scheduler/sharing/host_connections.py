"""The connections of gateways at their scheduler, and what the log says of those that are cut.

A peer that is turned away (another version, a wrong secret, no end of a link) is told why, and so is the log, once a minute for
each peer and reason: whoever connects again and again fills no disk.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol, cast

from maitred.core.printing import printable
from maitred.core.units import SECOND, Micros
from maitred.scheduler.link.connections import Cut
from maitred.scheduler.link.gateway_books import BookedGateway, ConnectionId
from maitred.scheduler.link.scheduler_end import NOT_LEADING
from maitred.scheduler.sharing.link_writer import LinkWriter, close_link
from maitred.wire.sockets import peer_of

log = logging.getLogger("maitred.gateway")
_QUIET: Final[Micros] = 60 * SECOND
"""For how long the log does not repeat why a peer was turned away."""
_MOST_TOLD: Final = 1000


class ConnectionHost(Protocol):
    """What has the connections."""

    def accept(self, connection: HostConnection) -> ConnectionId:
        """Return the number of a connection that has come."""
        ...

    def feed(self, number: ConnectionId, data: bytes) -> None:
        """Take bytes of a connection."""
        ...

    def lost(self, number: ConnectionId) -> None:
        """Note that a connection is gone."""
        ...


class HostConnection(asyncio.Protocol):
    """The connection of one gateway."""

    def __init__(self, host: ConnectionHost) -> None:
        self._host = host
        self._number: ConnectionId = 0
        self.writer = LinkWriter()
        self.peer = ""
        """The host at the other end, or "" for a process of this machine."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.writer.transport = cast(asyncio.Transport, transport)
        peer = peer_of(transport)
        self.peer = "" if peer is None else peer[0]
        self._number = self._host.accept(self)

    def data_received(self, data: bytes) -> None:
        self._host.feed(self._number, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.writer.transport = None
        self._host.lost(self._number)

    def close(self, last_bytes: bytes) -> None:
        """Close the connection; `last_bytes` are written if its peer takes them at once."""
        close_link(self.writer.transport, last_bytes)


class CutLog:
    """Logs why peers were cut off."""

    def __init__(self) -> None:
        self._quiet_until: dict[tuple[str, str], Micros] = {}

    def note(self, cut: Cut, peer: str, now: Micros) -> None:
        """Log a cut, unless the log has it already."""
        if cut.reason == NOT_LEADING:  # It looks for the one that does.
            return
        if now < self._quiet_until.get((peer, cut.reason), now):
            return
        if len(self._quiet_until) >= _MOST_TOLD:
            self._quiet_until.clear()
        self._quiet_until[peer, cut.reason] = now + _QUIET
        what = f"{printable(cut.gateway)} was cut off" if cut.gateway else "a peer was turned away"
        log.warning("%s: %s%s", what, printable(cut.reason), f" (from {peer})" if peer else "")


def log_welcome(gateway: BookedGateway, peer: str) -> None:
    """Log that a gateway of another machine is linked. One of this machine logs that itself, where its scheduler does."""
    if peer:
        log.info("%s is linked (from %s)", printable(gateway.id[0]), peer)


def log_loss(gateway: BookedGateway, peer: str) -> None:
    """Log that the connection of a gateway of another machine is lost, after its waiting requests have left."""
    slots = sum(request.ticket.sequences for request in gateway.requests.values())
    if peer and slots:
        log.warning(
            "%s is gone (from %s): slots held until the backends show its requests gone: %d",
            *(printable(gateway.id[0]), peer, slots),
        )
    elif peer:
        log.info("%s has left (from %s)", printable(gateway.id[0]), peer)
