"""The content of charts, for the five of `told` in conftest."""

from __future__ import annotations

import numpy as np
import pytest

from maitred.report import Slo
from maitred.report.panels import Panel, latency_panels, time_panels
from maitred.sim import Results


def by_title(panels: list[Panel]) -> dict[str, Panel]:
    return {panel.title.split(",")[0]: panel for panel in panels}


def test_latencies_of_every_class_with_the_target_of_all(told: Results) -> None:
    ttft, _, e2e = latency_panels(told, Slo(ttft=250_000))
    assert [curve.label for curve in ttft.curves] == ["interactive", "bulk"]
    interactive = ttft.curves[0]
    assert np.interp([100, 150, 200], interactive.x, interactive.y) == pytest.approx([0, 0.5, 1])
    assert (ttft.target, e2e.target) == (250, None)
    assert "bulk: half within 600.0 ms, 99 % within 796.0 ms" in ttft.about


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
    waiting, in_front = panels["Waiting"].curves
    assert (waiting.y.tolist(), in_front.y.tolist()) == ([0, 3, 0], [0, 3, 0])
    assert waiting.low is not None
    assert waiting.high is not None
    assert (waiting.low.tolist(), waiting.high.tolist()) == ([0, 2, 0], [0, 4, 0])
    (used,) = panels["KV cache"].curves
    assert used.y.tolist() == pytest.approx([0, 0.75, 0.05])
    assert "up to 100.0%" in panels["KV cache"].about


def test_without_samples_there_are_no_queues_to_show(five: Results) -> None:
    assert set(by_title(time_panels(five))) == {"Requests", "Output", "Prefix cache hits"}


def test_hits_are_shares_of_what_was_asked(told: Results) -> None:
    (cached,) = by_title(time_panels(told))["Prefix cache hits"].curves
    assert cached.y.tolist() == pytest.approx([0.8, 0, 14 / 30, 0])


def test_nothing_happened(none: Results) -> None:
    assert time_panels(none) == latency_panels(none, Slo(ttft=1)) == []
