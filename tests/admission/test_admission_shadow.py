"""A shadow of admission: under the rules in force it never disagrees, and under others it says what it would have done."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from random import Random
from threading import Lock
from typing import Any

import msgspec
import pytest
from admission_timeline import classes
from hypothesis import given, settings
from hypothesis import strategies as st
from test_admission_properties import SPANS, Event, configs, drive, events, verbs

from maitred import is_compiled
from maitred.admission import Admission, AdmissionConfig, AdmissionPolicy, ReleaseReason, Ticket
from maitred.admission.inputs import Reconfigure
from maitred.core.request import PriorityClass
from maitred.core.tapped_log import TakenInput, TappedLog
from maitred.shadow.admission import AdmissionShadow
from maitred.shadow.disagreements import Disagreement

BULK, CHAT = PriorityClass.BULK, PriorityClass.INTERACTIVE


def followed(told: Sequence[TakenInput], shadow: AdmissionShadow, later: AdmissionConfig | None = None) -> list[Disagreement]:
    found = []
    for each in told:
        if isinstance(each.given, Reconfigure) and later is not None:
            shadow.config = later
        found += shadow.take(each.given, list(each.decisions))  # type: ignore[arg-type]
        shadow._core.check()
        assert shadow._core._tickets.keys() <= shadow._requests.keys()  # It has nothing that is not here.
    return found


@given(configs(), configs(), events)
@settings(max_examples=150, deadline=None)
def test_a_shadow_under_the_rules_in_force_never_disagrees(
    config: AdmissionConfig, later: AdmissionConfig, happened: Sequence[Event]
) -> None:
    told: list[TakenInput] = []
    drive(Admission(config, {"m": 2, "n": 1}, log=TappedLog(None, told.append)), happened, later)
    shadow = AdmissionShadow(config)
    assert followed(told, shadow, later) == []
    assert shadow.num_compared == sum(len(list(each.decisions)) for each in told)


class LooksAwayAtTimes:
    """A core beside which a shadow looks away after some events, and after others goes on from where the core is."""

    def __init__(
        self, config: AdmissionConfig, shadow: AdmissionConfig, happened: Sequence[Event], seed: int, *, is_same: bool
    ) -> None:
        self._told: list[TakenInput] = []
        self._log = TappedLog(None, self._told.append)
        self._core, self.shadow = Admission(config, {"m": 2, "n": 1}, log=self._log), AdmissionShadow(shadow)
        self._instants, self._draw = accumulate(span for *_, span in happened), Random(seed)
        if seed % 2:  # Somebody looks at the dashboard.
            self._core.watch(lambda given, decisions: None)
        self.found: list[Disagreement] = []
        self._is_same = is_same

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def check(self) -> None:
        """Called after each event."""
        self._core.check()
        now = next(self._instants, 10**9)
        self.found += followed(self._told, self.shadow, self._core.config if self._is_same else None)
        self._told.clear()
        if self._draw.random() < 0.3:
            self._log.tap(is_tapped=not self._log.is_tapped)
            if self._log.is_tapped:
                if self._is_same:
                    self.shadow.config = self._core.config
                self.shadow.begin_from(self._core, now)
                self.shadow._core.check()


@pytest.mark.skipif(is_compiled(), reason="a compiled core cannot be copied, which the shadow says")
@given(configs(), configs(), events, st.integers(0, 99))
@settings(max_examples=150, deadline=None)
def test_a_shadow_under_the_rules_in_force_never_disagrees_wherever_it_looks_away(
    config: AdmissionConfig, later: AdmissionConfig, happened: Sequence[Event], seed: int
) -> None:
    w = LooksAwayAtTimes(config, config, happened, seed, is_same=True)
    drive(w, happened, later)  # type: ignore[arg-type]
    assert w.found == []
    assert w.shadow.lacks == ""


@pytest.mark.skipif(is_compiled(), reason="a compiled core cannot be copied, which the shadow says")
@pytest.mark.parametrize(
    "said",
    [{"mode": "flow-control"}, {"mode": "priority", "policy": "token-bucket(capacity=300,rate=50)"}],
    ids=["flow-control", "token-bucket"],
)
def test_a_copy_has_flow_control_and_the_state_of_policies(said: dict[str, Any]) -> None:
    config = msgspec.convert(said, AdmissionConfig)
    for seed in range(10):
        draw = Random(seed)
        happened = [(draw.choice(verbs), draw.randrange(30), draw.randrange(4), draw.choice(SPANS)) for _ in range(60)]
        w = LooksAwayAtTimes(config, config, happened, seed, is_same=True)
        drive(w, happened, config)  # type: ignore[arg-type]
        assert w.found == []
        assert w.shadow.lacks == ""


@given(configs(), configs(), configs(), events, st.integers(0, 99))
@settings(max_examples=100, deadline=None)
def test_a_shadow_under_any_rules_keeps_its_books_wherever_it_looks_away(
    config: AdmissionConfig, later: AdmissionConfig, other: AdmissionConfig, happened: Sequence[Event], seed: int
) -> None:
    drive(LooksAwayAtTimes(config, other, happened, seed, is_same=False), happened, later)  # type: ignore[arg-type]


@given(configs(), configs(), configs(), events)
@settings(max_examples=150, deadline=None)
def test_a_shadow_under_any_rules_keeps_its_books(
    config: AdmissionConfig, later: AdmissionConfig, other: AdmissionConfig, happened: Sequence[Event]
) -> None:
    told: list[TakenInput] = []
    drive(Admission(config, {"m": 2, "n": 1}, log=TappedLog(None, told.append)), happened, later)
    found = followed(told, AdmissionShadow(other))
    assert len({(each.request, each.kind) for each in found}) == len(found)


class Locked(AdmissionPolicy):
    """A policy that cannot be copied."""

    def __init__(self) -> None:
        self._lock = Lock()

    def refusal(self, *args: Any) -> None:
        return None


def test_where_a_core_cannot_be_copied_the_shadow_begins_anew_with_what_is_here_and_says_so() -> None:
    config = bare(interactive={"can_preempt": True}, policy="test_admission_shadow:Locked")
    w = World(config, config)
    w.submit(1, BULK, 0)
    w.submit(2, BULK, 1)
    w.submit(3, CHAT, 2)  # Waits for the slot of 1, which is a victim.
    w.told.clear()
    w.shadow.begin_from(w.core, 3)
    assert w.shadow.lacks.startswith("what was counted earlier (TypeError: cannot pickle")
    w.core.release(1, ReleaseReason.SLOT_PREEMPTED, 4)
    w.core.release(3, ReleaseReason.DRAINED, 5)
    w.found()
    assert w.shadow._core.tickets.keys() == w.core.tickets.keys()


class World:
    """A core in force with a slot, and a shadow beside it."""

    def __init__(self, shadow: AdmissionConfig, real: AdmissionConfig | None = None, slots: int = 1) -> None:
        self.told: list[TakenInput] = []
        self.core = Admission(real or bare(), {"m": slots}, log=TappedLog(None, self.told.append))
        self.shadow = AdmissionShadow(shadow)

    def submit(self, number: int, c: PriorityClass, now: int) -> None:
        self.core.submit(Ticket(number, "m", c, "t", cost=1), now)

    def found(self) -> list[tuple[str, int | None, str, str]]:
        return [(each.kind.value, each.request, each.real, each.shadow) for each in followed(self.told, self.shadow)]


def bare(policy: str = "always-admit", **given: dict[str, Any]) -> AdmissionConfig:
    return classes({"on_preempt": "retry", "policy": policy}, **{"interactive": {"can_preempt": False}, **given})


def test_a_longer_queue_would_have_let_it_wait() -> None:
    w = World(bare(), bare(bulk={"queue_size": 0}))
    w.submit(1, BULK, 0)
    w.submit(2, BULK, 1)
    w.core.release(1, ReleaseReason.DRAINED, 2)
    assert w.found() == [("queue", 2, "refused (reject: queue_full)", "waits (queue: no_slot)")]


def test_a_reservation_would_have_let_a_chat_in_and_kept_bulk_out() -> None:
    w = World(bare(interactive={"can_preempt": False, "reserved_floor": 1}), slots=2)
    w.submit(1, BULK, 0)
    w.submit(2, BULK, 1)
    w.submit(3, CHAT, 2)
    assert [each[:2] for each in w.found()] == [("queue", 2), ("admit", 3)]


def test_a_victim_of_the_shadow_alone_gives_its_slot_up_at_once() -> None:
    w = World(bare(interactive={"can_preempt": True}))
    w.submit(1, BULK, 0)
    w.submit(2, CHAT, 1)
    kinds = [each[:2] for each in w.found()]
    assert kinds == [("victim", 1), ("admit", 2)]
    w.told.clear()
    w.core.release(1, ReleaseReason.DRAINED, 9)  # In the shadow it waits again, and leaves its queue.
    w.core.release(2, ReleaseReason.DRAINED, 10)
    assert w.found() == []


def test_an_earlier_queue_timeout_is_told_with_the_next_input_at_its_own_instant() -> None:
    w = World(bare(bulk={"queue_timeout_secs": 1}))
    w.submit(1, BULK, 0)
    w.submit(2, BULK, 0)
    w.core.release(1, ReleaseReason.DRAINED, 2_000_000)
    ((kind, request, real, shadow),) = w.found()
    assert (kind, request) == ("refuse", 2)
    assert real.startswith("holds a slot")
    assert "timeout" in shadow
