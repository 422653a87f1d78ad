"""The charts as picture files."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest

from maitred.core.errors import ConfigError
from maitred.report import Slo, check_plot_path, write_plot
from maitred.report.figure import draw_run
from maitred.sim import Results


def written(results: Results, name: str) -> bytes:
    parts: list[bytes] = []
    write_plot(results, Slo(ttft=200_000), Path(name), parts.append)
    return b"".join(parts)


def test_all_panels_are_drawn_and_the_target(told: Results) -> None:
    shown = [axes for axes in draw_run(told, Slo(ttft=200_000)).axes if axes.get_visible()]
    assert [axes.get_title(loc="left").split(",")[0] for axes in shown] == [
        "TTFT", "TPOT", "E2E", "Requests", "Output", "Not running yet", "In flight", "Prefix cache hits", "Waiting",
        "Running batch", "KV cache",
    ]  # fmt: skip
    assert [line.get_label() for line in shown[0].lines] == ["interactive", "bulk", "SLO"]
    assert shown[0].get_xscale() == "log"


@pytest.mark.parametrize(("name", "begins"), [("p.png", b"\x89PNG"), ("p.svg", b"<?xml"), ("p.PDF", b"%PDF")])
def test_the_name_says_the_kind_and_the_same_run_gives_the_same_bytes(told: Results, name: str, begins: bytes) -> None:
    first = written(told, name)
    assert first.startswith(begins)
    assert first == written(told, name)


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
