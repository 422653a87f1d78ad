"""An instant that never came is no number: no latency is made of one, in any figure or file."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from result_rows import BULK, INTERACTIVE, NEVER, results_of

from maitred.report import Slo, summarise
from maitred.report.export import to_frame, write_requests
from maitred.report.latencies import request_times
from maitred.report.panels import latency_panels
from maitred.report.request_statistics import request_latencies
from maitred.report.slo import meets_slo
from maitred.sim import Outcome, Results

SECOND = 1_000_000
# Completed 30 s after the start of the run with 20 tokens by its usage, and none of them seen; another one is as usual.
UNSEEN = (0, INTERACTIVE, 30 * SECOND, NEVER, NEVER, 31 * SECOND, 10, 20, Outcome.COMPLETED, NEVER, 0, 0, 0)
USUAL = (1, BULK, 30 * SECOND, NEVER, 30_100_000, 31 * SECOND, 10, 10, Outcome.COMPLETED, NEVER, 0, 0, 0)


@pytest.fixture
def measured() -> Results:
    return results_of((UNSEEN, USUAL), 31 * SECOND)


def test_a_request_whose_tokens_were_not_seen_has_no_ttft_and_no_tpot(measured: Results) -> None:
    found = {name: column.tolist() for name, column in request_latencies(measured).items()}
    assert found == {"ttft": [100_000], "tpot": [100_000], "e2e": [SECOND, SECOND], "scheduling_delay": []}
    total = summarise(measured).total
    assert total.itl_mean == 100_000


@pytest.mark.parametrize(
    ("slo", "met"),
    [
        (Slo(ttft=SECOND), [False, True]),
        (Slo(tpot=SECOND), [False, True]),
        (Slo(tpot=3_600 * SECOND), [False, True]),
        (Slo(e2e=2 * SECOND), [True, True]),
    ],
)
def test_it_meets_no_target_that_nobody_has_seen_it_meet(measured: Results, slo: Slo, met: list[bool]) -> None:
    assert meets_slo(measured, slo).tolist() == met


def test_files_say_that_there_is_none(measured: Results) -> None:
    frame = to_frame(measured)
    assert frame["ttft_us"].to_list() == [None, 100_000]
    assert frame["tpot_us"].to_list() == [None, 100_000.0]
    assert frame["e2e_us"].to_list() == [SECOND, SECOND]
    pieces: list[bytes] = []
    write_requests(measured, pieces.append)
    assert [row["ttft_us"] for row in json.loads(b"".join(pieces))] == [None, 100_000]


def test_charts_leave_it_out(measured: Results) -> None:
    for panel in latency_panels(measured, Slo()):
        assert all((curve.x > 0).all() for curve in panel.curves), panel.title


def test_tpot_ends_with_the_last_token_that_was_seen(measured: Results) -> None:
    seen = msgspec.structs.replace(measured, last_token=np.array([NEVER, 30_550_000]))
    assert request_latencies(seen)["tpot"].tolist() == [50_000]
    assert summarise(seen).total.itl_mean == 50_000
    at_once = msgspec.structs.replace(measured, last_token=np.array([NEVER, 30_100_000]))
    assert request_latencies(at_once)["tpot"].tolist() == []
    assert meets_slo(at_once, Slo(tpot=1)).tolist() == [False, True]


INSTANTS = st.one_of(st.just(NEVER), st.integers(0, 50))


@st.composite
def rows(draw: st.DrawFn) -> tuple[int, ...]:
    """A row in which any instant may be missing."""
    arrival = draw(st.integers(0, 50))
    scheduled, first, finished = (at if at == NEVER else arrival + at for at in (draw(INSTANTS) for _ in range(3)))
    finished = max(finished, first) if finished != NEVER else NEVER
    outcome = draw(st.sampled_from(sorted(Outcome)))
    return (0, INTERACTIVE, arrival, scheduled, first, finished, 1, draw(st.integers(0, 9)), outcome, NEVER, 0, 0, 0)


@given(st.lists(rows(), min_size=1, max_size=6), st.sampled_from(["ttft", "tpot", "e2e"]))
def test_no_latency_is_negative_or_of_a_missing_instant(some: list[tuple[int, ...]], target: str) -> None:
    results = results_of(tuple(some), 200)
    times = request_times(results)
    missing = {
        "ttft": results.first_token < 0,
        "tpot": (results.first_token < 0) | (results.finished < 0),
        "e2e": results.finished < 0,
        "scheduling_delay": results.scheduled < 0,
    }
    for name, absent in missing.items():
        column = getattr(times, name)
        assert np.isnan(column[absent]).all()
        assert not (column < 0).any()
    met = meets_slo(results, Slo(**{target: 10**9}))
    may_have_none = results.output_tokens <= 1 if target == "tpot" else np.zeros(len(results), dtype=bool)
    assert not (met & missing[target] & ~may_have_none).any()
