"""Priority: what keeps a newcomer from a slot, which waiting request is next, and which victim a preemptor gets.

A newcomer never passes a request of its own lane or of a more urgent one. Of waiting requests the most urgent lane goes
first, and no request passes a more urgent one that needs more than is free.

Strict order can let the least urgent lane wait for ever. So a request that starves (`pool_queues`) may be promoted: it goes
before more urgent ones, or into a slot that a higher class has reserved and does not use. Promotions are bounded: each
admission from the queues earns a share of one, and at most `burst` are saved up:

    promoted <= burst + share · dispatched        at any time

Example, share 0.25 and burst 2: of a starved backlog two requests are promoted at once, and then every fourth
admission.

The request to promote may need more slots than are idle. Small ones would take each as it becomes free, and so it gets what
becomes idle next (`may_pass`). Meanwhile the higher classes have what they reserve, together, and no more.

Nothing here changes a queue: the pool acts on the answers. Only `Ticket.slot_units` is set.

The priorities by which an instance orders its wait queue are another thing: `queueing/priority.py`.
Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from typing import Final

from maitred.admission.learned_slots.signals import NO_DEMAND, PoolDemand
from maitred.admission.pool.slots import Slots
from maitred.admission.terms.enums import Reason
from maitred.admission.terms.rules import LANES, MOST_URGENT_FIRST, PoolRules
from maitred.admission.terms.ticket import Ticket
from maitred.admission.waiting.pool_queues import PoolQueues
from maitred.admission.waiting.preemption import PreemptionCandidates, may_hold
from maitred.core.units import Micros

_BEHIND_QUEUE: Final = Reason.BEHIND_QUEUE  # members of enums are slow to look up
_HELD_BY_RESERVATION: Final = Reason.HELD_BY_RESERVATION
_NO_SLOT: Final = Reason.NO_SLOT
CURED_BY_PREEMPTION: Final = frozenset((Reason.NO_SLOT, Reason.HELD_BY_RESERVATION))
# BEHIND_QUEUE is not among them: a newcomer that preempted then would pass the requests that wait already, and these preempt
# themselves as soon as they can. Nor are the limits of tenants and rates, which a victim's slot does not raise.
"""The reasons that keep a request from a slot and that a preemption could change."""
_ONE_PROMOTION: Final = 1_000_000
"""One promotion in the units of the budget. Whole numbers, because ten times 0.1 is less than 1 in floats."""


class PromotionBudget:
    """How many promotions one pool may make."""

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
        """Whether a promotion is saved up."""
        # Without a bound an old backlog would reverse the order of classes until it has drained: once all bulk requests starve,
        # each of them would go before every chat.
        return self._credit >= _ONE_PROMOTION

    def count_admission(self) -> None:
        """Count an admission from a queue, which earns a share of a promotion."""
        self.dispatched += 1
        self._credit = min(self._burst, self._credit + self._share)

    def count_promotion(self) -> None:
        """Spend a promotion; the caller has seen that one is saved up. To be followed by `count_admission`."""
        self.promoted += 1
        self._credit -= _ONE_PROMOTION

    @property
    def is_within_bounds(self) -> bool:
        """Whether there were no more promotions than the burst and the share of the admissions allow."""
        return self.promoted * _ONE_PROMOTION <= self._burst + self._share * self.dispatched


class AdmissionPriority:
    """The order of newcomers and of waiting requests, for the slots of one pool."""

    __slots__ = (
        *("_by_request", "_lanes_before_preemption", "_may_preempt", "_promotes_next_waiter", "_promotion_budget", "_queues"),
        "_slots",
    )

    def __init__(self, rules: PoolRules, slots: Slots, queues: PoolQueues, promotion_budget: PromotionBudget) -> None:
        self._by_request = rules.tokens_per_slot is None
        """Whether a request takes a slot for each of its sequences; else for its tokens."""
        self._may_preempt = [lane.can_preempt for lane in rules.lanes]
        self._lanes_before_preemption = [lane for lane in MOST_URGENT_FIRST if any(self._may_preempt[: lane + 1])]
        """The lanes that may preempt, and those that are more urgent, most urgent first."""
        self._promotes_next_waiter = rules.promotes_next_waiter
        self._slots = slots
        self._queues = queues
        self._promotion_budget = promotion_budget

    def blocking_reason(self, ticket: Ticket, now: Micros) -> Reason | None:
        """Return why a newcomer, of which `slot_units` are set, cannot have a slot, or None if it can."""
        if ticket.tenant_account is not None and not ticket.tenant_account.has_room(ticket.sequences):
            return Reason.TENANT_LIMIT
        queues, slots, lane = self._queues, self._slots, ticket.lane
        # If all tenants of a queue are at their limits, it has no next request (`peek`), and so holds no newcomer back.
        if queues.queued and any(queues.lanes[c].peek() is not None for c in range(lane, len(LANES))):
            return _BEHIND_QUEUE
        if queues.queued and queues.lanes[lane].holds_back(ticket):
            return Reason.TENANT_LIMIT
        if not slots.fits(lane, ticket.slot_units):
            if not slots.capacity:
                return Reason.NO_CAPACITY
            return _HELD_BY_RESERVATION if slots.in_use + ticket.slot_units <= slots.capacity else _NO_SLOT
        if queues.queued and not self.may_pass(ticket, self.next_promotion(None, now)):
            return _BEHIND_QUEUE
        # Asked last: a newcomer that finds no slot may preempt, whatever waits for victims already; this reason would deny it.
        # As in a queue, a request whose tenant is at its limit holds no newcomer back.
        preemptors = queues.pending_preemptors
        return _BEHIND_QUEUE if preemptors.count and preemptors.any_within_limit(lane) else None

    def next_waiter(self) -> Ticket | None:
        """Return the waiting request that is next by the order of classes, or None if it does not fit or none waits."""
        for lane in MOST_URGENT_FIRST:
            head = self._queues.head(lane)
            if head is not None:
                # If it does not fit, no less urgent request is tried. Where slots are charged by tokens, such a request might
                # fit, and a stream of small ones would keep the large one waiting for ever.
                return head if self._slots.fits(lane, self.set_slot_units(head)) else None
        return None

    def next_promotion(self, next_waiter: Ticket | None, now: Micros) -> Ticket | None:
        """Return the request to promote next, with the units that it needs, or None: the head of the least urgent lane that
        starves. `next_waiter` is next in any case: it is promoted only with `PoolRules.promotes_next_waiter`, as in SMG."""
        starvation = self._queues.starvation
        if now < starvation.earliest_at or not self._promotion_budget.can_promote:
            return None
        for head in starvation.starving_heads(now):
            if head is not next_waiter or self._promotes_next_waiter:
                # It waits no longer for slots that its lane may not hold. What higher lanes reserve and do not use is idle.
                head.slot_units = min(self.set_slot_units(head), self._slots.max_units[head.lane])
                return head
        # Not after a promotion: the promoted request is in its queue until the caller admits it, so nothing would change.
        starvation.update_earliest()
        return None

    def may_pass(self, ticket: Ticket, starved: Ticket | None) -> bool:
        """Return whether a request that fits may take its slots before `starved`, the one that is to be promoted next."""
        slots = self._slots
        if starved is None or starved.slot_units <= slots.idle:
            return True
        # By the sum of all higher lanes, as those may preempt one another. It fits at last: it needs no more than they leave.
        above = starved.lane + 1
        is_within_reservations = sum(slots.in_flight[above:]) + ticket.slot_units <= slots.reserved_above[starved.lane]
        return ticket.lane >= above and is_within_reservations

    def next_preemptor(self) -> Ticket | None:
        """Return the request in a queue that is next by the order of classes, or None if its class may not preempt."""
        for lane in self._lanes_before_preemption:
            queue = self._queues.lanes[lane]
            head = queue.peek() if queue.entries else None
            if head is not None:
                # If it finds no victim, no less urgent request may preempt instead: it would pass this one.
                return head if self._may_preempt[lane] else None
        return None

    def choose_victim(self, ticket: Ticket, candidates: PreemptionCandidates, leaving: int) -> Ticket | None:
        """Return the newest request with a slot that would suffice, of the least urgent class below that of `ticket`. Return
        None if there is none, or if none is needed: `leaving` units are about to be free. The tenant of `ticket` is below its
        limit."""
        missing = self._slots.shortfall(ticket.lane, self.set_slot_units(ticket))
        if missing <= leaving:
            return None
        return candidates.newest_below(ticket.lane, missing)

    def choose_next_victim(self, preemptor: Ticket, candidates: PreemptionCandidates, leaving: int) -> Ticket | None:
        """Return another victim for a preemptor whose own keeps its slot, as `choose_victim` does; or None if the rules have
        changed meanwhile, or its tenant has reached its limit."""
        if not self._may_preempt[preemptor.lane] or not may_hold(preemptor):
            return None
        return self.choose_victim(preemptor, candidates, leaving)

    def demand(self, *, keeps_lead: bool) -> PoolDemand:
        """Return what the waiting request of the least urgent lane needs, as `SlotPool.demand` does."""
        slots = self._slots
        for lane in LANES:
            if (head := self._queues.head(lane)) is not None:
                held = slots.capacity - slots.ceiling(lane)
                held = max(held, slots.idle) if head.sequences > 1 else held  # What is idle is too little for it.
                return PoolDemand(wanted=True, held=held // slots.units_per_slot, keeps_lead=keeps_lead)
        return NO_DEMAND

    def can_take_slot(self, ticket: Ticket) -> bool:
        """Return whether a preemptor can have the slot that its victim has given up."""
        return may_hold(ticket) and self._slots.fits(ticket.lane, self.set_slot_units(ticket))

    def set_slot_units(self, ticket: Ticket) -> int:
        """Set and return the units that a request needs, at most so many that every request fits at some time: all that there
        are, or, if it is charged by its tokens, which are an estimate, all that its lane can ever have. They are computed at
        each question, because that number changes with the capacity."""
        if self._by_request:
            units = 1 if ticket.sequences == 1 else max(1, min(ticket.sequences, self._slots.capacity))
        else:
            units, most = ticket.cost, self._slots.max_units[ticket.lane]
            if not 0 < units <= most:
                units = most if units > most else 1
        ticket.slot_units = units
        return units
