"""Door: which gateways a scheduler that leads welcomes.

One that comes for the first time with other backends than the configuration has is turned away, unless backends come and go: a
grant names a backend by its number. One that has had a scheduler before has numbers of that one, and what it says of backends
is read by their URLs (`translated`). One whose hello contradicts itself is turned away as well. One
that the election does not name yet waits until it is named, and what it says meanwhile waits with its hello: the leader after
this one must know for whose hello to wait. Its requests lose no age by that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from maitred.core.units import Micros
from maitred.scheduler.link.connections import GatewayConnection
from maitred.scheduler.link.gateway_books import GatewayId
from maitred.scheduler.link.messages import AnyMessage, Hello, Submit
from maitred.scheduler.link.terms import LiveRequest, Standing


class Door:
    """The door of one scheduler."""

    def __init__(self) -> None:
        self.backends: Sequence[str] = ()
        """The URLs of the backends in the configuration, which a gateway must have in the same order; empty: whichever it
        has."""
        self.number_of: Callable[[str], int] | None = None
        """Returns the number of a backend by its URL, also of one that is known to the gateway alone; None: numbers are the
        same everywhere."""
        self.named: set[GatewayId] | None = None
        """The gateways that the election names, which alone are welcomed; None: whoever comes."""
        self.is_sole = False
        """Whether this scheduler leads without an election."""
        self.on_unnamed: Callable[[], object] | None = None
        """Called when a gateway is there that waits to be named."""

    def problem(self, hello: Hello) -> str | None:
        """Return in words why a gateway is turned away for good, or None."""
        ours, theirs = self.backends, hello.backends
        if contradiction := _contradiction(hello, len(theirs) or len(ours) or None):
            return f"Hello makes no sense: {contradiction}"
        if not ours or not theirs or theirs == [*ours] or hello.epoch:
            return None
        missing, more = sorted({*ours} - {*theirs}), sorted({*theirs} - {*ours})
        said = [f"it has not {', '.join(missing)}"] if missing else []
        said += [f"only it has {', '.join(more)}"] if more else []
        what = " and ".join(said) or "their order is another"
        return f"the backends of this gateway are not those of the scheduler: {what} (both need the same list)"

    def translated(self, hello: Hello) -> Hello:
        """Return a hello with the numbers that backends have here."""
        number_of, theirs = self.number_of, hello.backends
        if number_of is None or not theirs:
            return hello
        requests = [
            live if live.backend < 0 else replace(live, backend=number_of(theirs[live.backend])) for live in hello.requests
        ]
        return replace(hello, requests=requests)

    def must_wait(self, link: GatewayConnection, hello: Hello, now: Micros) -> bool:
        """Return whether a gateway must wait to be named. If so, its hello is kept (`GatewayConnection.early`)."""
        if self.named is None or _id_of(hello) in self.named:
            return False
        link.early.append((hello, now))
        if self.on_unnamed is not None:
            self.on_unnamed()
        return True

    def let_in(self, link: GatewayConnection, now: Micros) -> list[AnyMessage]:
        """Return the messages that a gateway sent while it waited, if it is named now."""
        if self.named is None or waiting_gateway(link) not in self.named:
            return []
        ((hello, came_at), *later), link.early = link.early, []
        assert isinstance(hello, Hello)
        waited = now - came_at
        requests = [replace(live, age=live.age + waited, held=live.held and live.held + waited) for live in hello.requests]
        rest = list[AnyMessage]()
        for message, at in later:
            # A request of an agent program stays behind the message that begins its memory.
            if isinstance(message, Submit) and not message.terms.memory:
                requests.append(
                    LiveRequest(message.request, message.attempt, Standing.WAITING, now - at, message.terms, is_new=True)
                )
            else:
                rest.append(message)
        return [replace(hello, requests=requests), *rest]


def waiting_gateway(link: GatewayConnection) -> GatewayId | None:
    """Return the gateway that waits at a connection, or None if none does."""
    return _id_of(link.early[0][0]) if link.early else None


def _contradiction(hello: Hello, num_backends: int | None) -> str | None:
    """Return in words what cannot be in a hello with all its parts, or None: the books would never be rid of it.
    `num_backends`: how many there are, or None if that is not known."""
    for what, numbers in (
        ("request", [live.request for live in hello.requests]),
        ("memory", [m.number for m in hello.memories]),
    ):
        if len({*numbers}) < len(numbers):
            return f"it names a {what} twice"
    at = [live.backend for live in hello.requests if live.standing is not Standing.WAITING]
    if min(at, default=0) < 0:
        return "a request holds a slot at no backend"
    if num_backends is not None and max(at, default=-1) >= num_backends:
        return "a request is at a backend that there is not"
    return None


def _id_of(hello: AnyMessage) -> GatewayId:
    assert isinstance(hello, Hello)
    return hello.name, hello.boot
