"""Faults that can be planted in the gateway, for the test that the world finds each (`test_world_mutants`).

`python tests/testing/world_mutants.py` prints a table: after how many events of the swarm, from seed 1 on, each is found, and
which seeds find it in how many events of their own.
`FOUND_BY` has a seed for each that is cheap.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from math import inf
from multiprocessing import get_context
from typing import Any, Final, NamedTuple

import pytest

from maitred.admission import Action, AdmissionConfig
from maitred.admission.classes.priority import AdmissionPriority
from maitred.admission.flow.bands import PriorityBand, PriorityBands
from maitred.admission.terms.enums import Reason
from maitred.admission.terms.rules import LANES
from maitred.admission.terms.tenants import TenantAccount
from maitred.admission.waiting.queues import LaneQueue
from maitred.core.decisions import DecisionLog
from maitred.core.request import PriorityClass
from maitred.files.line_file import LineFile
from maitred.gateway.bodies.body_budget import BodyLease
from maitred.gateway.forwarding.retries import RetryPolicy
from maitred.gateway.observe.request_ids import RequestIds
from maitred.gateway.observe.request_observer import RequestObserver
from maitred.programs.core import Programs
from maitred.programs.departures import Departures
from maitred.programs.enums import ProgramAction
from maitred.programs.model_pool import ModelPool
from maitred.programs.passes import Passes
from maitred.programs.places import ProgramPlaces
from maitred.scheduler.drivers.admission import RealTimeAdmission, SlotLease
from maitred.scheduler.drivers.deadline_timer import DeadlineTimer
from maitred.scheduler.programs.memories import ProgramMemories
from maitred.testing.world.__main__ import play
from maitred.testing.world.swarm import draw_scenario
from maitred.wire.client import UpstreamClient
from maitred.wire.protocol import ServerConnection
from maitred.wire.response import UpstreamResponse

MAX_EVENTS: Final = 100_000
Patch = Callable[[pytest.MonkeyPatch], None]


def _wrap(owner: type, name: str, wrapper: Callable[[Any], Any]) -> Patch:
    """Return what replaces a method by what `wrapper` makes of it."""
    return lambda patches: patches.setattr(owner, name, wrapper(getattr(owner, name)))


def _slot_stays_after_a_failure(release: Any) -> Any:
    def mutant(self: Any, request_id: int, end: Any, *further: Any) -> None:
        if end.value != "failed":
            release(self, request_id, end, *further)

    return mutant


def _lease_is_leaked(release: Any) -> Any:
    return lambda self: None if self.held_bytes > 700 else release(self)


def _head_is_sent_twice(start: Any) -> Any:
    def mutant(self: Any, status: int, headers: Any, piece: bytes, more: bool) -> Any:
        if status == 200 and more:
            self._write(b"HTTP/1.1 200 OK\r\n\r\n"[:17] + b"content-length: 0\r\n\r\n")
        return start(self, status, headers, piece, more)

    return mutant


def _broken_answer_ends_well(on_error: Any) -> Any:
    def mutant(self: Any, error: Any) -> None:
        if type(error).__name__ == "Truncated":
            self.on_body(b"", False)
        else:
            on_error(self, error)

    return mutant


def _does_nothing(method: Any) -> Any:
    async def mutant(self: Any) -> None:
        await asyncio.sleep(0)

    return mutant


def _input_is_not_logged(log_input: Any) -> Any:
    def mutant(self: Any, room: str, given: Any, raised: str | None = None) -> None:
        if type(given).__name__ != "Release" or given.id % 5:
            log_input(self, room, given, raised)

    return mutant


def _ids_are_mixed_up(next_id: Any) -> Any:
    def mutant(self: Any, given: bytes | None) -> Any:
        number, request_id = next_id(self, given)
        return number, request_id if number % 7 else b"another"

    return mutant


def _end_is_told_twice(end: Any) -> Any:
    def mutant(self: Any, record: Any, exchange: Any) -> None:
        end(self, record, exchange)
        if exchange.status == 200:
            end(self, record, exchange)

    return mutant


def _first_byte_is_not_told(confirm: Any) -> Any:
    return lambda self, request_id, now: True


def _victim_is_not_stopped(apply: Any) -> Any:
    def mutant(self: Any, decision: Any) -> None:
        if decision.action is not Action.PREEMPT_SLOT:
            apply(self, decision)

    return mutant


def _victim_may_answer(confirm: Any) -> Any:
    def mutant(self: Any, request_id: int, now: int) -> bool:
        confirm(self, request_id, now)
        return True

    return mutant


def _always(method: Any) -> Any:
    return lambda self, *given: True


def _never(method: Any) -> Any:
    return lambda self, *given: None


def _timer_is_not_brought_forward(set_to: Any) -> Any:
    def mutant(self: Any, deadline: int | None) -> None:
        if self._timer is None:
            set_to(self, deadline)

    return mutant


def _timer_is_set_once(ring: Any) -> Any:
    return lambda self: self._on_due()


def _cap_is_ignored(cap: Any) -> Any:
    return lambda self, tenant: PriorityClass.SYSTEM


def _lower_class_goes_first(next_waiter: Any) -> Any:
    def mutant(self: Any) -> Any:
        heads = (self._queues.head(lane) for lane in LANES)
        head = next((head for head in heads if head is not None), None)
        return head if head is not None and self._slots.fits(head.lane, self.set_slot_units(head)) else None

    return mutant


def _newcomer_passes_the_queue(blocking_reason: Any) -> Any:
    def mutant(self: Any, ticket: Any, now: Any) -> Any:
        reason = blocking_reason(self, ticket, now)
        fits = reason is Reason.BEHIND_QUEUE and self._slots.fits(ticket.lane, ticket.slot_units)
        return None if fits else reason

    return mutant


def _some_of_the_tokens(set_slot_units: Any) -> Any:
    def mutant(self: Any, ticket: Any) -> int:
        units = set_slot_units(self, ticket)
        if not self._by_request:
            ticket.slot_units = units = max(1, units // 2)
        return int(units)

    return mutant


def _idle_tenant_saves_up(queue_of: Any) -> Any:
    def mutant(self: Any, ticket: Any) -> Any:
        is_new = self._queue_name(ticket) not in self._tenant_queues
        queue = queue_of(self, ticket)
        if is_new:
            queue.virtual_time = 0
        return queue

    return mutant


def _turn_stays(take: Any) -> Any:
    def mutant(self: Any, ticket: Any) -> None:
        last, _ = self.last_served, take(self, ticket)
        self.last_served = last

    return mutant


def _half_a_line_stays(cut: Any) -> Any:
    return lambda self: None


def _oldest_is_passed_over(serve: Any) -> Any:
    def mutant(self: Any, now: int) -> Any:
        yield from ()

    return mutant


def _nothing_is_kept(serve: Any) -> Any:
    def mutant(self: Any, now: int) -> Any:
        yield from serve(self, now)

    return mutant


def _newcomer_goes_first(backend_for: Any) -> Any:
    return lambda self, program, pool, needed, left: pool.place_new(program, needed)


def _next_engine(target: Any) -> Any:
    def mutant(self: Any, index: int) -> Any:
        found, seats = target(self, index), self._fleet.seats
        return found._replace(backend=seats[(found.backend.index + 1) % len(seats)])

    return mutant


def _pause_is_not_told(decide: Any) -> Any:
    def mutant(self: Any, now: int, program: Any, action: Any, *further: Any) -> None:
        if action is not ProgramAction.PAUSE:
            decide(self, now, program, action, *further)

    return mutant


def _both(*patches: Patch) -> Patch:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        for each in patches:
            each(monkeypatch)

    return patch


def _last_piece_is_lost(send: Any) -> Any:
    def mutant(self: Any, piece: bytes, more: bool) -> Any:
        return send(self, piece if more else piece[:-20], more)

    return mutant


MUTANTS: Final[dict[str, Patch]] = {
    "slot stays after a failure": _wrap(RealTimeAdmission, "release", _slot_stays_after_a_failure),
    "lease is leaked": _wrap(BodyLease, "release", _lease_is_leaked),
    "head is sent twice": _wrap(ServerConnection, "start_response", _head_is_sent_twice),
    "broken answer ends well": _wrap(UpstreamResponse, "on_error", _broken_answer_ends_well),
    "client is not closed": _wrap(UpstreamClient, "close", _does_nothing),
    "input is not logged": _wrap(DecisionLog, "log_input", _input_is_not_logged),
    "ids are mixed up": _wrap(RequestIds, "next", _ids_are_mixed_up),
    "end is told twice": _wrap(RequestObserver, "end", _end_is_told_twice),
    "last piece is lost": _wrap(ServerConnection, "send_piece", _last_piece_is_lost),
    "first byte is not told": _wrap(RealTimeAdmission, "confirm_first_byte", _first_byte_is_not_told),
    "victim goes on": _wrap(SlotLease, "apply_decision", _victim_is_not_stopped),
    "victim's answer is delivered": _both(
        _wrap(SlotLease, "apply_decision", _victim_is_not_stopped),
        _wrap(RealTimeAdmission, "confirm_first_byte", _victim_may_answer),
    ),
    "retries without end": _wrap(RetryPolicy, "allows_retry", _always),
    "budget of retries is ignored": _wrap(RetryPolicy, "is_within_budget", _always),
    "timer is not brought forward by a reload": _wrap(DeadlineTimer, "set_to", _timer_is_not_brought_forward),
    "timer is set once": _wrap(DeadlineTimer, "_ring", _timer_is_set_once),
    "tenant has more than its limit": _wrap(TenantAccount, "has_room", _always),
    "cap of a class is ignored": _wrap(AdmissionConfig, "class_cap", _cap_is_ignored),
    "nobody is promoted": _wrap(AdmissionPriority, "next_promotion", _never),
    "a lower class goes first": _wrap(AdmissionPriority, "next_waiter", _lower_class_goes_first),
    "a newcomer passes the queue": _wrap(AdmissionPriority, "blocking_reason", _newcomer_passes_the_queue),
    "the youngest goes first": _wrap(LaneQueue, "push", lambda push: lambda self, ticket: self.push_front(ticket)),
    "weights are ignored": _wrap(LaneQueue, "_virtual_cost", lambda cost: lambda self, ticket, tokens: tokens * 10**12),
    "a tenant saves up while it is idle": _wrap(LaneQueue, "_queue_of", _idle_tenant_saves_up),
    "what a request had is not settled": _wrap(LaneQueue, "settle", lambda settle: lambda self, ticket, tokens: None),
    "a request takes half its tokens": _wrap(AdmissionPriority, "set_slot_units", _some_of_the_tokens),
    "a lower band goes first": _wrap(
        PriorityBands, "_band_heads", lambda heads: lambda self, full: reversed(list(heads(self, full)))
    ),
    "a tenant keeps its turn": _wrap(PriorityBand, "take", _turn_stays),
    "half a line stays": _wrap(LineFile, "_cut_off_half_line", _half_a_line_stays),
    "a paused program is never resumed": _wrap(Passes, "_carry_out", _never),
    "the oldest program is passed over": _wrap(ModelPool, "_serve_oldest", _oldest_is_passed_over),
    "no engine is kept for the oldest program": _wrap(ModelPool, "_serve_oldest", _nothing_is_kept),
    "a wait for memory has no end": _wrap(Departures, "end_wait", _never),
    "a new program passes those that wait": _wrap(Programs, "_backend_for", _newcomer_goes_first),
    "an engine is never full": _wrap(ModelPool, "room", lambda room: lambda self, backend: inf),
    "a program's requests go to the next engine": _wrap(ProgramMemories, "target", _next_engine),
    "a program has two places": _wrap(ProgramPlaces, "decide", _pause_is_not_told),
}


FOUND_BY: Final = {
    "slot stays after a failure": 23,
    "lease is leaked": 14,
    "head is sent twice": 14,
    "broken answer ends well": 23,
    "client is not closed": 14,
    "input is not logged": 14,
    "ids are mixed up": 14,
    "end is told twice": 14,
    "last piece is lost": 14,
    "first byte is not told": 22,
    "victim goes on": 17,
    "victim's answer is delivered": 17,
    "retries without end": 28,
    "budget of retries is ignored": 22,
    "timer is not brought forward by a reload": 22,
    "timer is set once": 22,
    "tenant has more than its limit": 18,
    "cap of a class is ignored": 14,
    "nobody is promoted": 11,
    "a lower class goes first": 6,
    "a newcomer passes the queue": 19,
    "the youngest goes first": 6,
    "weights are ignored": 97,
    "a tenant saves up while it is idle": 97,
    "what a request had is not settled": 7,
    "a request takes half its tokens": 13,
    "a lower band goes first": 60,
    "a tenant keeps its turn": 105,
    "half a line stays": 9,
    "a paused program is never resumed": 21,
    "the oldest program is passed over": 5,
    "no engine is kept for the oldest program": 159,
    "a wait for memory has no end": 11,
    "a new program passes those that wait": 11,
    "an engine is never full": 11,
    "a program's requests go to the next engine": 40,
    "a program has two places": 5,
}
"""A seed of the swarm that finds each, in few events."""


class Found(NamedTuple):
    """A seed that finds a fault."""

    seed: int
    num_events: int
    """Its events."""
    after_events: int
    """Those of all seeds up to it."""
    violation: str


def search(name: str) -> tuple[str, list[Found], int]:
    """Play the swarm from seed 1 on with a fault in the gateway, for `MAX_EVENTS` events. Return which seeds find it, and of
    how many."""
    logging.disable(logging.CRITICAL)
    found, num_events, seed = list[Found](), 0, 0
    with pytest.MonkeyPatch.context() as patches:
        MUTANTS[name](patches)
        while num_events < MAX_EVENTS:
            seed += 1
            outcome = play(draw_scenario(seed), stops_at_violation=True)
            num_events += outcome.num_events
            if outcome.violations:
                found.append(Found(seed, outcome.num_events, num_events, outcome.violations[0]))
    return name, found, seed


def main() -> int:
    """Search for all, and return 1 if one is not found."""
    names = sys.argv[1:] or list(MUTANTS)
    is_missed = False
    with get_context("fork").Pool(2) as pool:
        for name, found, num_seeds in pool.imap(search, names):
            is_missed |= not found
            cheapest = ", ".join(f"{each.seed} ({each.num_events:,})" for each in sorted(found, key=lambda e: e.num_events)[:5])
            first = f"{found[0].after_events:,} (seed {found[0].seed})" if found else "not found"
            sys.stdout.write(f"{name:42} {first:22} {len(found):3} of {num_seeds}  {cheapest}\n")
            if found:
                sys.stdout.write(f"    {found[0].violation[:200]}\n")
            sys.stdout.flush()
    return int(is_missed)


if __name__ == "__main__":
    sys.exit(main())
