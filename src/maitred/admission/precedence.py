"""Who goes before whom: what keeps a newcomer from a slot, who of those who wait is next, and who must go for a preemptor.

A newcomer passes nobody of its own lane or a more urgent one. Of those who wait the most urgent lane goes first, and nobody
passes a more urgent one who needs more than there is. The head of a lane that starves may be promoted before all of them, the
least urgent first, as far as promotions go (see `promotions`). Here is only asked who that is: nothing changes by it, but a
ticket notes how much of the slots it needs.
"""

from __future__ import annotations

from maitred.admission.promotions import Promotions
from maitred.admission.rules import LANES, MOST_URGENT_FIRST, PoolRules
from maitred.admission.slots import Slots
from maitred.admission.ticket import Ticket
from maitred.admission.victims import Takeable
from maitred.admission.vocabulary import Reason
from maitred.admission.waiters import Waiters
from maitred.units import Micros


class Precedence:
    """Of newcomers and of `waiters`, for `slots`."""

    __slots__ = ("_by_request", "_promotes_always", "_promotions", "_slots", "_waiters")

    def __init__(self, rules: PoolRules, slots: Slots, waiters: Waiters, promotions: Promotions) -> None:
        self._by_request = rules.tokens_per_slot is None
        """Every request is one slot."""
        self._promotes_always = rules.promotes_always
        self._slots = slots
        self._waiters = waiters
        self._promotions = promotions

    def obstacle(self, ticket: Ticket) -> Reason | None:
        """Why a newcomer cannot have a slot; None: it can."""
        if ticket.share is not None and ticket.share.at_limit:
            return Reason.TENANT_LIMIT
        waiters, slots, lane = self._waiters, self._slots, ticket.lane
        if waiters.queued and any(waiters.queues[c].peek() is not None for c in range(lane, len(LANES))):
            return Reason.BEHIND_QUEUE
        if not slots.fits(lane, self.charge(ticket)):
            if not slots.capacity:
                return Reason.NO_CAPACITY
            return Reason.HELD_BY_RESERVATION if slots.used < slots.capacity else Reason.NO_SLOT
        return Reason.BEHIND_QUEUE if waiters.awaiting.count and waiters.awaiting.any_from(lane) else None

    def next_in_order(self) -> Ticket | None:
        """Whom the order of classes lets in next. Nobody passes a more urgent one who needs more than there is."""
        for lane in MOST_URGENT_FIRST:
            head = self._waiters.head(lane)
            if head is not None:
                return head if self._slots.fits(lane, self.charge(head)) else None
        return None

    def starved(self, regular: Ticket | None, now: Micros) -> Ticket | None:
        """Who is to be promoted now: the head of the least urgent class that starves, but not `regular`, who is next anyway."""
        starving = self._waiters.starving
        if now < starving.since or not self._promotions.allowed:
            return None
        for head in starving.heads(now):
            if (head is not regular or self._promotes_always) and self._slots.room >= self.charge(head):
                return head
        return None

    def victim_for(self, ticket: Ticket, takeable: Takeable) -> Ticket | None:
        """Lowest class first, newest first; nobody whose slot would not help, or is not needed by its tenant's limit."""
        if ticket.share is not None and ticket.share.spoken_for:
            return None
        missing = self._slots.missing(ticket.lane, self.charge(ticket))
        if missing > 1 and self._by_request:
            return None  # no slot is more than one
        return takeable.newest(ticket.lane, missing)

    def may_follow(self, ticket: Ticket) -> bool:
        """Whether a preemptor can have the slot that its victim has left."""
        if ticket.share is not None and ticket.share.at_limit:
            return False
        return self._slots.fits(ticket.lane, self.charge(ticket))

    def charge(self, ticket: Ticket) -> int:
        """Units that it needs; of one that is larger than all its lane can ever have, all of that. Noted on the ticket."""
        charge = 1 if self._by_request else max(1, min(ticket.cost, self._slots.reachable(ticket.lane)))
        ticket.charge = charge
        return charge
