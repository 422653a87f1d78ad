"""One scheduler and its gateways without a network: what one end says, the other hears at once. Times in seconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from maitred.admission import Admission, AdmissionConfig, ReleaseReason
from maitred.core.decisions import DecisionLog
from maitred.core.request import PriorityClass
from maitred.core.units import Micros, from_seconds, to_seconds
from maitred.scheduler.link.channel import ChannelLimits
from maitred.scheduler.link.events import Closed, Granted, LinkEvent, Opened, Preempted, Queued, Rejected
from maitred.scheduler.link.gateway_books import BookedRequest, GatewayBooks, GatewayId
from maitred.scheduler.link.gateway_end import GatewayEnd
from maitred.scheduler.link.placer import LinkPlace, NoPlace, Placer
from maitred.scheduler.link.scheduler_end import SchedulerEnd
from maitred.scheduler.link.terms import RequestTerms

SECRET = b"a secret of a test"
BULK, DEFAULT, INTERACTIVE, SYSTEM = PriorityClass
DRAINED = ReleaseReason.DRAINED
BASE = {"reserved_floor": 0, "reserved_per_slot": 0.0, "queue_size": 20, "queue_timeout_secs": 30}


def classes(**said: object) -> AdmissionConfig:
    """Return rules without reservations, under which interactive requests may preempt; victims are rejected."""
    entries = {c.label: {**BASE, "can_preempt": c >= INTERACTIVE} for c in PriorityClass}
    return msgspec.convert({"mode": "priority", "on_preempt": "reject", "classes": entries, **said}, AdmissionConfig)


class FirstBackend(Placer):
    """Sends every request to the first backend that has not failed it."""

    def __init__(self, backends: Sequence[int]) -> None:
        self.backends = backends

    def place(self, request: BookedRequest, now: Micros) -> LinkPlace | NoPlace:
        untried = [backend for backend in self.backends if backend not in request.tried]
        return (untried[0], None) if untried else NoPlace.NO_BACKEND


def nonce(number: int) -> bytes:
    return number.to_bytes(32, "big")


class Pair:
    """A scheduler with `slots` slots of model `m` at two backends, and gateways by name, each with a clock of its own."""

    def __init__(
        self, slots: int = 2, *, gateways: Iterable[str] = ("a",), known: Sequence[GatewayId] = (), **said: object
    ) -> None:
        self.now: Micros = 0
        self.slots = slots
        self.log: list[bytes] = []
        """Lines of the decision log of admission."""
        self.end = self.new_scheduler(**said)
        self.lead(1, known)
        self.gateways: dict[str, GatewayEnd] = {}
        self.offsets: dict[str, Micros] = {}
        self.connections: dict[str, int] = {}
        self._connected = 0
        for name in gateways:
            self.boot(name)
            self.connect(name)

    def new_scheduler(self, **said: object) -> SchedulerEnd:
        config, log = classes(**said), DecisionLog(self.log.append)

        def make_placer(books: GatewayBooks) -> FirstBackend:
            return FirstBackend((0, 1))

        return SchedulerEnd(SECRET, lambda now: Admission(config, {}, now=now, log=log), make_placer)

    def lead(self, epoch: int, known: Sequence[GatewayId] = (), until: float = 10**6) -> None:
        self.end.lead(epoch, from_seconds(until), known, {"m": self.slots}, {0: "m", 1: "m"}, self.now)

    def boot(self, name: str, boot: str = "1", secret: bytes = SECRET, limits: ChannelLimits | None = None) -> GatewayEnd:
        self.offsets[name] = (len(self.offsets) + 1) * 10**12
        self.gateways[name] = end = GatewayEnd(name, boot, secret, limits)
        return end

    def local(self, name: str) -> Micros:
        return self.now + self.offsets[name]

    def connect(self, name: str) -> list[str]:
        """Let a gateway connect, and return what comes of that there."""
        self._connected += 1
        self.connections[name] = self._connected
        self.gateways[name].connect(nonce(self._connected), self.local(name))
        self.end.accept(self._connected, nonce(self._connected + 10**6), self.now)
        return self.exchange()

    def lose(self, *names: str) -> list[str]:
        """Let the connections of gateways break, which both ends notice."""
        for name in names:
            self.gateways[name].lost()
            self.end.lost(self.connections.pop(name), self.now)
        return self.exchange()

    def at(self, seconds: float) -> list[str]:
        """Let time pass, with all that is due, and return what gateways are told."""
        end = from_seconds(seconds)
        told: list[str] = []
        while True:
            dues = [due for due in (self.end.next_deadline(), *self._gateway_dues()) if due is not None and due <= end]
            if not dues:
                break
            self.now = max(self.now, min(dues))
            self.end.advance(self.now)
            for name, gateway in self.gateways.items():
                told += self.lines(name, gateway.advance(self.local(name)))
            told += self.exchange()
        self.now = end
        return told

    def _gateway_dues(self) -> list[Micros | None]:
        dues = [(name, gateway.next_deadline()) for name, gateway in self.gateways.items()]
        return [None if due is None else due - self.offsets[name] for name, due in dues]

    def submit(self, name: str, number: int, k: PriorityClass = DEFAULT, model: str = "m") -> list[str]:
        self.gateways[name].submit(number, RequestTerms(model, k, "", 1, 1), self.local(name))
        return self.exchange()

    def first_byte(self, name: str, number: int) -> bool:
        may = self.gateways[name].confirm_first_byte(number)
        self.exchange()
        return may

    def release(self, name: str, number: int) -> list[str]:
        self.gateways[name].release(number, DRAINED)
        return self.exchange()

    def yield_slot(self, name: str, number: int) -> list[str]:
        self.gateways[name].yield_slot(number)
        return self.exchange()

    def fail(self, name: str, number: int) -> list[str]:
        self.gateways[name].leave_backend(number, "refused")
        return self.exchange()

    def exchange(self) -> list[str]:
        """Hand on what is said until nothing is, and return what it means to the gateways, as `NAME NUMBER what`."""
        told: list[str] = []
        is_busy = True
        while is_busy:
            is_busy = False
            for name, connection in [*self.connections.items()]:
                gateway = self.gateways[name]
                if up := gateway.take_bytes():
                    gateway.note_written(len(up))
                    self.end.feed(connection, up, self.now)
                down = self.end.take_bytes(connection, self.now)
                self.end.connections.note_written(connection, len(down))
                down += b"".join(cut.last_bytes for cut in self.end.connections.take_cuts() if cut.connection == connection)
                if down:
                    told += self.lines(name, gateway.feed(down, self.local(name)))
                is_busy = is_busy or bool(up or down)
        self.end.check()
        for gateway in self.gateways.values():
            gateway.check()
        return told

    def lines(self, name: str, events: Iterable[LinkEvent]) -> list[str]:
        return [f"{name} {self.line(event)}" for event in events]

    def line(self, event: LinkEvent) -> str:
        match event:
            case Granted():
                return f"{event.request} granted {event.backend}"
            case Queued():
                return f"{event.request} waits {event.reason}"
            case Rejected():
                return f"{event.request} rejected {event.reason}"
            case Preempted():
                return f"{event.request} preempted"
            case Opened():
                return f"opened {event.epoch}{' learning' if event.is_learning else ''}"
            case Closed():
                return f"closed: {event.reason}"

    def held(self) -> Mapping[str, int]:
        """Return the slots of each gateway that is known, as the scheduler has it."""
        books = self.end.books.gateways.values()
        return {gateway.id[0]: sum(one.holds_slot for one in gateway.requests.values()) for gateway in books}

    def lease(self, name: str) -> float:
        until = self.gateways[name].lease.until
        assert until is not None
        return to_seconds(until - self.offsets[name])
