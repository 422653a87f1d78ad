"""SchedulerEnd: the scheduler that leads, at its end of the links of all gateways.

    state     what happens                                    then      does
    --------  ----------------------------------------------  --------  ------------------------------------------------
    STANDBY   `lead`                                          LEARNING  begins with empty books, under an epoch of its own
    LEARNING  every gateway said hello, or the lease is over  LEADING   all slots are there
    either    `renew`                                         same      may lead for longer
    either    its own lease is over, `step_down`, or a        STANDBY   cuts all connections, and forgets everything
              gateway has seen a later epoch

**One at a time.** A leader is given its epoch and its lease by the store (an election, not a part of this module), counted from
the sending of the request that was answered. Before anything else it looks whether that lease is over, so a scheduler that was
stopped grants nothing when it wakes up.

**A gateway** is told Welcome in answer to its hello, and the answer to each beat prolongs its lease. When its connection is
lost, or it has been silent for a lease, its waiting requests leave, and its slots are `unaccounted`.

A connection that has not said hello in time is cut, as is one that says what is out of place. The driver accepts connections
(`accept`), gives what comes (`feed`, `lost`), writes what is to be said (`take_bytes`), and closes what is cut (`connections`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from enum import IntEnum
from typing import Final

import msgspec

from maitred.admission import Admission, LoadProbe, ReleaseReason, no_load
from maitred.admission.terms.lead import NO_LEAD, Lead
from maitred.core.decisions import DecisionLog
from maitred.core.errors import InvariantError
from maitred.core.units import SECOND, Micros
from maitred.scheduler.link.authentication import Side
from maitred.scheduler.link.channel import Channel, ChannelLimits, ChannelState
from maitred.scheduler.link.connections import Connections, GatewayConnection
from maitred.scheduler.link.door import Door, waiting_gateway
from maitred.scheduler.link.gateway_books import ConnectionId, GatewayBooks, GatewayId
from maitred.scheduler.link.learning import Learning
from maitred.scheduler.link.linked_admission import LinkedAdmission
from maitred.scheduler.link.linked_programs import LinkedPrograms, MemoryHost
from maitred.scheduler.link.messages import AnyMessage, Beat, BeatAnswer, Hello, Mark, Marked, Note, Welcome
from maitred.scheduler.link.model_slots import ModelSlots
from maitred.scheduler.link.placer import Placer
from maitred.scheduler.link.slot_settling import SlotSettling
from maitred.scheduler.link.terms import Standing
from maitred.scheduler.link.unaccounted import Unaccounted

GATEWAY_LEASE: Final[Micros] = 3 * SECOND
RECLAIM_AFTER: Final[Micros] = 60 * SECOND
NOT_LEADING: Final = "this scheduler does not lead"


class SchedulerMode(IntEnum):
    STANDBY = 0
    LEARNING = 1
    LEADING = 2


_STANDBY, _LEARNING, _LEADING = SchedulerMode  # members of enums are slow to look up
_CLOSED: Final = ChannelState.CLOSED


class SchedulerEnd:
    """The end of one scheduler, over all its terms of leadership."""

    def __init__(
        self,
        secret: bytes,
        make_core: Callable[[Micros], Admission],
        make_placer: Callable[[GatewayBooks], Placer],
        *,
        lease: Micros = GATEWAY_LEASE,
        reclaim_after: Micros = RECLAIM_AFTER,
        limits: ChannelLimits | None = None,
        pool_of: Callable[[str], str] = str,
        load_probe: LoadProbe = no_load,
        memories: MemoryHost | None = None,
        notes: DecisionLog | None = None,
    ) -> None:
        """`secret` proves each further connection: another may be set. `make_core` returns an admission core without models,
        made at a time. `lease`: how long a gateway may start requests after a beat, and `reclaim_after`: for how long the slots
        of one that is gone are held at most, µs. `pool_of` returns the pool of a model, and `load_probe` the load of its
        backends. `memories` decides about agent programs. `notes`, if given, is told which class each request has asked for."""
        self.epoch: int | None = None
        """The epoch under which this scheduler leads, or None if it stands by."""
        self.secret, self._make_core, self._make_placer = secret, make_core, make_placer
        self._lease, self._reclaim_after, self._limits = lease, reclaim_after, limits
        self._leads_until: Micros = 0
        self._pool_of, self._load_probe = pool_of, load_probe
        self._notes = notes if notes is not None and notes.takes_notes else None
        self.on_welcome: Callable[[GatewayId, Hello], object] | None = None
        """Called with each gateway that has been welcomed, and its hello, before anything is granted by that."""
        self.on_note: Callable[[GatewayId, Note], object] | None = None
        """Called with the notes of gateways."""
        self.connections = Connections()
        """All connections: the driver writes what is to be said on them, and closes what is cut."""
        self._links, self._say = self.connections.links, self.connections.say
        if memories is not None:
            memories.say = self._say
        self.programs = LinkedPrograms(memories)
        """The memories of agent programs' requests of all gateways."""
        self.books = GatewayBooks(lease)
        self._slots = ModelSlots({}, {})
        self.highest_epoch = 0
        """The highest epoch that a gateway has told of, or under which this scheduler has led."""
        self.door = Door()
        """Which gateways are welcomed."""
        self._quiet_until: Micros = 0
        """Before this instant, µs, nothing but admission has anything due, whatever requests do: asked with each frame."""
        self._begin_books(0)

    def _begin_books(self, now: Micros) -> None:
        self.programs.forget(self.books.gateways.values(), now)
        self.books = GatewayBooks(self._lease)
        self.unaccounted = Unaccounted(self.books, self._reclaim_after)
        core, placer = self._make_core(now), self._make_placer(self.books)
        asked = self._pool_of, self._load_probe, self.programs, self._notes
        self.requests = LinkedAdmission(core, self.books, placer, self._slots.by_model, self.epoch or 0, self._say, *asked)
        """Admission for the requests of all gateways."""
        self.requests.expect_model = lambda model, at: self.set_slots(model, 0, at)
        self.settling = SlotSettling(self._slots, self.unaccounted, self.requests)

    # Leadership.

    @property
    def learning(self) -> Learning | None:
        """What is still to be learned, or None."""
        return self.settling.learning

    @property
    def mode(self) -> SchedulerMode:
        """What this scheduler may do."""
        if self.epoch is None:
            return _STANDBY
        return _LEADING if self.learning is None else _LEARNING

    def lead(
        self,
        epoch: int,
        until: Micros,
        gateways: Collection[GatewayId],
        slots: Mapping[str, int] | None,
        backends: Mapping[int, str],
        now: Micros,
        alone_from: Micros = 0,
    ) -> None:
        """Begin to lead, until `until` (µs) or a later `renew`. `gateways` may hold slots already; `slots` are those of each
        model, None: as they were set (`set_slots`), and `backends` the models that are served. Before `alone_from` (µs) another
        scheduler may lead as well, and this one grants nothing."""
        self.step_down("another term begins")
        self._retire(now)
        self.epoch, self._leads_until = epoch, until
        if slots is not None:
            self._slots = ModelSlots(slots, {})
        self.set_backends(backends)
        self._begin_books(now)
        self.settling.learning = Learning(gateways, backends, self._lease, now, alone_from)
        self.settling.resize(now)
        self.settling.review(now)

    def renew(self, until: Micros) -> None:
        """Lead until `until`, µs: from the sending of the renewal that was answered."""
        self._leads_until = until

    def step_down(self, reason: str) -> None:
        """Lead no more. Gateways are told, and look for another scheduler."""
        self.epoch = self.settling.learning = None
        self._quiet_until = 0
        for connection in [*self._links]:
            self._cut(connection, reason)

    def _retire(self, now: Micros) -> None:
        """Let the requests of a term that is over leave the core, those that wait first, as none may be granted."""
        for request in sorted(self.books.by_ticket.values(), key=lambda one: one.holds_slot):
            request.gateway.connection = None
            self.requests.end(request, ReleaseReason.GATEWAY_GONE, now)
        self.programs.forget(self.books.gateways.values(), now)

    def name_gateways(self, gateways: Collection[GatewayId], now: Micros) -> None:
        """Note which gateways the election names, and welcome those that have waited for that."""
        self.door.named = set(gateways)
        for connection, link in [*self._links.items()]:
            self._take_all(connection, link, self.door.let_in(link, now), now)

    @property
    def waiting_gateways(self) -> list[GatewayId]:
        """The gateways that wait to be named."""
        return [gateway for link in self._links.values() if (gateway := waiting_gateway(link)) is not None]

    def set_slots(self, model: str, slots: int, now: Micros, lead: Lead = NO_LEAD) -> None:
        """Set the slots of a model, known or new, of which `lead` are beyond what its backends run at once."""
        self._slots.set(model, slots, lead)
        self.is_leading(now)
        self.settling.resize_model(model, now)  # Also while this scheduler stands by: what it would have is looked at.

    def forget_model(self, model: str, now: Micros) -> None:
        """Remove a model that is not served any more. Raises ValueError if a request of it waits or holds a slot."""
        self.requests.apply(self.requests.core.forget(model, now), now)
        self._slots.forget(model)

    def set_backends(self, models: Mapping[int, str]) -> None:
        """Set which model each backend serves. One that serves several is not named: orphans there are held until all of them
        are gone, because its engine does not say of which model is what has gone."""
        if self.learning is not None:
            self.learning.note_backends(models.keys() - self._slots.model_at.keys())
        self._slots.model_at = dict(models)

    def tell(self, message: AnyMessage, to: GatewayId | None = None) -> None:
        """Tell something to a gateway, or to all that are connected."""
        for gateway in self.books.gateways.values():
            if to is None or gateway.id == to:
                self._say(gateway, message)

    def is_leading(self, now: Micros) -> bool:
        """Return whether this scheduler leads; if its own lease is over, it steps down."""
        if self.epoch is not None and now >= self._leads_until:
            self.step_down("the lease of this scheduler is over")
        return self.epoch is not None

    def accept(self, connection: ConnectionId, nonce: bytes, now: Micros) -> None:
        """Take a connection. Raises ValueError for a nonce of a wrong length."""
        self._links[connection] = GatewayConnection(Channel(Side.SCHEDULER, self.secret, nonce, self._limits), now)
        self._quiet_until = 0

    def lost(self, connection: ConnectionId, now: Micros) -> None:
        """Note that a connection is gone."""
        self.advance(now)
        link = self._links.pop(connection, None)
        if link is not None:
            self._part(link, connection, now)

    def feed(self, connection: ConnectionId, data: bytes, now: Micros) -> None:
        """Take bytes of a connection."""
        self.advance(now)
        if (link := self._links.get(connection)) is None:
            return
        if link.gateway is None:  # A handshake is answered by the channel itself.
            self.connections.note_speaking(connection)
        self._take_all(connection, link, link.channel.feed(data), now)
        self._cut_if_closed(connection, link, now)

    def take_bytes(self, connection: ConnectionId, now: Micros) -> bytes:
        """Return the bytes to write on a connection now. Called once per turn of the loop."""
        self.is_leading(now)  # A process that was stopped between its decision and now must not tell it.
        link = self._links.get(connection)
        if link is None:
            return b""
        data = link.channel.take_bytes()
        self._cut_if_closed(connection, link, now)
        return data

    def on_reading(self, backend: int, running: int, asked_at: Micros, now: Micros) -> None:
        """Note that an engine that was asked at `asked_at` has so many sequences, those that wait in it included."""
        self.advance(now)
        if self.epoch is None:
            return
        if self.learning is not None and self.learning.on_reading(backend, asked_at):
            self.unaccounted.note_strangers(backend, running, now)
        self.settling.free(self.unaccounted.on_reading(backend, running, asked_at, now), now)
        self.settling.review(now)
        if self.unaccounted.backends():
            self.tell(Mark(now))

    def advance(self, now: Micros) -> None:
        """Do what is due by `now`."""
        if now >= self._quiet_until:
            self._advance_all(now)
        elif due := self.requests.core.advance(now):
            self.requests.apply(due, now)

    def _advance_all(self, now: Micros) -> None:
        for connection in self.connections.late(now):
            self._cut(connection, "no hello came in time", now)
        if not self.is_leading(now):
            self._retire(now)
            return
        for silent in [gateway.connection for gateway in self.books.silent(now) if gateway.connection is not None]:
            self._cut(silent, "no beat came for a lease", now)
        self.settling.free_overdue(now)
        self.settling.review(now)
        self.requests.apply(self.requests.core.advance(now), now)
        is_quiet = self.epoch is not None and self.settling.is_settled and self.connections.next_late_at() is None
        self._quiet_until = min(self._leads_until, self.books.next_silence_at() or self._leads_until) if is_quiet else 0

    def next_deadline(self) -> Micros | None:
        """Return when to call `advance` next, or None while time changes nothing."""
        if self._quiet_until:
            return min(self._quiet_until, self.requests.core.next_deadline() or self._quiet_until)
        times = [self.connections.next_late_at()]
        if self.epoch is not None:
            times += [self._leads_until, self.books.next_silence_at(), self.unaccounted.next_overdue_at()]
            times += [self.requests.core.next_deadline(), None if self.learning is None else self.learning.next_deadline()]
        return min((due for due in times if due is not None), default=None)

    def check(self) -> None:
        """Raise InvariantError if the books contradict each other, or admission. For tests; O(n)."""
        self.requests.core.check()
        self.connections.check([] if self.epoch is None else self.books.connected)
        if self.epoch is None:
            return
        self.books.check()
        views = [self.requests.core.view(pool) for pool in self.requests.core.pool_names]
        if len(self.books.by_ticket) != sum(view.in_flight + view.waiting for view in views):
            raise InvariantError("admission and the books differ")

    # What gateways say.

    def _take_all(self, connection: ConnectionId, link: GatewayConnection, said: Iterable[AnyMessage], now: Micros) -> None:
        for message in said:
            try:
                if connection not in self._links:
                    return
                handle = self.requests.handlers.get(type(message))  # That of the most by far.
                if handle is not None and link.gateway is not None:
                    handle(link.gateway, message, now)
                else:
                    self._take(connection, link, message, now)
            except (ValueError, msgspec.MsgspecError) as error:
                self._cut(connection, f"{type(message).__name__} makes no sense: {error}", now, is_lasting=True)

    def _take(self, connection: ConnectionId, link: GatewayConnection, message: AnyMessage, now: Micros) -> None:
        gateway = link.gateway
        if link.early:
            link.early.append((message, now))
        elif gateway is None:
            if hello := link.take_hello(message):
                self._on_hello(connection, link, hello, now)
        elif isinstance(message, Beat):
            gateway.heard_at = now
            self._say(gateway, BeatAnswer(message.number, self.requests.epoch))
        elif isinstance(message, Marked):
            gateway.on_marked(message.instant, now)
            self.settling.free(self.unaccounted.review(), now)
        elif isinstance(message, Note) and self.on_note is not None:
            self.on_note(gateway.id, message)
        elif not self.programs.take(gateway, message, now):
            self._cut(connection, f"{type(message).__name__} is out of place", now)

    def _on_hello(self, connection: ConnectionId, link: GatewayConnection, hello: Hello, now: Micros) -> None:
        if self.epoch is None:
            self._cut(connection, NOT_LEADING, now)
            return
        self.highest_epoch = max(self.highest_epoch, self.epoch, hello.epoch)
        if hello.epoch > self.epoch:
            self.step_down(f"a scheduler of epoch {hello.epoch} leads")
        elif problem := self.door.problem(hello):
            self._cut(connection, problem, now, is_lasting=True)
        elif not self.door.must_wait(link, hello, now):
            self._welcome(connection, link, self.door.translated(hello), self.epoch, now)

    def _welcome(self, connection: ConnectionId, link: GatewayConnection, hello: Hello, epoch: int, now: Micros) -> None:
        gateway = self.books.gateway((hello.name, hello.boot))
        if gateway.connection is not None:
            self._cut(gateway.connection, "the gateway has another connection", now)
            gateway = self.books.gateway(gateway.id)
        held = {live.request for live in hello.requests if live.standing is not Standing.WAITING}
        self.settling.count_ended([one for one in gateway.requests.values() if one.number not in held], now)
        gateway.connect(connection, now)
        link.gateway = gateway
        is_learning, keeps_notes = self.learning is not None, self._notes is not None
        self._say(gateway, Welcome(epoch, self._lease, is_learning, self.door.is_sole, keeps_notes))
        if self.on_welcome is not None:
            self.on_welcome(gateway.id, hello)
        if (take_note := self.on_note) is not None:
            for note in hello.notes:
                take_note(gateway.id, note)
        self.programs.reconcile(gateway, hello.memories, now)
        self.settling.note_holders(self.requests.reconcile(gateway, hello.requests, now))
        self.settling.free(self.unaccounted.settle(), now)
        if self.learning is not None:
            self.learning.on_hello(gateway.id)
        self.settling.resize(now)
        self.settling.review(now)

    def note_end(self, id: GatewayId, now: Micros) -> None:  # noqa: A002 - as everywhere
        """Note that the process of a gateway has ended: it starts nothing more, whatever its lease says."""
        if (gateway := self.books.gateways.get(id)) is not None:
            if gateway.connection is not None:
                self._cut(gateway.connection, "its process has ended", now)
            gateway.die(now)

    def _part(self, link: GatewayConnection, connection: ConnectionId, now: Micros) -> None:
        """Let go of the gateway of a connection that is no more."""
        gateway = link.gateway
        if gateway is not None and gateway.connection == connection and self.epoch is not None:
            gateway.connection, self._quiet_until = None, 0
            self.requests.abandon(gateway, now)
            self.programs.abandon(gateway, now)
            self.books.forget_if_gone(gateway)

    def _cut(self, connection: ConnectionId, reason: str, now: Micros | None = None, *, is_lasting: bool = False) -> None:
        link = self.connections.cut(connection, reason, is_lasting=is_lasting)
        if now is not None:
            self._part(link, connection, now)

    def _cut_if_closed(self, connection: ConnectionId, link: GatewayConnection, now: Micros) -> None:
        if link.channel.state is _CLOSED and connection in self._links:
            self._cut(connection, link.channel.fault or "closed", now)
