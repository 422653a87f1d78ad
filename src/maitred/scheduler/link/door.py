"""Door: which gateways a scheduler that leads welcomes.

One with other backends is turned away: a grant names a backend by its number. So is one whose hello contradicts itself. One
that the election does not name yet waits until it is named, and what it says meanwhile waits with its hello: the leader after
this one must know for whose hello to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from maitred.scheduler.link.connections import GatewayConnection
from maitred.scheduler.link.gateway_books import GatewayId
from maitred.scheduler.link.messages import AnyMessage, Hello, Standing


class Door:
    """The door of one scheduler."""

    def __init__(self) -> None:
        self.backends: Sequence[str] = ()
        """The URLs of the backends, which a gateway must have in the same order; empty: whichever it has."""
        self.named: set[GatewayId] | None = None
        """The gateways that the election names, which alone are welcomed; None: whoever comes."""
        self.is_sole = False
        """Whether this scheduler leads without an election."""
        self.on_unnamed: Callable[[], object] | None = None
        """Called when a gateway is there that waits to be named."""

    def problem(self, hello: Hello) -> str | None:
        """Return in words why a gateway is turned away for good, or None."""
        ours, theirs = self.backends, hello.backends
        if contradiction := _contradiction(hello, len(ours) or None):
            return f"Hello makes no sense: {contradiction}"
        if not ours or not theirs or theirs == [*ours]:
            return None
        missing, more = sorted({*ours} - {*theirs}), sorted({*theirs} - {*ours})
        said = [f"it has not {', '.join(missing)}"] if missing else []
        said += [f"only it has {', '.join(more)}"] if more else []
        what = " and ".join(said) or "their order is another"
        return f"the backends of this gateway are not those of the scheduler: {what} (both need the same list)"

    def must_wait(self, link: GatewayConnection, hello: Hello) -> bool:
        """Return whether a gateway must wait to be named. If so, its hello is kept (`GatewayConnection.early`)."""
        if self.named is None or _id_of(hello) in self.named:
            return False
        link.early.append(hello)
        if self.on_unnamed is not None:
            self.on_unnamed()
        return True

    def let_in(self, link: GatewayConnection) -> list[AnyMessage]:
        """Return what a gateway has said while it waited, if it is named now."""
        if self.named is None or waiting_gateway(link) not in self.named:
            return []
        early, link.early = link.early, []
        return early


def waiting_gateway(link: GatewayConnection) -> GatewayId | None:
    """Return the gateway that waits at a connection, or None if none does."""
    return _id_of(link.early[0]) if link.early else None


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
