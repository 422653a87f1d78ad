"""Properties that hold in every mode, under every policy, and across a reload: driven by Hypothesis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.admission import EMPTY_LOAD, Action, Admission, AdmissionConfig, ReleaseReason, Ticket, TicketState
from maitred.admission.terms.lead import Lead
from maitred.core.contracts import FleetLoad, InstanceLoad
from maitred.core.decisions import DecisionLog
from maitred.core.request import PriorityClass
from maitred.core.slo_classes import SLO_PRIORITIES
from maitred.core.units import Micros
from maitred.replay import replay

POOLS = ("m", "n")
TENANTS = ("", "auth:a", "auth:b", "auth:c")
SPANS = (0, 1, 400, 1000, 3000, 60_000)
PRIORITIES = tuple(SLO_PRIORITIES.values())

FLOW = {
    "saturation_detector": st.sampled_from(("concurrency", "concurrency", "utilization", "never", None)),
    "max_concurrency": st.integers(1, 2),
    "queue_depth_threshold": st.sampled_from((1.0, 3.0)),
    "usage_limit_threshold": st.sampled_from((1.0, 0.5)),
    "dispatch_order": st.sampled_from(("priority", "fifo", "slo-deadline")),
    "fairness_policy": st.sampled_from(("global-strict", "round-robin")),
    "dispatch": st.sampled_from(("all", "one", None)),
    "max_gateway_queue_depth": st.integers(2, 4),
    "per_band_capacity": st.sampled_from((0, 2)),
    "queue_shedding": st.booleans(),
    "request_ttl_us": st.sampled_from((0, 2000)),
    "in_flight_eviction": st.booleans(),
}
TENANT_POLICIES: tuple[dict[str, Any], ...] = (
    {},
    {"auth:a": {"max_in_flight": 1}, "auth:b": {"max_queued": 1, "weight": 2}},
    {tenant: {"max_in_flight": 1, "weight": 1} for tenant in TENANTS[1:3]},
)
CONFIGS = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(("flow-control", "flow-control", "flow-control", "priority", "legacy", "off")),
        "flavour": st.sampled_from(("maitred", "maitred", "blis")),
        "on_preempt": st.sampled_from(("reject", "retry")),
        "policy": st.sampled_from(("always-admit", "always-admit", "token-bucket", "tier-shed", "gaie-legacy")),
        "token_bucket_capacity": st.just(40.0),
        "tier_shed_threshold": st.just(3),
        "tenant_budgets": st.sampled_from(({}, {"auth:a": 0.3, "auth:b": 0.0})),
        "tenant_policies": st.sampled_from(TENANT_POLICIES),
        "slot_cost": st.sampled_from(("requests", "requests", "tokens")),
        "slot_tokens": st.just(40),
        "slo_priorities": st.sampled_from(({}, {"batch": 2, "urgent": 9})),
        "legacy": st.sampled_from(({}, {"max_concurrent_requests": 2, "queue_size": 2})),
        "flow_control": st.fixed_dictionaries(FLOW),
    }
).map(lambda said: msgspec.convert(said, AdmissionConfig))
VERBS = (*["submit"] * 4, *["release"] * 2, "preempted", "first_byte", "resize", "busy", "reconfigure", "advance")
EVENTS = st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 59), st.sampled_from(SPANS)), min_size=20, max_size=40)


class CoreAndFleet:
    """Two instances behind both models, which show requests as soon as they are in flight, and a driver that obeys."""

    def __init__(self, config: AdmissionConfig, log: DecisionLog) -> None:
        self.core = Admission(config, {"m": 2, "n": 1}, self._look, log)
        self.now: Micros = 0
        self.busy = 0
        self.tickets: list[Ticket] = []
        self.in_flight: set[int] = set()
        self.ended: dict[int, str] = {}

    def act(self, verb: str, n: int, later: AdmissionConfig) -> None:
        match verb:
            case "submit":
                ticket = Ticket(
                    len(self.tickets), POOLS[n % 2], PriorityClass(n % 4), TENANTS[n // 2 % 4],
                    cost=1 + n, prompt_tokens=n, slo_priority=PRIORITIES[n % 5], slo_target=(None, 1000, 9000)[n % 3],
                )  # fmt: skip
                self.tickets.append(ticket)
                load = self.load() if self.core.reads_load else EMPTY_LOAD
                self.obey(self.core.submit(ticket, self.now, load))
            case "release" if n < len(self.tickets):
                self.release(self.tickets[n], ReleaseReason.DRAINED)
            case "preempted":
                for victim in [t for t in self.tickets if t.state is TicketState.VICTIM]:
                    self.release(victim, ReleaseReason.SLOT_PREEMPTED)
            case "first_byte" if n < len(self.tickets):
                self.advance()
                if self.tickets[n].state not in (TicketState.QUEUED, TicketState.AWAITING):
                    self.core.confirm_first_byte(n, self.now)
            case "advance":
                self.advance()
            case "resize":
                self.obey(self.core.resize(POOLS[n % 2], n % 5, self.now, Lead(n % 3, n % 2)))
            case "busy":
                self.busy = n % 4
            case "reconfigure" if n < 20:
                self.obey(self.core.reconfigure(later, self.now))

    def advance(self) -> None:
        self.obey(self.core.advance(self.now))
        due = self.core.next_deadline()
        assert due is None or due > self.now

    def release(self, ticket: Ticket, end: ReleaseReason) -> None:
        self.in_flight.discard(ticket.id)
        if ticket.state is TicketState.VICTIM and end is not ReleaseReason.SLOT_PREEMPTED:
            end = ReleaseReason.DRAINED
        self.obey(self.core.release(ticket.id, end, self.now))
        if ticket.state is TicketState.LEFT:
            self.ended.setdefault(ticket.id, "released")

    def obey(self, decisions: Sequence[Any]) -> None:
        for decision in decisions:
            match decision.action:
                case Action.ADMIT:
                    assert decision.subject not in self.in_flight
                    self.in_flight.add(decision.subject)
                case Action.REJECT:
                    assert decision.subject not in self.ended
                    self.ended[decision.subject] = decision.reason
        self.core.check()

    def load(self) -> FleetLoad:
        spread = [len(self.in_flight) // 2, len(self.in_flight) - len(self.in_flight) // 2]
        return FleetLoad(tuple(InstanceLoad(n, self.busy, n, 0.3 * self.busy) for n in spread))

    def _look(self, pool: str, now: Micros) -> FleetLoad:
        return self.load()


def played(
    config: AdmissionConfig, later: AdmissionConfig, happened: Sequence[tuple[str, int, int]], log: DecisionLog
) -> CoreAndFleet:
    world = CoreAndFleet(config, log)
    for verb, n, span in happened:
        world.now += span
        world.act(verb, n, later)
    return world


@given(CONFIGS, CONFIGS, EVENTS)
@settings(max_examples=30, deadline=None)
def test_the_books_balance_and_a_log_runs_again(
    config: AdmissionConfig, later: AdmissionConfig, happened: Sequence[tuple[str, int, int]]
) -> None:
    first: list[bytes] = []
    second: list[bytes] = []
    world = played(config, later, happened, DecisionLog(first.append))

    replay(first, DecisionLog(second.append))

    assert b"".join(second) == b"".join(first)
    here = [t for t in world.tickets if t.state is not TicketState.LEFT]
    assert len(world.ended) + len(here) == len(world.tickets)
    assert {t.id for t in here} == set(world.core._tickets)
    views = [view for pool in world.core.pool_names for view in world.core.view(pool).classes.values()]
    assert sum(view.waiting + view.in_flight for view in views) == len(here)
    assert sum(view.arrived for view in views) == len(world.tickets)


@given(CONFIGS, CONFIGS, EVENTS)
@settings(max_examples=20, deadline=None)
def test_whoever_waits_gets_in_when_the_others_have_left(
    config: AdmissionConfig, later: AdmissionConfig, happened: Sequence[tuple[str, int, int]]
) -> None:
    world = played(config, later, happened, DecisionLog(lambda line: None))
    world.busy = 0
    for pool in POOLS:
        world.obey(world.core.resize(pool, 4, world.now))
    for _ in range(4 * len(world.tickets)):
        for ticket in [t for t in world.tickets if t.state not in (TicketState.LEFT, TicketState.QUEUED, TicketState.AWAITING)]:
            world.release(ticket, ReleaseReason.SLOT_PREEMPTED if ticket.state is TicketState.VICTIM else ReleaseReason.DRAINED)
        world.now = max(world.now, world.core.next_deadline() or 0)
        world.advance()

    assert not world.core._tickets
