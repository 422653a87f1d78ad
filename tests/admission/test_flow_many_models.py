"""Flow control of several models on one fleet: the bound is one of instances, for all models together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from flow_timeline import flow_config
from hypothesis import example, given, settings
from hypothesis import strategies as st

from maitred.admission import Action, Admission, ReleaseReason, Ticket
from maitred.core.contracts import FleetLoad, InstanceLoad
from maitred.core.decisions import Decision, DecisionLog
from maitred.core.slo_classes import SLO_PRIORITIES
from maitred.core.units import from_ms, to_ms
from maitred.replay import replay


class SharedFleet:
    """A core over instances that serve several models (`serving`: model to instances). Names begin with their model's. An
    admitted request is shown by an instance when it is `sent` there."""

    def __init__(self, serving: Mapping[str, Sequence[int]], keys: dict[str, Any] | None = None, **flow: Any) -> None:
        self.serving = serving
        self.at: dict[str, int | None] = {}
        """By request in flight, its instance; None: it is on its way."""
        self.names: list[str] = []
        self.log: list[bytes] = []
        slots = dict.fromkeys(serving, 64)
        config = flow_config(keys, saturation_detector="concurrency", **flow)
        self.core = Admission(config, slots, self._look, DecisionLog(self.log.append))

    def submit(self, ms: float, name: str, slo: str = "standard") -> str:
        self.names.append(name)
        ticket = Ticket(len(self.names) - 1, name[0], slo_priority=SLO_PRIORITIES[slo])
        return self._obey(self.core.submit(ticket, from_ms(ms), self._load(name[0])))

    def sent(self, name: str, instance: int) -> None:
        assert instance in self.serving[name[0]]
        self.at[name] = instance

    def fill_n(self) -> None:
        """Let n1 and n2 fill the instances of model n, and n3 wait."""
        for name, instance in (("n1", 1), ("n2", 2)):
            assert self.submit(0, name) == f"{name} admit"
            self.sent(name, instance)
        assert self.submit(0, "n3") == ""

    def release(self, ms: float, name: str, end: ReleaseReason = ReleaseReason.DRAINED) -> str:
        self.at.pop(name, None)
        return self._obey(self.core.release(self.names.index(name), end, from_ms(ms)))

    def advance(self, ms: float) -> str:
        return self._obey(self.core.advance(from_ms(ms)))

    def due(self) -> float | None:
        due = self.core.next_deadline()
        return None if due is None else to_ms(due)

    def _look(self, pool: str, now: int) -> FleetLoad:
        return self._load(pool)

    def _load(self, model: str) -> FleetLoad:
        shown = [*self.at.values()]
        return FleetLoad(tuple(InstanceLoad(shown.count(i), index=i) for i in self.serving[model]))

    def _obey(self, decisions: Iterable[Decision]) -> str:
        """Return what was decided, without the newcomer's own `queue`."""
        self.core.check()
        said = []
        for d in decisions:
            name = self.names[d.subject]
            if d.action is Action.ADMIT:
                self.at[name] = None
            if d.action is not Action.QUEUE:
                said.append(f"{name} {d.action}")
        return ", ".join(said)


BOTH = {"m": [0], "n": [0]}
OVERLAPPING = {"m": [0, 1], "n": [1, 2]}


def test_a_request_that_leaves_makes_room_for_one_of_any_model_and_not_for_one_of_each() -> None:
    f = SharedFleet(BOTH, max_concurrency=2)
    for name in ("m1", "m2"):
        f.submit(0, name)
        f.sent(name, 0)
    assert [f.submit(1, name) for name in ("m3", "n1", "m4", "n2")] == [""] * 4

    assert f.release(2, "m1") == "m3 admit"  # it arrived first
    f.sent("m3", 0)
    assert f.release(3, "m2") == "n1 admit"  # which leaves an m, and came before m4


def test_unseen_requests_of_another_model_count_too() -> None:
    f = SharedFleet(BOTH, max_concurrency=3)
    f.submit(0, "m1")
    f.sent("m1", 0)
    f.submit(1, "m2")  # no instance shows it yet

    assert f.submit(2, "n1") == "n1 admit"
    assert f.submit(2, "n2") == ""  # m1, m2, n1
    f.sent("m2", 0)
    f.sent("n1", 0)
    assert f.submit(3, "m3") == ""
    assert f.release(4, "m2") == "n2 admit"


def test_a_busy_model_does_not_keep_the_more_urgent_of_another_out() -> None:
    f = SharedFleet(BOTH, max_concurrency=1)
    f.submit(0, "m1")
    for name, slo in (("m2", "batch"), ("m3", "standard"), ("n1", "batch"), ("n2", "critical")):
        f.submit(1, name, slo)
    went = ["m1"]
    for ms in range(4):
        went.append(f.release(2 + ms, went[-1]).split()[0])

    assert went[1:] == ["n2", "m3", "m2", "n1"]


def test_models_on_different_instances_do_not_count_for_each_other() -> None:
    f = SharedFleet({"m": [0], "n": [1]}, max_concurrency=1)

    assert [f.submit(0, name) for name in ("m1", "n1", "m2", "n2")] == ["m1 admit", "n1 admit", "", ""]
    assert f.release(1, "n1") == "n2 admit"


def test_models_that_share_some_instances_never_exceed_their_own() -> None:
    """m runs on 0 alone, n on 0 and 1; each may have one. n1 might be on its way to 0: m2 waits until it is seen on 1."""
    f = SharedFleet({"m": [0], "n": [0, 1]}, max_concurrency=1)
    f.submit(0, "m1")
    f.sent("m1", 0)
    assert f.submit(1, "n1") == "n1 admit"
    assert f.submit(2, "m2") == ""
    assert f.submit(2, "n2") == ""

    assert f.release(2.5, "m1") == "n2 admit"  # n has two instances, and n1 alone
    f.release(2.6, "n2", ReleaseReason.CLIENT_GONE)
    assert f.due() == 3  # n1 may be on its way to 1: look again
    assert f.advance(3) == ""
    f.sent("n1", 1)
    assert f.due() == 4
    assert f.advance(4) == "m2 admit"
    assert f.due() is None


def test_an_admission_that_may_overcount_for_those_that_wait_sets_a_tick() -> None:
    f = SharedFleet(OVERLAPPING, max_concurrency=1)
    f.fill_n()
    assert f.due() is None

    assert f.submit(1, "m1") == "m1 admit"
    assert f.due() == 2


@pytest.mark.parametrize("timer_fires", [True, False])
def test_a_request_that_arrives_at_a_tick_may_enter_with_it_also_if_the_timer_has_fired(timer_fires: bool) -> None:
    f = SharedFleet(OVERLAPPING, max_concurrency=1)
    f.fill_n()
    f.submit(1, "m1")
    f.sent("m1", 0)
    f.release(1, "n3", ReleaseReason.CLIENT_GONE)
    if timer_fires:
        assert f.advance(2) == ""

    f.submit(2, "n4")
    assert f.due() == 2
    f.advance(2)
    assert f.due() is None


def test_one_at_each_attempt_is_one_of_all_models() -> None:
    """BLIS has one queue: at a tick one goes in, whatever it asks for."""
    f = SharedFleet(BOTH, {"flavour": "blis"}, max_concurrency=1)
    f.submit(0, "m1")
    f.sent("m1", 0)
    for name in ("m2", "n1"):
        f.submit(0.1, name)
    f.release(0.5, "m1")

    assert f.advance(1) == "m2 admit"


MODELS = {"m": [0, 1], "n": [1, 2], "o": [3]}
OVERFULL = [("submit", 0), ("submit", 0), ("submit", 1), ("sent", 0), ("submit", 1), ("sent", 1), ("sent", 0), ("submit", 0)]
"""Two requests of m are sent to instance 0 while 2 is idle, since the request of n was sent to 1."""
STEPS = st.lists(st.tuples(st.sampled_from(["submit", "submit", "sent", "release", "tick"]), st.integers(0, 29)), max_size=60)


@settings(max_examples=50, deadline=None)
@given(STEPS, st.integers(1, 2))
@example(OVERFULL, 1)
def test_whatever_comes_no_model_has_more_than_its_instances_may_have_and_none_waits_in_vain(
    steps: list[tuple[str, int]], most: int
) -> None:
    """Sent to whichever of its instances has the least, as a router would. It cannot see which requests are on their way, so an
    instance may get more than `most`; what the others may have does not shrink by that."""
    f = SharedFleet(MODELS, max_concurrency=most)

    def send(name: str) -> None:
        f.sent(name, min(MODELS[name[0]], key=[*f.at.values()].count))

    for ms, (verb, n) in enumerate(steps):
        flying, lost = [*f.at], [name for name, at in f.at.items() if at is None]
        match verb:
            case "submit":
                f.submit(ms, f"{'mno'[n % 3]}{len(f.names)}", [*SLO_PRIORITIES][n % 5])
            case "sent" if lost:
                send(lost[n % len(lost)])
            case "release" if flying:
                f.release(ms, flying[n % len(flying)])
            case _:
                f.advance(ms)
        for models, instances in (*MODELS.items(), ("mn", (0, 1, 2))):
            shown = [*f.at.values()]
            assert sum(name[0] in models for name in f.at) <= sum(max(most, shown.count(i)) for i in instances)

    for ms in range(len(steps), 10 * len(steps) + 10):
        for name, at in [*f.at.items()]:
            if at is None:
                send(name)
            else:
                f.release(ms, name)
        f.advance(ms)
    assert not f.core._tickets

    again: list[bytes] = []
    replay(f.log, DecisionLog(again.append))
    assert again == f.log
