"""Faults that are planted in the gateway, each found by the world: what it holds against a gateway is no ornament."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from maitred.admission import Action, AdmissionConfig
from maitred.admission.terms.tenants import TenantAccount
from maitred.core.decisions import DecisionLog
from maitred.core.request import PriorityClass
from maitred.files.line_file import LineFile
from maitred.gateway import proxy
from maitred.gateway.bodies.body_budget import BodyLease
from maitred.gateway.forwarding.retries import RetryPolicy
from maitred.gateway.observe.request_ids import RequestIds
from maitred.gateway.observe.request_observer import RequestObserver
from maitred.scheduler.drivers.admission import RealTimeAdmission, SlotLease
from maitred.scheduler.drivers.deadline_timer import DeadlineTimer
from maitred.testing.world.behaviours import ClientPlan
from maitred.testing.world.scenario import Scenario
from maitred.testing.world.simulation import Simulation
from maitred.wire.client import UpstreamClient
from maitred.wire.protocol import ServerConnection
from maitred.wire.response import UpstreamResponse

MAX_EVENTS = 100_000
Patch = Callable[[pytest.MonkeyPatch], None]
pytestmark = pytest.mark.skipif(not str(proxy.__file__).endswith(".py"), reason="compiled classes cannot be patched")


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


def _client_is_not_closed(close: Any) -> Any:
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


def _clients(*groups: tuple[int, ClientPlan]) -> tuple[ClientPlan, ...]:
    return tuple(plan for count, plan in groups for _ in range(count))


CONTENTION = Scenario(
    seed=1,
    num_engines=1,
    engine_limits=(4,),
    slots_per_backend=2,
    clients=_clients(
        (4, ClientPlan(kind="polite", num_requests=6, priority="bulk", max_tokens=400, think_secs=0.1)),
        (2, ClientPlan(kind="stream", num_requests=6, priority="bulk", max_tokens=400, think_secs=0.1)),
        (3, ClientPlan(kind="polite", num_requests=10, priority="interactive", max_tokens=20, think_secs=0.5)),
        (1, ClientPlan(kind="stream", num_requests=10, priority="interactive", max_tokens=20, think_secs=0.5)),
    ),
)
"""Chats that take the slots of bulk."""
ONE_STREAM = msgspec.structs.replace(CONTENTION, clients=CONTENTION.clients[-1:])
CRASHES = msgspec.structs.replace(
    CONTENTION, faults=("crash", "die at byte", "hang", "reset"), num_engines=2, engine_limits=(4, 4)
)
FAILURES = Scenario(
    seed=2,
    engine_limits=(8, 8),
    slots_per_backend=8,
    faults=("fail",),
    retries_per_sec=0.1,
    retry_share=0.0,
    clients=_clients((10, ClientPlan(kind="polite", num_requests=40, max_tokens=20, think_secs=1.0))),
)
"""Engines that answer 500, and hardly a retry in the budget."""
FAILURES_OF_ONE = msgspec.structs.replace(FAILURES, num_engines=1, engine_limits=(8,), retries_per_sec=10.0)
RELOADS = Scenario(
    seed=1,
    num_engines=1,
    engine_limits=(2,),
    slots_per_backend=1,
    faults=("reload",),
    fault_secs=90.0,
    clients=tuple(
        ClientPlan(kind="polite", num_requests=30, priority=name, max_tokens=400, think_secs=secs)
        for name, secs in (("default", 0.3), ("bulk", 0.3), ("interactive", 3.0))
    ),
)
"""Long waits, and timeouts that change meanwhile."""
LIMITS = Scenario(
    seed=2,
    num_engines=1,
    engine_limits=(4,),
    slots_per_backend=4,
    faults=("reload",),
    clients=_clients(
        (4, ClientPlan(kind="polite", num_requests=20, priority="interactive", max_tokens=200, think_secs=0.5)),
        (3, ClientPlan(kind="polite", num_requests=20, tenant="beta", max_tokens=200, think_secs=0.5)),
    ),
)
"""Limits of tenants that come and go."""
KILLS = Scenario(
    seed=1,
    num_engines=1,
    engine_limits=(8,),
    slots_per_backend=8,
    faults=("kill",),
    fault_secs=90.0,
    clients=_clients((4, ClientPlan(kind="polite", num_requests=40, max_tokens=20, think_secs=2.0))),
)
"""Restarts on the disk that a kill has left."""
MUTANTS: dict[str, tuple[Scenario, Patch]] = {
    "slot stays after a failure": (CRASHES, _wrap(RealTimeAdmission, "release", _slot_stays_after_a_failure)),
    "lease is leaked": (CONTENTION, _wrap(BodyLease, "release", _lease_is_leaked)),
    "head is sent twice": (CONTENTION, _wrap(ServerConnection, "start_response", _head_is_sent_twice)),
    "broken answer ends well": (CRASHES, _wrap(UpstreamResponse, "on_error", _broken_answer_ends_well)),
    "client is not closed": (CONTENTION, _wrap(UpstreamClient, "close", _client_is_not_closed)),
    "input is not logged": (CONTENTION, _wrap(DecisionLog, "log_input", _input_is_not_logged)),
    "ids are mixed up": (CONTENTION, _wrap(RequestIds, "next", _ids_are_mixed_up)),
    "end is told twice": (CONTENTION, _wrap(RequestObserver, "end", _end_is_told_twice)),
    "last piece is lost": (ONE_STREAM, _wrap(ServerConnection, "send_piece", _last_piece_is_lost)),
    "first byte is not told": (CONTENTION, _wrap(RealTimeAdmission, "confirm_first_byte", _first_byte_is_not_told)),
    "victim goes on": (CONTENTION, _wrap(SlotLease, "apply_decision", _victim_is_not_stopped)),
    "victim's answer is delivered": (
        CONTENTION,
        _both(
            _wrap(SlotLease, "apply_decision", _victim_is_not_stopped),
            _wrap(RealTimeAdmission, "confirm_first_byte", _victim_may_answer),
        ),
    ),
    "retries without end": (FAILURES_OF_ONE, _wrap(RetryPolicy, "allows_retry", _always)),
    "budget of retries is ignored": (FAILURES, _wrap(RetryPolicy, "is_within_budget", _always)),
    "timer is not brought forward by a reload": (RELOADS, _wrap(DeadlineTimer, "set_to", _timer_is_not_brought_forward)),
    "timer is set once": (RELOADS, _wrap(DeadlineTimer, "_ring", _timer_is_set_once)),
    "tenant has more than its limit": (LIMITS, _wrap(TenantAccount, "has_room", _always)),
    "cap of a class is ignored": (LIMITS, _wrap(AdmissionConfig, "class_cap", _cap_is_ignored)),
    "half a line stays": (KILLS, _wrap(LineFile, "_cut_off_half_line", _half_a_line_stays)),
}


def _violations(scenario: Scenario, folder: Path) -> tuple[list[str], int]:
    """Play a scenario, and return what does not hold, and how many events that took."""
    simulation = Simulation(scenario, folder)
    try:
        return simulation.run().violations, simulation.stage.loop.num_events
    except Exception as error:
        return [f"{type(error).__name__}: {error}"], simulation.stage.loop.num_events


@pytest.mark.parametrize("scenario", [CONTENTION, CRASHES, FAILURES, RELOADS, LIMITS, KILLS])
def test_nothing_is_found_where_nothing_is_planted(scenario: Scenario, tmp_path: Path) -> None:
    assert _violations(scenario, tmp_path)[0] == []


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scenario, plant = MUTANTS[name]
    plant(monkeypatch)
    num_events, seed = 0, scenario.seed
    while num_events < MAX_EVENTS:
        folder = tmp_path / str(seed)
        folder.mkdir()
        violations, count = _violations(msgspec.structs.replace(scenario, seed=seed), folder)
        if violations:
            return
        num_events, seed = num_events + count, seed + 1
    pytest.fail(f"not found within {MAX_EVENTS:,} events")
