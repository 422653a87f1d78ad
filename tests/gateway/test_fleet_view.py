"""The view of a fleet, told by hand what happens, and what the watch makes of a poll: neither needs a backend or a loop."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from maitred.core.errors import MaitredError
from maitred.core.histogram import Histogram
from maitred.core.request import Request
from maitred.core.units import SECOND
from maitred.scheduler.backends.backend import Backend, UpstreamRequest
from maitred.scheduler.backends.ejection_driver import SilenceWatch
from maitred.scheduler.backends.fleet_view import FleetView
from maitred.scheduler.backends.fleet_watch import FleetWatch
from maitred.scheduler.backends.slot_pools import FleetListener
from maitred.scheduler.config import FleetConfig
from maitred.scheduler.ejection import EjectionConfig
from maitred.wire.client import UpstreamClient
from maitred.wire.clock import Clock
from maitred.wire.errors import ConnectError, ConnectTimeout, LocalError, PoolTimeout, ProtocolError, connect_error

CONFIG = FleetConfig(backends=("http://a:1", "http://b:1"), slots_per_backend=8, health_failures=3)


def fleet_of_two() -> tuple[FleetView, Backend, Backend]:
    """Return a fleet of two backends that are up and serve `m`."""
    fleet = FleetView(CONFIG, Clock())
    for backend in fleet.backends:
        fleet.mark_up(backend, {"m": {"id": "m"}}, None)
    return fleet, *fleet.backends


def send(fleet: FleetView, backend: Backend, number: int) -> UpstreamRequest:
    task: Any = SimpleNamespace(cancel=lambda: None)
    sent = UpstreamRequest(backend, Request(id=number, arrival=0, prompt_tokens=1, model="m"), task)
    fleet.add_request(sent, 0)
    return sent


def test_what_stays_at_a_backend_that_is_down_brings_its_slots_until_it_ends() -> None:
    fleet, a, b = fleet_of_two()
    told: list[int] = []
    stranded: list[tuple[int, bool]] = []

    class Listener(FleetListener):
        def on_slots_changed(self, pools: Iterable[str], backends: Iterable[Backend]) -> None:
            told.extend(fleet.pools.total_slots(pool) for pool in pools)

        def on_stranded(self, request_id: int, is_stranded: bool) -> None:
            stranded.append((request_id, is_stranded))

    fleet.listen(Listener())
    sent = [send(fleet, b, number) for number in range(3)]
    assert fleet.pools.total_slots("m") == 16
    fleet.mark_down(b, "refused")
    assert fleet.backends_serving("m") == (a,)
    fleet.remove_request(sent[0], 0)
    assert told == [8 + 3, 8 + 2]
    fleet.mark_up(b, {"m": {"id": "m"}}, None)
    assert told == [11, 10, 16]
    assert sorted(stranded) == [(0, True), (1, False), (1, True), (2, False), (2, True)]


def test_only_failures_in_a_row_take_a_backend_down_and_its_requests_away() -> None:
    fleet, a, b = fleet_of_two()
    committed, waiting = send(fleet, a, 1), send(fleet, a, 2)
    committed.is_committed = True
    for _ in range(2):
        fleet.count_failure(a, "garbage")
    fleet.mark_up(a, a.models, None)
    for _ in range(2):
        fleet.count_failure(a, "garbage")
    assert a.healthy
    assert not waiting.is_cancelled
    fleet.count_failure(a, "garbage")
    assert (a.healthy, a.problem, waiting.is_cancelled, committed.is_cancelled) == (False, "garbage", True, False)
    fleet.mark_down(b, "refused")
    assert fleet.backends_serving("m") == ()
    assert fleet.may_serve("m")


def test_a_request_sees_the_backends_of_a_model_that_was_forgotten_meanwhile_and_came_back() -> None:
    fleet, a, b = fleet_of_two()
    served = fleet.find_model("m")
    assert served is not None
    assert served.backends == (a, b)
    for backend in (a, b):
        fleet.mark_up(backend, {"n": {"id": "n"}}, None)
    assert not fleet.is_known("m")
    assert (served.backends, fleet.may_serve("m")) == ((), True)
    fleet.mark_up(b, {"m": {"id": "m"}}, None)
    assert served.backends == fleet.backends_serving("m") == (b,)
    assert fleet.find_model("m") is served


UP, DOWN = True, False


@pytest.mark.parametrize(
    ("error", "silent", "heard"),
    [
        (connect_error(ConnectionRefusedError(111, "refused"), "refused"), (DOWN, 1), (DOWN, 1)),
        (ConnectTimeout("no connection within 5 s"), (DOWN, 2), (UP, 0)),
        (ConnectError("no route to host"), (DOWN, 2), (UP, 0)),
        (TimeoutError(), (UP, 2), (UP, 0)),
        (ProtocolError("garbage"), (UP, 2), (UP, 2)),
        (MaitredError("unexpected"), (UP, 2), (UP, 2)),
        (ZeroDivisionError(), (UP, 2), (UP, 2)),
        (LocalError("no ports"), (UP, 1), (UP, 1)),
        (PoolTimeout("all are in use"), (UP, 1), (UP, 1)),
    ],
)
def test_what_a_failed_poll_means(error: Exception, silent: tuple[bool, int], heard: tuple[bool, int]) -> None:
    """Health and failures in a row after it, where one failure has gone before: while nothing comes from the backend, and while
    answers to requests do."""
    for has_answered, expected in ((False, silent), (True, heard)):
        fleet, backend, _ = fleet_of_two()
        watch = FleetWatch(CONFIG, fleet, UpstreamClient(), clock=Clock(), kv_polling=None, wants_load=lambda: False)
        fleet.count_failure(backend, "one before")
        watch._on_failure(backend, error, has_answered=has_answered)
        assert (backend.healthy, backend.failures_in_a_row) == expected


def test_the_usual_silence_is_not_found_out_anew_for_each_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, a, b = fleet_of_two()
    merged: list[Histogram] = []
    monkeypatch.setattr(Histogram, "merge", lambda self, other: merged.append(other))
    watch = SilenceWatch(EjectionConfig(silence_secs=10.0), fleet.backends)
    send(fleet, a, 1)
    watch.silent_requests(a, 1)
    for second in range(1, 6):
        b.circuit.num_answers += 1
        for poll in range(100):
            assert watch.silent_requests(a, second * SECOND + poll) == ()
    assert len(merged) == 5 * 2
