"""The content of charts, for the five of `told` in conftest; as picture files; the timeline of the page."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from html import unescape
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from maitred.admission import AdmissionConfig
from maitred.core.errors import ConfigError
from maitred.core.histogram import QuantileSketch
from maitred.instance import InstanceConfig
from maitred.report import Result, Slo, check_plot_path, simulate, write_plot
from maitred.report.figure import draw_run
from maitred.report.page.timeline import timeline_html
from maitred.report.panels import Curve, Panel, latency_panels, time_panels
from maitred.sim import ClusterConfig, Outcome, Results
from maitred.sim.results import ItlGaps
from maitred.workload.synthetic import synthetic


def by_title(panels: list[Panel]) -> dict[str, Panel]:
    return {panel.title.split(",")[0]: panel for panel in panels}


def test_latencies_of_every_class_with_the_target_of_all(told: Results) -> None:
    ttft, _, e2e = latency_panels(told, Slo(ttft_ms=250))
    assert [curve.label for curve in ttft.curves] == ["interactive", "bulk"]
    interactive = ttft.curves[0]
    assert np.interp([100, 150, 200], interactive.x, interactive.y) == pytest.approx([0, 0.5, 1])
    assert (ttft.target, e2e.target) == (250, None)
    assert "bulk: half within 600.0 ms, 99 % within 796.0 ms" in ttft.about


RANKS = np.linspace(0, 1, 101)


@pytest.mark.parametrize(
    ("values", "begin"),
    [
        (np.linspace(10, 110, 101), 11.0),  # the first hundredth
        (np.array([0.001] * 3 + [8.0] * 98), 2.0),  # 3 % came together with the token before: a quarter of the others
        (np.array([0.001] * 60 + [20.0] * 41), 0.02),  # most did: three decades
    ],
)
def test_a_logarithmic_axis_leaves_room_for_what_is_usual(values: np.ndarray, begin: float) -> None:
    panel = Panel(title="", about="", x_label="ms", y_label="", curves=(Curve(label="a", x=values, y=RANKS),), log_x=True)
    assert panel.log_from == pytest.approx(begin)


def test_panels_of_requests_have_whole_ticks(told: Results) -> None:
    panels = by_title([*time_panels(told), *latency_panels(told, Slo())])
    assert {title for title, panel in panels.items() if panel.counts_requests} == {
        *("Not running yet", "In flight", "Waiting", "Running batch"),
    }


def test_a_latency_that_no_request_has_has_no_panel(make: object, told: Results, five_rows: object) -> None:
    single_token = make(five_rows[1:2], 2_000_000)  # type: ignore[operator, index]
    assert [panel.title[:4] for panel in latency_panels(single_token, Slo())] == ["TTFT", "E2E,"]
    assert [curve.label for curve in latency_panels(single_token, Slo())[0].curves] == ["all"]


def test_rates_add_up_to_what_there_was(told: Results) -> None:
    panels = by_title(time_panels(told))
    arriving, completing = panels["Requests"].curves
    width = 2.0 / len(arriving.x)
    assert arriving.y.sum() * width == pytest.approx(5)
    assert completing.y.sum() * width == pytest.approx(3)
    (tokens,) = panels["Output"].curves
    assert tokens.y.sum() * width == pytest.approx(20, rel=0.02)
    early = tokens.x < 0.5  # 5 tokens from 0.1 to 0.5 s, and one token at 0.3 s
    assert tokens.y[early].sum() * width == pytest.approx(6, rel=0.02)


def test_samples_by_instance(told: Results) -> None:
    panels = by_title(time_panels(told))
    first, second, in_front = panels["Waiting"].curves
    assert [curve.label for curve in panels["Waiting"].curves] == ["instance 0", "instance 1", "before any instance"]
    assert (first.y.tolist(), second.y.tolist(), in_front.y.tolist()) == ([0, 2, 0], [0, 4, 0], [0, 3, 0])
    _, used = panels["KV cache"].curves
    assert used.y.tolist() == pytest.approx([0, 1, 0.1])
    assert "instance 1 up to 100.0%" in panels["KV cache"].about


def test_of_many_instances_the_mean_and_the_range(told: Results) -> None:
    samples = told.samples
    assert samples is not None
    wide = {name: np.tile(getattr(samples, name), 4) for name in ("waiting", "running", "blocks_used")}
    panels = by_title(time_panels(msgspec.structs.replace(told, samples=msgspec.structs.replace(samples, **wide))))
    waiting, _ = panels["Waiting"].curves
    assert waiting.low is not None
    assert waiting.high is not None
    assert (waiting.y.tolist(), waiting.low.tolist(), waiting.high.tolist()) == ([0, 3, 0], [0, 2, 0], [0, 4, 0])


def test_requests_in_the_cluster_by_class(told: Results) -> None:
    panels = by_title(time_panels(told))
    for title, at, interactive, bulk in (
        ("In flight", 0.25, 1, 2),  # request 0 until 0.5 s, 2 and 3 from 0.2 and 0.25 s on; 1 from 0.1 to 0.3 s
        ("In flight", 2.0, 0, 2),  # 3 and 4 have no end
        ("Not running yet", 0.2, 0, 1),
        ("Not running yet", 2.0, 0, 1),  # 3 never ran
    ):
        curves = {curve.label: curve for curve in panels[title].curves}
        index = int(np.searchsorted(curves["bulk"].x, at - 1e-9))
        assert (curves["interactive"].y[index], curves["bulk"].y[index]) == (interactive + (at == 0.25), bulk), (title, at)


def test_a_measured_request_waits_until_its_first_token(five: Results) -> None:
    unknown = np.full(len(five), -1)
    measured = msgspec.structs.replace(five, scheduled=unknown, is_measured=True)
    panels = by_title(time_panels(measured))
    assert "Not running yet" not in panels
    waiting, present = (sum(curve.y for curve in panels[title].curves) for title in ("No token yet", "In flight"))
    assert (waiting <= present).all()
    at = panels["In flight"].curves[0].x
    index = int(np.searchsorted(at, 0.15))
    known = (five.arrival <= at[index] * 1e6) & ((five.first_token < 0) | (five.first_token > at[index] * 1e6))
    known &= (five.finished < 0) | (five.finished > at[index] * 1e6)
    assert waiting[index] == known.sum() < present[index]  # type: ignore[index]


def test_gaps_of_every_class(told: Results, sketch_of: Callable[..., QuantileSketch]) -> None:
    sketches = {name: sketch_of(*gaps) for name, gaps in (("interactive", (10_000, 20_000)), ("bulk", (90_000,)))}
    gaps = ItlGaps(
        steps=np.array([1, 1, 1]),
        spans=np.array([10_000, 20_000, 90_000]),
        request_id=np.array([0, 2]),
        first_stretch=np.array([0, 2]),
        end_stretch=np.array([2, 3]),
        single_gap_request_id=np.array([], dtype=np.int64),
        single_gaps=np.array([], dtype=np.int64),
    )
    itl = latency_panels(msgspec.structs.replace(told, itl_gaps=gaps), Slo())[-1]
    assert itl.title.startswith("ITL")
    assert [curve.label for curve in itl.curves] == ["interactive", "bulk"]
    for curve in itl.curves:
        assert curve.x[-1] == pytest.approx(sketches[curve.label].percentile(100) / 1000)


def test_without_samples_there_are_no_queues_to_show(five: Results) -> None:
    assert set(by_title(time_panels(five))) == {"Requests", "Output", "Not running yet", "In flight", "Prefix cache hits"}


def test_hits_are_shares_of_what_was_asked(told: Results) -> None:
    (cached,) = by_title(time_panels(told))["Prefix cache hits"].curves
    assert cached.y.tolist() == pytest.approx([0.8, 0, 14 / 30, 0])


def test_nothing_happened(none: Results) -> None:
    assert time_panels(none) == latency_panels(none, Slo(ttft_ms=0.001)) == []


def written(results: Results, name: str) -> bytes:
    parts: list[bytes] = []
    write_plot(results, Slo(ttft_ms=200), Path(name), parts.append)
    return b"".join(parts)


def test_all_panels_are_drawn_and_the_target(told: Results) -> None:
    shown = [axes for axes in draw_run(told, Slo(ttft_ms=200)).axes if axes.get_visible()]
    assert [axes.get_title(loc="left").split(",")[0] for axes in shown] == [
        "TTFT", "TPOT", "E2E", "Requests", "Output", "Not running yet", "In flight", "Prefix cache hits", "Waiting",
        "Running batch", "KV cache",
    ]  # fmt: skip
    assert [line.get_label() for line in shown[0].lines] == ["interactive", "bulk", "SLO"]
    assert shown[0].get_xscale() == "log"


@pytest.mark.parametrize(("name", "begins"), [("p.png", b"\x89PNG"), ("p.svg", b"<?xml"), ("p.PDF", b"%PDF")])
def test_the_name_says_the_kind_and_the_same_run_gives_the_same_bytes(told: Results, name: str, begins: bytes) -> None:
    latencies = replace(told, end=0)  # the panels over time would be drawn as these are
    first = written(latencies, name)
    assert first.startswith(begins)
    assert first == written(latencies, name)


@pytest.mark.parametrize("span", [1.01, 1.5, 4, 300])
def test_labels_of_a_logarithmic_axis_do_not_overlap(told: Results, span: float) -> None:
    narrow = msgspec.structs.replace(told, first_token=told.arrival + (14_000 * np.geomspace(1, span, 5)).astype(np.int64))
    figure = draw_run(narrow, Slo())
    figure.canvas.draw()
    (ttft, *_) = figure.axes
    labels = [*ttft.get_xticklabels(), *ttft.get_xticklabels(minor=True)]
    low, high = ttft.get_xlim()
    shown = [label for label in labels if label.get_text() and low <= label.get_position()[0] <= high]
    boxes = sorted((label.get_window_extent() for label in shown), key=lambda box: box.x0)
    assert len(boxes) >= 2
    assert all(one.x1 < other.x0 for one, other in pairwise(boxes))


def test_a_run_without_requests(none: Results) -> None:
    assert written(none, "p.svg")


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("p.pngg", r"--plot: p.pngg has no suffix of a picture format \(did you mean 'png'\?\)"),
        ("p", r"--plot: p has no suffix of a picture format \(end it in .png, .svg, .pdf\)"),
    ],
)
def test_other_kinds_are_refused(name: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        check_plot_path(Path(name), where="--plot")


def test_without_matplotlib_one_line_says_what_to_install(told: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"a plot: needs matplotlib, .* \(pip install 'maitred\[plots\]'\)"):
        draw_run(told, Slo())
    with pytest.raises(ConfigError, match="--plot: needs matplotlib"):
        check_plot_path(Path("p.png"), where="--plot")


@pytest.fixture(scope="module")
def crowded() -> Result:
    workload = synthetic(
        rate=30,
        num_requests=120,
        input_tokens="uniform:50,300",
        output_tokens="uniform:20,120",
        class_mix="interactive:0.3,bulk:0.7",
    )
    return simulate(
        workload,
        ClusterConfig(capacity=12),
        InstanceConfig(max_num_seqs=16, total_kv_blocks=80),
        admission=AdmissionConfig(mode="priority", flavour="maitred", on_preempt="reject"),
    )


def timeline_of(result: Result) -> Any:
    return json.loads(unescape(timeline_html(result.rows).split('data-timeline="')[1].split('"')[0]))


def test_every_stretch_of_a_request_is_there(crowded: Result) -> None:
    rows, timeline = crowded.rows, timeline_of(crowded)
    assert len(timeline["requests"]) == len(rows) == 120
    assert rows.preemptions.sum() > 10
    for row, (request_id, group, outcome, arrival, admitted, ran, first, left, pauses, _) in enumerate(timeline["requests"]):
        assert request_id == rows.request_id[row]
        assert timeline["classes"][group] in ("interactive", "bulk")
        assert timeline["outcomes"][outcome] == Outcome(rows.outcome[row]).name.lower().replace("_", " ")
        assert len(pauses) == 2 * rows.preemptions[row]
        if left >= 0 and rows.outcome[row] == Outcome.COMPLETED:
            instants = [arrival, admitted, ran, *pauses, left]
            assert instants == sorted(instants)
            assert ran <= first <= left


def test_the_reasons_of_admission_are_there(crowded: Result) -> None:
    timeline = timeline_of(crowded)
    reasons = [timeline["reasons"][request[-1]] for request in timeline["requests"]]
    waited = [request[4] > request[3] for request in timeline["requests"]]
    assert sum(waited) > 10
    for reason, has_waited in zip(reasons, waited, strict=True):
        assert bool(reason) >= has_waited
        if has_waited:
            assert reason.startswith("queue: ")
            assert "; admit: " in reason
    rejected = [
        reason
        for reason, row in zip(reasons, crowded.rows.outcome, strict=True)
        if row in (Outcome.REJECTED, Outcome.PREEMPTED)
    ]
    assert all("reject: " in reason or "preempt" in reason for reason in rejected)


def test_of_many_requests_some_and_the_longest_waits() -> None:
    result = simulate(synthetic(rate=200, num_requests=3_000, input_tokens=200, output_tokens=20))
    timeline = timeline_of(result)
    ids = [request[0] for request in timeline["requests"]]
    waits = result.rows.first_token - result.rows.arrival
    assert 600 <= len(ids) <= 700
    assert ids == sorted(ids)
    assert set(result.rows.request_id[waits.argsort()[-100:]].tolist()) <= set(ids)
    assert "of 3,000: spread evenly, and the longest waits" in timeline_html(result.rows)


def test_a_run_without_samples_has_no_stretches(crowded: Result) -> None:
    plain = simulate(synthetic(rate=30, num_requests=5), sample_every_ms=None)
    assert plain.rows.timelines is None
    assert len(timeline_of(plain)["requests"]) == 5


def test_of_a_measured_request_its_first_token_is_all_that_is_known(crowded: Result) -> None:
    rows = replace(crowded.rows, scheduled=np.full(len(crowded.rows), -1), timelines=None, is_measured=True)
    found = timeline_of(Result(rows, crowded.setup, crowded.slo))
    assert found["measured"] is True
    for _, _, _, arrival, admitted, began, first, *_ in found["requests"]:
        assert (admitted, began) == (arrival, first)
