"""What one event costs the admission core, and that nothing grows with the number of requests that wait or are in flight.

    python bench/admission.py [--rounds 7] [--only preemption]

Each case holds a core in a steady state with n requests waiting (in four classes, unless it says otherwise) and n in flight,
n = 100, 1,000 and 10,000, and measures one kind of event there, with the calls that a driver makes around it. Rounds are
interleaved: each runs every case at every size, beside a calibration loop (plain Python, no work of ours). CPU time, medians
over the rounds; the collector is set as `maitred serve` sets it.
"""

from __future__ import annotations

import argparse
import gc
import statistics
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import count, cycle
from random import Random
from time import process_time
from typing import Any, TypeAlias

import msgspec

from maitred.admission import Action, Admission, AdmissionConfig, Reason, ReleaseReason, Ticket, TicketState
from maitred.core.decisions import Decision
from maitred.core.request import PriorityClass, RequestId
from maitred.core.units import MILLISECOND, SECOND, Micros
from measuring import CALIBRATION_LOOPS, calibrate

SIZES = (100, 1_000, 10_000)
EVENTS_PER_ROUND = 2_000
AGE = 3_600 * SECOND
"""The queue timeout of all classes, unless a case says otherwise."""
POOL = "model"

Steps: TypeAlias = Generator[int, None, None]
"""Yields how many events are about to be measured; the next step makes them and yields 0; the one after it tidies up."""
Case: TypeAlias = Callable[[int], Steps]


def config(**keys: Any) -> AdmissionConfig:
    """Return a configuration under which all requests may wait, and none reserves or preempts, unless `keys` say so."""
    patient = {"queue_size": 1_000_000, "queue_timeout_secs": AGE / SECOND, "starvation_threshold_secs": AGE / SECOND}
    plain = {**patient, "reserved_per_slot": 0.0, "can_preempt": False}
    said = keys.pop("classes", {})
    classes = {c.label: {**plain, **said.get(c.label, {}), **said.get("all", {})} for c in PriorityClass}
    return msgspec.convert({"mode": "priority", "on_preempt": "reject", "classes": classes, **keys}, AdmissionConfig)


class LoadedCore:
    """A core with one pool, and the requests in it: ids in the order in which they came."""

    def __init__(self, core_config: AdmissionConfig, capacity: int) -> None:
        self.core = Admission(core_config, {POOL: capacity})
        self.now: Micros = SECOND
        self.waiting: dict[RequestId, Ticket] = {}
        self.held: deque[RequestId] = deque()
        self._ids = count()

    def ticket(self, priority_class: PriorityClass, tenant: str = "", cost: int = 1) -> Ticket:
        return Ticket(next(self._ids), POOL, priority_class, tenant, cost)

    def later(self, span: Micros = 10) -> Micros:
        self.now += span
        return self.now

    def enter(self, ticket: Ticket) -> None:
        self.waiting[ticket.id] = ticket
        self.follow(self.core.submit(ticket, self.later()))

    def follow(self, decisions: Sequence[Decision]) -> list[Ticket]:
        """Note what was decided, and return the requests that have left the queues by it."""
        left = []
        for decision in decisions:
            if decision.action is Action.ADMIT:
                self.held.append(decision.subject)
            if decision.action is not Action.QUEUE and decision.subject in self.waiting:
                left.append(self.waiting.pop(decision.subject))
        return left

    def fill(self, n: int, tickets: Iterator[Ticket]) -> None:
        """Submit requests until `n` wait."""
        for _ in range(4 * n):  # each fills a slot or waits
            if len(self.waiting) >= n:
                return
            self.enter(next(tickets))
        raise AssertionError("there are more slots than there should be")

    def replace(self, left: Iterable[Ticket]) -> None:
        """Submit requests like those that have left."""
        for ticket in left:
            self.enter(self.ticket(ticket.priority_class, ticket.tenant, ticket.cost))


def batch(n: int) -> int:
    """Return the number of events to measure in one go: few enough to leave the state as it is."""
    return max(20, min(500, n // 5))


def mixed(loaded: LoadedCore, **about: Any) -> Iterator[Ticket]:
    for priority_class in cycle(PriorityClass):
        yield loaded.ticket(priority_class, **about)


def free_slot(n: int) -> Steps:
    """submit, first byte, release, beside n in flight; no request waits"""
    loaded = LoadedCore(config(), n + 1)
    core = loaded.core
    for _ in range(n):
        loaded.enter(loaded.ticket(PriorityClass.DEFAULT))
    while True:
        tickets = [loaded.ticket(PriorityClass.DEFAULT) for _ in range(batch(n))]
        yield len(tickets)
        for ticket in tickets:
            core.submit(ticket, loaded.now)
            core.confirm_first_byte(ticket.id, loaded.now)
            core.release(ticket.id, ReleaseReason.DRAINED, loaded.now)
        yield 0


def busy(n: int, tickets: Callable[[LoadedCore], Iterator[Ticket]], **keys: Any) -> tuple[LoadedCore, Iterator[Ticket]]:
    """Return a core with n requests in flight and n waiting."""
    loaded = LoadedCore(
        config(legacy={"max_concurrent_requests": n, "queue_size": 1_000_000, "queue_timeout_secs": 3600}, **keys), n
    )
    coming = tickets(loaded)
    loaded.fill(n, coming)
    return loaded, coming


def queueing(tickets: Callable[[LoadedCore], Iterator[Ticket]], **keys: Any) -> Case:
    def case(n: int) -> Steps:
        loaded, coming = busy(n, tickets, **keys)
        core = loaded.core
        while True:
            new = [next(coming) for _ in range(batch(n))]
            yield len(new)
            for ticket in new:
                core.submit(ticket, loaded.later())
                core.next_deadline()
            yield 0
            for ticket in new:
                core.release(ticket.id, ReleaseReason.CLIENT_GONE, loaded.now)

    return case


def dispatching(tickets: Callable[[LoadedCore], Iterator[Ticket]], reason: Reason = Reason.SLOT_FREE, **keys: Any) -> Case:
    def case(n: int) -> Steps:
        loaded, _ = busy(n, tickets, **keys)
        core = loaded.core
        while True:
            leaving = [loaded.held.popleft() for _ in range(batch(n))]
            decided: list[Decision] = []
            yield len(leaving)
            for request_id in leaving:
                decided += core.release(request_id, ReleaseReason.DRAINED, loaded.later())
                core.next_deadline()
            yield 0
            assert all(decision.reason is reason for decision in decided)
            left = loaded.follow(decided)
            assert left
            loaded.replace(left)

    return case


def cancelling(n: int) -> Steps:
    """a waiter leaves, wherever it stands"""
    loaded, _ = busy(n, mixed)
    random = Random(1)
    while True:
        leaving = random.sample(sorted(loaded.waiting), batch(n))
        yield len(leaving)
        for request_id in leaving:
            loaded.core.release(request_id, ReleaseReason.CLIENT_GONE, loaded.now)
        yield 0
        loaded.replace([loaded.waiting.pop(request_id) for request_id in leaving])


def timing_out(n: int) -> Steps:
    """the timer fires, and the timeout of a waiting request has passed"""
    patience = 100 * SECOND
    loaded, _ = busy(n, mixed, classes={"all": {"queue_timeout_secs": patience / SECOND}})
    core = loaded.core
    while True:
        decided: list[Decision] = []
        yield batch(n)
        for _ in range(batch(n)):
            due = core.next_deadline()
            assert due is not None
            decided += core.advance(due)
        yield 0
        loaded.now = decided[-1].at
        assert all(decision.reason is Reason.QUEUE_TIMEOUT for decision in decided)
        loaded.replace(loaded.follow(decided))


def preempting(n: int) -> Steps:
    """submit, and the release of the victim; n bulk wait, 2 n are in flight, every second past its first byte"""
    loaded = LoadedCore(config(classes={"system": {"can_preempt": True}}), 2 * n)
    core = loaded.core
    for number in range(2 * n):
        loaded.enter(loaded.ticket(PriorityClass.BULK))
        if number % 2:
            core.confirm_first_byte(loaded.held[-1], loaded.now)
    while True:
        loaded.fill(n, (loaded.ticket(PriorityClass.BULK) for _ in count()))
        urgent = [loaded.ticket(PriorityClass.SYSTEM) for _ in range(batch(n))]
        yield len(urgent)
        for ticket in urgent:
            decisions = core.submit(ticket, loaded.now)
            core.release(decisions[0].subject, ReleaseReason.SLOT_PREEMPTED, loaded.now)
        yield 0
        assert all(ticket.state is TicketState.ADMITTED for ticket in urgent)
        for ticket in urgent:
            loaded.follow(core.release(ticket.id, ReleaseReason.DRAINED, loaded.later()))


def no_victim(n: int) -> Steps:
    """a preemptor finds that all n in flight have had their first byte, and queues"""
    loaded = LoadedCore(config(classes={"system": {"can_preempt": True}}), n)
    core = loaded.core
    loaded.fill(n, (loaded.ticket(PriorityClass.BULK) for _ in count()))
    for request_id in loaded.held:
        core.confirm_first_byte(request_id, loaded.now)
    while True:
        urgent = [loaded.ticket(PriorityClass.SYSTEM) for _ in range(batch(n))]
        yield len(urgent)
        for ticket in urgent:
            core.submit(ticket, loaded.now)
            core.next_deadline()
        yield 0
        for ticket in urgent:
            core.release(ticket.id, ReleaseReason.CLIENT_GONE, loaded.now)


TENANTS = [f"header:tenant-{number}" for number in range(1_000)]


def of_tenants(loaded: LoadedCore) -> Iterator[Ticket]:
    random = Random(2)
    for priority_class in cycle(PriorityClass):
        yield loaded.ticket(priority_class, random.choice(TENANTS), random.randrange(100, 8_000))


def of_lengths(loaded: LoadedCore) -> Iterator[Ticket]:
    random = Random(2)
    for priority_class in cycle(PriorityClass):
        yield loaded.ticket(priority_class, cost=random.randrange(100, 2 * 2_048))


WEIGHTS = {tenant: {"weight": 1 + number % 7} for number, tenant in enumerate(TENANTS)}
LIMITS = {tenant: {"max_in_flight": 1, "max_queued": 1_000} for tenant in TENANTS}
STARVED = {"all": {"starvation_threshold_secs": 1e-6}}

CASES: dict[str, tuple[Case, float]] = {
    "free slot: submit, first byte, release": (free_slot, 5),
    "submit, queued": (queueing(mixed), 10),
    "release, next is admitted": (dispatching(mixed), 10),
    "cancel from the middle": (cancelling, 10),
    "timeout": (timing_out, 10),
    "preemption: submit, release of the victim": (preempting, 20),
    "preemptor finds no victim, queued": (no_victim, 10),
    "release, next is promoted": (dispatching(mixed, Reason.STARVED, classes=STARVED, promotion_share=1.0), 10),
    "1,000 weighted tenants: submit, queued": (queueing(of_tenants, tenant_policies=WEIGHTS), 10),
    "1,000 weighted tenants: release, admit": (dispatching(of_tenants, tenant_policies=WEIGHTS), 10),
    "1,000 limited tenants: submit, queued": (queueing(of_tenants, tenant_policies=LIMITS), 10),
    "1,000 limited tenants: release, admit": (dispatching(of_tenants, tenant_policies=LIMITS), 10),
    "tokens: submit, queued": (queueing(of_lengths, slot_cost="tokens"), 10),
    "tokens: release, next are admitted": (dispatching(of_lengths, slot_cost="tokens"), 10),
    "legacy: submit, queued": (queueing(mixed, mode="legacy"), 10),
    "legacy: release, next is admitted": (dispatching(mixed, mode="legacy"), 10),
}
"""By name: the case, and how many µs one of its events may take at most (a preemption is two events)."""


def measure(steps: Steps) -> float:
    """Return the CPU time per event in µs, over one round of them."""
    spent = events = 0.0
    while events < EVENTS_PER_ROUND:
        events += next(steps)
        began = process_time()
        next(steps)
        spent += process_time() - began
    return spent / events * 1e6


def tune_garbage_collector() -> None:
    """Set the collector as `maitred serve` does, once everything that stays is there."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def reconfiguration(n: int) -> float:
    """Return the CPU time in ms to take another configuration with n in flight and n waiting. All of them move, in O(n)."""
    loaded, _ = busy(n, mixed)
    began = process_time()
    loaded.core.reconfigure(config(promotion_burst=3), loaded.later(MILLISECOND))
    return (process_time() - began) * 1e3


def main(rounds: int, only: str) -> None:
    running = {name: [case(n) for n in SIZES] for name, (case, _) in CASES.items() if only in name}
    for steps in running.values():
        for each in steps:
            measure(each)  # warm up
    tune_garbage_collector()
    loops: list[float] = []
    spent: dict[str, list[list[float]]] = {name: [[] for _ in SIZES] for name in running}
    for _ in range(rounds):
        loops.append(calibrate())
        for name, steps in running.items():
            for figures, each in zip(spent[name], steps, strict=True):
                figures.append(measure(each))
    report(spent, statistics.median(loops))
    if not only:
        print(f"\nreconfigure, {SIZES[-1]:,} waiting and as many in flight: {reconfiguration(SIZES[-1]):.0f} ms, once")


def report(spent: dict[str, list[list[float]]], loop: float) -> None:
    turn = loop / CALIBRATION_LOOPS * 1e6
    print(f"calibration loop ({CALIBRATION_LOOPS:,} turns): {loop * 1e3:.1f} ms CPU")
    print(f"{'CPU µs per event, n waiting and in flight':<44}" + "".join(f"{f'n = {n:,}':>12}" for n in SIZES), end="")
    print(f"{'growth':>8}{'aim':>5}{'turns':>7}")
    for name, by_size in spent.items():
        medians = [statistics.median(figures) for figures in by_size]
        print(f"{name:<44}" + "".join(f"{value:12.2f}" for value in medians), end="")
        print(f"{medians[-1] / medians[0]:8.2f}{CASES[name][1]:5.0f}{medians[-1] / turn:7.0f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="cases with this in their name")
    options = parser.parse_args()
    main(options.rounds, options.only)
