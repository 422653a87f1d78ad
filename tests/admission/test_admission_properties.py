"""What holds whatever happens, in any order: driven by Hypothesis against a model that keeps its own, naive books."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from admission_timeline import classes
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from maitred.admission import Action, Admission, AdmissionConfig, End, RecordedAdmission, Ticket, replay
from maitred.decisions import Decision, DecisionLog
from maitred.request import PriorityClass
from maitred.units import MILLISECOND, Micros

POOLS = ("m", "n")

configs = st.builds(
    lambda floors, shares, sizes, timeouts: classes(
        **{
            c.label: {
                "reserved_floor": floors[c],
                "reserved_per_slot": shares[c],
                "queue_size": sizes[c],
                "queue_timeout_secs": timeouts[c],
            }
            for c in PriorityClass
        }
    ),
    st.lists(st.integers(0, 4), min_size=4, max_size=4),
    st.lists(st.sampled_from((0.0, 0.25, 0.5, 1.0)), min_size=4, max_size=4),
    st.lists(st.integers(0, 4), min_size=4, max_size=4),
    st.lists(st.sampled_from((0.001, 0.005, 0.02, 1.0)), min_size=4, max_size=4),
)
capacities = st.integers(0, 6)
spans = st.sampled_from((0, 1, MILLISECOND, 3 * MILLISECOND, 20 * MILLISECOND))
kinds = st.sampled_from(PriorityClass)


class AnyOrder(RuleBasedStateMachine):
    """Every decision is checked when it comes; `check()` and the model's books after every event."""

    def __init__(self) -> None:
        super().__init__()
        self.now: Micros = 0
        self.next_id = 0
        self.capacity = dict.fromkeys(POOLS, 3)
        self.core = Admission(classes(), self.capacity)
        self.pool: dict[int, tuple[str, PriorityClass]] = {}
        self.waiting: dict[tuple[str, PriorityClass], list[int]] = defaultdict(list)
        self.in_flight: dict[str, list[int]] = {name: [0] * 4 for name in POOLS}
        self.here: set[int] = set()

    @rule(pool=st.sampled_from(POOLS), k=kinds)
    def submit(self, pool: str, k: PriorityClass) -> None:
        newcomer, self.next_id = self.next_id, self.next_id + 1
        self.pool[newcomer] = (pool, k)
        *settled, decision = self.core.submit(Ticket(newcomer, pool, k), self.now)
        self.apply(settled)
        assert decision.subject == newcomer
        if decision.action is Action.ADMIT:
            assert not any(self.waiting[pool, c] for c in PriorityClass if c >= k), "a newcomer passed the queue"
        self.apply([decision])

    @rule(data=st.data(), end=st.sampled_from(End))
    @precondition(lambda self: self.next_id)
    def release(self, data: st.DataObject, end: End) -> None:
        """Anyone who ever came: waiting, in flight, or long gone."""
        leaver = data.draw(st.integers(max(0, self.next_id - 12), self.next_id - 1))
        pool, k = self.pool[leaver]
        waited = leaver in self.waiting[pool, k]
        decisions = list(self.core.release(leaver, end, self.now))
        while decisions and decisions[0].action is Action.REJECT:
            self.apply([decisions.pop(0)])
        if leaver in self.here and not waited:
            self.here.remove(leaver)
            self.in_flight[pool][k] -= 1
        self.apply(decisions)
        assert leaver not in self.here

    @rule(data=st.data())
    @precondition(lambda self: self.next_id)
    def first_byte(self, data: st.DataObject) -> None:
        who = data.draw(st.integers(0, self.next_id - 1))
        if who not in self.waiting[self.pool[who]]:
            assert self.core.first_byte(who, self.now) == (who in self.here)

    @rule(pool=st.sampled_from(POOLS), capacity=capacities)
    def resize(self, pool: str, capacity: int) -> None:
        self.capacity[pool] = capacity
        self.apply(self.core.resize(pool, capacity, self.now))

    @rule(config=configs)
    def reconfigure(self, config: AdmissionConfig) -> None:
        self.apply(self.core.reconfigure(config, self.now))

    @rule(span=spans)
    def time_passes(self, span: Micros) -> None:
        self.now += span

    @rule()
    def advance(self) -> None:
        self.apply(self.core.advance(self.now))
        due = self.core.next_deadline()
        assert due is None or due > self.now

    def apply(self, decisions: Iterable[Decision]) -> None:
        for d in decisions:
            pool, k = self.pool[d.subject]
            queue = self.waiting[pool, k]
            match d.action:
                case Action.QUEUE:
                    queue.append(d.subject)
                    self.here.add(d.subject)
                case Action.ADMIT:
                    assert not queue or queue.pop(0) == d.subject, "not first come, first served"
                    self.here.add(d.subject)
                    self.take(pool, k)
                case Action.REJECT | Action.CANCEL:
                    if d.subject in queue:
                        queue.remove(d.subject)
                    self.here.discard(d.subject)

    def take(self, pool: str, k: PriorityClass) -> None:
        flying = self.in_flight[pool]
        held = sum(max(0, view.reserved - flying[c]) for c, view in self.core.view(pool).classes.items() if c > k)
        assert sum(flying) + held < self.capacity[pool], "no slot was free for this class"
        flying[k] += 1

    @invariant()
    def balanced(self) -> None:
        self.core.check()
        for pool in POOLS:
            view = self.core.view(pool)
            assert [view.classes[c].in_flight for c in PriorityClass] == self.in_flight[pool]
            assert [view.classes[c].waiting for c in PriorityClass] == [len(self.waiting[pool, c]) for c in PriorityClass]

    def teardown(self) -> None:
        for request in range(self.next_id):
            self.core.release(request, End.CLIENT_GONE, self.now)
        self.core.check()
        assert not self.core._tickets
        assert not any(queue._waiting or queue.head for pool in self.core._pools.values() for queue in pool.queues)


AnyOrder.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestAnyOrder = AnyOrder.TestCase


Event = tuple[str, int, int, Micros]
events = st.lists(
    st.tuples(
        st.sampled_from(("submit", "submit", "submit", "release", "release", "first_byte", "resize", "advance")),
        st.integers(0, 30),
        st.integers(0, 3),
        spans,
    ),
    max_size=60,
)


def drive(core: Admission, happened: Sequence[Event], *, punctual: bool = False) -> list[tuple[int, str, str]]:
    """The events in order; `punctual`: `advance` is called at every deadline, as a perfect timer would."""
    said: list[Decision] = []
    now, ids = 0, 0
    for verb, n, k, span in happened:
        now += span
        while punctual and (due := core.next_deadline()) is not None and due <= now:
            said += core.advance(due)
        match verb:
            case "submit":
                said += core.submit(Ticket(ids, POOLS[n % 2], PriorityClass(k)), now)
                ids += 1
            case "release":
                said += core.release(n, End.DRAINED, now)
            case "first_byte" if n < ids and n not in waiting(said):
                core.first_byte(n, now)
            case "resize":
                said += core.resize(POOLS[n % 2], k, now)
            case "advance":
                said += core.advance(now)
    return [(d.subject, d.action, d.reason) for d in said]


def waiting(said: Iterable[Decision]) -> set[int]:
    last = {d.subject: d.action for d in said}
    return {subject for subject, action in last.items() if action is Action.QUEUE}


@given(configs, events)
@settings(max_examples=150, deadline=None)
def test_a_punctual_timer_changes_no_decision(config: AdmissionConfig, happened: Sequence[Event]) -> None:
    lazy = drive(Admission(config, {"m": 2, "n": 1}), [*happened, ("advance", 0, 0, 10**7)])
    punctual = drive(Admission(config, {"m": 2, "n": 1}), [*happened, ("advance", 0, 0, 10**7)], punctual=True)

    assert punctual == lazy


@given(configs, configs, events)
@settings(max_examples=100, deadline=None)
def test_a_log_run_again_is_the_same_byte_for_byte(
    config: AdmissionConfig, later: AdmissionConfig, happened: Sequence[Event]
) -> None:
    first: list[bytes] = []
    core = RecordedAdmission(config, {"n": 1, "m": 2}, DecisionLog(first.append))
    said = drive(core, happened)
    said += [(d.subject, d.action, d.reason) for d in core.reconfigure(later, 10**7)]

    second: list[bytes] = []
    replay(first, DecisionLog(second.append))

    assert b"".join(second) == b"".join(first)
    assert sum(b'"decision"' in line for line in first) == len(said)
