"""Outlier ejection as a timeline: answers in, changes of circuits out. And its properties, whatever comes."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.core.units import MILLISECOND, SECOND
from maitred.scheduler.ejection import (
    Circuit,
    CircuitState,
    EjectionConfig,
    EjectionReason,
    OutlierDetector,
    Transition,
)

CLOSED, EJECTED, HALF_OPEN = CircuitState.CLOSED, CircuitState.EJECTED, CircuitState.HALF_OPEN


def detector(num_backends: int = 2, **config: object) -> OutlierDetector:
    made = OutlierDetector(msgspec.convert(config, EjectionConfig), [Circuit() for _ in range(num_backends)])
    made.set_in_use(range(num_backends))
    return made


def answer(d: OutlierDetector, index: int, now: int, *, is_probe: bool = False) -> list[Transition]:
    """Count an answer as the gateway does: told only where the circuit needs it."""
    d.circuits[index].num_answers += 1
    return [*d.on_success(index, now, is_probe=is_probe)] if d.circuits[index].needs_attention else []


def fail(d: OutlierDetector, index: int, now: int, times: int = 1) -> list[Transition]:
    return [change for _ in range(times) for change in d.on_failure(index, now, is_probe=False)]


def probe(d: OutlierDetector, index: int, now: int, *, fails: bool = False) -> list[Transition]:
    assert d.wants_probe(index)
    assert d.begin_probe(index)
    assert not d.wants_probe(index)  # one at a time
    d.end_probe(index)
    return [*d.on_failure(index, now, is_probe=True)] if fails else answer(d, index, now, is_probe=True)


def test_failures_in_a_row_eject_until_probes_succeed() -> None:
    d = detector(consecutive_failures=5, base_ejection_secs=10, probe_successes=3)
    assert fail(d, 0, 3 * SECOND, 4) == []
    assert fail(d, 0, 3 * SECOND) == [Transition(0, EJECTED, EjectionReason.CONSECUTIVE_FAILURES, 13 * SECOND)]
    assert d.next_deadline() == 13 * SECOND
    assert d.advance(13 * SECOND - 1) == []
    assert d.advance(13 * SECOND) == [Transition(0, HALF_OPEN, EjectionReason.TIME_IS_UP, None)]
    # A probe that fails ejects for twice as long.
    assert probe(d, 0, 14 * SECOND, fails=True) == [Transition(0, EJECTED, EjectionReason.PROBE_FAILED, 34 * SECOND)]
    d.advance(34 * SECOND)
    assert [probe(d, 0, 35 * SECOND) for _ in range(2)] == [[], []]
    assert probe(d, 0, 36 * SECOND) == [Transition(0, CLOSED, EjectionReason.PROBES_SUCCEEDED, None)]
    assert not d.circuits[0].needs_attention
    assert d.next_deadline() is None


def test_one_answer_between_breaks_the_row() -> None:
    d = detector(consecutive_failures=3, min_requests=100)
    for second in range(10):
        assert fail(d, 0, second * SECOND, 2) == []
        assert answer(d, 0, second * SECOND) == []
    assert not d.circuits[0].needs_attention


def test_a_rate_of_failures_ejects_without_a_row() -> None:
    d = detector(consecutive_failures=100, failure_rate=0.5, min_requests=20, window_secs=30)
    changes = []
    for step in range(10):  # a failure, then an answer: at the tenth failure there are 19, at the eleventh 21
        changes += fail(d, 0, step * SECOND)
        answer(d, 0, step * SECOND)
    assert changes == []
    assert fail(d, 0, 10 * SECOND) == [Transition(0, EJECTED, EjectionReason.FAILURE_RATE, 20 * SECOND)]


def test_what_failed_before_the_window_does_not_count() -> None:
    d = detector(consecutive_failures=100, min_requests=10, window_secs=30)
    fail(d, 0, 0, 9)
    for _ in range(8):
        answer(d, 0, 31 * SECOND)
    assert fail(d, 0, 31 * SECOND, 9) == []  # 9 failures and no answer since the window began again with the first of them
    assert fail(d, 0, 31 * SECOND)[0].reason is EjectionReason.FAILURE_RATE


@pytest.mark.parametrize(
    ("num_backends", "share", "most"), [(1, 0.5, 0), (2, 0.5, 1), (3, 0.5, 1), (4, 0.5, 2), (10, 0.1, 1), (3, 1, 2)]
)
def test_never_all_at_once(num_backends: int, share: float, most: int) -> None:
    d = detector(num_backends, max_ejected_share=share)
    for index in range(num_backends):
        fail(d, index, 0, 10)
    assert sum(circuit.is_ejected for circuit in d.circuits) == most == max(0, d.max_ejected)


def test_a_backend_that_was_one_too_many_is_ejected_when_there_is_room() -> None:
    d = detector(2)
    fail(d, 0, 0, 5)
    # It takes the place of the first one, which may be well again.
    assert fail(d, 1, 0, 5) == [
        Transition(0, CLOSED, EjectionReason.OTHERS_FAIL, None),
        Transition(1, EJECTED, EjectionReason.CONSECUTIVE_FAILURES, 10 * SECOND),
    ]
    # Both are broken: each comes back early at most once in half of the time of an ejection, then the last one stays closed.
    assert [change.backend for change in fail(d, 0, SECOND, 5)] == [1, 0]
    assert fail(d, 1, SECOND, 50) == []
    assert [change.backend for change in fail(d, 1, 5 * SECOND, 1)] == [0, 1]


def test_a_backend_that_is_down_has_another_judge() -> None:
    d = detector(2)
    fail(d, 0, 0, 5)
    assert d.reset(0, SECOND) == [Transition(0, CLOSED, EjectionReason.RESET, None)]
    d.set_in_use([1])
    assert fail(d, 1, SECOND, 50) == []  # the last one
    assert fail(d, 0, SECOND, 50) == []  # not in use at all


def test_ejections_in_a_row_are_longer_up_to_a_limit_and_forgotten_in_time() -> None:
    d = detector(2, base_ejection_secs=10, max_ejection_secs=25, probe_successes=1)
    now, lengths = 0, []
    for _ in range(4):
        change = fail(d, 0, now, 5)[-1]
        assert change.until is not None
        lengths.append((change.until - now) // SECOND)
        now = change.until
        d.advance(now)
        probe(d, 0, now)
    assert lengths == [10, 20, 25, 25]
    change = fail(d, 0, now + 50 * SECOND, 5)[-1]
    assert change.until == now + 60 * SECOND


def test_time_in_use_makes_the_next_ejection_shorter() -> None:
    d = detector(2, base_ejection_secs=10, probe_successes=1)
    now = 0
    for _ in range(3):
        now = fail(d, 0, now, 5)[-1].until or 0
        d.advance(now)
        probe(d, 0, now)
    assert now == (10 + 20 + 30) * SECOND
    now += 25 * SECOND  # in use for two times ten seconds and a half
    assert fail(d, 0, now, 5)[-1].until == now + (3 - 2 + 1) * 10 * SECOND


def test_one_that_was_ejected_is_tried_early_when_those_in_use_have_no_room() -> None:
    d = detector(4, consecutive_failures=5)
    fail(d, 0, SECOND, 5)
    fail(d, 1, 2 * SECOND, 5)
    assert [d.on_busy(2, 3 * SECOND, is_probe=False) for _ in range(4)] == [()] * 4
    assert d.on_busy(2, 3 * SECOND, is_probe=False) == (Transition(0, HALF_OPEN, EjectionReason.OTHERS_FAIL, None),)
    assert d.on_busy(2, 3 * SECOND, is_probe=False) == ()  # It waits for its probe.
    d.begin_probe(0)
    # The probe may hang, so the other one is tried as well.
    assert d.on_busy(2, 3 * SECOND, is_probe=False) == (Transition(1, HALF_OPEN, EjectionReason.OTHERS_FAIL, None),)
    assert probe(d, 1, 4 * SECOND, fails=True) == [Transition(1, EJECTED, EjectionReason.EARLY_PROBE_FAILED, 12 * SECOND)]
    assert d.on_busy(2, 4 * SECOND, is_probe=False) == ()  # Both have just been tried.
    assert answer(d, 2, 4 * SECOND) == []
    assert d.on_busy(2, 9 * SECOND, is_probe=False) == ()  # It has had room in between.


def test_one_is_tried_early_for_a_request_that_all_others_have_failed() -> None:
    d = detector(3)
    fail(d, 1, 0, 5)
    assert d.try_early([0, 2], SECOND) == ()
    assert d.try_early([1], SECOND) == (Transition(1, HALF_OPEN, EjectionReason.OTHERS_FAIL, None),)
    assert d.try_early([1], SECOND) == ()
    assert d.begin_probe(1)


def test_late_answers_change_nothing_of_an_ejection() -> None:
    d = detector(2)
    fail(d, 0, 0, 5)
    assert answer(d, 0, SECOND) == [] == fail(d, 0, SECOND, 50)
    d.advance(10 * SECOND)
    assert answer(d, 0, 11 * SECOND) == [] == fail(d, 0, 11 * SECOND, 50)  # of requests that were sent before
    assert d.wants_probe(0)


def test_a_probe_that_shows_nothing_lets_the_next_one_wait() -> None:
    d = detector(2)
    fail(d, 0, 0, 5)
    d.advance(10 * SECOND)
    d.begin_probe(0)
    assert d.lose_probe(0, 15 * SECOND) == [Transition(0, EJECTED, EjectionReason.PROBE_FAILED, 35 * SECOND)]


def test_a_busy_engine_rests_and_is_not_to_blame() -> None:
    d = detector(2, consecutive_failures=1)
    d.rest(0, 7 * SECOND, SECOND)
    d.rest(0, 2 * SECOND, 2 * SECOND)  # the later end counts
    d.on_busy(0, 3 * SECOND, is_probe=False)
    assert (d.circuits[0].rests_until, d.circuits[0].state, d.next_deadline()) == (8 * SECOND, CLOSED, 8 * SECOND)
    assert d.advance(8 * SECOND) == []
    assert d.circuits[0].rests_until is None


def test_a_half_open_backend_that_is_busy_gets_its_next_probe_after_a_while() -> None:
    d = detector(2, base_ejection_secs=10)
    fail(d, 0, 0, 5)
    d.advance(10 * SECOND)
    assert d.begin_probe(0)
    d.end_probe(0)
    d.on_busy(0, 10 * SECOND, is_probe=True)
    assert not d.wants_probe(0)
    assert d.next_deadline() == 11 * SECOND
    d.advance(11 * SECOND)
    assert d.wants_probe(0)
    d.rest(0, 5 * SECOND, 11 * SECOND)  # It has said how long.
    assert not d.wants_probe(0)


def test_nothing_is_ejected_if_that_is_off() -> None:
    d = detector(2, enabled=False)
    assert fail(d, 0, 0, 1000) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [("consecutive_failures", 0), ("failure_rate", 0), ("failure_rate", 1.5), ("window_secs", 0), ("max_ejected_share", 2)],
)
def test_values_that_mean_nothing(key: str, value: float) -> None:
    with pytest.raises(msgspec.ValidationError, match=key):
        msgspec.convert({key: value}, EjectionConfig)


KINDS = ["ok", "fail", "busy", "rest", "probe", "lost", "reset", "early", "wait"]
EVENTS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 3), st.integers(0, 20)),
    max_size=200,
)


@settings(max_examples=60, deadline=None)
@given(EVENTS, st.sampled_from([0.0, 0.3, 0.5, 1.0]))
def test_whatever_comes_some_backend_is_left_and_every_ejection_ends(events: list[tuple[str, int, int]], share: float) -> None:
    d, now, ends = detector(4, max_ejected_share=share, consecutive_failures=2), 0, dict[int, int]()
    for kind, index, passed in events:
        now += passed * 500 * MILLISECOND
        changes = list(d.advance(now))
        if kind == "ok":
            changes += answer(d, index, now)
        elif kind == "fail":
            changes += fail(d, index, now)
        elif kind == "busy":
            changes += d.on_busy(index, now, is_probe=False)
        elif kind == "rest":
            d.rest(index, (1 + passed) * SECOND, now)
        elif kind == "reset":
            changes += d.reset(index, now)
        elif kind == "early":
            changes += d.try_early(range(index + 1), now)
        elif kind in ("probe", "lost") and d.wants_probe(index):
            if kind == "probe":
                changes += probe(d, index, now, fails=bool(passed % 2))
            else:
                d.begin_probe(index)
                changes += d.lose_probe(index, now)
        for change in changes:
            assert (change.until is not None) is (change.state is EJECTED)
            ends[change.backend] = change.until or 0
        d.check()
        assert sum(circuit.is_ejected for circuit in d.circuits) <= d.max_ejected < 4
        assert all(circuit.until == ends[index] for index, circuit in enumerate(d.circuits) if circuit.state is EJECTED)
        deadline = d.next_deadline()
        assert deadline is None or deadline > now  # what was due has been settled
    # Left alone, every ejected backend is tried again after the longest ejection.
    d.advance(now + 300 * SECOND)
    assert not any(circuit.state is EJECTED for circuit in d.circuits)
