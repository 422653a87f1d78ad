"""`maitred.simulate` and its Result, as a program uses them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import maitred
from maitred.sim import simulate


def workload() -> object:
    return maitred.synthetic(rate=20, num_requests=200, class_mix="interactive:1,bulk:1")


@pytest.fixture(scope="module")
def result() -> maitred.Result:
    slo = maitred.Slo(ttft=50_000)
    return maitred.simulate(workload(), maitred.ClusterConfig(num_instances=2), seed=7, slo=slo)


def test_its_rows_are_those_of_the_simulator(result: maitred.Result) -> None:
    bare = simulate(workload(), maitred.ClusterConfig(num_instances=2), seed=7)
    assert np.array_equal(result.rows.finished, bare.finished)
    assert bare.samples is None
    assert result.rows.samples is not None


def test_it_sums_up_by_its_slo_or_another(result: maitred.Result) -> None:
    met = int(np.count_nonzero(result.rows.first_token - result.rows.arrival <= 50_000))
    assert result.summary().total.within_slo == met
    assert result.summary(maitred.Slo(ttft=1)).total.within_slo == 0
    assert list(result.summary(by=[maitred.By.INSTANCE]).by) == [maitred.By.CLASS, maitred.By.INSTANCE]


def test_it_writes_page_and_plot(result: maitred.Result, tmp_path: Path) -> None:
    result.report(tmp_path / "run.html")
    figure = result.plot(tmp_path / "run.svg")
    assert (tmp_path / "run.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert (tmp_path / "run.svg").read_bytes().startswith(b"<?xml")
    assert len(figure.axes) >= 8
    assert result.to_frame().height == 200


def test_what_cannot_be_written_is_told_and_leaves_nothing(result: maitred.Result, tmp_path: Path) -> None:
    with pytest.raises(maitred.ConfigError, match="there is no directory"):
        result.report(tmp_path / "no" / "run.html")
    with pytest.raises(maitred.ConfigError, match="no suffix of a picture format"):
        result.plot(tmp_path / "run.gif")
    assert list(tmp_path.iterdir()) == []


def test_it_shows_itself(result: maitred.Result) -> None:
    assert re.fullmatch(r"<Result: 200 of 200 requests completed, TTFT p99 [\d.]+ ms, [\d.]+% within SLO>", repr(result)), repr(
        result
    )
    html = result._repr_html_()
    assert html.count("<tr>") == 1 + 3 * 3
    assert "200 of 200 requests completed" in html


def test_a_trace_may_be_named_as_on_the_command_line() -> None:
    result = maitred.simulate("sample:mixed", maitred.ClusterConfig(num_instances=2), sample_every=None)
    assert (len(result.rows), result.setup.workload, result.rows.samples) == (476, "sample:mixed", None)
    with pytest.raises(maitred.ConfigError, match=r"none\.csv: cannot be read"):
        maitred.simulate("azure:none.csv")


def test_the_setup_is_what_was_simulated() -> None:
    """With a capacity and no admission section, the default classes apply."""
    result = maitred.simulate(workload(), maitred.ClusterConfig(capacity=5))
    written = result.setup.flat_sections()
    assert written["admission"]["mode"] == ("priority", False)
    assert written["cluster"]["capacity"] == (5, False)
    assert written["cluster"]["num_instances"] == (1, True)


def test_a_horizon_cuts_it_off() -> None:
    result = maitred.simulate(workload(), horizon=1_000_000)
    assert result.rows.end == 1_000_000
    assert "no first token" in repr(maitred.simulate(workload(), horizon=1))
