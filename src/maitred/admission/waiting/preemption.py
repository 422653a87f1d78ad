"""The two sides of a preemption: holders of slots that may lose them, and preemptors that wait for such a slot.

A victim's response has not started. The least urgent group goes first, and in it the newest request, which has the
least work to lose. A group is a class, or with flow control an SLO priority. A request that was a victim once is never
one again.

A victim's slot must be one that the preemptor can have. So no victim is chosen where its slot would not be enough; nor for a
tenant at its limit; nor a request that is *stranded*: its backend takes no new requests (it is drained, or refuses them), so
its slot goes when it leaves. And while a slot is about to become free in any case, because a victim is leaving that no
preemptor waits for any more, no further one is stopped.

A request preempts when it arrives, or later, when it is the next of the waiting requests (`ClassPool.dispatch`).

While a victim still holds its slot, victim and preemptor are linked (`Ticket.preemption_peer`), so that the slot passes
from one to the other. The link is cut when the slot has passed, or when the preemptor does not wait for it any more.

Example: chat c of a tenant with a limit of 1 queues, since the tenant has a request in flight elsewhere. The only slot here
is held by bulk request b. When the other request ends, c may have a slot again, and preempts b at once.

The way of a victim:

    AdmissionPriority.choose_victim        chooses it for a preemptor (`FlowPool.preempt_one` does its own)
    ClassPool._preempt                     marks and links it, and tells the driver to stop it (a decision `PREEMPT_SLOT`)
    the driver, and gateway/proxy.py       cancel its task, and then give up its slot: `release(id, SLOT_PREEMPTED)`
    SlotPool._end_or_retry                 ends it (the gateway answers 503), or lets it wait again (`on_preempt: retry`)
    ClassPool._admit_preemptor             gives the slot to the preemptor

The response of a victim may have begun before it is told, where first bytes are decided in another process. It declines then
(`Admission.decline`), and keeps its slot: the preemptor takes the next victim, or waits first in its class
(`ClassPool.on_declined`).

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import Final

from maitred.admission.terms.rules import LANES
from maitred.admission.terms.ticket import Ticket, TicketState
from maitred.core.request import RequestId

_ADMITTED: Final = TicketState.ADMITTED  # members of enums are slow to look up
_VICTIM: Final = TicketState.VICTIM
_MAX_EXAMINED: Final = 32
"""Requests of each group that are examined where they differ in size."""


class PreemptionCandidates:
    """Holders of slots that may be preempted, by group, in the order of admission. Adding and discarding are O(1)."""

    __slots__ = ("_most_units", "_order", "groups")

    def __init__(self) -> None:
        # OrderedDict, not dict: to find its last key, a dict walks over all keys that were deleted after it.
        self.groups: dict[int, OrderedDict[RequestId, Ticket]] = {}
        """By `Ticket.victim_group`: the smallest one is the least urgent."""
        self._most_units = 0
        """The most units that a candidate has held."""
        self._order: list[int] = []
        """The groups, least urgent first."""

    def add(self, ticket: Ticket) -> None:
        """Add a request that has just taken a slot, if it may be a victim."""
        if ticket.victim_group is not None and ticket.state is _ADMITTED and not ticket.stranded:
            group = self.groups.get(ticket.victim_group)
            if group is None:
                group = self.groups[ticket.victim_group] = OrderedDict()
                insort(self._order, ticket.victim_group)
            group[ticket.id] = ticket
            # Never lowered: a number that is too large only lets a search be made that finds nothing.
            if ticket.slot_units > self._most_units:  # noqa: PLR1730 - max() costs more
                self._most_units = ticket.slot_units

    def restore(self, ticket: Ticket) -> None:
        """Add a request in the place that it had, if it may be a victim again. O(n log n)."""
        self.add(ticket)
        group = ticket.victim_group
        if group is not None and group in self.groups:
            in_order = sorted(self.groups[group].items(), key=lambda one: one[1].sequence_number)
            self.groups[group] = OrderedDict(in_order)

    def discard(self, ticket: Ticket) -> None:
        """Remove a request that cannot be a victim any more, if it could be one."""
        group = ticket.victim_group
        if group is not None and group in self.groups:
            self.groups[group].pop(ticket.id, None)

    def newest_below(self, group: int, units: int = 1) -> Ticket | None:
        """Return the newest request with a slot of at least `units`, of the least urgent group below `group`; or None."""
        # The newest has the least work to lose. (By time; one with a short prompt may have done more than it.)
        if units > self._most_units:
            return None
        for lower in self._order:
            if lower >= group:
                break
            # Requests with several sequences, or charged by tokens, differ in size. The search is bounded, because it may find
            # nothing, and every newcomer without a slot repeats it.
            for ticket in islice(reversed(self.groups[lower].values()), _MAX_EXAMINED):
                if ticket.slot_units >= units:
                    return ticket
        return None

    def find_violations(self) -> Iterator[str]:
        """Yield a line for each request that is here and cannot be a victim. O(n)."""
        for ticket in (ticket for group in self.groups.values() for ticket in group.values()):
            if ticket.state is not _ADMITTED or ticket.promoted or ticket.retried or ticket.stranded:
                yield f"{ticket} cannot be a victim"


class PendingPreemptors:
    """Preemptors that wait until their victims have left, by lane, oldest first."""

    __slots__ = ("count", "lanes")

    def __init__(self) -> None:
        self.lanes: list[OrderedDict[RequestId, Ticket]] = [OrderedDict() for _ in LANES]
        self.count = 0

    def add(self, ticket: Ticket) -> None:
        """Add a preemptor. Its slots count for its tenant from now on."""
        self.count += 1
        self.lanes[ticket.lane][ticket.id] = ticket
        if ticket.tenant_account is not None:
            ticket.tenant_account.awaiting_victims += ticket.sequences

    def remove(self, ticket: Ticket) -> None:
        """Remove a preemptor. Its link with the victim stays: see `unlink_peers`."""
        self.count -= 1
        del self.lanes[ticket.lane][ticket.id]
        if ticket.tenant_account is not None:
            ticket.tenant_account.awaiting_victims -= ticket.sequences

    def oldest(self, lane: int) -> Ticket | None:
        """Return the preemptor of `lane` that has waited longest, or None if none waits."""
        return next(iter(self.lanes[lane].values())) if self.lanes[lane] else None

    def first_within_limit(self, lane: int) -> Ticket | None:
        """Return the oldest preemptor of `lane` with a tenant below its limit, or None."""
        return next((t for t in self.lanes[lane].values() if may_hold(t)), None)

    def any_within_limit(self, lane: int) -> bool:
        """Return whether a preemptor of `lane` or of a more urgent one waits, with a tenant below its limit."""
        return any(self.first_within_limit(at_or_above) is not None for at_or_above in range(lane, len(LANES)))


def may_hold(ticket: Ticket) -> bool:
    """Return whether the limit of its tenant lets a preemptor have its slots."""
    return ticket.tenant_account is None or ticket.tenant_account.may_hold(ticket.sequences)


class LeavingVictims:
    """Victims that are about to give their slots back, and that no preemptor waits for."""

    __slots__ = ("_by_id", "units")

    def __init__(self) -> None:
        self.units = 0
        """The units of all of them."""
        self._by_id: dict[RequestId, int] = {}

    def update(self, ticket: Ticket) -> None:
        """Note that a request may have become such a victim, or is none any more: by its state, its link, or its backend."""
        # The slot of a stranded one goes with it, so nothing becomes free.
        is_leaving = ticket.state is _VICTIM and ticket.preemption_peer is None and not ticket.stranded
        if is_leaving == (ticket.id in self._by_id):
            return
        if is_leaving:
            self._by_id[ticket.id] = ticket.slot_units
            self.units += ticket.slot_units
        else:
            self.units -= self._by_id.pop(ticket.id)


def link_peers(victim: Ticket, preemptor: Ticket) -> None:
    """Keep the slot that `victim` is about to give up for `preemptor`."""
    victim.preemption_peer, preemptor.preemption_peer = preemptor, victim


def unlink_peers(ticket: Ticket) -> None:
    """Cut the link between a victim and its preemptor, if `ticket` is one of them: the slot is not kept any more."""
    peer = ticket.preemption_peer
    if peer is not None:
        ticket.preemption_peer = peer.preemption_peer = None
