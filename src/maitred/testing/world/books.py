"""Books: the requests and slots of a gateway, kept once more from its log of decisions, by rules of their own.

    who holds      from an `admit` to the release, the wait that follows, or the end of the process
    who waits      from a `queue` to the next decision
    what is in force, of the configuration, the slots of each pool, and the limits of classes and tenants

What must hold of the lines, one after the other:

- a grant leaves no more slots in use than there are, no tenant above its limit, and the floors of higher classes free; where
  requests take slots by their tokens, all of this in tokens
- nobody gets a slot whose turn it is not (`turn_books`)
- no class but the one that was asked for, or the highest that the tenant may have
- no queue is longer than it may be when a newcomer joins it, and no wait longer than the timeout in force
- no victim after its first byte; no more promotions of starved requests than their burst and their share, and no request passes
  one that starves while a promotion is saved up
- a decision is late by `MAX_LATE` at most: the timer is set to what is due next, whatever configuration has come meanwhile

Where lines are missing, behind a crash, nothing is known up to the next start (`blind`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf
from typing import Any, Final, TypeAlias

import msgspec

from maitred.admission import AdmissionConfig
from maitred.core.request import PriorityClass
from maitred.core.units import MILLISECOND, Micros, from_seconds
from maitred.testing.world.booked import (
    Asked,
    Booked,
    Hold,
    Pool,
    Span,
    floor_above,
    highest_class,
    least_units,
    most_units,
    promotions,
    queue_of,
    units_per_slot,
)
from maitred.testing.world.starving_books import check_starving, spend_promotion
from maitred.testing.world.turn_books import TurnBooks, in_order

MAX_LATE: Final = 100 * MILLISECOND
"""How late a decision may be that time alone leads to: a timer of the gateway rings 1 ms after what is due."""
Line: TypeAlias = dict[str, Any]


class Books:
    """The books of one gateway, over all its lives."""

    def __init__(self, asked: Mapping[str, Asked], is_excused: Callable[[Micros, Micros], bool]) -> None:
        """`asked` has the requests by their marks. `is_excused` says whether time has passed between
        two instants in which no program ran."""
        self.holds: defaultdict[str, list[Hold]] = defaultdict(list)
        """The slots that each request had, by its mark."""
        self.preemptions: list[tuple[str, Micros]] = []
        """Victims, each with the instant at which it was told to stop."""
        self.blind: list[Span] = []
        """Spans of which lines are missing."""
        self.reasons: Counter[str] = Counter()
        """Decisions by reason."""
        self._asked, self._is_excused = asked, is_excused
        self._requests: dict[int, Booked] = {}
        self._pools: defaultdict[str, Pool] = defaultdict(Pool)
        self._configs: list[AdmissionConfig] = []
        """The configurations of this life, the one in force last."""
        self._turns, self._num_places = TurnBooks(), 0
        self._configured_at: list[Micros] = []
        """When each of them came."""
        self._now: Micros = 0
        self._input: Line | None = None
        """The last input, if it has not taken effect."""
        self._newcomer: int | None = None
        """The request about which the last input was, if it has just come."""

    def read(self, lines: Iterable[bytes]) -> Iterator[str]:
        """Read the log of one life, and yield what does not hold."""
        for line in lines:
            entry: Line = msgspec.json.decode(line)
            if entry["room"] != "admission" or "raised" in entry:
                continue
            if (decision := entry.get("decision")) is not None:
                if decision["at"] >= self._now:
                    yield from self._take_input()
                yield from self._on_decision(decision)
            elif "input" in entry:
                yield from self._take_input()
                self._now, self._newcomer, self._input = entry["at"], None, entry
        yield from self._take_input()

    def _take_input(self) -> Iterator[str]:
        """Let the last input take effect. It has settled first what fell due before it, which stands behind it in the log."""
        entry, self._input = self._input, None
        if entry is not None and (take := _INPUTS.get(entry["input"])) is not None:
            yield from take(self, entry)

    def end_life(self, began_at: Micros, at: Micros, *, may_lack_lines: bool) -> Iterator[str]:
        """Take note that a process has ended at `at`. Yield what was left, unless its last lines may be missing."""
        if may_lack_lines:
            self.blind.append((max(began_at, self._now), at))
        for request in self._requests.values():
            if request.hold is not None:
                request.hold.ended_at = at
            if not may_lack_lines:
                yield f"{request.mark} is left in admission"
        self._requests.clear()
        self._pools.clear()
        self._turns.clear()
        self._configs.clear()
        self._configured_at.clear()

    @property
    def _config(self) -> AdmissionConfig:
        return self._configs[-1]

    def _configure(self, entry: Line) -> None:
        self._configs.append(msgspec.convert(entry["config"], AdmissionConfig))
        self._configured_at.append(entry["at"])

    def _on_open(self, entry: Line) -> Iterator[str]:
        self._configure(entry)
        for pool, capacity in entry["pools"].items():
            self._pools[pool].capacity = capacity
        return iter(())

    def _on_reconfigure(self, entry: Line) -> Iterator[str]:
        self._configure(entry)
        if all(c.mode == "flow-control" and c.flow_control.fairness_policy == "round-robin" for c in self._configs[-2:]):
            self._turns.forget_shares()
        else:
            self._turns.clear()  # All pools are made anew.
        for request in self._requests.values():
            request.waits_until = max(request.waits_until, self._timeout_of(request))
            if request.hold is not None:  # What it takes is computed anew.
                units = min(request.least_units, least_units(self._config, request, self._pools[request.pool]))
                self._pools[request.pool].in_use += units - request.least_units
                request.least_units = units
        return iter(())

    def _on_resize(self, entry: Line) -> Iterator[str]:
        self._pools[entry["pool"]].capacity = entry["capacity"]
        return iter(())

    def _on_forget(self, entry: Line) -> Iterator[str]:
        self._pools.pop(entry["pool"], None)
        self._turns.forget(entry["pool"])
        return iter(())

    def _on_submit(self, entry: Line) -> Iterator[str]:
        asked_class = PriorityClass[entry["class"].upper()]
        request = Booked(entry.get("client_id", ""), entry["pool"], asked_class, entry["tenant"], entry["at"])
        request.cost, request.slo_priority = entry["cost"], entry["slo_priority"]
        request.due = inf if entry["slo_target"] is None else entry["at"] + entry["slo_target"]
        request.waits_until = self._timeout_of(request)
        self._requests[entry["id"]] = request
        self._newcomer = entry["id"]
        asked = self._asked.get(request.mark)
        if asked is not None and self._config.uses_classes:
            wish, since = PriorityClass[asked.priority.upper()], asked.sent_at
            ended_before = [at <= since for at in self._configured_at[1:]]
            in_force = self._configs[sum(ended_before) :]
            if asked_class not in {min(wish, highest_class(config, request.tenant)) for config in in_force}:
                yield f"{request.mark} has asked for {wish.label}, and has the class {asked_class.label}"

    def _on_first_byte(self, entry: Line) -> Iterator[str]:
        request = self._requests.get(entry["id"])
        if request is not None and not request.is_victim:
            request.has_first_byte = True
        return iter(())

    def _on_release(self, entry: Line) -> Iterator[str]:
        request = self._requests.get(entry["id"])
        if request is None or request.waits:  # Of one that waits, a decision says that it has left.
            return iter(())
        may_wait_again = request.hold is not None and request.is_victim and entry["end"] == "preempted"
        if (tokens := entry.get("tokens")) is not None and request.charge is not None and self._has_shares:
            shares, waits = self._turns.of(*queue_of(request)), any(self._queue(request, request.tenant))
            shares.settle(request.tenant, request.charge, tokens, self._weight(request), waits=waits)
            request.charge = None
        if request.hold is not None:
            self._free(request)
        request.is_victim = False
        if not may_wait_again:
            del self._requests[entry["id"]]
        return iter(())

    def _free(self, request: Booked) -> None:
        assert request.hold is not None
        request.hold.ended_at, request.hold, request.freed_at = self._now, None, self._now
        pool = self._pools[request.pool]
        pool.in_use -= request.least_units
        pool.in_flight[request.asked_class] -= most_units(self._config, request)

    def _on_decision(self, decision: Line) -> Iterator[str]:
        request = self._requests.get(decision["subject"])
        if request is None:
            return
        self.reasons[decision["reason"]] += 1
        late = self._now - decision["at"]
        if late > MAX_LATE and not self._is_excused(decision["at"], self._now):
            yield f"{request.mark}: {decision['action']} ({decision['reason']}) was due {late} us before it was decided"
        yield from _DECISIONS[decision["action"]](self, request, decision)

    def _on_admit(self, request: Booked, decision: Line) -> Iterator[str]:
        pool = self._pools[request.pool]
        yield from self._check_admitted(request, decision["reason"])
        if len(self._configs) == 1:
            together = [each for each in self._requests.values() if each.pool == request.pool]
            yield from check_starving(request, together, pool, decision, self._config, self._is_excused)
        if request.waits:
            if not request.awaits_victim:
                pool.num_from_queues += 1
                spend_promotion(pool, decision["reason"], self._config)
            yield from self._end_wait(request, decision)
        request.least_units = least_units(self._config, request, self._pools[request.pool])
        pool.in_use += request.least_units
        pool.in_flight[request.asked_class] += most_units(self._config, request)
        pool.num_promoted += decision["reason"] == "starved"
        request.hold = Hold(decision["at"])
        self.holds[request.mark].append(request.hold)
        if self._config.mode == "priority":
            yield from self._check_grant(request, pool, decision["reason"])

    def _check_grant(self, request: Booked, pool: Pool, reason: str) -> Iterator[str]:
        capacity = pool.capacity * units_per_slot(self._config)
        if pool.in_use > capacity:
            yield f"{request.mark} is admitted ({reason}), and {pool.in_use} slots or tokens of {capacity} are in use"
        policy = self._config.tenant_policies.get(request.tenant)
        most = None if policy is None else policy.max_in_flight
        if most is not None and (held := self._num_held_by(request.tenant)) > most:
            yield f"{request.mark} is admitted ({reason}), and {request.tenant} holds {held} slots of {most}"
        kept = floor_above(self._config, request.asked_class, pool)
        if reason != "starved" and pool.in_use + kept > capacity:
            yield f"{request.mark} is admitted ({reason}) into one of {kept} slots or tokens that higher classes have reserved"
        burst, share = (max(values) for values in zip(*map(promotions, self._configs), strict=True))
        if pool.num_promoted > len(self._configs) * burst + share * pool.num_from_queues:
            yield f"{pool.num_promoted} of {pool.num_from_queues} admissions from queues were promotions"

    @property
    def _has_weights(self) -> bool:
        weights = any(policy.weight is not None for policy in self._config.tenant_policies.values())
        return weights and self._config.mode == "priority"

    @property
    def _has_shares(self) -> bool:
        """Whether tenants have weights, and it is known how far each is: they begin anew with a reload."""
        return self._has_weights and len(self._configs) == 1

    def _weight(self, request: Booked) -> float:
        policy = self._config.tenant_policies.get(request.tenant)
        return 1.0 if policy is None or policy.weight is None else policy.weight

    def _queue(self, request: Booked, tenant: str | None = None) -> Iterator[Booked]:
        """Yield the requests in the queue of the class of a request, of a tenant or of all."""
        for each in self._requests.values():
            in_queue = each.waits and not each.awaits_victim and queue_of(each) == queue_of(request)
            if in_queue and (tenant is None or each.tenant == tenant):
                yield each

    def _check_admitted(self, request: Booked, reason: str) -> Iterator[str]:
        """Yield whom a request passes that gets a slot, and charge its tenant if it was in a queue, or would have been."""
        rivals = [r for r in self._requests.values() if r.waits and r is not request and r.pool == request.pool]
        rivals = [rival for rival in rivals if self._has_room(rival)]
        would_queue = any(queue_of(each) == queue_of(request) and not each.awaits_victim for each in rivals)
        has_joined = not request.waits and would_queue and self._has_shares
        if has_joined:
            self._join(request)
        elif not request.waits:
            self._num_places += 1
            request.place = self._num_places
        if self._config.mode == "flow-control":
            yield from self._turns.check_flow(request, request.pool, rivals, self._config.flow_control)
        elif self._config.mode != "priority":
            yield from in_order(request, rivals)
        elif reason in ("slot_free", "lead_free", "victim_leaving"):
            if reason == "victim_leaving":
                rivals = [rival for rival in rivals if not rival.awaits_victim]
            shares = self._turns.of(*queue_of(request)) if self._has_shares and would_queue else None
            yield from self._turns.check(request, rivals, shares, in_order=not self._has_weights)
        if has_joined or (request.waits and not request.awaits_victim):
            self._leave_queue(request, is_served=True)

    def _has_room(self, request: Booked) -> bool:
        """Return whether the limit of its tenant lets a request that waits have a slot."""
        policy = self._config.tenant_policies.get(request.tenant)
        if policy is None or policy.max_in_flight is None or self._config.mode != "priority":
            return True
        held = self._num_held_by(request.tenant)
        newcomer = self._requests.get(self._newcomer) if self._newcomer is not None else None
        if newcomer is not None and newcomer.tenant == request.tenant and newcomer.asked_class > request.asked_class:
            held += newcomer.hold is None and not newcomer.waits  # It goes first, and is decided on last.
        if not request.awaits_victim:
            held += sum(r.awaits_victim and r.tenant == request.tenant for r in self._requests.values())
        return held < policy.max_in_flight or not held

    def _join(self, request: Booked, *, is_front: bool = False) -> None:
        """Give a request its place in the queue of its class, which it has just joined."""
        self._num_places += 1
        request.place = -self._num_places if is_front else self._num_places
        if self._has_shares:
            others = any(each is not request for each in self._queue(request, request.tenant))
            self._turns.of(*queue_of(request)).join(request.tenant, is_first=not others)

    def _leave_queue(self, request: Booked, *, is_served: bool = False) -> None:
        """Note that a request is in the queue of its class no longer, where tenants have weights."""
        if not self._has_shares:
            return
        shares = self._turns.of(*queue_of(request))
        if is_served and request.place > 0:
            request.charge = shares.serve(request, self._weight(request))
        left = [each for each in self._queue(request) if each is not request]
        shares.leave(request.tenant, waits_more=any(each.tenant == request.tenant for each in left), is_idle=not left)

    def _num_held_by(self, tenant: str) -> int:
        return sum(request.hold is not None and request.tenant == tenant for request in self._requests.values())

    def _on_queue(self, request: Booked, decision: Line) -> Iterator[str]:
        if request.hold is not None:  # Its backend has failed, and took its slot along.
            self._free(request)
        if decision["reason"] != "victim_leaving":
            has_waited = request.waits or request.freed_at > 0
            request.waits, request.awaits_victim = True, False
            self._join(request, is_front=has_waited)
        elif not request.awaits_victim:
            if self._config.mode == "priority":
                yield from self._check_admitted(request, "victim_leaving")
            self._num_places += 1
            request.waits, request.awaits_victim, request.place = True, True, self._num_places
        if decision["subject"] == self._newcomer and not request.awaits_victim and self._config.mode == "priority":
            yield from self._check_queues(request)

    def _check_queues(self, request: Booked) -> Iterator[str]:
        waiting = [each for each in self._requests.values() if each.waits]
        size = self._config.class_rules(request.asked_class).queue_size
        queue = [each for each in waiting if not each.awaits_victim and queue_of(each) == queue_of(request)]
        if len(queue) > size:
            yield f"{request.mark} waits, and {len(queue)} requests of its class for {size} places"
        policy = self._config.tenant_policies.get(request.tenant)
        most = None if policy is None else policy.max_queued
        if most is not None and (num := sum(each.tenant == request.tenant for each in waiting)) > most:
            yield f"{request.mark} waits, and {num} requests of {request.tenant} for {most} places"

    def _on_left(self, request: Booked, decision: Line) -> Iterator[str]:
        if request.waits and not request.awaits_victim:
            self._leave_queue(request)
        if request.waits and decision["action"] == "reject":
            yield from self._end_wait(request, decision)
        del self._requests[decision["subject"]]

    def _end_wait(self, request: Booked, decision: Line) -> Iterator[str]:
        request.waits = request.awaits_victim = False
        until = max(request.waits_until, request.freed_at) + from_seconds(self._config.preemption_budget_ms / 1e3)
        if self._config.mode == "priority" and decision["at"] > until:
            yield f"{request.mark} has waited {decision['at'] - until} us too long ({decision['action']}, {decision['reason']})"

    def _timeout_of(self, request: Booked) -> Micros:
        """Return when the wait of a request ends by the configuration in force."""
        return request.submitted_at + from_seconds(self._config.class_rules(request.asked_class).queue_timeout_secs)

    def _on_preempt(self, request: Booked, decision: Line) -> Iterator[str]:
        request.is_victim = True
        self.preemptions.append((request.mark, decision["at"]))
        if request.has_first_byte:
            yield f"{request.mark} is a victim after its first byte"
        if request.hold is None:
            yield f"{request.mark} is a victim, and holds no slot"


_INPUTS: Final[Mapping[str, Callable[[Books, Line], Iterator[str]]]] = {
    "open": Books._on_open,
    "reconfigure": Books._on_reconfigure,
    "resize": Books._on_resize,
    "forget": Books._on_forget,
    "submit": Books._on_submit,
    "first_byte": Books._on_first_byte,
    "release": Books._on_release,
}
_DECISIONS: Final[Mapping[str, Callable[[Books, Booked, Line], Iterator[str]]]] = {
    "admit": Books._on_admit,
    "queue": Books._on_queue,
    "reject": Books._on_left,
    "cancel": Books._on_left,
    "preempt": Books._on_preempt,
}
