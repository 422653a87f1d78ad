"""`reserve: adaptive`: what is kept free of a reservation, by what the arrivals of the last minutes needed."""

from __future__ import annotations

from math import ceil
from random import Random

import msgspec
import pytest
from admission_timeline import BULK, INTERACTIVE, Timeline
from hypothesis import given
from hypothesis import strategies as st

from maitred.admission import Admission, AdmissionConfig, ReleaseReason, Ticket, TicketState
from maitred.admission.classes.adaptive_reserve import NUM_PERIODS, PERIOD, TOLERATED_WAIT, ArrivalNeeds
from maitred.core.decisions import DecisionLog
from maitred.core.request import PriorityClass
from maitred.core.units import MILLISECOND, SECOND, from_seconds, to_seconds
from maitred.replay import replay

ADAPTIVE = {"reserve": "adaptive", "on_preempt": "retry"}


class World:
    """16 slots, of which chats reserve 5, and bulk that always waits; a bulk request ends every `gap` seconds."""

    def __init__(self, gap: float, *, streams: bool, said: dict[str, object] | None = None, **chats: float) -> None:
        interactive = {"reserved_floor": 0, "reserved_per_slot": 0.3, "can_preempt": True, **chats}
        entries = {"bulk": {"queue_size": 10**6, "queue_timeout_secs": 1e6}, "interactive": interactive}
        self.t = Timeline(16, {**ADAPTIVE, **(said or {})}, **entries)
        self.gap, self.streams = gap, streams
        self.now, self.count = 0.0, 0
        self.running: list[str] = []
        self.chats: list[str] = []
        self.ends: list[float] = []
        self.next_end = gap
        for _ in range(40):
            self.come(BULK)

    def come(self, k: int) -> None:
        self.count += 1
        name = f"{'bc'[k == INTERACTIVE]}{self.count}"
        self.follow(self.t.submit(self.now, name, k))  # type: ignore[arg-type]

    def follow(self, lines: list[str]) -> None:
        for line in lines:
            name, action, *_ = line.split()
            if action == "admit":
                (self.chats if name.startswith("c") else self.running).append(name)
                self.ends += [self.now + 0.1] if name.startswith("c") else []
                if self.streams or name.startswith("c"):
                    assert self.t.first_byte(self.now, name)
            elif action == "preempt":
                self.running.remove(name)
                self.follow(self.t.release(self.now, name, ReleaseReason.SLOT_PREEMPTED))

    def run(self, secs: float, chat_every: float | None) -> None:
        """Go on for `secs`, with a chat every so often, which holds its slot for 100 ms."""
        until = self.now + secs
        next_chat = until if chat_every is None else self.now
        while True:
            at = min(self.next_end, next_chat, *self.ends[:1])
            if at >= until:
                self.now = until
                return
            self.now = at
            if self.ends and at == self.ends[0]:
                self.ends.pop(0)
                self.follow(self.t.release(at, self.chats.pop(0)))
            elif at == self.next_end:
                self.next_end += self.gap
                if self.running:
                    self.follow(self.t.release(at, self.running.pop(0)))
                self.come(BULK)
            else:
                next_chat += chat_every or 0.0
                self.come(INTERACTIVE)

    @property
    def held(self) -> int:
        return self.t.of(INTERACTIVE).held


def test_all_is_kept_free_at_first_and_without_arrivals_nothing_but_the_floor() -> None:
    w = World(0.04, streams=True)
    assert (w.t.of(BULK).in_flight, w.held) == (11, 5)
    w.run(9.9, None)
    assert w.t.of(BULK).in_flight == 11
    w.run(1.2, None)
    assert (w.t.of(BULK).in_flight, w.held) == (16, 0)
    floor = World(0.04, streams=True, reserved_floor=2)
    floor.run(12, None)
    assert (floor.t.of(BULK).in_flight, floor.held) == (14, 2)
    fixed = World(0.04, streams=True, said={"reserve": "fixed"})
    fixed.run(12, None)
    assert (fixed.t.of(BULK).in_flight, fixed.held) == (11, 5)


def test_twenty_arrivals_are_enough_to_go_by() -> None:
    w = World(0.0151, streams=True)
    w.run(3, 0.1)
    assert w.held == 0


def test_what_cannot_be_preempted_in_time_is_kept_free() -> None:
    w = World(0.0401, streams=True)
    w.run(20, 0.3)
    # Bulk requests end every 40 ms, so half of the chats find one that ends within 20 ms: for the others a slot is kept free.
    assert w.held == 1
    w.run(1, None)
    assert w.t.of(BULK).in_flight == 15


def test_slots_that_become_free_in_time_need_not_be_kept_free() -> None:
    w = World(0.0151, streams=True)
    w.run(20, 0.3)
    assert (w.held, w.t.of(BULK).in_flight + w.t.of(INTERACTIVE).in_flight) == (0, 16)


def test_where_each_chat_can_preempt_nothing_is_kept_free() -> None:
    w = World(0.0401, streams=False)
    w.run(20, 0.3)
    assert w.held == 0
    assert w.t.of(BULK).retried >= 20


def test_victims_that_are_refused_cover_nothing() -> None:
    w = World(0.0401, streams=False, said={"on_preempt": "reject"})
    w.run(20, 0.3)
    assert w.t.core._pools.headroom()["m"][INTERACTIVE] == 1


def test_the_configured_share_is_the_most_that_is_kept_free() -> None:
    w = World(0.5, streams=True)
    for _ in range(20):
        w.run(1, None)
        for _ in range(8):
            w.come(INTERACTIVE)
    w.run(5, None)
    assert w.t.core._pools.headroom()["m"][INTERACTIVE] > 5
    assert w.held == 5


def test_a_need_is_forgotten_after_minutes_without_arrivals() -> None:
    w = World(0.0401, streams=True)
    w.run(20, 0.3)
    w.run(to_seconds((NUM_PERIODS - 2) * PERIOD), None)
    assert w.held == 1
    w.run(to_seconds(2 * PERIOD) + 1, None)
    assert w.held == 0


def test_an_idle_pool_needs_nothing() -> None:
    t = Timeline(16, ADAPTIVE, interactive={"reserved_per_slot": 0.3})
    for number in range(100):
        t.submit(0.1 * number, f"c{number}", INTERACTIVE)
        t.release(0.1 * number + 0.05, f"c{number}")
    for number in range(17):
        t.submit(20 + number, f"b{number}", BULK)
    assert t.of(BULK).in_flight == 16


def test_a_reload_keeps_what_is_known() -> None:
    w = World(0.0401, streams=True)
    w.run(20, 0.3)
    w.t.reconfigure(w.now, ADAPTIVE, interactive={"reserved_per_slot": 0.5, "can_preempt": True})
    assert w.held == 1
    w.t.reconfigure(w.now, None, interactive={"reserved_per_slot": 0.5, "can_preempt": True})
    assert w.held == 8 - w.t.of(INTERACTIVE).in_flight


def next_core(busy: PriorityClass, age: float) -> Admission:
    """Return a core of 8 slots, of which classes reserve 3, that takes over at 100 s: 5 bulk requests that hold slots, 5 that
    wait, and one of the class that is `busy`, all `age` seconds old."""
    config = msgspec.convert({"mode": "priority", **ADAPTIVE}, AdmissionConfig)
    core = Admission(config, {"m": 8}, now=90 * SECOND)
    adopted = [Ticket(number, "m", PriorityClass.BULK) for number in range(10)] + [Ticket(10, "m", busy)]
    for ticket in adopted:
        ticket.state = TicketState.STREAMING if ticket.id < 5 else TicketState.QUEUED
        ticket.submitted_at = ticket.admitted_at = 100 * SECOND - from_seconds(age)
    core.adopt(adopted, 100 * SECOND)
    core.check()
    return core


def test_the_next_scheduler_of_a_busy_pool_keeps_nothing_free_for_classes_that_nobody_uses() -> None:
    assert next_core(PriorityClass.BULK, 10.5).view("m").in_flight == 8
    assert next_core(PriorityClass.BULK, 5).view("m").in_flight == 5
    assert next_core(PriorityClass.SYSTEM, 10.5).view("m").in_flight == 8
    interactive = next_core(PriorityClass.INTERACTIVE, 10.5)
    assert (interactive.view("m").in_flight, interactive.view("m").classes[PriorityClass.INTERACTIVE].held) == (7, 1)


def test_slots_are_kept_free_for_ten_seconds_after_an_adoption_though_no_other_request_comes() -> None:
    core = next_core(PriorityClass.BULK, 1)
    core.release(0, ReleaseReason.DRAINED, 108 * SECOND)
    assert core.view("m").in_flight == 5
    core.release(1, ReleaseReason.DRAINED, 110 * SECOND)
    assert core.view("m").in_flight == 8


@given(
    st.lists(st.tuples(st.sampled_from(["arrival", "freed", "plenty"]), st.integers(1, 3), st.integers(0, 60)), max_size=60),
    st.sampled_from([1, 4]),
)
def test_needs_are_those_of_a_naive_count(events: list[tuple[str, int, int]], unit: int) -> None:
    """Each need is worked out anew from all events: what was missing after the arrival, less what came within the time."""
    needs, now, timeline = ArrivalNeeds(), 1, []
    for verb, units, ms in events:
        now += ms * MILLISECOND
        needs.settle(now, unit)
        timeline.append((verb, units, now))
        if verb == "arrival":
            needs.on_arrival(units, now)
        elif verb == "freed":
            needs.on_freed(units)
        else:
            needs.on_plenty()
    now += SECOND
    needs.settle(now, unit)
    expected = []
    for index, (verb, _, at) in enumerate(timeline):
        if verb != "arrival":
            continue
        missing, still = 0, None
        for later, (what, units, when) in enumerate(timeline):
            if later > index and when >= at + TOLERATED_WAIT:
                break
            if what == "arrival":
                missing += units
                still = missing if later == index else still
            else:
                came = missing if what == "plenty" else min(missing, units)
                missing -= came
                still = None if still is None else max(0, still - came)
        assert still is not None
        expected.append(ceil(still / unit))
    ordered = sorted(expected)
    # The smallest number that is enough for 99 of 100.
    assert needs.headroom == (ordered[len(ordered) - 1 - len(ordered) // 100] if ordered else 0)


@pytest.mark.parametrize("seed", range(5))
def test_a_log_runs_again_to_the_same_bytes_and_has_the_changes(seed: int) -> None:
    rng, lines = Random(seed), list[bytes]()
    classes = {"interactive": {"reserved_per_slot": 0.4, "can_preempt": True}, "bulk": {"queue_size": 1000}}
    config = msgspec.convert({"mode": "priority", **ADAPTIVE, "classes": classes}, AdmissionConfig)
    core, now, there = Admission(config, {"m": 10}, log=DecisionLog(lines.append)), 0, list[int]()
    for number in range(800):
        now += rng.randint(0, 60) * MILLISECOND
        if there and rng.random() < 0.5:
            core.release(there.pop(rng.randrange(len(there))), ReleaseReason.DRAINED, now)
        else:
            ticket = Ticket(number, "m", rng.choice((BULK, BULK, INTERACTIVE)), "")
            there.append(number)
            core.submit(ticket, now)
            if ticket.state.name == "ADMITTED":
                core.confirm_first_byte(number, now)
        core.check()
    again: list[bytes] = []
    replay(lines, DecisionLog(again.append))
    assert again == lines
    changes = [msgspec.json.decode(line)["change"] for line in lines if b'"change"' in line]
    assert changes
    assert changes[-1]["slots"] == core._pools.headroom()["m"][INTERACTIVE]
