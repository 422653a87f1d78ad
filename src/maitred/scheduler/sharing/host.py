"""SchedulerHost: the scheduler's end of the links, with its sockets and its timer.

**A turn.** Whatever happens in a turn of the loop, what is to be said to the gateways is written once, at its end (`_flush`):
one frame for each gateway.

What happens comes from the connections here, from the driver of admission (`hosted_admission`), from that of the programs
(`hosted_programs`), from the fleet (`fleet_news`), from an election (`leadership`), and from engines that are asked for the
requests of gateways that are gone (`orphan_watch`).
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any, Final, cast

from maitred.core.decisions import DecisionLog
from maitred.core.request import RequestId
from maitred.core.units import Micros
from maitred.scheduler.backends.fleet_view import FleetView
from maitred.scheduler.backends.fleet_watch import FleetWatch
from maitred.scheduler.drivers.deadline_timer import DeadlineTimer
from maitred.scheduler.drivers.programs import RealTimePrograms
from maitred.scheduler.link.gateway_books import BookedRequest, ConnectionId, GatewayId
from maitred.scheduler.link.messages import Hello, Note
from maitred.scheduler.link.scheduler_end import GATEWAY_LEASE, SchedulerEnd
from maitred.scheduler.sharing.fleet_news import FleetNews
from maitred.scheduler.sharing.fleet_placer import FleetPlacer
from maitred.scheduler.sharing.host_connections import CutLog, HostConnection, log_loss, log_welcome
from maitred.scheduler.sharing.hosted_admission import HostedAdmission
from maitred.scheduler.sharing.hosted_programs import HostedPrograms
from maitred.scheduler.sharing.kept_limits import LimitNews
from maitred.scheduler.sharing.kept_usage import USAGE, UsageNews
from maitred.scheduler.sharing.leadership import Leadership
from maitred.scheduler.sharing.orphan_watch import OrphanWatch
from maitred.wire.clock import Clock
from maitred.wire.machine import ListeningSocket

_HANDSHAKE_SECS: Final = 5.0
"""How long a handshake of TLS may take."""


class SchedulerHost:
    """Serves the gateways that connect, from `start` to `close`."""

    def __init__(
        self,
        secret: bytes,
        *,
        admission: HostedAdmission,
        fleet: FleetView,
        watch: FleetWatch,
        make_placer: Callable[[SchedulerHost, asyncio.Task[None]], FleetPlacer],
        limits: LimitNews,
        random: Random,
        programs: RealTimePrograms | None = None,
        lease: Micros = GATEWAY_LEASE,
        notes: DecisionLog | None = None,
        objectives: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """`make_placer` is given this host, and a task that lasts as long as it. `limits` tells gateways what is learned of
        backends. `random` draws what no other process may draw.
        `programs` decides about agent programs, if there are any. `lease`: how long a gateway may start requests after a beat,
        µs. `notes` is told which class each request has asked for, if there is a log. `objectives` are always those that are
        known. Made inside the loop that it runs in."""
        self._random = random
        self._clock: Clock = admission.clock
        self._connections: dict[ConnectionId, HostConnection] = {}
        self._last_connection = 0
        self._timer = DeadlineTimer(self._on_due, self._clock)
        self._is_flush_due = False
        self._loop = asyncio.get_running_loop()  # Kept, because in CPython 3.11 that is a system call.
        self._server: asyncio.Server | None = None
        self._path: str | None = None
        """That of the Unix socket, if it is one."""
        self._cut_log = CutLog()
        self.on_note: Callable[[GatewayId, Note], object] | None = None
        """Called with the notes of gateways."""
        self.on_welcome: Callable[[GatewayId], object] | None = None
        """Called with each gateway that has been welcomed."""
        self.on_term: Callable[[], object] | None = None
        """Called when this scheduler begins to lead."""
        self.on_lost: Callable[[], object] | None = None
        """Called when a gateway may be connected no more."""
        self._programs = None if programs is None else HostedPrograms(programs, self._next_request, self.flush_soon)
        self._watching = asyncio.create_task(self._watch_orphans())
        self.news = FleetNews(fleet, objectives, self.flush_soon)
        """What gateways are told of the backends."""
        self._usage = UsageNews(admission.core, self._clock, random)
        self._limits = limits
        placer = make_placer(self, self._watching)
        self.end = SchedulerEnd(
            secret,
            lambda now: admission.core,
            lambda books: placer,
            lease=lease,
            pool_of=admission.pool_of,
            load_probe=admission.load_probe,
            memories=self._programs,
            notes=notes,
        )
        """What the link says and hears."""
        self.end.door.backends = () if fleet.may_change else [backend.url for backend in fleet.backends]
        self.end.door.number_of = fleet.number_of
        self.end.on_note, self.end.on_welcome = self._on_note, self._on_welcome
        self._orphans = OrphanWatch(self.end, fleet, watch, self._clock, self.flush_soon)
        self.leadership = Leadership(self.end, admission.only_pools, self._clock, self._on_term, self.flush_soon)
        """Whether this scheduler leads."""
        admission.join(self.end, self.flush_soon, self.news.note_shares)

    async def start(self, path: str) -> None:
        """Listen on a Unix socket. Raises OSError if that is not possible."""
        self._path = path
        self._server = await asyncio.get_running_loop().create_unix_server(lambda: HostConnection(self), path)

    async def start_on(self, listener: ListeningSocket, tls: ssl.SSLContext | None) -> None:
        """Listen on a socket of TCP, with `tls`."""
        limit = None if tls is None else _HANDSHAKE_SECS
        self._server = await asyncio.get_running_loop().create_server(
            lambda: HostConnection(self), sock=cast(Any, listener), ssl=tls, ssl_handshake_timeout=limit
        )

    async def close(self) -> None:
        """Lead no more, cut all connections, and listen no more."""
        self._usage.tell(self.end, self._clock.now(), at_once=True)
        self._limits.tell(self.end, self._clock.now(), at_once=True)
        self._flush()  # The next leader hears of it from the gateways.
        await self.leadership.close()
        self._flush()  # Gateways are told, and look for the next leader.
        if self._server is not None:
            self._server.close()
        self._timer.cancel()
        if self._programs is not None:
            self._programs.close()
        self._watching.cancel()
        await asyncio.wait({self._watching})
        for connection in [*self._connections.values()]:
            connection.close(b"")
        if self._path is not None:
            with contextlib.suppress(OSError):
                Path(self._path).unlink()

    # What gateways and their processes do.

    def accept(self, connection: HostConnection) -> ConnectionId:
        """Return the number of a connection that has come."""
        self._last_connection += 1
        self._connections[self._last_connection] = connection
        self.end.accept(self._last_connection, self._random.randbytes(32), self._clock.now())
        return self._last_connection

    def feed(self, number: ConnectionId, data: bytes) -> None:
        """Take bytes of a connection."""
        self.end.feed(number, data, self._clock.now())
        self._flush()  # What the other connections say in this turn is answered in frames of their own, most of it.

    def lost(self, number: ConnectionId) -> None:
        """Note that a connection is gone."""
        if (connection := self._connections.pop(number, None)) is not None:
            gateway = self.end.connections.gateway_at(number)
            self.end.lost(number, self._clock.now())
            if gateway is not None:
                log_loss(gateway, connection.peer)
            self._on_lost()
            self.flush_soon()

    def note_death(self, name: str) -> None:
        """Note that the process of a gateway has ended: it starts nothing any more."""
        self.end.books.note_death(name, self._clock.now())
        self._orphans.look()

    def note_end(self, gateway: GatewayId) -> None:
        """Note that the process of a gateway has ended, of which the connection may not be known to be gone yet."""
        self.end.note_end(gateway, self._clock.now())
        self._orphans.look()
        self.flush_soon()

    @property
    def gateway_ids(self) -> list[GatewayId]:
        """The gateways that are connected."""
        return [gateway.id for gateway in self.end.books.connected]

    @property
    def requests(self) -> Collection[BookedRequest]:
        """All requests that wait or hold a slot."""
        return self.end.books.by_ticket.values()

    # What gateways are told.

    def tell(self, note: Note, to: GatewayId | None = None) -> None:
        """Send a note to a gateway, or to all that are connected."""
        self.end.tell(note, to)
        self.flush_soon()

    def abandon(self, request: BookedRequest) -> None:
        """Have a request stopped at its backend."""
        self.end.requests.abandon_attempt(request)
        self.flush_soon()

    def flush_soon(self) -> None:
        """Write what is to be said at the end of this turn of the loop."""
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        now = self._clock.now()
        self.leadership.note_mode(now)
        self.news.tell(self.end, now)
        self._usage.tell(self.end, now)
        self._limits.tell(self.end, now)
        for number in self.end.connections.take_speaking():
            if (connection := self._connections.get(number)) is not None:
                if left := connection.writer.take_left():
                    self.end.connections.note_written(number, left)
                connection.writer.write(self.end.take_bytes(number, now))
        self._close_cut()
        self._timer.set_to(self.end.next_deadline())

    def _close_cut(self) -> None:
        cuts = self.end.connections.take_cuts()
        if cuts:  # What a gateway leaves that was cut just now may have been granted to others.
            self.flush_soon()
        for cut in cuts:
            if cut.connection in self._connections:
                connection = self._connections.pop(cut.connection)
                self._cut_log.note(cut, connection.peer, self._clock.now())
                connection.close(cut.last_bytes)
                self._on_lost()

    def _on_due(self) -> None:
        self.end.advance(self._clock.now())
        self.flush_soon()

    def _on_term(self) -> None:
        self._usage.begin_term()
        self._limits.begin_term()
        if self.on_term is not None:
            self.on_term()
        self._orphans.look()
        self.news.note()

    def _on_lost(self) -> None:
        self._orphans.look()
        self.news.note()
        if self.on_lost is not None:
            self.on_lost()

    def _on_note(self, gateway: GatewayId, note: Note) -> None:
        if note.kind == USAGE:
            self._usage.hear(note.payload)
        elif self.on_note is not None:
            self.on_note(gateway, note)

    def _on_welcome(self, gateway: GatewayId, hello: Hello) -> None:
        self.news.note()
        self._limits.welcome(self.end, gateway, hello.limits)
        now = self._clock.now()
        self.news.tell(self.end, now)
        self.news.tell_all(self.end, gateway, now)
        self._usage.tell_all()
        welcomed = self.end.books.gateways[gateway]
        if welcomed.connection is not None:
            log_welcome(welcomed, self._connections[welcomed.connection].peer)
        if self.on_welcome is not None:
            self.on_welcome(gateway)

    def _next_request(self) -> RequestId:
        """Return a number that no request has had, of whichever gateway."""
        return self.end.books.next_ticket()

    async def _watch_orphans(self) -> None:
        await self._orphans.run()
