"""Many backends with many models: what changes is worked out for the backend that has changed alone, and comes to the same."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.core.request import Request
from maitred.core.units import SECOND
from maitred.scheduler.backends.backend import Backend, UpstreamRequest
from maitred.scheduler.backends.fleet_view import FleetView
from maitred.scheduler.config import FleetConfig
from maitred.scheduler.ejection import CircuitState, EjectionConfig
from maitred.scheduler.link.channel import ChannelLimits
from maitred.scheduler.link.messages import Fleet
from maitred.scheduler.sharing.fleet_mirror import FleetMirror, ReportedEjection
from maitred.scheduler.sharing.fleet_news import FleetNews
from maitred.wire.clock import Clock

NAMES = ("base", "law", "sql", "other")
CARDS = {"base": {}, "law": {"parent": "base"}, "sql": {"parent": "base"}, "other": {}}


def fleet_of(backends: int) -> FleetView:
    return FleetView(FleetConfig(backends=tuple(f"http://b{number}:1" for number in range(backends))), Clock())


def calls_of(work: Callable[[], object]) -> int:
    """Return how many Python functions `work` calls."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def calls_when_the_last_one_comes_up_and_goes_down(backends: int, models: int) -> int:
    fleet = fleet_of(backends)
    cards: dict[str, dict[str, Any]] = {f"m{number}": {} for number in range(models)}
    *others, last = fleet.backends
    for backend in others:
        fleet.mark_up(backend, dict(cards), None)

    def come_and_go() -> None:
        fleet.mark_up(last, dict(cards), None)
        fleet.mark_down(last, "refused")

    return calls_of(come_and_go)


def news_of(fleet: FleetView) -> tuple[FleetNews, Callable[[int], None], list[Any]]:
    """Return what tells a gateway of a fleet, what has it do so at a time, and what was told."""
    told: list[Any] = []
    end: Any = SimpleNamespace(settling=SimpleNamespace(slots={}), books=SimpleNamespace(connected=[]))
    end.tell = lambda message, to=None: told.append(message)
    news = FleetNews(fleet, {}, lambda: None)
    fleet.observe(news)
    return news, lambda now: news.tell(end, now), told


def calls_of_the_news_after_a_poll_of_each(backends: int) -> int:
    news, tell, told = news_of(fleet := fleet_of(backends))
    tell(0)

    def take_polls() -> None:
        for backend in fleet.backends:
            news.on_backend_polled(backend)
            tell(0)

    told.clear()
    calls = calls_of(take_polls)
    assert told == []
    return calls


def test_what_polls_cost_the_news_for_gateways_grows_with_the_backends_and_not_with_their_square() -> None:
    assert calls_of_the_news_after_a_poll_of_each(200) <= 4.2 * calls_of_the_news_after_a_poll_of_each(50)


def test_gateways_are_told_of_a_rest_once_of_how_long_it_still_is_when_they_come_and_of_its_end() -> None:
    fleet = fleet_of(3)
    news, tell, told = news_of(fleet)
    tell(0)
    resting, other = fleet.backends[:2]
    resting.circuit.rests_until = 5 * SECOND
    fleet.note_polled(resting)
    tell(SECOND)
    assert [(each.number, each.rests) for each in told[-1].backends] == [(0, 4 * SECOND)]
    num_told = len(told)
    fleet.note_polled(resting)
    tell(2 * SECOND)
    assert len(told) == num_told
    late: list[Any] = []
    news.tell_all(SimpleNamespace(tell=lambda message, gateway: late.append(message)), ("g", "1"), 3 * SECOND)  # type: ignore[arg-type]
    assert late[0].backends[0].rests == 2 * SECOND
    resting.circuit.rests_until = None
    fleet.note_polled(other)
    tell(6 * SECOND)
    assert [(each.number, each.rests) for each in told[-1].backends] == [
        (0, None),
        (1, None),
    ]  # The other one was polled first.


def test_a_gateway_is_told_of_more_models_than_fit_in_a_frame_and_then_of_what_changes() -> None:
    fleet = fleet_of(40)
    for backend in fleet.backends:
        backend.has_been_polled = True
        fleet.mark_up(backend, {f"{backend.index}-{number}-{'x' * 1_000}": {} for number in range(500)}, None)
    news, tell, told = news_of(fleet)
    tell(0)
    told.clear()
    come: list[Any] = []
    news.tell_all(SimpleNamespace(tell=lambda message, gateway: come.append(message)), ("g", "1"), 0)  # type: ignore[arg-type]
    fleets = [message for message in come if isinstance(message, Fleet)]
    frames = [msgspec.msgpack.encode(message) for message in fleets]
    assert sum(map(len, frames)) > ChannelLimits().frame_bytes > 4 * max(map(len, frames))
    mirrored, clock = fleet_of(40), Clock()
    mirror = FleetMirror(mirrored, ReportedEjection(EjectionConfig(), mirrored.backends, clock, told.append, hash), clock)
    for message in fleets[:-1]:
        mirror.take_over(message)
        assert not any(backend.healthy for backend in mirrored.backends)
    mirror.take_over(fleets[-1])
    assert [backend.models for backend in mirrored.backends] == [backend.models for backend in fleet.backends]
    fleet.mark_down(fleet.backends[7], "refused")
    fleet.note_polled(fleet.backends[7])
    tell(SECOND)
    (change,) = told
    assert [each.number for each in change.backends] == [7]
    mirror.take_over(change)
    assert [backend.index for backend in mirrored.backends if not backend.healthy] == [7]
    with pytest.raises(ValueError, match="there is no backend 41"):
        mirror.take_over(Fleet([msgspec.structs.replace(change.backends[0], number=41)]))


def test_a_change_that_comes_before_all_backends_are_told_is_left_to_that() -> None:
    """A gateway comes back in the turn in which a backend changes that came while it was away: all are told of it."""
    fleet = fleet_of(1)
    news, tell, told = news_of(fleet)
    tell(0)
    news.tell_all(SimpleNamespace(tell=lambda message, gateway: told.append(message)), ("g", "1"), 0)  # type: ignore[arg-type]
    mirrored, clock = fleet_of(1), Clock()
    mirror = FleetMirror(mirrored, ReportedEjection(EjectionConfig(), mirrored.backends, clock, told.append, hash), clock)
    for message in (each for each in told if isinstance(each, Fleet)):
        mirror.take_over(message)
    fleet.add("http://b1:1")
    fleet.add("http://b2:1")
    tell(SECOND)  # while it is away
    told.clear()
    fleet.backends[2].has_been_polled = True
    fleet.mark_up(fleet.backends[2], {"m": {}}, None)
    fleet.note_polled(fleet.backends[2])
    tell(2 * SECOND)
    news.tell_all(SimpleNamespace(tell=lambda message, gateway: told.append(message)), ("g", "1"), 0)  # type: ignore[arg-type]
    mirror.on_opened()
    for message in (each for each in told if isinstance(each, Fleet)):
        mirror.take_over(message)
    assert [backend.url for backend in mirrored.backends] == [backend.url for backend in fleet.backends]
    assert [*mirrored.backends[2].models] == ["m"]


def test_what_a_backend_costs_grows_with_the_backends_and_with_its_models_but_not_with_both() -> None:
    few, more = (calls_when_the_last_one_comes_up_and_goes_down(backends, 40) for backends in (10, 60))
    assert more - few <= 40 * 50  # Of each of 50 more backends some calls, and not some for each of 40 models.
    wide = calls_when_the_last_one_comes_up_and_goes_down(60, 80)
    assert wide <= 2.1 * more


def test_only_the_pools_of_a_backend_that_has_changed_are_told() -> None:
    fleet = fleet_of(3)
    for backend, model in zip(fleet.backends, ("a", "b", "c"), strict=True):
        fleet.mark_up(backend, {model: {}}, 8)
    told: list[list[str]] = []
    fleet._listener.on_slots_changed = lambda pools, backends: told.append([*pools])  # type: ignore[method-assign]
    fleet.mark_up(fleet.backends[1], {"b": {}}, 16)
    fleet.mark_down(fleet.backends[2], "refused")
    assert told == [["b"], ["c"]]
    assert (fleet.pools.total_slots("b"), fleet.pools.total_slots("c")) == (16, 0)


Step = tuple[str, int, tuple[str, ...], int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["up", "up", "down", "eject", "restore", "drain", "undrain", "send", "end", "leave", "add"]),
        st.integers(0, 4),
        st.lists(st.sampled_from(NAMES), max_size=3, unique=True).map(tuple),
        st.integers(1, 3),
    ),
    max_size=40,
)


@given(STEPS)
def test_whatever_happens_it_is_as_if_all_were_looked_at_anew(steps: list[Step]) -> None:
    fleet = fleet_of(4)
    sent: list[UpstreamRequest] = []
    for number, step in enumerate(steps):
        take(fleet, step, sent, number)
        compare_with_a_look_at_all(fleet)


def take(fleet: FleetView, step: Step, sent: list[UpstreamRequest], number: int) -> None:
    kind, index, names, slots = step
    if kind == "add":
        fleet.add(f"http://b{index}:1")
        return
    if index >= len(fleet.backends):
        return
    backend = fleet.backends[index]
    if kind == "up":
        fleet.mark_up(backend, {name: CARDS[name] for name in names}, slots)
    elif kind == "down":
        fleet.mark_down(backend, "refused")
    elif kind in {"eject", "restore"}:
        backend.circuit.state = CircuitState.EJECTED if kind == "eject" else CircuitState.CLOSED
        fleet.update_serving()
    elif kind == "leave":
        fleet.leave(backend.url)
        fleet.forget_when_idle(backend.url)
    elif kind == "send":
        task: Any = SimpleNamespace(cancel=lambda: None)
        model = names[0] if names else "base"
        if fleet.is_known(model) and backend in fleet.backends_serving(model):
            sent.append(UpstreamRequest(backend, Request(id=number, arrival=0, prompt_tokens=1, model=model), task))
            fleet.add_request(sent[-1], 0)
    elif kind == "end" and sent:
        fleet.remove_request(sent.pop(index % len(sent)), SECOND)
    else:
        (fleet.drain if kind == "drain" else fleet.undrain)(backend)


def compare_with_a_look_at_all(fleet: FleetView) -> None:
    fleet.check()
    usable = [backend for backend in fleet.backends if backend.healthy and not backend.is_draining]
    in_use = not_ejected(usable)
    serving = {model: not_ejected([b for b in usable if model in b.models]) for model in fleet.known_models}
    assert [*fleet.backends_serving("")] == in_use
    for model, backends in serving.items():
        assert [*fleet.backends_serving(model)] == backends
    for backend in fleet.backends:
        assert backend.is_in_use is (backend in in_use)
        assert backend.is_left is (backend.circuit.is_ejected and all(backend not in serving[m] for m in backend.models))
    for pool in fleet.pools.names:
        members = {b for model, backends in serving.items() if fleet.pools.pool_of(model) == pool for b in backends}
        assert {*fleet.pools.backends(pool)} == members
        held = 0
        for backend in fleet.backends:
            most = fleet.pools.num_slots(backend)
            if backend not in members:
                held += sum(min(1, most) for sent in backend.requests if fleet.pools.pool_of(sent.model) == pool)
        assert fleet.pools.total_slots(pool) == held + sum(map(fleet.pools.num_slots, members))


def not_ejected(backends: list[Backend]) -> list[Backend]:
    return [backend for backend in backends if not backend.circuit.is_ejected] or backends
