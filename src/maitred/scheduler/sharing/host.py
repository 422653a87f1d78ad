"""SchedulerHost: the scheduler's end of the links, with its sockets and its timer.

**A turn.** Whatever happens in a turn of the loop, what is to be said to the gateways is written once, at its end (`_flush`):
one frame for each gateway.

**Gateways that are gone.** Their slots are held until their backends show the requests gone (`link.unaccounted`). So these
backends are asked ten times a second while there are such slots (`_watch_orphans`), and not when their regular poll is due: a
backend notices at once that the connections of a process that has ended are closed. A scheduler that has learned for a lease
and misses gateways asks likewise, what these may still have.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from random import Random
from typing import Any, Final, cast

import msgspec

from maitred.admission.terms.lead import Lead
from maitred.core.decisions import Decision
from maitred.core.request import RequestId
from maitred.core.units import Micros, to_seconds
from maitred.scheduler.backends.backend import Backend
from maitred.scheduler.backends.fleet_view import FleetView
from maitred.scheduler.backends.fleet_watch import FleetWatch
from maitred.scheduler.drivers.deadline_timer import DeadlineTimer
from maitred.scheduler.drivers.programs import RealTimePrograms
from maitred.scheduler.link.gateway_books import BookedRequest, ConnectionId, GatewayBooks, GatewayId
from maitred.scheduler.link.messages import Fleet, Note
from maitred.scheduler.link.scheduler_end import GATEWAY_LEASE, SchedulerEnd
from maitred.scheduler.sharing.elections.election import Candidate, Election
from maitred.scheduler.sharing.elections.elector import Elector
from maitred.scheduler.sharing.fleet_news import fleet_news
from maitred.scheduler.sharing.fleet_placer import FleetPlacer
from maitred.scheduler.sharing.host_connections import CutLog, HostConnection
from maitred.scheduler.sharing.hosted_admission import HostedAdmission
from maitred.scheduler.sharing.hosted_programs import HostedPrograms
from maitred.scheduler.sharing.mode_times import ModeTimes
from maitred.scheduler.sharing.shares import SHARES, Shares
from maitred.wire.clock import Clock
from maitred.wire.machine import ListeningSocket

log = logging.getLogger("maitred.gateway")
_FOREVER: Final[Micros] = 1 << 62
"""The end of the term of a scheduler that no other one stands by for."""
_ORPHAN_POLL_SECS: Final = 0.1
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
        make_placer: Callable[[asyncio.Task[None], Callable[[BookedRequest], object], Callable[[], object]], FleetPlacer],
        random: Random,
        programs: RealTimePrograms | None = None,
        lease: Micros = GATEWAY_LEASE,
    ) -> None:
        """`make_placer` is given a task that lasts as long as the host, what has a request
        stopped at its backend, and what tells gateways of the backends. `random` draws what no other process
        may draw. `programs` decides about agent programs, if there are any. `lease`: how long a gateway may start requests
        after a beat, µs. Made inside the loop that it runs in."""
        self._fleet, self._watch, self._random = fleet, watch, random
        self._clock: Clock = admission.clock
        self._wakeup = asyncio.Event()
        """Set when slots may have lost their gateway, or something is to be learned."""
        self._watching = asyncio.create_task(self._watch_orphans())
        placer = make_placer(self._watching, self._abandon, self.note_news)

        def placer_of(books: GatewayBooks) -> FleetPlacer:
            return placer

        self._programs = None if programs is None else HostedPrograms(programs, self._next_request, self.flush_soon)
        self.end = SchedulerEnd(
            secret,
            lambda now: admission.core,
            placer_of,
            lease=lease,
            pool_of=admission.pool_of,
            load_probe=admission.load_probe,
            memories=self._programs,
        )
        """What the link says and hears."""
        self.end.door.backends = [backend.url for backend in fleet.backends]
        self._connections: dict[ConnectionId, HostConnection] = {}
        self._last_connection = 0
        self._timer = DeadlineTimer(self._on_due, self._clock)
        self._is_flush_due = False
        self._is_news_due = True
        """Whether gateways may have to be told of the backends."""
        self._last_news, self._last_shares = Fleet([]), Shares()
        self.modes = ModeTimes("standby", self._clock.now())
        """The time in each mode."""
        self._slots: dict[str, int] = {}
        """The slots of each pool."""
        self.on_note: Callable[[GatewayId, Note], object] | None = None
        """Called with the notes of gateways."""
        self.on_welcome: Callable[[GatewayId], object] | None = None
        """Called with each gateway that has been welcomed."""
        self.on_rules: Callable[[], object] | None = None
        """Called when other rules of admission are in force."""
        self.end.on_note, self.end.on_welcome = self._on_note, self._on_welcome
        self.elector: Elector | None = None
        """What takes part in the election, or None: this scheduler leads as long as it is there."""
        self._server: asyncio.Server | None = None
        self._path: str | None = None
        """That of the Unix socket, if it is one."""
        self._cut_log = CutLog()

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

    # Leadership (`Elected`).

    @property
    def epoch(self) -> int | None:
        """The epoch under which this scheduler leads, or None."""
        return self.end.epoch if self.end.is_leading(self._clock.now()) else None

    @property
    def highest_epoch(self) -> int:
        """The highest epoch that its gateways have told of."""
        return self.end.highest_epoch

    @property
    def named_gateways(self) -> Collection[GatewayId]:
        """The gateways that may hold slots now, or are to be welcomed."""
        learning = self.end.learning
        unheard = () if learning is None else learning.unheard
        return {*self.end.books.gateways, *self.end.waiting_gateways, *unheard}

    @property
    def mode(self) -> str:
        """`standby`, `learning` or `leading`."""
        self.end.is_leading(self._clock.now())
        return self.end.mode.name.lower()

    def gateway_views(self) -> list[tuple[str, bool, int, int, float]]:
        """Return of each gateway: its name, whether it is connected, the slots that it holds, its requests that wait, and the
        seconds since it was heard. O(requests that are here)."""
        now = self._clock.now()
        return [
            (gateway.id[0], gateway.connection is not None, held, len(gateway.requests) - held, ago)
            for gateway in self.end.books.gateways.values()
            for held in (sum(request.holds_slot for request in gateway.requests.values()),)
            for ago in (round(to_seconds(now - gateway.heard_at), 3),)
        ]

    @property
    def num_reclaimed(self) -> int:
        """Sequences of gateways that were gone, whose slots are free again, since this scheduler leads."""
        return self.end.settling.num_reclaimed

    def lead_alone(self) -> None:
        """Lead for as long as this process is there, which is the first that does."""
        self.lead(1, _FOREVER, ())

    async def take_part(self, election: Election, candidate: Candidate) -> None:
        """Take part in an election, from now on."""
        self.end.door.is_sole = not election.names_gateways
        if election.names_gateways:
            self.end.door.named = set()
        self.elector = Elector(election, candidate, self, self._clock)
        self.end.door.on_unnamed = self.elector.hurry
        await self.elector.start()

    def lead(self, epoch: int, until: Micros, gateways: Collection[GatewayId]) -> None:
        """Begin to lead, until `until`, µs. `gateways` may hold slots of a term before."""
        if self.end.door.named is not None:
            self.end.door.named = set(gateways)
        self.end.lead(epoch, until, gateways, None, self._only_pools(), self._clock.now())
        self._wakeup.set()
        self._is_news_due = True
        self.flush_soon()

    def renew(self, until: Micros, gateways: Collection[GatewayId]) -> None:
        """Lead until `until`, µs. These gateways are named in the election."""
        self.end.renew(until)
        if self.end.door.named is not None:
            self.end.name_gateways(gateways, self._clock.now())
        self.flush_soon()

    def step_down(self, reason: str) -> None:
        """Lead no more."""
        self.end.step_down(reason)
        self.end.advance(self._clock.now())
        self.flush_soon()

    async def close(self) -> None:
        """Lead no more, cut all connections, and listen no more."""
        if self.elector is not None:
            await self.elector.close()
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

    # What the driver of admission asks (`RequestHost`).

    @property
    def requests(self) -> Collection[BookedRequest]:
        """All requests that wait or hold a slot."""
        return self.end.books.by_ticket.values()

    @property
    def has_orphans(self) -> bool:
        """Whether slots are held by requests of gateways that are gone, or may be."""
        return self.end.learning is not None or bool(self.end.unaccounted.backends())

    def apply(self, decisions: Iterable[Decision]) -> None:
        """Tell gateways what was decided."""
        self.end.requests.apply(decisions, self._clock.now())
        self.flush_soon()

    def _next_request(self) -> RequestId:
        """Return a number that no request has had, of whichever gateway."""
        return self.end.books.next_ticket()

    def rules_changed(self) -> None:
        """Note that other rules are in force."""
        if self.on_rules is not None:
            self.on_rules()

    def set_slots(self, pool: str, capacity: int, lead: Lead) -> None:
        """Set the slots of a pool."""
        self._slots[pool] = capacity
        self.end.set_backends(self._only_pools())
        self.end.set_slots(pool, capacity, self._clock.now(), lead)
        self.flush_soon()

    def forget_pool(self, pool: str) -> None:
        """Remove a pool in which no request is."""
        self._slots.pop(pool, None)
        self.end.forget_model(pool, self._clock.now())
        self.flush_soon()

    def _only_pools(self) -> dict[int, str]:
        """Return the pool of each backend that has models of no other."""
        pools = {backend.index: self._fleet.pools.of_backend(backend) for backend in self._fleet.backends}
        return {index: names[0] for index, names in pools.items() if len(names) == 1}

    def _abandon(self, request: BookedRequest) -> None:
        self.end.requests.abandon_attempt(request)
        self.flush_soon()

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
        self.flush_soon()

    def lost(self, number: ConnectionId) -> None:
        """Note that a connection is gone."""
        if self._connections.pop(number, None) is not None:
            self.end.lost(number, self._clock.now())
            self._wakeup.set()
            self.flush_soon()

    def note_death(self, name: str) -> None:
        """Note that the process of a gateway has ended: it starts nothing any more."""
        self.end.books.note_death(name, self._clock.now())
        self._wakeup.set()

    def on_backend_polled(self, backend: Backend) -> None:
        """Tell gateways what has become of a backend (`BackendObserver`)."""
        self.note_news()

    def on_backend_restarted(self, backend: Backend) -> None:
        """Note nothing: what was in KV memory is the programs' concern, which are told themselves."""

    def note_news(self) -> None:
        """Tell gateways of the backends, if anything has changed."""
        self._is_news_due = True
        self.flush_soon()

    def tell(self, note: Note, to: GatewayId | None = None) -> None:
        """Send a note to a gateway, or to all that are connected."""
        self.end.tell(note, to)
        self.flush_soon()

    @property
    def gateway_ids(self) -> list[GatewayId]:
        """The gateways that are connected."""
        return [gateway.id for gateway in self.end.books.gateways.values() if gateway.connection is not None]

    def _on_note(self, gateway: GatewayId, note: Note) -> None:
        if self.on_note is not None:
            self.on_note(gateway, note)

    def _on_welcome(self, gateway: GatewayId) -> None:
        self.end.tell(self._last_news, gateway)
        self.end.tell(_shares_note(self._last_shares), gateway)
        if self.on_welcome is not None:
            self.on_welcome(gateway)

    def flush_soon(self) -> None:
        """Write what is to be said at the end of this turn of the loop."""
        if not self._is_flush_due:
            self._is_flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        now = self._clock.now()
        self.modes.enter(self.mode, now)
        if self._is_news_due:
            self._is_news_due = False
            news = fleet_news(self._fleet.backends, now)
            if news != self._last_news:
                self._last_news = news
                self.end.tell(news)
        shares = Shares(self._slots.copy(), len(self.gateway_ids) or 1)
        if shares != self._last_shares:
            self._last_shares = shares
            self.end.tell(_shares_note(shares))
        for number, connection in [*self._connections.items()]:
            connection.writer.write(
                lambda number=number: self.end.take_bytes(number, now),  # type: ignore[misc]
                lambda num_bytes, number=number: self.end.note_written(number, num_bytes),  # type: ignore[misc]
            )
        cuts = self.end.take_cuts()
        if cuts:  # What a gateway leaves that was cut just now may have been granted to others.
            self.flush_soon()
        for cut in cuts:
            if cut.connection in self._connections:
                connection = self._connections.pop(cut.connection)
                self._cut_log.note(cut, connection.peer, self._clock.now())
                connection.close(cut.last_bytes)
                self._wakeup.set()
        self._timer.set_to(self.end.next_deadline())

    def _on_due(self) -> None:
        self.end.advance(self._clock.now())
        self.flush_soon()

    # Slots whose gateways are gone.

    async def _watch_orphans(self) -> None:
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            while self.has_orphans:
                try:
                    for index in sorted(self.end.settling.unsettled_backends(self._clock.now())):
                        await self._ask(self._fleet.backends[index])
                except Exception:  # Without this task, the slots would be held for as long as may be.
                    log.exception("the backends could not be asked for requests of gateways that are gone")
                await asyncio.sleep(_ORPHAN_POLL_SECS)

    async def _ask(self, backend: Backend) -> None:
        """Ask a backend how many requests it has, if it says so."""
        before, asked_at = backend.load, self._clock.now()
        await self._watch.poll_now(backend)
        load = backend.load
        if load is not None and load is not before and load.running is not None:
            self.end.on_reading(backend.index, load.running + (load.waiting or 0), asked_at, self._clock.now())
            self.flush_soon()


def _shares_note(shares: Shares) -> Note:
    return Note(SHARES, 0, msgspec.msgpack.encode(shares))
