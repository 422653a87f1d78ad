"""Books: the requests and slots of a gateway, kept once more from its log of decisions, by rules of their own.

    who holds      from an `admit` to the release, the wait that follows, or the end of the process
    who waits      from a `queue` to the next decision
    what is in force, of the configuration, the slots of each pool, and the limits of classes and tenants

What must hold of the lines, one after the other:

- a grant leaves no more slots in use than there are, no tenant above its limit, and the floors of higher classes free
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
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from maitred.admission import AdmissionConfig
from maitred.core.request import PriorityClass
from maitred.core.units import MILLISECOND, Micros, from_seconds

MAX_LATE: Final = 100 * MILLISECOND
"""How late a decision may be that time alone leads to: a timer of the gateway rings 1 ms after what is due."""
Span: TypeAlias = tuple[Micros, Micros]
Line: TypeAlias = dict[str, Any]


class Asked(Protocol):
    """A request as its client has it."""

    @property
    def priority(self) -> str: ...
    @property
    def sent_at(self) -> Micros: ...


class Hold(msgspec.Struct):
    """A slot in the hands of a request."""

    began_at: Micros
    ended_at: Micros | None = None


@dataclass(slots=True)
class Booked:
    """A request in admission."""

    mark: str
    pool: str
    asked_class: PriorityClass
    tenant: str
    submitted_at: Micros
    hold: Hold | None = None
    waits: bool = False
    awaits_victim: bool = False
    """Whether it waits for the slot of a victim, and is in no queue."""
    is_victim: bool = False
    has_first_byte: bool = False
    waits_until: Micros = 0
    """When its wait ends at the latest, by the longest timeout that has been in force since it came."""
    freed_at: Micros = 0
    """When it had a slot last."""


@dataclass(slots=True)
class _Pool:
    """The slots of a model."""

    capacity: int = 0
    credit: float | None = None
    """Promotions that are saved up; None: as many as may be."""
    num_promoted: int = 0
    num_from_queues: int = 0
    in_flight: Counter[PriorityClass] = field(default_factory=Counter)

    @property
    def in_use(self) -> int:
        return self.in_flight.total()


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
        self._pools: defaultdict[str, _Pool] = defaultdict(_Pool)
        self._configs: list[AdmissionConfig] = []
        """The configurations of this life, the one in force last."""
        self._configured_at: list[Micros] = []
        """When each of them came."""
        self._now: Micros = 0
        self._newcomer: int | None = None
        """The request about which the last input was, if it has just come."""

    def read(self, lines: Iterable[bytes]) -> Iterator[str]:
        """Read the log of one life, and yield what does not hold."""
        for line in lines:
            entry: Line = msgspec.json.decode(line)
            if entry["room"] != "admission" or "raised" in entry:
                continue
            if (decision := entry.get("decision")) is not None:
                yield from self._on_decision(decision)
            elif (given := entry.get("input")) is not None:
                self._now, self._newcomer = entry["at"], None
                if (take := _INPUTS.get(given)) is not None:
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
        for request in self._requests.values():
            request.waits_until = max(request.waits_until, self._timeout_of(request))
        return iter(())

    def _on_resize(self, entry: Line) -> Iterator[str]:
        self._pools[entry["pool"]].capacity = entry["capacity"]
        return iter(())

    def _on_forget(self, entry: Line) -> Iterator[str]:
        self._pools.pop(entry["pool"], None)
        return iter(())

    def _on_submit(self, entry: Line) -> Iterator[str]:
        asked_class = PriorityClass[entry["class"].upper()]
        request = Booked(entry.get("client_id", ""), entry["pool"], asked_class, entry["tenant"], entry["at"])
        request.waits_until = self._timeout_of(request)
        self._requests[entry["id"]] = request
        self._newcomer = entry["id"]
        asked = self._asked.get(request.mark)
        if asked is not None and self._config.uses_classes:
            wish, since = PriorityClass[asked.priority.upper()], asked.sent_at
            ended_before = [at <= since for at in self._configured_at[1:]]
            in_force = self._configs[sum(ended_before) :]
            if asked_class not in {min(wish, _highest_class(config, request.tenant)) for config in in_force}:
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
        if request.hold is not None:
            self._free(request)
        request.is_victim = False
        if not may_wait_again:
            del self._requests[entry["id"]]
        return iter(())

    def _free(self, request: Booked) -> None:
        assert request.hold is not None
        request.hold.ended_at, request.hold, request.freed_at = self._now, None, self._now
        self._pools[request.pool].in_flight[request.asked_class] -= 1

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
        if request.waits:
            yield from self._check_starving(request, pool, decision)
            if not request.awaits_victim:
                pool.num_from_queues += 1
                self._spend_promotion(pool, decision["reason"])
            yield from self._end_wait(request, decision)
        pool.in_flight[request.asked_class] += 1
        pool.num_promoted += decision["reason"] == "starved"
        request.hold = Hold(decision["at"])
        self.holds[request.mark].append(request.hold)
        if self._config.mode == "priority":
            yield from self._check_grant(request, pool, decision["reason"])

    def _check_grant(self, request: Booked, pool: _Pool, reason: str) -> Iterator[str]:
        if pool.in_use > pool.capacity:
            yield f"{request.mark} is admitted ({reason}), and {pool.in_use} slots of {pool.capacity} are in use"
        policy = self._config.tenant_policies.get(request.tenant)
        most = None if policy is None else policy.max_in_flight
        if most is not None and (held := self._num_held_by(request.tenant)) > most:
            yield f"{request.mark} is admitted ({reason}), and {request.tenant} holds {held} slots of {most}"
        kept = self._floor_above(request.asked_class, pool)
        if reason != "starved" and pool.in_use + kept > pool.capacity:
            yield f"{request.mark} is admitted ({reason}) into one of {kept} slots that higher classes have reserved"
        burst, share = (max(values) for values in zip(*map(_promotions, self._configs), strict=True))
        if pool.num_promoted > len(self._configs) * burst + share * pool.num_from_queues:
            yield f"{pool.num_promoted} of {pool.num_from_queues} admissions from queues were promotions"

    def _check_starving(self, request: Booked, pool: _Pool, decision: Line) -> Iterator[str]:
        """Yield whether a request has got the slot that was due to one that starves. What is due follows from one
        configuration, so nothing is said behind a reload."""
        config = self._config
        burst, _ = _promotions(config)
        is_certain = config.mode == "priority" and len(self._configs) == 1 and decision["reason"] == "slot_free"
        if not is_certain or (burst if pool.credit is None else pool.credit) < 1:
            return
        for priority_class in PriorityClass:
            head = self._head(request.pool, priority_class)
            if head is None or priority_class is request.asked_class or head.tenant in config.tenant_policies:
                continue
            since = head.submitted_at + from_seconds(config.class_rules(priority_class).starvation_threshold_secs)
            if decision["at"] > since and not self._is_excused(since, decision["at"]):
                yield f"{request.mark} is admitted, and {head.mark} has starved for {decision['at'] - since} us"

    def _head(self, pool: str, priority_class: PriorityClass) -> Booked | None:
        """Return the request that has waited longest in a queue, or None if there is none, or another may go before it."""
        queue = [r for r in self._requests.values() if r.waits and r.pool == pool and r.asked_class is priority_class]
        if any(request.awaits_victim or request.freed_at for request in queue):
            return None
        return min(queue, key=lambda request: request.submitted_at, default=None)

    def _spend_promotion(self, pool: _Pool, reason: str) -> None:
        """Count an admission from a queue, which earns a share of a promotion, and may have been one."""
        burst, share = _promotions(self._config)
        credit = (burst if pool.credit is None else pool.credit) - (reason == "starved")
        pool.credit = min(burst, credit + share)

    def _floor_above(self, priority_class: PriorityClass, pool: _Pool) -> int:
        """Return how many idle slots the floors of higher classes keep from a class; 0 if the reservations do not fit."""
        rules = {c: self._config.class_rules(c) for c in PriorityClass}
        wanted = sum(max(rule.reserved_floor, ceil(rule.reserved_per_slot * pool.capacity)) for rule in rules.values())
        if wanted >= pool.capacity:
            return 0
        return sum(max(0, rules[c].reserved_floor - pool.in_flight[c]) for c in PriorityClass if c > priority_class)

    def _num_held_by(self, tenant: str) -> int:
        return sum(request.hold is not None and request.tenant == tenant for request in self._requests.values())

    def _on_queue(self, request: Booked, decision: Line) -> Iterator[str]:
        if request.hold is not None:  # Its backend has failed, and took its slot along.
            self._free(request)
        request.waits, request.awaits_victim = True, decision["reason"] == "victim_leaving"
        if decision["subject"] == self._newcomer and not request.awaits_victim and self._config.mode == "priority":
            yield from self._check_queues(request)

    def _check_queues(self, request: Booked) -> Iterator[str]:
        waiting = [each for each in self._requests.values() if each.waits]
        size = self._config.class_rules(request.asked_class).queue_size
        queue = [each for each in waiting if not each.awaits_victim and _queue_of(each) == _queue_of(request)]
        if len(queue) > size:
            yield f"{request.mark} waits, and {len(queue)} requests of its class for {size} places"
        policy = self._config.tenant_policies.get(request.tenant)
        most = None if policy is None else policy.max_queued
        if most is not None and (num := sum(each.tenant == request.tenant for each in waiting)) > most:
            yield f"{request.mark} waits, and {num} requests of {request.tenant} for {most} places"

    def _on_left(self, request: Booked, decision: Line) -> Iterator[str]:
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


def _highest_class(config: AdmissionConfig, tenant: str) -> PriorityClass:
    policy = config.tenant_policies.get(tenant)
    told = None if policy is None else policy.max_class
    return PriorityClass[(told or config.default_max_class).upper()]


def _promotions(config: AdmissionConfig) -> tuple[float, float]:
    """Return how many promotions may follow each other, and their share of the admissions from queues."""
    return config.promotion_burst, config.effective_promotion_share


def _queue_of(request: Booked) -> tuple[str, PriorityClass]:
    return request.pool, request.asked_class


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
