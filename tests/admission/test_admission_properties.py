"""Properties that hold for any inputs in any order: driven by Hypothesis against a model with naive counts of its own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Any

from admission_model import AdmissionModel
from admission_timeline import classes
from hypothesis import example, given, settings
from hypothesis import strategies as st

from maitred.admission import (
    SHARED_POOL,
    Action,
    Admission,
    AdmissionConfig,
    ReleaseReason,
    Ticket,
    TicketState,
)
from maitred.admission.terms.lead import Lead
from maitred.core.decisions import Decision, DecisionLog
from maitred.core.request import PriorityClass
from maitred.core.units import MILLISECOND, Micros
from maitred.replay import replay

POOLS = ("m", "n")
TENANTS = ("", "auth:a", "auth:b", "auth:c")
SPANS = (0, 1, MILLISECOND, 3 * MILLISECOND, 20 * MILLISECOND, 60 * MILLISECOND)


def any_config(seed: int, *, tokens: bool = True) -> AdmissionConfig:
    """Return one of all possible configurations, by a seed: drawing each of its forty values would cost more than the test."""
    draw = Random(f"{seed}/config")
    entries = {
        c.label: {
            "reserved_floor": draw.randint(0, 4),
            "reserved_per_slot": draw.choice((0.0, 0.25, 0.5, 1.0)),
            "queue_size": draw.randint(0, 4),
            "queue_timeout_secs": draw.choice((0.001, 0.005, 0.02, 1.0)),
            "starvation_threshold_secs": draw.choice((0.001, 0.004, 0.05, 600)),
            "can_preempt": draw.choice((False, True)),
        }
        for c in PriorityClass
    }
    said: dict[str, Any] = {
        "mode": draw.choice(("priority", "priority", "priority", "legacy", "off")),
        "flavour": draw.choice(("maitred", "maitred", "smg")),
        "promotion_share": draw.choice((None, 0.0, 0.5)),
        "promotion_burst": draw.randint(0, 2),
        "preemption_budget_ms": draw.choice((0, 2, 50)),
        "on_preempt": draw.choice(("reject", "retry")),
        "reserve": draw.choice(("fixed", "adaptive")),
        "slot_cost": draw.choice(("requests", "tokens")) if tokens else "requests",
        "slot_tokens": 10,
        "legacy": {
            "max_concurrent_requests": draw.choice((-1, 1, 3)),
            "queue_size": draw.randint(0, 3),
            "queue_timeout_secs": draw.choice((0.002, 1.0)),
            "rate_limit_tokens_per_second": draw.choice((0.0, 0.0, 100.0)),
        },
        "tenant_policies": {
            "auth:a": {"max_in_flight": draw.randint(1, 2), "max_queued": draw.randint(0, 2)},
            "auth:b": {"weight": 2.0} if draw.choice((False, True)) else {"max_in_flight": 1},
        },
    }
    return classes(said, **entries)


def configs(*, tokens: bool = True) -> st.SearchStrategy[AdmissionConfig]:
    return st.integers(0, 1_000_000).map(lambda seed: any_config(seed, tokens=tokens))


class AnyOrder:
    """Every decision is checked against the model when it comes; `check()` and the sums after every step."""

    def __init__(self, config: AdmissionConfig) -> None:
        self.now: Micros = 0
        capacities = dict.fromkeys(POOLS, 3)
        self.core = Admission(config, capacities)
        self.model = AdmissionModel(config, capacities, lambda pool: self.core._pools.headroom()[pool])

    def step(self, verb: str, n: int, span: Micros) -> None:
        """Do what `verb` says; `n` is spread over all that there is to choose."""
        self.now += span
        self.model.decided(self.core.advance(self.now))
        due = self.core.next_deadline()
        assert due is None or due > self.now
        n, kind = divmod(n, 4)
        match verb:
            case "submit":
                self.submit(POOLS[n % 2], PriorityClass(kind), TENANTS[n // 2 % 4])
            case "release" if self.model.requests:
                self.release(n, kind)
            case "first_byte" if self.model.requests:
                self.first_byte(n)
            case "decline" if self.model.requests:
                self.decline(n)
            case "strand" if self.model.requests:
                self.strand(n, stranded=kind > 0)
            case "leave" if self.model.requests:
                self.leave_backend(n)
            case "resize":
                self.resize(POOLS[n % 2], n // 2 % 7)
            case "reconfigure":
                self.reconfigure(any_config(n, tokens=False))
        self.balanced()

    def submit(self, pool: str, k: PriorityClass, tenant: str) -> None:
        number = len(self.model.requests)
        self.model.came(number, pool, k, tenant, self.now)
        ticket = Ticket(number, pool, k, tenant)
        decisions = self.core.submit(ticket, self.now)
        (own,) = [decision for decision in decisions if decision.subject == number]
        others = [decision for decision in decisions if decision is not own]
        assert ticket.state.name in STATES_AFTER[own.action]
        if own.action is Action.ADMIT:  # its tenant may have reached its limit by that, so that others pass
            assert {d.action for d in others} <= {Action.ADMIT}
            self.model.decided([own, *others])
        else:
            assert [d.action for d in others] in ([], [Action.PREEMPT_SLOT])
            self.model.decided(decisions)

    def release(self, n: int, kind: int) -> None:
        """Release a victim mostly, else a request that is there, or one that ever came. Victims are mostly released as such."""
        requests = self.model.requests
        n, choice = divmod(n, 5)
        here = [one.number for one in requests.values() if one.holds or one.waits]
        victims = [number for number in here if requests[number].state == "victim"]
        among = (victims if choice > 1 else []) or (here if choice else []) or list(requests)
        leaver = among[n % len(among)]
        was, end = requests[leaver].state, ENDS[kind % 3]
        if was == "victim" and kind:
            end = ReleaseReason.SLOT_PREEMPTED
        self.model.released(leaver, end, self.now)
        decisions = self.core.release(leaver, end, self.now)
        assert decisions == [] or was != "left"
        self.model.decided(decisions)
        if was in ("queued", "awaiting"):
            assert requests[leaver].state == "left"

    def first_byte(self, n: int) -> None:
        one = self.model.requests[n % len(self.model.requests)]
        if not one.waits:
            shown = self.core.confirm_first_byte(one.number, self.now)
            assert shown == (one.state in ("admitted", "shown"))
            if shown:
                one.state = "shown"

    def decline(self, n: int) -> None:
        victims = [one.number for one in self.model.requests.values() if one.state == "victim"]
        if victims:
            declining = victims[n % len(victims)]
            self.model.declined(declining)
            self.model.decided(self.core.decline(declining, self.now))

    def strand(self, n: int, *, stranded: bool) -> None:
        one = self.model.requests[n % len(self.model.requests)]
        if one.holds:
            one.stranded = stranded
        self.model.decided(self.core.set_stranded(one.number, stranded=stranded, now=self.now))

    def leave_backend(self, n: int) -> None:
        """Afterwards its slot counts, or it holds none."""
        one = self.model.requests[n % len(self.model.requests)]
        was_admitted = one.state == "admitted"
        if one.holds:
            one.stranded = False
        self.model.decided(self.core.leave_backend(one.number, self.now))
        if was_admitted and one.state == "admitted" and one.pool in self.core.pool_names:
            assert not self.core._pool_of_model[one.pool].is_overdrawn

    def resize(self, pool: str, capacity: int) -> None:
        self.model.capacities[pool] = capacity
        self.model.decided(self.core.resize(pool, capacity, self.now))

    def reconfigure(self, config: AdmissionConfig) -> None:
        self.model.configure(config)
        self.model.decided(self.core.reconfigure(config, self.now))

    def balanced(self) -> None:
        self.core.check()
        assert self.model.idle_preemptor() is None
        holding = sum(one.holds for one in self.model.requests.values())
        waiting = sum(one.waits for one in self.model.requests.values())
        books = [totals for of_model in self.core._pools.counters.values() for totals in of_model]
        assert (holding, waiting) == (sum(t.in_flight for t in books), sum(t.waiting for t in books))

    def end(self) -> None:
        """Release all requests, twice."""
        views = [self.core.view(pool) for pool in self.core.pool_names]
        here = [one for one in self.model.requests.values() if one.state != "left"]
        assert len(here) == sum(view.in_flight + view.waiting for view in views)
        for number in self.model.requests:
            self.core.release(number, ReleaseReason.CLIENT_GONE, self.now)
            self.core.release(number, ReleaseReason.CLIENT_GONE, self.now)
        self.core.check()
        assert not self.core._tickets
        for pool in self.core._pools.by_name.values():
            assert not pool.slots.in_use
            assert not any(map(len, (*pool.queues.lanes, *pool.queues.pending_preemptors.lanes, *pool.victims.groups.values())))


STATES_AFTER = {Action.ADMIT: ("ADMITTED",), Action.QUEUE: ("QUEUED", "AWAITING"), Action.REJECT: ("LEFT",)}
"""The states of a newcomer by what was decided on it."""
SLOT_PREEMPTED = ReleaseReason.SLOT_PREEMPTED
ENDS = (ReleaseReason.DRAINED, ReleaseReason.CLIENT_GONE, ReleaseReason.FAILED)
STEP_VERBS = (*["submit"] * 4, *["release"] * 2, "first_byte", "resize", "reconfigure", "strand", "leave", "decline")
STEP_SPANS = (0, 0, 0, 0, *SPANS)


def step_of(drawn: int) -> tuple[str, int, Micros]:
    """One number is one choice to Hypothesis; three would take it three times as long."""
    drawn, verb = divmod(drawn, len(STEP_VERBS))
    drawn, span = divmod(drawn, len(STEP_SPANS))
    return STEP_VERBS[verb], drawn, STEP_SPANS[span]


STEPS = st.lists(st.integers(0, 10**8).map(step_of), min_size=30, max_size=60)


@given(configs(tokens=False), STEPS)
@settings(max_examples=300, deadline=None)
def test_every_decision_in_any_order_is_one_that_the_model_allows(
    config: AdmissionConfig, steps: Sequence[tuple[str, int, Micros]]
) -> None:
    """300 times 45 steps on average: 100 times missed faults of one line. As a state machine of Hypothesis' own, 200 times 50
    took several times as long, nearly all of it in choosing what comes next."""
    world = AnyOrder(config)
    for step in steps:
        world.step(*step)
    world.end()


Event = tuple[str, int, int, Micros]
verbs = (
    *("submit", "submit", "submit", "release", "release", "preempted", "first_byte", "resize", "advance", "reconfigure"),
    "strand",
)
event = st.tuples(st.sampled_from(verbs), st.integers(0, 30), st.integers(0, 3), st.sampled_from(SPANS))
events = st.lists(event, min_size=10, max_size=60)
"""20 on average: without a smallest size it would be 5."""


def drive(
    core: Admission, happened: Sequence[Event], later: AdmissionConfig, *, punctual: bool = False
) -> list[tuple[int, int, str, str]]:
    """The events in order; `punctual`: `advance` is called at every deadline, as a perfect timer would."""
    said: list[Decision] = []
    now, tickets = 0, []
    for verb, n, k, span in [*happened, ("advance", 0, 0, 10**7)]:
        now += span
        while punctual and (due := core.next_deadline()) is not None and due <= now:
            said += core.advance(due)
        ticket = tickets[n] if n < len(tickets) else None
        match verb:
            case "submit":
                tickets.append(Ticket(len(tickets), POOLS[n % 2], PriorityClass(k), TENANTS[n // 2 % 4], cost=1 + 7 * n))
                said += core.submit(tickets[-1], now)
            case "release" if ticket:
                said += core.release(n, ReleaseReason.DRAINED, now)
            case "preempted":
                said += core.advance(now)  # Time alone makes victims, too, for a request that stands in its engine's queue.
                for victim in [t for t in tickets if t.state is TicketState.VICTIM]:
                    declines = k == 3
                    said += core.decline(victim.id, now) if declines else core.release(victim.id, SLOT_PREEMPTED, now)
            case "first_byte" if ticket:
                said += core.advance(now)
                if ticket.state not in (TicketState.QUEUED, TicketState.AWAITING):
                    core.confirm_first_byte(n, now)
            case "resize":
                said += core.resize(POOLS[n % 2], k, now, Lead(n % 3, n % 2))
            case "strand":
                said += core.leave_backend(n, now) if k > 2 else core.set_stranded(n, stranded=k > 0, now=now)
            case "advance":
                said += core.advance(now)
            case "reconfigure" if n < 4:
                said += core.reconfigure(later, now)
        core.check()
    assert [d.at for d in said] == sorted(d.at for d in said), "decided in the past"
    return [(d.at, d.subject, d.action, d.reason) for d in said]


OVERDUE_IN_THE_LEAD = [
    *[("submit", 0, 0, 0)] * 4,
    *(("reconfigure", 0, 0, 0), ("submit", 5, 0, 0), ("submit", 5, 0, 0), ("resize", 1, 2, 0), ("submit", 1, 1, 0)),
    ("preempted", 0, 0, 3_000),
]


@given(configs(), configs(), events)
@example(any_config(0), any_config(171), OVERDUE_IN_THE_LEAD)
@settings(max_examples=100, deadline=None)
def test_a_punctual_timer_changes_no_decision(
    config: AdmissionConfig, later: AdmissionConfig, happened: Sequence[Event]
) -> None:
    lazy = drive(Admission(config, {"m": 2, "n": 1}), happened, later)

    assert drive(Admission(config, {"m": 2, "n": 1}), happened, later, punctual=True) == lazy


@given(configs(), configs(), events)
@settings(max_examples=40, deadline=None)
def test_the_order_in_which_models_were_named_changes_no_decision(
    config: AdmissionConfig, later: AdmissionConfig, happened: Sequence[Event]
) -> None:
    assert drive(Admission(config, {"m": 2, "n": 1}), happened, later) == drive(
        Admission(config, {"n": 1, "m": 2}), happened, later
    )


@given(configs(), configs(), events)
@settings(max_examples=40, deadline=None)
def test_a_log_run_again_is_the_same_byte_for_byte(
    config: AdmissionConfig, later: AdmissionConfig, happened: Sequence[Event]
) -> None:
    first: list[bytes] = []
    said = drive(Admission(config, {"n": 1, "m": 2}, log=DecisionLog(first.append)), happened, later)

    second: list[bytes] = []
    replay(first, DecisionLog(second.append))

    assert b"".join(second) == b"".join(first)
    assert sum(b'"decision"' in line for line in first) == len(said)


@given(configs(), configs(), events)
@settings(max_examples=40, deadline=None)
def test_arrivals_are_outcomes_and_live_requests(
    config: AdmissionConfig, later: AdmissionConfig, happened: Sequence[Event]
) -> None:
    core = Admission(config, {"m": 2, "n": 1})
    drive(core, happened, later)

    def total(names: Iterable[str]) -> int:
        views = [view for pool in core.pool_names for view in core.view(pool).classes.values()]
        return sum(getattr(view, name) for view in views for name in names)

    refused = total(("queue_full", "tenant_queue_full", "queue_timeout", "cancelled", "waiting", "in_flight", "rate_limited"))
    ended = sum(sum(view.ended.values()) for pool in core.pool_names for view in core.view(pool).classes.values())
    assert refused + ended == sum(verb == "submit" for verb, *_ in happened)
    assert total(("arrived", "rate_limited")) == refused + ended
    assert core.pool_names == [SHARED_POOL] or set(core.pool_names) == set(POOLS)
