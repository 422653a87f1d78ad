"""What holds whatever happens, in any order: driven by Hypothesis against a model that keeps its own, naive books."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from admission_model import Model
from admission_timeline import classes
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from maitred.admission import EVERYBODY, Action, Admission, AdmissionConfig, End, RecordedAdmission, State, Ticket, replay
from maitred.decisions import Decision, DecisionLog
from maitred.request import PriorityClass
from maitred.units import MILLISECOND, Micros

POOLS = ("m", "n")
TENANTS = ("", "auth:a", "auth:b", "auth:c")
SPANS = (0, 1, MILLISECOND, 3 * MILLISECOND, 20 * MILLISECOND, 60 * MILLISECOND)


@st.composite
def configs(draw: st.DrawFn, *, weights: bool = True, tokens: bool = True) -> AdmissionConfig:
    entries = {
        c.label: {
            "reserved_floor": draw(st.integers(0, 4)),
            "reserved_per_slot": draw(st.sampled_from((0.0, 0.25, 0.5, 1.0))),
            "queue_size": draw(st.integers(0, 4)),
            "queue_timeout_secs": draw(st.sampled_from((0.001, 0.005, 0.02, 1.0))),
            "starvation_threshold_secs": draw(st.sampled_from((0.001, 0.004, 0.05, 600))),
            "can_preempt": draw(st.booleans()),
        }
        for c in PriorityClass
    }
    said: dict[str, Any] = {
        "mode": draw(st.sampled_from(("priority", "priority", "priority", "legacy", "off"))),
        "flavour": draw(st.sampled_from(("maitred", "maitred", "smg"))),
        "promotion_share": draw(st.sampled_from((None, 0.0, 0.5))),
        "promotion_burst": draw(st.integers(0, 2)),
        "preemption_budget_ms": draw(st.sampled_from((0, 2, 50))),
        "on_preempt": draw(st.sampled_from(("reject", "retry"))),
        "slot_cost": draw(st.sampled_from(("requests", "tokens"))) if tokens else "requests",
        "slot_tokens": 10,
        "legacy": {
            "max_concurrent_requests": draw(st.sampled_from((-1, 1, 3))),
            "queue_size": draw(st.integers(0, 3)),
            "queue_timeout_secs": draw(st.sampled_from((0.002, 1.0))),
            "rate_limit_tokens_per_second": draw(st.sampled_from((0.0, 0.0, 100.0))),
        },
        "tenant_policies": {
            "auth:a": {"max_in_flight": draw(st.integers(1, 2)), "max_queued": draw(st.integers(0, 2))},
            "auth:b": {"weight": 2.0} if weights and draw(st.booleans()) else {"max_in_flight": 1},
        },
    }
    return classes(said, **entries)


kinds = st.sampled_from(PriorityClass)


class AnyOrder(RuleBasedStateMachine):
    """Every decision is checked against the model when it comes; `check()` and the sums after every event."""

    def __init__(self) -> None:
        super().__init__()
        self.now: Micros = 0
        capacities = dict.fromkeys(POOLS, 3)
        self.core = Admission(classes(), capacities)
        self.model = Model(classes(), capacities)

    def settle(self) -> None:
        self.model.decided(self.core.advance(self.now))
        due = self.core.next_deadline()
        assert due is None or due > self.now

    @rule(pool=st.sampled_from(POOLS), k=kinds, tenant=st.sampled_from(TENANTS))
    def submit(self, pool: str, k: PriorityClass, tenant: str) -> None:
        self.settle()
        number = len(self.model.everybody)
        self.model.came(number, pool, k, tenant, self.now)
        decisions = self.core.submit(Ticket(number, pool, k, tenant), self.now)
        assert decisions[-1].subject == number
        own, others = decisions[-1], decisions[:-1]
        if own.action is Action.ADMIT:  # its tenant may have reached its limit by that, and lets others in
            assert {d.action for d in others} <= {Action.ADMIT}
            self.model.decided([own, *others])
        else:
            assert [d.action for d in others] in ([], [Action.PREEMPT])
            self.model.decided(decisions)

    @rule(data=st.data(), end=st.sampled_from((End.DRAINED, End.CLIENT_GONE, End.FAILED)))
    @precondition(lambda self: self.model.everybody)
    def release(self, data: st.DataObject, end: End) -> None:
        """Anyone who ever came: waiting, in flight, or long gone. Victims are let go as such, mostly."""
        self.settle()
        everybody = self.model.everybody
        here = [one.number for one in everybody.values() if one.holds or one.waits] or list(everybody)
        leaver = data.draw(st.sampled_from(here) | st.sampled_from(sorted(everybody)))
        if everybody[leaver].state == "victim" and data.draw(st.integers(0, 3)):
            end = End.PREEMPTED
        was = everybody[leaver].state
        self.model.released(leaver, end, self.now)
        decisions = self.core.release(leaver, end, self.now)
        assert decisions == [] or was != "left"
        self.model.decided(decisions)
        if was in ("queued", "awaiting"):
            assert everybody[leaver].state == "left"

    @rule(data=st.data())
    @precondition(lambda self: self.model.everybody)
    def first_byte(self, data: st.DataObject) -> None:
        self.settle()
        one = self.model.everybody[data.draw(st.sampled_from(sorted(self.model.everybody)))]
        if not one.waits:
            shown = self.core.first_byte(one.number, self.now)
            assert shown == (one.state in ("admitted", "shown"))
            if shown:
                one.state = "shown"

    @rule(pool=st.sampled_from(POOLS), capacity=st.integers(0, 6))
    def resize(self, pool: str, capacity: int) -> None:
        self.settle()
        self.model.capacities[pool] = capacity
        self.model.decided(self.core.resize(pool, capacity, self.now))

    @rule(config=configs(tokens=False))
    def reconfigure(self, config: AdmissionConfig) -> None:
        self.settle()
        self.model.configure(config)
        self.model.decided(self.core.reconfigure(config, self.now))

    @rule(span=st.sampled_from(SPANS))
    def time_passes(self, span: Micros) -> None:
        self.now += span

    @invariant()
    def balanced(self) -> None:
        self.core.check()
        holding = sum(one.holds for one in self.model.everybody.values())
        waiting = sum(one.waits for one in self.model.everybody.values())
        views = [self.core.view(pool) for pool in self.core.pools]
        assert (holding, waiting) == (sum(view.in_flight for view in views), sum(view.waiting for view in views))

    def teardown(self) -> None:
        for number in self.model.everybody:
            self.core.release(number, End.CLIENT_GONE, self.now)
            self.core.release(number, End.CLIENT_GONE, self.now)
        self.core.check()
        assert not self.core._tickets
        for pool in self.core._pools.by_name.values():
            assert not pool.slots.used
            assert not any(map(len, (*pool.waiters.queues, *pool.waiters.awaiting.lanes, *pool.takeable.lanes)))


AnyOrder.TestCase.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
TestAnyOrder = AnyOrder.TestCase


Event = tuple[str, int, int, Micros]
verbs = ("submit", "submit", "submit", "release", "release", "preempted", "first_byte", "resize", "advance", "reconfigure")
events = st.lists(st.tuples(st.sampled_from(verbs), st.integers(0, 30), st.integers(0, 3), st.sampled_from(SPANS)), max_size=60)


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
                said += core.release(n, End.DRAINED, now)
            case "preempted":
                for victim in [t for t in tickets if t.state is State.VICTIM]:
                    said += core.release(victim.id, End.PREEMPTED, now)
            case "first_byte" if ticket:
                said += core.advance(now)
                if ticket.state not in (State.QUEUED, State.AWAITING):
                    core.first_byte(n, now)
            case "resize":
                said += core.resize(POOLS[n % 2], k, now)
            case "advance":
                said += core.advance(now)
            case "reconfigure" if n < 4:
                said += core.reconfigure(later, now)
        core.check()
    assert [d.at for d in said] == sorted(d.at for d in said), "decided in the past"
    return [(d.at, d.subject, d.action, d.reason) for d in said]


@given(configs(), configs(), events)
@settings(max_examples=300, deadline=None)
def test_a_punctual_timer_changes_no_decision(
    config: AdmissionConfig, later: AdmissionConfig, happened: Sequence[Event]
) -> None:
    lazy = drive(Admission(config, {"m": 2, "n": 1}), happened, later)

    assert drive(Admission(config, {"m": 2, "n": 1}), happened, later, punctual=True) == lazy


@given(configs(), configs(), events)
@settings(max_examples=100, deadline=None)
def test_the_order_in_which_models_were_named_changes_no_decision(
    config: AdmissionConfig, later: AdmissionConfig, happened: Sequence[Event]
) -> None:
    assert drive(Admission(config, {"m": 2, "n": 1}), happened, later) == drive(
        Admission(config, {"n": 1, "m": 2}), happened, later
    )


@given(configs(), configs(), events)
@settings(max_examples=100, deadline=None)
def test_a_log_run_again_is_the_same_byte_for_byte(
    config: AdmissionConfig, later: AdmissionConfig, happened: Sequence[Event]
) -> None:
    first: list[bytes] = []
    said = drive(RecordedAdmission(config, {"n": 1, "m": 2}, DecisionLog(first.append)), happened, later)

    second: list[bytes] = []
    replay(first, DecisionLog(second.append))

    assert b"".join(second) == b"".join(first)
    assert sum(b'"decision"' in line for line in first) == len(said)


@given(configs(), configs(), events)
@settings(max_examples=100, deadline=None)
def test_arrivals_are_outcomes_and_those_who_are_here(
    config: AdmissionConfig, later: AdmissionConfig, happened: Sequence[Event]
) -> None:
    core = Admission(config, {"m": 2, "n": 1})
    drive(core, happened, later)

    def total(names: Iterable[str]) -> int:
        views = [view for pool in core.pools for view in core.view(pool).classes.values()]
        return sum(getattr(view, name) for view in views for name in names)

    refused = total(("queue_full", "tenant_queue_full", "queue_timeout", "cancelled", "waiting", "in_flight", "rate_limited"))
    ended = sum(sum(view.ended.values()) for pool in core.pools for view in core.view(pool).classes.values())
    assert refused + ended == sum(verb == "submit" for verb, *_ in happened)
    assert total(("arrived", "rate_limited")) == refused + ended
    assert core.pools == [EVERYBODY] or set(core.pools) == set(POOLS)
