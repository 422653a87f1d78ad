"""The content of charts, for the five of `told` in conftest."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from maitred.core.histogram import QuantileSketch
from maitred.report import Slo
from maitred.report.panels import Curve, Panel, latency_panels, time_panels
from maitred.sim import Results
from maitred.sim.results import ItlGaps


def by_title(panels: list[Panel]) -> dict[str, Panel]:
    return {panel.title.split(",")[0]: panel for panel in panels}


def test_latencies_of_every_class_with_the_target_of_all(told: Results) -> None:
    ttft, _, e2e = latency_panels(told, Slo(ttft=250_000))
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
    assert time_panels(none) == latency_panels(none, Slo(ttft=1)) == []
