"""Faults that can be planted in the gateway, for the test that the world finds each (`test_world_mutants`).

`python tests/testing/world_mutants.py` says for each which seeds of the swarm, from 1 on, find it, and after how many events.
`FOUND_BY` has a seed for each that is cheap.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from multiprocessing import get_context
from typing import Any, Final

import pytest

from maitred.admission import Action, AdmissionConfig
from maitred.admission.classes.priority import AdmissionPriority
from maitred.admission.terms.tenants import TenantAccount
from maitred.core.decisions import DecisionLog
from maitred.core.request import PriorityClass
from maitred.files.line_file import LineFile
from maitred.gateway.bodies.body_budget import BodyLease
from maitred.gateway.forwarding.retries import RetryPolicy
from maitred.gateway.observe.request_ids import RequestIds
from maitred.gateway.observe.request_observer import RequestObserver
from maitred.scheduler.drivers.admission import RealTimeAdmission, SlotLease
from maitred.scheduler.drivers.deadline_timer import DeadlineTimer
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


def _half_a_line_stays(cut: Any) -> Any:
    return lambda self: None


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
    "half a line stays": _wrap(LineFile, "_cut_off_half_line", _half_a_line_stays),
}


FOUND_BY: Final = {
    "slot stays after a failure": 7,
    "lease is leaked": 14,
    "head is sent twice": 16,
    "broken answer ends well": 14,
    "client is not closed": 14,
    "input is not logged": 14,
    "ids are mixed up": 14,
    "end is told twice": 14,
    "last piece is lost": 14,
    "first byte is not told": 8,
    "victim goes on": 7,
    "victim's answer is delivered": 7,
    "retries without end": 8,
    "budget of retries is ignored": 13,
    "timer is not brought forward by a reload": 7,
    "timer is set once": 7,
    "tenant has more than its limit": 3,
    "cap of a class is ignored": 7,
    "nobody is promoted": 7,
    "half a line stays": 11,
}
"""A seed of the swarm that finds each, in few events."""


def search(name: str) -> tuple[str, list[tuple[int, int, str]], int]:
    """Play the swarm from seed 1 on with a fault in the gateway, for `MAX_EVENTS` events. Return the seeds that find it, each
    with its events and what is violated; and how many seeds were played."""
    logging.disable(logging.CRITICAL)
    found, num_events, seed = list[tuple[int, int, str]](), 0, 0
    with pytest.MonkeyPatch.context() as patches:
        MUTANTS[name](patches)
        while num_events < MAX_EVENTS:
            seed += 1
            outcome = play(draw_scenario(seed))
            num_events += outcome.num_events
            if outcome.violations:
                found.append((seed, outcome.num_events, outcome.violations[0]))
    return name, found, seed


def main() -> int:
    """Search for all, and return 1 if one is not found."""
    names = sys.argv[1:] or list(MUTANTS)
    is_missed = False
    with get_context("fork").Pool(2) as pool:
        for name, found, num_seeds in pool.imap(search, names):
            is_missed |= not found
            seeds = ", ".join(f"{seed} ({count:,})" for seed, count, _ in found)
            sys.stdout.write(f"{name}: {seeds or 'not found'} of {num_seeds} seeds\n")
            for _, _, violation in found[:1]:
                sys.stdout.write(f"    {violation[:200]}\n")
            sys.stdout.flush()
    return int(is_missed)


if __name__ == "__main__":
    sys.exit(main())
