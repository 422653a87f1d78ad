"""A model that checks a core: naive counts of everything that it was given and has decided, by the words of its contract.

Slow and simple on purpose. It is given each input with its decisions (settle what is due first, so that they are the
input's own), and asserts for each decision that it was allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from maitred.admission import AdmissionConfig, Reason, ReleaseReason
from maitred.admission.pool.slots import fit_reservations
from maitred.admission.terms.rules import resolve_pool_rules
from maitred.core.decisions import Decision
from maitred.core.request import PriorityClass
from maitred.core.units import Micros

SYSTEM = PriorityClass.SYSTEM


class ModelRequest:
    """One request."""

    def __init__(self, number: int, pool: str, k: PriorityClass, tenant: str, now: Micros) -> None:
        self.number, self.pool, self.k, self.tenant, self.submitted_at = number, pool, k, tenant, now
        self.state = "new"
        self.turn = 0
        self.admission = 0
        self.safe = False
        """Promoted or tried again: never a victim."""
        self.stranded = False
        self.victim: ModelRequest | None = None
        """The victim whose slot it waits for."""
        self.retried = False

    @property
    def holds(self) -> bool:
        return self.state in ("admitted", "shown", "victim")

    @property
    def waits(self) -> bool:
        return self.state in ("queued", "awaiting")


class AdmissionModel:
    def __init__(
        self, config: AdmissionConfig, capacities: dict[str, int], headroom: Callable[[str], list[int]] = lambda pool: []
    ) -> None:
        """`headroom` says what the core keeps free in a pool, by class."""
        self.headroom = headroom
        self.capacities = dict(capacities)
        self.requests: dict[int, ModelRequest] = {}
        self.turns = self.firsts = self.admissions = 0
        self.configure(config)

    def configure(self, config: AdmissionConfig) -> None:
        self.config, self.rules = config, resolve_pool_rules(config)
        self.dispatched = dict.fromkeys(self.capacities, 0)
        self.promoted = dict.fromkeys(self.capacities, 0)

    # Slots

    @property
    def classes(self) -> bool:
        return self.config.mode == "priority"

    def lane(self, one: ModelRequest) -> int:
        return one.k if self.classes else 0

    def together(self, one: ModelRequest) -> list[ModelRequest]:
        """All requests that share its slots."""
        return [other for other in self.requests.values() if not self.classes or other.pool == one.pool]

    def capacity(self, one: ModelRequest) -> int:
        if self.rules.capacity is not None:
            return self.rules.capacity
        return self.capacities[one.pool]

    def used(self, one: ModelRequest) -> int:
        return sum(other.holds for other in self.together(one))

    def free(self, one: ModelRequest) -> int:
        capacity = self.capacity(one)
        reserved = fit_reservations(
            [lane.wanted_slots(capacity) for lane in self.rules.lanes], capacity, keeps_exact_fit=self.rules.keeps_exact_fit
        )
        held = [sum(other.holds and self.lane(other) == c for other in self.together(one)) for c in range(4)]
        kept_back = sum(self.kept_back(one.pool, c, reserved[c], held[c]) for c in range(self.lane(one) + 1, 4))
        return capacity - sum(held) - kept_back

    def kept_back(self, pool: str, c: int, reserved: int, in_flight: int) -> int:
        """What is kept back for a class. An adaptive reservation may be less than what is configured, and not less than the
        floor: how much it is, the core says."""
        unused = max(0, reserved - in_flight)
        if self.config.reserve == "fixed" or not self.classes:
            return unused
        kept = min(unused, self.headroom(pool)[c])
        return max(kept, min(reserved, self.rules.lanes[c].reserved_floor) - in_flight, 0)

    def at_limit(self, one: ModelRequest) -> bool:
        policy = self.config.tenant_policies.get(one.tenant) if self.classes else None
        if policy is None or policy.max_in_flight is None:
            return False
        others = [other for other in self.requests.values() if other is not one and other.tenant == one.tenant]
        claimed = sum(other.holds or (other.state == "awaiting" and one.state != "awaiting") for other in others)
        return claimed >= policy.max_in_flight

    def queued_of(self, tenant: str) -> int:
        return sum(other.waits and other.tenant == tenant for other in self.requests.values())

    def peers(self, one: ModelRequest) -> list[ModelRequest]:
        """The requests of its own or a higher class that queue before it and could enter."""
        return [
            other
            for other in self.together(one)
            if other is not one and other.state == "queued" and self.lane(other) >= self.lane(one) and not self.at_limit(other)
        ]

    def victims_for(self, one: ModelRequest) -> list[ModelRequest]:
        """The requests whose slots it might take."""
        return [
            other
            for other in self.together(one)
            if other.state == "admitted" and not other.safe and not other.stranded and other.k < one.k
        ]

    def idle_preemptor(self) -> ModelRequest | None:
        """A request that is next and waits, though a victim's slot would be enough for it and no slot is about to be free."""
        claimed = [one.victim for one in self.requests.values() if one.state == "awaiting"]
        for one in self.requests.values():
            may = one.state == "queued" and self.rules.lanes[self.lane(one)].can_preempt and self.victims_for(one)
            if may and not self.at_limit(one) and not any(self.lane(o) > self.lane(one) for o in self.peers(one)):
                leaving = any(o.state == "victim" and not o.stranded and o not in claimed for o in self.together(one))
                if not leaving and self.free(one) == 0:
                    return one
        return None

    # Inputs

    def came(self, number: int, pool: str, k: PriorityClass, tenant: str, now: Micros) -> None:
        self.requests[number] = ModelRequest(number, pool, k, tenant, now)

    def decided(self, decisions: Iterable[Decision]) -> None:
        for decision in decisions:
            one = self.requests[decision.subject]
            getattr(self, f"_{decision.action}")(one, decision)

    def released(self, number: int, end: ReleaseReason, now: Micros) -> None:
        """Note a release, before its decisions are applied."""
        one = self.requests[number]
        if not one.holds:
            return
        comes_back = (
            one.state == "victim" and end is ReleaseReason.SLOT_PREEMPTED and self.rules.retries_victims and not one.retried
        )
        comes_back = comes_back and one.submitted_at + self.rules.lanes[self.lane(one)].queue_timeout > now
        one.state = "coming back" if comes_back else "left"

    def declined(self, number: int) -> None:
        """Note that a victim keeps its slot, before the decisions on that are applied."""
        self.requests[number].state = "shown"
        for one in self.requests.values():
            if one.victim is self.requests[number]:
                one.victim = None

    # Decisions

    def _admit(self, one: ModelRequest, decision: Decision) -> None:
        assert one.state in ("new", "queued", "awaiting")
        assert not self.at_limit(one), "its tenant is at its limit"
        queued = one.state == "queued"
        if decision.reason is Reason.STARVED:
            self._promotion(one, decision.at)
        else:
            assert self.free(one) > 0, "no slot was free for its class"
        if one.state == "new":
            assert not self.peers(one), "a newcomer passed the queue"
        if queued:
            self.dispatched[one.pool] += 1
            if not self.rules.tenant_weights:
                ahead = [o for o in self.together(one) if o.state == "queued" and self.lane(o) == self.lane(one)]
                assert not any(o.turn < one.turn and not self.at_limit(o) for o in ahead), "not first come, first served"
            if decision.reason is Reason.SLOT_FREE:
                higher = [o for o in self.peers(one) if self.lane(o) > self.lane(one)]
                assert not higher, "a more urgent class was passed over"
        if decision.reason is Reason.VICTIM_GONE:
            assert one.state == "awaiting"
        self.admissions += 1
        one.state, one.admission = "admitted", self.admissions

    def _promotion(self, one: ModelRequest, at: Micros) -> None:
        threshold = self.rules.lanes[self.lane(one)].starvation_threshold
        assert one.k is not SYSTEM
        assert threshold is not None
        assert at - one.submitted_at > threshold, "it has not starved"
        assert self.used(one) < self.capacity(one), "promotion needs an idle slot"
        self.promoted[one.pool] += 1
        bound = self.rules.promotion_burst + self.rules.promotion_share * (self.dispatched[one.pool] + 1)
        assert self.promoted[one.pool] <= bound, "promoted beyond its share"
        one.safe = True

    def _queue(self, one: ModelRequest, decision: Decision) -> None:
        if decision.reason is Reason.VICTIM_LEAVING:
            assert one.state in ("new", "queued", "awaiting")
            one.state = "awaiting"
            return
        if decision.reason is Reason.TO_BE_RETRIED:
            assert one.state == "coming back"
            one.retried = one.safe = True
            self.firsts -= 1
            one.turn, one.state, one.stranded = self.firsts, "queued", False
            return
        if decision.reason is Reason.LOST_BACKEND:
            assert one.state == "admitted"
            assert self.free(one) < 0, "its slot counts"
            self.firsts -= 1
            one.turn, one.state, one.stranded = self.firsts, "queued", False
            return
        if one.state == "awaiting":
            assert decision.reason in (Reason.BUDGET_SPENT, Reason.NO_SLOT, Reason.VICTIM_DECLINED)
            self.firsts -= 1
            one.turn, one.state = self.firsts, "queued"
            return
        assert one.state == "new"
        self.turns += 1
        one.turn, one.state = self.turns, "queued"

    def _preempt(self, victim: ModelRequest, decision: Decision) -> None:
        assert decision.other is not None
        preemptor = self.requests[decision.other]
        assert preemptor.state in ("new", "queued") or (preemptor.state == "awaiting" and preemptor.victim is None)
        assert not self.at_limit(preemptor), "its tenant could not have the slot"
        assert self.rules.lanes[self.lane(preemptor)].can_preempt
        assert victim.state == "admitted"
        assert not victim.safe
        assert self.free(preemptor) <= 0, "there was a slot"
        ahead = [o for o in self.peers(preemptor) if preemptor.state == "new" or self.lane(o) > self.lane(preemptor)]
        assert not ahead, "a preemptor passed the queue"
        order = [(other.k, -other.admission) for other in self.victims_for(preemptor)]
        assert (victim.k, -victim.admission) == min(order), "lowest class first, newest first"
        victim.state, preemptor.victim = "victim", victim
        assert self.free(preemptor) + 1 > 0, "the slot does not help"

    def _reject(self, one: ModelRequest, decision: Decision) -> None:
        assert one.state in ("new", "queued", "awaiting")
        assert decision.retry_after is not None
        assert decision.retry_after > 0
        one.state = "left"

    def _cancel(self, one: ModelRequest, decision: Decision) -> None:
        assert one.waits
        one.state = "left"
