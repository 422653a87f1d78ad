"""Gateways, schedulers, engines, clients and a store in virtual time, with a network that delays, cuts and repeats.

A world is drawn by a seed. `World.run` goes through a time full of faults and then through one without, and asserts after each
event what must hold whatever happens (`Watch`). The ends of the link are the real ones; the rest is as simple as can be.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from random import Random

import msgspec

from maitred.admission import Admission, AdmissionConfig, ReleaseReason
from maitred.core.units import MILLISECOND, SECOND, Micros
from maitred.scheduler.link.channel import ChannelState
from maitred.scheduler.link.events import Closed, Granted, LinkEvent, Preempted, Rejected
from maitred.scheduler.link.gateway_books import BookedRequest, GatewayBooks
from maitred.scheduler.link.gateway_end import GatewayEnd
from maitred.scheduler.link.messages import AnyMessage, Grant
from maitred.scheduler.link.placer import LinkPlace, NoPlace, Placer
from maitred.scheduler.link.scheduler_end import SchedulerEnd
from maitred.scheduler.link.terms import RequestTerms

MODEL = "m"
CAPACITIES = (3, 3)
LEADER_TTL = 2 * SECOND
SECRET = b"a secret of a test"
_decode = msgspec.msgpack.Decoder(list[AnyMessage]).decode


def messages_in(data: bytes) -> list[AnyMessage]:
    """Return the messages in whole frames."""
    messages = []
    while data:
        end = 4 + int.from_bytes(data[:4], "big")
        messages += _decode(data[4:end])
        data = data[end:]
    return messages


def config() -> AdmissionConfig:
    """Return rules with classes, reservations and preemption, victims of which are tried again."""
    entries = {
        "bulk": {"queue_size": 50, "queue_timeout_secs": 15, "reserved_floor": 0, "reserved_per_slot": 0.0},
        "default": {"queue_size": 50, "queue_timeout_secs": 15, "reserved_floor": 1, "reserved_per_slot": 0.0},
        "interactive": {
            "queue_size": 50,
            "queue_timeout_secs": 15,
            "reserved_floor": 1,
            "reserved_per_slot": 0.0,
            "can_preempt": True,
        },
    }
    return msgspec.convert({"mode": "priority", "on_preempt": "retry", "classes": entries}, AdmissionConfig)


class LeastHeld(Placer):
    """Sends a request where most is free, as the books have it."""

    def __init__(self, world: World, node: SchedulerNode, books: GatewayBooks) -> None:
        self.world, self.node, self.books = world, node, books

    def place(self, request: BookedRequest, now: Micros) -> LinkPlace | NoPlace:
        held = Counter(one.backend for one in self.books.by_ticket.values() if one.holds_slot)
        extra = self.node.end.unaccounted.extra_slots
        free = {backend: cap - held[backend] + extra.get(backend, 0) for backend, cap in enumerate(CAPACITIES)}
        best = max(free, key=lambda backend: (free[backend] > 0, backend not in request.tried, free[backend]))
        return best, None


class Node:
    """A process, with a clock of its own."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.offset = world.draw.randint(-(10**12), 10**12) + 10**13
        self.paused_until: Micros = 0
        self.is_dead = False
        self._timer = 0

    @property
    def local(self) -> Micros:
        return self.world.now + self.offset

    def at(self, delay: Micros, act: Callable[[], None]) -> None:
        """Do something in this process, as soon as it runs then."""

        def when_running() -> None:
            if self.is_dead:
                return
            if self.world.now < self.paused_until:
                self.world.after(self.paused_until - self.world.now, when_running)
                return
            act()

        self.world.after(delay, when_running)

    def set_timer(self, deadline: Micros | None, act: Callable[[], None]) -> None:
        self._timer += 1
        number = self._timer
        if deadline is not None:
            self.at(max(0, deadline - self.local), lambda: act() if number == self._timer else None)


class Wire:
    """A connection: what is written comes in order, later, unless the connection breaks before."""

    def __init__(self, world: World, number: int, gateway: GatewayNode, scheduler: SchedulerNode) -> None:
        self.world, self.number, self.gateway, self.scheduler = world, number, gateway, scheduler
        self.is_cut = self.is_dropped = False
        self.slow_until: Micros = 0
        self._last = {"up": 0, "down": 0}

    def send(self, way: str, data: bytes) -> None:
        world = self.world
        if self.is_cut:
            return
        is_slow = world.now < self.slow_until
        at = world.now + world.draw.randint(100, 3_000) + (world.draw.randint(0, 4 * SECOND) if is_slow else 0)
        at = self._last[way] = max(at, self._last[way])
        node: Node = self.scheduler if way == "up" else self.gateway
        repeats = world.draw.random() < 0.05 and self._is_open(way)
        for _ in range(1 + repeats):
            node.at(at - world.now, lambda: None if self.is_dropped else self._deliver(way, data))

    def _deliver(self, way: str, data: bytes) -> None:
        if way == "up":
            self.scheduler.receive(self.number, data)
        elif self.gateway.wire is self:
            self.gateway.receive(data)

    def _is_open(self, way: str) -> bool:
        """Return whether a frame may be repeated: a `Hello` or a proof that comes twice is a fault."""
        link = self.scheduler.end._links.get(self.number)
        is_open = link is not None and link.channel.state is ChannelState.OPEN and link.gateway is not None
        return is_open and (way == "up" or self.gateway.end.may_start(self.gateway.local))

    def cut(self) -> None:
        """Break, which the ends notice one after the other. What is on the way is lost, or comes before they notice."""
        if self.is_cut:
            return
        self.is_cut, draw = True, self.world.draw
        self.is_dropped = draw.random() < 0.5
        ends = ((self.scheduler, "up", self._scheduler_notices), (self.gateway, "down", self._gateway_notices))
        for node, way, act in ends:
            rest = 0 if self.is_dropped else max(0, self._last[way] - self.world.now)
            node.at(rest + draw.choice((0, 100, 2_000, 500_000)), act)

    def _scheduler_notices(self) -> None:
        self.scheduler.end.lost(self.number, self.scheduler.local)
        self.scheduler.wires.pop(self.number, None)
        self.scheduler.turn()

    def _gateway_notices(self) -> None:
        if self.gateway.wire is self:
            self.gateway.end.lost()
            self.gateway.wire = None
            self.gateway.reconnect()


class Engine:
    """Sequences, which end by themselves or are aborted."""

    def __init__(self, world: World, number: int, capacity: int) -> None:
        self.world, self.number, self.capacity = world, number, capacity
        self.running: dict[int, GatewayNode] = {}
        self._last = 0

    def start(self, gateway: GatewayNode) -> int:
        self._last += 1
        self.running[self._last] = gateway
        assert len(self.running) <= self.capacity, (
            f"engine {self.number} has {len(self.running)} of {self.capacity} at {self.world.now}"
        )
        return self._last

    def stop(self, run: int) -> None:
        self.running.pop(run, None)


class Client:
    """A request as its client sees it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.outcome: str | None = None
        self.run: int | None = None
        self.engine: Engine | None = None
        self.is_streaming = False
        self.attempts: list[int] = []
        """The attempts that were granted."""


class GatewayNode(Node):
    def __init__(self, world: World, name: str, boot: int) -> None:
        super().__init__(world)
        self.name = name
        self.end = GatewayEnd(name, str(boot), SECRET)
        self.wire: Wire | None = None
        self.clients: dict[int, Client] = {}
        self._connecting = False
        world.store.gateways.add((name, str(boot)))
        self.reconnect()

    def reconnect(self) -> None:
        if not self._connecting:
            self._connecting = True
            self.at(self.world.draw.randint(MILLISECOND, 200 * MILLISECOND), self._connect)

    def _connect(self) -> None:
        self._connecting = False
        scheduler = self.world.scheduler_to_ask()
        if scheduler is None:
            self.reconnect()
            return
        self.wire = wire = self.world.new_wire(self, scheduler)
        self.end.connect(self.world.draw.randbytes(32), self.local)
        scheduler.at(500, lambda: scheduler.accept(wire))
        self.turn(())

    def receive(self, data: bytes) -> None:
        self.turn(self.end.feed(data, self.local))

    def turn(self, events: Sequence[LinkEvent]) -> None:
        for event in events:
            self._on_event(event)
        data = self.end.take_bytes()
        if data and self.wire is not None:
            self.wire.send("up", data)
            self.end.note_written(len(data))
        self.world.check_now_and_then(self.end.check)
        self.set_timer(self.end.next_deadline(), lambda: self.turn(self.end.advance(self.local)))

    def submit(self, priority_class: int) -> None:
        number = len(self.clients)
        self.clients[number] = Client(number)
        self.end.submit(number, RequestTerms(MODEL, priority_class, "", 1, 1), self.local)
        self.turn(())

    def _on_event(self, event: LinkEvent) -> None:
        match event:
            case Closed():
                if self.wire is not None:
                    self.wire.cut()
                    self.wire = None
                self.reconnect()
            case Granted():
                self._start(self.clients[event.request], event.backend)
            case Rejected():
                self._end(self.clients[event.request], f"refused: {event.reason}")
            case Preempted():
                client = self.clients[event.request]
                self.at(self.world.draw.randint(0, 3_000), lambda: self._yield(client))

    def _yield(self, client: Client) -> None:
        if client.outcome is None:
            assert not client.is_streaming, "a stream was stopped"
            self._stop(client)
            self.end.yield_slot(client.number)
            self.turn(())

    def _start(self, client: Client, backend: int) -> None:
        assert client.outcome is None
        assert client.run is None, "granted twice"
        (request,) = [one for one in self.end.requests if one.number == client.number]
        assert request.attempt not in client.attempts, "one attempt was granted twice"
        client.attempts.append(request.attempt)
        engine, draw = self.world.engines[backend], self.world.draw
        client.engine, client.run = engine, engine.start(self)
        run = client.run
        if draw.random() < 0.05:
            self.at(draw.randint(0, 300 * MILLISECOND), lambda: self._fail(client, run))
        self.at(draw.randint(MILLISECOND, 500 * MILLISECOND), lambda: self._first_byte(client, run))

    def _fail(self, client: Client, run: int) -> None:
        """Its backend fails a request before its response begins."""
        if client.run == run and not client.is_streaming:
            self._stop(client)
            self.end.leave_backend(client.number, "refused")
            self.turn(())

    def _first_byte(self, client: Client, run: int) -> None:
        if client.run == run and self.end.confirm_first_byte(client.number):
            client.is_streaming = True
            self.turn(())
            self.at(self.world.draw.randint(MILLISECOND, SECOND), lambda: self._end(client, "answered"))

    def leave(self, client: Client) -> None:
        if client.outcome is None:
            self._end(client, "left")

    def _stop(self, client: Client) -> None:
        if client.run is not None and client.engine is not None:
            client.engine.stop(client.run)
            client.run = None

    def _end(self, client: Client, outcome: str) -> None:
        if client.outcome is not None:
            assert outcome == "answered", f"{client.outcome}, and then {outcome}"
            return
        client.outcome = outcome
        self._stop(client)
        self.end.release(client.number, ReleaseReason.DRAINED)
        self.turn(())


class SchedulerNode(Node):
    def __init__(self, world: World, number: int) -> None:
        super().__init__(world)
        self.number = number
        self.wires: dict[int, Wire] = {}
        self.end = SchedulerEnd(
            SECRET,
            lambda now: Admission(config(), {}, now=now),
            lambda books: LeastHeld(world, self, books),
            lease=3 * SECOND,
            reclaim_after=60 * SECOND,
        )
        self.at(world.draw.randint(0, 300 * MILLISECOND), self._elect)
        self.at(0, self._poll)

    def accept(self, wire: Wire) -> None:
        if not wire.is_cut:
            self.wires[wire.number] = wire
            self.end.accept(wire.number, self.world.draw.randbytes(32), self.local)
            self.turn()

    def receive(self, number: int, data: bytes) -> None:
        self.end.feed(number, data, self.local)
        self.turn()

    def turn(self) -> None:
        end = self.end
        for number, wire in [*self.wires.items()]:
            data = end.take_bytes(number, self.local)
            if data:
                self.world.watch.on_said(self, messages_in(data))
                wire.send("down", data)
                end.connections.note_written(number, len(data))
        for cut in end.connections.take_cuts():
            cut_wire = self.wires.pop(cut.connection, None)
            if cut_wire is not None:
                if cut.last_bytes:
                    cut_wire.send("down", cut.last_bytes)
                self.world.after(5_000, cut_wire.cut)
        self.world.check_now_and_then(end.check)
        self.set_timer(end.next_deadline(), self._on_due)

    def _on_due(self) -> None:
        self.end.advance(self.local)
        self.turn()

    def _poll(self) -> None:
        draw = self.world.draw
        for engine in self.world.engines:
            asked_at, there = self.local, draw.randint(100, 20_000)
            self.world.after(there, lambda engine=engine, asked_at=asked_at: self._answer(engine, asked_at))  # type: ignore[misc]
        self.at(500 * MILLISECOND, self._poll)

    def _answer(self, engine: Engine, asked_at: Micros) -> None:
        running = len(engine.running)
        self.at(self.world.draw.randint(100, 20_000), lambda: self._on_reading(engine.number, running, asked_at))

    def _on_reading(self, backend: int, running: int, asked_at: Micros) -> None:
        self.end.on_reading(backend, running, asked_at, self.local)
        self.turn()

    def _elect(self) -> None:
        sent_at, draw = self.local, self.world.draw
        self.world.after(draw.randint(100, 5_000), lambda: self._ask_store(sent_at))
        self.at(400 * MILLISECOND, self._elect)

    def _ask_store(self, sent_at: Micros) -> None:
        # Whether it leads is told with the question, as a renewal names the epoch that it renews.
        epoch = self.world.store.campaign(self, self.end.epoch)
        self.at(self.world.draw.randint(100, 5_000), lambda: self._on_elected(epoch, sent_at + LEADER_TTL))

    def _on_elected(self, epoch: int | None, until: Micros) -> None:
        if not self.end.is_leading(self.local) and epoch is not None and self.local < until and epoch > self.last_epoch:
            self.last_epoch = epoch
            backends = dict.fromkeys(range(len(CAPACITIES)), MODEL)
            self.end.lead(epoch, until, self.world.store.gateways, {MODEL: sum(CAPACITIES)}, backends, self.local)
        elif epoch is not None and epoch == self.end.epoch:
            self.end.renew(until)
        self.turn()

    last_epoch = 0


class Store:
    """Who leads, and which gateways there are."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.gateways: set[tuple[str, str]] = set()
        self.leader: SchedulerNode | None = None
        self.epoch = 0
        self.expires_at: Micros = 0

    def campaign(self, scheduler: SchedulerNode, epoch: int | None) -> int | None:
        """Return the epoch under which `scheduler` may lead, or None. It renews `epoch`, if it leads."""
        now = self.world.now
        if self.leader is scheduler and now < self.expires_at and (epoch == self.epoch or scheduler.last_epoch < self.epoch):
            self.expires_at = now + LEADER_TTL
            return self.epoch
        if now < self.expires_at:
            return None
        self.epoch += 1
        self.leader, self.expires_at = scheduler, now + LEADER_TTL
        return self.epoch


class Watch:
    """What must hold, whatever happens; engines and gateways assert the rest."""

    def __init__(self) -> None:
        self.granted_epoch = 0
        self.grants = 0

    def on_said(self, scheduler: SchedulerNode, messages: Sequence[AnyMessage]) -> None:
        grants = [message for message in messages if isinstance(message, Grant)]
        self.grants += len(grants)
        for grant in grants:
            assert grant.epoch >= self.granted_epoch, f"epoch {grant.epoch} grants after epoch {self.granted_epoch}"
            self.granted_epoch = grant.epoch
        held = sum(one.holds_slot for one in scheduler.end.books.by_ticket.values())
        held -= scheduler.end.unaccounted.absent.total()
        assert not grants or held <= sum(CAPACITIES), f"{held} slots are held at a grant"


class World:
    """Everything, from a seed."""

    def __init__(self, seed: int, num_gateways: int = 3, num_schedulers: int = 2) -> None:
        self.draw = Random(f"{seed}/link")
        self.now: Micros = 0
        self._heap: list[tuple[Micros, int, Callable[[], None]]] = []
        self._pushed = self._wires = self._boots = self._turns = 0
        self.watch = Watch()
        self.store = Store(self)
        self.engines = [Engine(self, number, capacity) for number, capacity in enumerate(CAPACITIES)]
        self.schedulers = [SchedulerNode(self, number) for number in range(num_schedulers)]
        self.gateways = [self._new_gateway(f"g{number}") for number in range(num_gateways)]
        self.gone: list[GatewayNode] = []
        self.faults: deque[str] = deque(maxlen=20)
        self._all_wires: list[Wire] = []

    def after(self, delay: Micros, act: Callable[[], None]) -> None:
        self._pushed += 1
        heappush(self._heap, (self.now + delay, self._pushed, act))

    def run_until(self, end: Micros) -> None:
        while self._heap and self._heap[0][0] <= end:
            self.now, _, act = heappop(self._heap)
            act()
        self.now = end

    def check_now_and_then(self, check: Callable[[], None]) -> None:
        self._turns += 1
        if self._turns % 8 == 0:  # Each time would cost most of the time of a world.
            check()

    def new_wire(self, gateway: GatewayNode, scheduler: SchedulerNode) -> Wire:
        self._wires += 1
        wire = Wire(self, self._wires, gateway, scheduler)
        self._all_wires = [one for one in self._all_wires if not one.is_cut] + [wire]
        return wire

    def scheduler_to_ask(self) -> SchedulerNode | None:
        leader = self.store.leader
        asked = leader if leader is not None and self.draw.random() < 0.8 else self.draw.choice(self.schedulers)
        return None if asked.is_dead else asked

    def _new_gateway(self, name: str) -> GatewayNode:
        self._boots += 1
        return GatewayNode(self, name, self._boots)

    # Faults.

    def cut(self) -> None:
        if self._all_wires:
            self.draw.choice(self._all_wires).cut()

    def slow(self) -> None:
        if self._all_wires:
            self.draw.choice(self._all_wires).slow_until = self.now + 2 * SECOND

    def pause_gateway(self) -> None:
        self.draw.choice(self.gateways).paused_until = self.now + self.draw.randint(0, 6 * SECOND)

    def pause_scheduler(self) -> None:
        self.draw.choice(self.schedulers).paused_until = self.now + self.draw.randint(0, 6 * SECOND)

    def kill_gateway(self) -> None:
        at = self.draw.randrange(len(self.gateways))
        victim = self.gateways[at]
        victim.is_dead = True
        self.gone.append(victim)
        for engine in self.engines:
            for run, gateway in engine.running.items():
                if gateway is victim:  # The engine notices that the connection is gone, some time.
                    self.after(self.draw.randint(0, 2 * SECOND), lambda engine=engine, run=run: engine.stop(run))  # type: ignore[misc]
        if victim.wire is not None:
            victim.wire.cut()
        boot = (victim.name, victim.end.boot)
        self.after(4 * SECOND, lambda: self.store.gateways.discard(boot))
        self.gateways[at] = self._new_gateway(victim.name)

    def kill_scheduler(self) -> None:
        at = self.draw.randrange(len(self.schedulers))
        victim = self.schedulers[at]
        victim.is_dead = True
        for wire in [*victim.wires.values()]:
            wire.cut()
        self.schedulers[at] = SchedulerNode(self, victim.number)

    def step(self, verb: str) -> None:
        """Do one thing, at random among those that `verb` leaves."""
        draw, gateway = self.draw, self.draw.choice(self.gateways)
        if verb == "submit":
            kind = draw.choice((0, 0, 0, 1, 2, 2))
            gateway.at(0, lambda: gateway.submit(kind))
        elif verb == "leave":
            here = [client for client in gateway.clients.values() if client.outcome is None]
            if here:
                leaving = draw.choice(here)
                gateway.at(0, lambda: gateway.leave(leaving))
        else:
            self.faults.append(f"{self.now}: {verb}")
            getattr(self, verb)()

    def run(self, steps: Sequence[tuple[str, Micros]]) -> None:
        """Go through `steps`, each after some time, and then through a time in which nothing fails."""
        for verb, span in steps:
            self.run_until(self.now + span)
            self.step(verb)
        self.run_until(self.now + 45 * SECOND)
        self.check_end()

    def check_end(self) -> None:
        for gateway in self.gateways:
            waiting = [client.number for client in gateway.clients.values() if client.outcome is None]
            assert not waiting, f"requests {waiting} of {gateway.name} have never ended"
            assert not gateway.end.requests
        assert not any(engine.running for engine in self.engines)
        (leader,) = [scheduler for scheduler in self.schedulers if scheduler.end.is_leading(scheduler.local)]
        view = leader.end.requests.core.view(MODEL)
        assert (view.in_flight, view.waiting, view.capacity) == (0, 0, sum(CAPACITIES)), f"{view} is left at the leader"


VERBS = (
    *["submit"] * 60,
    *["leave"] * 4,
    "cut",
    "cut",
    "slow",
    "pause_gateway",
    "pause_scheduler",
    "kill_gateway",
    "kill_scheduler",
)


def draw_steps(seed: int, num_steps: int) -> list[tuple[str, Micros]]:
    """Return steps at random."""
    draw = Random(f"{seed}/steps")
    return [(draw.choice(VERBS), draw.choice((0, 1_000, 100_000, 200_000, 300_000))) for _ in range(num_steps)]
