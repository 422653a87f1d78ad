"""SchedulerGateway: `maitred scheduler`. It decides for the gateways that connect, and serves pages, but no client.

Its pages are those of a gateway (`/ready`, `/metrics`, `/maitred/state`, `/admin/*`), on a port of their own. What clients send
is not there. What gateways count (responses, tokens) is on their own pages.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec

from maitred.core.errors import ConfigError
from maitred.core.units import Micros
from maitred.gateway import error_responses
from maitred.gateway.admin.reload import GatewaySettings
from maitred.gateway.cluster.cluster_views import SchedulerView
from maitred.gateway.cluster.link_setup import reloaded_secret
from maitred.gateway.routes import ROUTES
from maitred.gateway.workers.notes import NoteKind
from maitred.gateway.workers.parent import ParentGateway
from maitred.scheduler.interface import (
    GATEWAY_LEASE,
    Election,
    ElectionCandidate,
    GatewayId,
    LinkAddress,
    LinkNote,
    SchedulerHost,
)
from maitred.wire.exchange import Exchange
from maitred.wire.machine import ListeningSocket
from maitred.wire.server import Listener
from maitred.wire.server_context import ServerContext
from maitred.wire.tls import ReloadedContext

log = logging.getLogger("maitred.gateway")


class LinkPort:
    """Where a scheduler takes gateways, and how."""

    def __init__(
        self,
        listen: LinkAddress | None,
        advertise: LinkAddress | None,
        tls: ReloadedContext | None,
        secret: bytes,
        name: str,
        lease: Micros = GATEWAY_LEASE,
    ) -> None:
        """`listen` is None if no other process may connect. `advertise` is the address under which gateways reach it, None:
        `listen`. `name` is that of this scheduler. `lease`: how long a gateway may start requests after a beat, µs."""
        self.listen, self.advertise, self.tls, self.secret, self.name = listen, advertise, tls, secret, name
        self.lease = lease


class SchedulerGateway(ParentGateway):
    """A scheduler with its pages."""

    def __init__(self, *args: Any, port: LinkPort, election: Election, pages: tuple[str, int], **named: Any) -> None:
        """As `Gateway`. `pages` are host and port of the pages."""
        super().__init__(*args, write_settings=lambda settings: None, **named)
        self.certificates.add_link(port.tls)
        self.certificates.add_link(reloaded_secret(self.settings().scheduler, self._use_secret))
        self._link_port, self._election, self._pages_at = port, election, pages
        self.link_address: LinkAddress | None = None
        """Where gateways connect, with a number in place of port 0; None before it listens, and if none may."""
        self._listener: ListeningSocket | None = None

    async def start(self, server: ServerContext) -> None:
        self.host = host = self.scheduler.host(self._link_port.secret, self._link_port.lease)
        host.on_note, host.on_welcome = self._on_note, self._on_welcome
        await self._accept(host)
        await super().start(server)
        await host.leadership.take_part(self._election, ElectionCandidate(self._link_port.name, self._advertised()))
        view = SchedulerView(self._link_port.name, host, self.machine.clock)
        self._snapshots.cluster = view.state
        self._collector.add(view.families)

    def _use_secret(self, secret: bytes) -> None:
        """Take further links by another secret."""
        self._link_port.secret = secret
        if self.host is not None:
            self.host.end.secret = secret

    async def stop(self) -> None:
        await self.close_host()
        await super().stop()

    def _advertised(self) -> str:
        """Return the address of this scheduler in the election."""
        assert self.link_address is not None
        advertised = self._link_port.advertise or self.link_address
        if not advertised.port and advertised.port is not None:
            advertised = LinkAddress(advertised.host, self.link_address.port)
        return str(advertised)

    def listeners(self) -> Sequence[Listener]:
        host, port = self._pages_at
        return [Listener(host, port, self, self.certificates.port, "pages-"), *self.admin_listener()]

    def __call__(self, exchange: Exchange) -> Coroutine[Any, Any, None]:
        if exchange.path in ROUTES or not self._endpoints.answers(exchange.path):
            return self._refuse(exchange, error_responses.no_route(exchange.path))
        return super().__call__(exchange)

    async def _on_reloaded(self, settings: GatewaySettings) -> None:
        """Do nothing: each gateway reads its own configuration."""

    def _on_note(self, gateway: GatewayId, note: LinkNote) -> None:
        if note.kind == NoteKind.DIED:
            self._note_end(gateway, note.payload)
        else:
            super()._on_note(gateway, note)

    def _note_end(self, parent: GatewayId, payload: bytes) -> None:
        """Note that a worker has ended, as the process says that had started it."""
        name, boot = msgspec.msgpack.decode(payload, type=GatewayId)
        if self.host is not None and name.startswith(f"{parent[0]}/"):
            self.host.note_end((name, boot))

    async def _gather(self) -> None:
        """Do nothing: gateways show what they have counted on their own pages."""

    def open_link(self) -> None:
        """Listen for gateways, if that is on a port, which none is accepted from before `start`. Raises ConfigError."""
        address = self._link_port.listen
        if address is None or address.port is None:
            self.link_address = address
            return
        try:
            self._listener = self.machine.listen(address.host, address.port)
        except (OSError, OverflowError) as error:
            raise _cannot_listen(address, error) from error
        self.link_address = LinkAddress(address.host, self._listener.getsockname()[1])

    async def _accept(self, host: SchedulerHost) -> None:
        if self.link_address is None:
            self.open_link()
        if self._listener is not None:
            tls = self._link_port.tls
            await host.start_on(self._listener, None if tls is None else tls.first)
            return
        address = self._link_port.listen
        if address is None:
            return
        try:
            await host.start(address.host)
        except OSError as error:
            raise _cannot_listen(address, error) from error


def _cannot_listen(address: LinkAddress, error: OSError | OverflowError) -> ConfigError:
    number = getattr(error, "errno", None)
    reason = str(error) if number is None else os.strerror(number).lower()
    if isinstance(error, socket.gaierror):
        reason = "unknown host"
    return ConfigError(
        f"cannot listen on {address}: {reason}", where="--listen", hint="a free port and an address of this machine"
    )
