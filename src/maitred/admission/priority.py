"""Promotions of starved requests, within bounds.

Whoever has waited longer than the threshold of its class may go before more urgent ones, or into a slot that a higher class has
reserved and leaves idle. Without a bound an old backlog would turn the order of classes upside down until it is young again. So
promotions are a share of the admissions from the queues: each of these earns `share` of a promotion, up to `burst`.

    promoted ≤ burst + share × dispatched        at any time

Who goes before whom: what keeps a newcomer from a slot, who of those who wait is next, and who must go for a preemptor.

A newcomer passes nobody of its own lane or a more urgent one. Of those who wait the most urgent lane goes first, and nobody
passes a more urgent one who needs more than there is. The head of a lane that starves may be promoted before all of them, the
least urgent first, as far as promotions go (see `promotions`). Here is only asked who that is: nothing changes by it, but a
ticket notes how much of the slots it needs.
"""

from __future__ import annotations

from typing import Final

from maitred.admission.enums import Reason
from maitred.admission.preemption import PreemptionCandidates
from maitred.admission.rules import LANES, MOST_URGENT_FIRST, PoolRules
from maitred.admission.slots import Slots
from maitred.admission.ticket import Ticket
from maitred.admission.waiting import PoolQueues
from maitred.core.units import Micros

_ONE_PROMOTION: Final = 1_000_000
"""One promotion, in the units of the account. Whole numbers: ten times 0.1 is less than 1 in floats."""


class PromotionBudget:
    """The account of one pool."""

    __slots__ = ("_burst", "_credit", "_share", "dispatched", "promoted")

    def __init__(self, share: float, burst: int) -> None:
        self._share = round(share * _ONE_PROMOTION)
        self._burst = burst * _ONE_PROMOTION
        self._credit = self._burst
        self.dispatched = 0
        """Admissions from the queues, promotions included."""
        self.promoted = 0

    @property
    def can_promote(self) -> bool:
        return self._credit >= _ONE_PROMOTION

    def count_admission(self) -> None:
        """One was admitted from a queue."""
        self.dispatched += 1
        self._credit = min(self._burst, self._credit + self._share)

    def count_promotion(self) -> None:
        """It was a promotion; the caller has seen that one is allowed. To be followed by `dispatch`."""
        self.promoted += 1
        self._credit -= _ONE_PROMOTION

    @property
    def is_within_bounds(self) -> bool:
        return self.promoted * _ONE_PROMOTION <= self._burst + self._share * self.dispatched


class AdmissionPriority:
    """Of newcomers and of `waiters`, for `slots`."""

    __slots__ = ("_by_request", "_promotes_always", "_promotion_budget", "_queues", "_slots")

    def __init__(self, rules: PoolRules, slots: Slots, queues: PoolQueues, promotion_budget: PromotionBudget) -> None:
        self._by_request = rules.tokens_per_slot is None
        """Every request is one slot."""
        self._promotes_always = rules.promotes_always
        self._slots = slots
        self._queues = queues
        self._promotion_budget = promotion_budget

    def blocking_reason(self, ticket: Ticket) -> Reason | None:
        """Why a newcomer cannot have a slot; None: it can."""
        if ticket.tenant_account is not None and ticket.tenant_account.at_limit:
            return Reason.TENANT_LIMIT
        waiters, slots, lane = self._queues, self._slots, ticket.lane
        if waiters.queued and any(waiters.lanes[c].peek() is not None for c in range(lane, len(LANES))):
            return Reason.BEHIND_QUEUE
        if not slots.fits(lane, self.set_slot_units(ticket)):
            if not slots.capacity:
                return Reason.NO_CAPACITY
            return Reason.HELD_BY_RESERVATION if slots.in_use < slots.capacity else Reason.NO_SLOT
        return (
            Reason.BEHIND_QUEUE
            if waiters.pending_preemptors.count and waiters.pending_preemptors.any_at_or_above(lane)
            else None
        )

    def next_waiter(self) -> Ticket | None:
        """Whom the order of classes lets in next. Nobody passes a more urgent one who needs more than there is."""
        for lane in MOST_URGENT_FIRST:
            head = self._queues.head(lane)
            if head is not None:
                return head if self._slots.fits(lane, self.set_slot_units(head)) else None
        return None

    def next_promotion(self, regular: Ticket | None, now: Micros) -> Ticket | None:
        """Who is to be promoted now: the head of the least urgent class that starves, but not `regular`, who is next anyway."""
        starving = self._queues.starvation
        if now < starving.earliest_at or not self._promotion_budget.can_promote:
            return None
        for head in starving.starving_heads(now):
            if (head is not regular or self._promotes_always) and self._slots.idle >= self.set_slot_units(head):
                return head
        return None

    def choose_victim(self, ticket: Ticket, candidates: PreemptionCandidates) -> Ticket | None:
        """Lowest class first, newest first; nobody whose slot would not help, or is not needed by its tenant's limit."""
        if ticket.tenant_account is not None and ticket.tenant_account.at_limit_with_awaiting:
            return None
        missing = self._slots.shortfall(ticket.lane, self.set_slot_units(ticket))
        if missing > 1 and self._by_request:
            return None  # no slot is more than one
        return candidates.newest_below(ticket.lane, missing)

    def can_take_slot(self, ticket: Ticket) -> bool:
        """Whether a preemptor can have the slot that its victim has left."""
        if ticket.tenant_account is not None and ticket.tenant_account.at_limit:
            return False
        return self._slots.fits(ticket.lane, self.set_slot_units(ticket))

    def set_slot_units(self, ticket: Ticket) -> int:
        """Units that it needs; of one that is larger than all its lane can ever have, all of that. Noted on the ticket."""
        charge = 1 if self._by_request else max(1, min(ticket.cost, self._slots.max_units(ticket.lane)))
        ticket.slot_units = charge
        return charge
