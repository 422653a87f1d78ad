"""Whatever requests with several sequences do, slots and accounts come out, and the log replays byte for byte."""

from __future__ import annotations

import random

import msgspec
import pytest

from maitred.admission import Admission, AdmissionConfig, ReleaseReason, Ticket
from maitred.admission.terms.ticket import TicketState
from maitred.core.contracts import FleetLoad
from maitred.core.decisions import DecisionLog
from maitred.core.request import PriorityClass
from maitred.replay import replay

SAID = {"default_max_class": "system", "preemption_budget_ms": 20}
POLICIES = {"auth:a": {"weight": 2, "max_in_flight": 6}, "auth:b": {"max_in_flight": 2, "max_queued": 3}}


def some_config(rng: random.Random) -> AdmissionConfig:
    mode = rng.choice(("priority", "priority", "priority", "flow-control", "legacy"))
    drawn = {"reserve": rng.choice(("fixed", "adaptive")), "on_preempt": rng.choice(("retry", "reject"))}
    policies = POLICIES if rng.random() < 0.8 else {"auth:b": POLICIES["auth:b"]}
    return msgspec.convert({**SAID, **drawn, "mode": mode, "tenant_policies": policies}, AdmissionConfig)


def leave(core: Admission, ticket: Ticket, rng: random.Random, now: int) -> None:
    if ticket.state is TicketState.ADMITTED and rng.random() < 0.4:
        core.confirm_first_byte(ticket.id, now)
        return
    is_victim = ticket.state is TicketState.VICTIM and rng.random() < 0.6
    others = (ReleaseReason.DRAINED, ReleaseReason.CLIENT_GONE, ReleaseReason.FAILED)
    end = ReleaseReason.SLOT_PREEMPTED if is_victim else rng.choice(others)
    core.release(ticket.id, end, now, rng.choice((None, 5, 5_000)))


@pytest.mark.parametrize("seed", range(40))
def test_slots_and_accounts_come_out_and_the_log_replays(seed: int) -> None:
    rng, lines, again = random.Random(seed), list[bytes](), list[bytes]()
    pools = {"m": rng.choice((4, 8, 20)), "n": 3}
    core = Admission(some_config(rng), pools, lambda pool, now: FleetLoad(), DecisionLog(lines.append))
    tickets: list[Ticket] = []
    now = 0
    for _ in range(120):
        now += rng.choice((0, 1_000, 300_000, 4_000_000))
        chance = rng.random()
        if chance < 0.5 or not tickets:
            size, tenant = rng.choice((1, 1, 1, 2, 5, 8, 40)), rng.choice(("auth:a", "auth:b", "x"))
            k = rng.choice(list(PriorityClass))
            tickets.append(Ticket(len(tickets), rng.choice("mmn"), k, tenant, rng.randint(1, 900), sequences=size))
            core.submit(tickets[-1], now)
        elif chance < 0.9:
            leave(core, rng.choice(tickets), rng, now)
        elif chance < 0.93:
            core.resize("m", rng.choice((0, 2, 8, 20)), now)
        elif chance < 0.95:
            core.reconfigure(some_config(rng), now)
        elif chance < 0.97:
            core.leave_backend(rng.choice(tickets).id, now)
        else:
            core.advance(now)
        core.check()
    replay(list(lines), DecisionLog(again.append))
    assert again == lines
