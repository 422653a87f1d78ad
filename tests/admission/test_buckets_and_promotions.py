"""The two counts that are kept in fractions: tokens of a rate, and promotions."""

from __future__ import annotations

from admission_timeline import BULK, INTERACTIVE, SYSTEM, Timeline
from hypothesis import given
from hypothesis import strategies as st

from maitred.admission.waiting.token_bucket import TokenBucket
from maitred.core.units import SECOND


@given(
    st.floats(0.001, 1e6),
    st.floats(1, 50),
    st.lists(st.tuples(st.integers(0, 3 * SECOND), st.booleans()), min_size=1, max_size=40),
)
def test_a_token_is_there_from_the_instant_that_is_said_and_not_before(
    rate: float, burst: float, events: list[tuple[int, bool]]
) -> None:
    bucket, now = TokenBucket(rate, burst), 0
    for span, take in events:
        now += span
        if take and bucket.has_token(now):
            bucket.take_token(now)
        at = bucket.next_token_at(now)
        assert bucket.has_token(at)
        assert at == now or not bucket.has_token(at - 2)


@given(st.integers(1, 20), st.lists(st.integers(0, 300_000), min_size=1, max_size=200))
def test_never_more_than_the_burst_and_the_rate_together(burst: int, spans: list[int]) -> None:
    bucket, now, taken = TokenBucket(10, burst), 0, 0
    for span in spans:
        now += span
        while bucket.has_token(now):
            bucket.take_token(now)
            taken += 1
    assert taken <= burst + 10 * now / SECOND + 1e-6


def test_promotions_are_not_saved_up_beyond_the_burst() -> None:
    """Forty admissions from the queue, no promotion; and then bulk starves: two in a row, not ten."""
    patient = {"queue_size": 100, "queue_timeout_secs": 1000, "can_preempt": False}
    t = Timeline(1, interactive=patient, bulk={**patient, "starvation_threshold_secs": 50})
    t.submit(0, "i0", INTERACTIVE)
    for n in range(1, 61):
        t.submit(0, f"i{n}", INTERACTIVE)
    for n in range(5):
        t.submit(0, f"b{n}", BULK)
    for n in range(40):
        assert t.release(1 + n, f"i{n}") == [f"i{n + 1} admit slot_free"]

    assert t.release(60, "i40") == ["b0 admit starved"]
    assert t.release(61, "b0") == ["b1 admit starved"]
    assert t.release(62, "b1") == ["i41 admit slot_free"]


def test_system_has_no_need_of_promotions_under_smg_either() -> None:
    t = Timeline(1, {"flavour": "smg"}, system={"can_preempt": False, "starvation_threshold_secs": 1})
    t.submit(0, "held")
    t.submit(0, "s", SYSTEM)

    assert t.release(5, "held") == ["s admit slot_free"]
