"""Election: how schedulers agree on the one that leads, by a store that keeps one lease for all of them.

    campaign   become the leader, if there is none, under an epoch above all before
    renew      stay the leader, and say which gateways may hold slots
    resign     be the leader no more, at once
    leader     who leads (for gateways)

A lease counts for its holder from the *sending* of the request that was answered, and in the store from its arrival, so it is
never over in the store before it is over for its holder. A store that has lost what it had may elect another leader beside one
whose lease is not over. So the leader of a first term (`Term.is_first`) grants nothing for a lease, and the epoch grows with
each term, whoever has it, and whatever the store remembers: a candidate says the highest epoch that it has heard of, and where
the store may forget, no epoch is below its time of day in seconds. A store with leases and a counter can be one: Redis,
a lock on a file, or a Lease of Kubernetes (`holderIdentity`, `leaseTransitions`, the rest as annotations).

The store is never on the way of a request.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import msgspec

from maitred.core.units import Micros
from maitred.scheduler.addresses import LinkAddress
from maitred.scheduler.link.gateway_books import UNKNOWN_GATEWAY, GatewayId
from maitred.scheduler.sharing.dialer import Finder, FinderError


class ElectionError(FinderError):
    """The store cannot be asked, with words for the log."""


class ElectionCandidate(msgspec.Struct, frozen=True):
    """A scheduler."""

    name: str
    address: str
    """Where gateways reach it."""


class Term(msgspec.Struct, frozen=True):
    """What a scheduler has that was elected."""

    epoch: int
    gateways: list[GatewayId]
    """Those that may hold slots of a term before; UNKNOWN_GATEWAY for others."""
    is_first: bool = False
    """Whether the store had no record of an election: nobody has led, or it has lost that another one leads."""


class Election(Protocol):
    """One election. Every call raises ElectionError if the store cannot be asked."""

    lease: Micros | None
    """For how long a leader may go on after a renewal was sent, µs. None: until it ends, as nobody can lead beside it."""

    where: str = "the election"
    """What it is called in the log."""

    names_gateways: bool
    """Whether it keeps which gateways may hold slots, for the leader after this one."""

    vacant_in: Micros | None = None
    """After what time the lease of the leader that was found last is over unless it is renewed, µs, or None if that is not
    known: there is no use in asking before, and every ms after it is one without a leader."""

    async def campaign(self, candidate: ElectionCandidate, floor: int) -> Term | None:
        """Return a term, under an epoch above `floor`, or None if another scheduler leads."""
        ...

    async def renew(self, gateways: Collection[GatewayId]) -> bool:
        """Return whether this scheduler leads still. `gateways` may hold slots from now on."""
        ...

    async def resign(self) -> None:
        """Let another one lead."""
        ...

    async def leader(self) -> ElectionCandidate | None:
        """Return the scheduler that leads, as far as is known."""
        ...

    async def close(self) -> None:
        """Release what is open."""
        ...


class SoleScheduler(Election):
    """The election of a scheduler that is the only one."""

    lease = None
    names_gateways = False

    def __init__(self, *, is_first: bool = False) -> None:
        """`is_first`: no gateway may hold slots of a scheduler before it, so there is nothing to learn."""
        self._gateways = [] if is_first else [UNKNOWN_GATEWAY]

    async def campaign(self, candidate: ElectionCandidate, floor: int) -> Term | None:
        return Term(floor + 1, self._gateways)

    async def renew(self, gateways: Collection[GatewayId]) -> bool:
        return True

    async def resign(self) -> None:
        """Do nothing."""

    async def leader(self) -> ElectionCandidate | None:
        return None

    async def close(self) -> None:
        """Do nothing."""


class ElectedAddresses(Finder):
    """Finds the scheduler that leads, for a gateway. While the store cannot be asked it is the one that led last."""

    has_several = False

    def __init__(self, election: Election) -> None:
        self._election = election
        self._last: list[LinkAddress] = []
        self.problem: str | None = None

    async def addresses(self) -> list[LinkAddress]:
        try:
            leader = await self._election.leader()
        except ElectionError as error:
            if not self._last:
                raise
            self.problem = str(error)
            return self._last
        self.problem = None
        if leader is None:
            raise FinderError(f"no scheduler leads, as {self._election.where} has it")
        try:
            self._last = [LinkAddress.parse(leader.address)]
        except ValueError as error:
            raise ElectionError(f"the scheduler that leads cannot be reached: {error}") from error
        return self._last
