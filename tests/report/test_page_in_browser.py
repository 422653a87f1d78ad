"""The page in a real browser: Chromium draws it, and pointer, keyboard, theme and width do what the page says.

A script that the test appends to the page plays the user and writes down what it saw. Needs Chromium (Debian: chromium).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from maitred.admission import AdmissionConfig
from maitred.instance import InstanceConfig
from maitred.report import Slo, simulate
from maitred.report.page.parts import page_parts, scatter_html
from maitred.report.panels import Group, LimitLine, Point, Scatter
from maitred.sim import ClusterConfig
from maitred.workload.synthetic import synthetic

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (apt-get install chromium)")

PROBE = """
<script>
"use strict";
const errors = [];
addEventListener("error", (event) => errors.push(event.message));
const seen = { charts: [], errors };
const inked = (canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let count = 0;
  for (let each = 3; each < data.length; each += 4) count += data[each] > 0;
  return count;
};
const all = [...document.querySelectorAll(".plot")];
const state = (plot) => drawn.get(plot).u;
const key = (plot, name) => plot.dispatchEvent(new KeyboardEvent("keydown", { key: name, cancelable: true }));
const tip = (plot) => { const it = plot.querySelector(".tip"); return it.hidden ? null : it.innerText; };
const inside = (plot) => {
  const it = plot.querySelector(".tip").getBoundingClientRect(), over = plot.querySelector(".u-over").getBoundingClientRect();
  return it.left >= over.left - 1 && it.right <= over.right + 1;
};
setTimeout(() => {
  for (const plot of all) {
    const u = state(plot), about = { title: plot.parentNode.querySelector("figcaption").innerText, ink: inked(u.ctx.canvas) };
    about.width = plot.getBoundingClientRect().width;
    key(plot, "ArrowRight");
    about.tip = tip(plot);
    about.tips = [0.02, 0.98].map((share) => {
      u.setCursor({ left: u.over.clientWidth * share, top: 20 });
      return inside(plot);
    });
    const before = [u.scales.x.min, u.scales.x.max];
    key(plot, "+");
    about.zoomed = [u.scales.x.min, u.scales.x.max];
    key(plot, "0");
    about.reset = u.scales.x.min === before[0] && u.scales.x.max === before[1];
    about.after = tip(plot);
    seen.charts.push(about);
  }
  seen.ticks = all.filter((plot) => plot.dataset.chart && JSON.parse(plot.dataset.chart).whole)
    .flatMap((plot) => state(plot).axes[1]._splits);
  const requests = [...Array(300).keys()].map((row) => [7 * row + 3]);
  seen.ids = [...idTicks(requests, -1, 300, 5)];
  seen.overflow = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  seen.cut = [...document.querySelectorAll(".scroll")].filter((box) => box.scrollWidth > box.clientWidth).length;
  seen.paper = getComputedStyle(document.body).backgroundColor;
  const record = document.createElement("pre");
  record.id = "seen";
  record.textContent = JSON.stringify(seen);
  document.body.append(record);
}, 300);
</script>
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    workload = synthetic(
        rate=20,
        num_requests=80,
        input_tokens="uniform:50,300",
        output_tokens="uniform:20,90",
        class_mix="interactive:0.3,bulk:0.7",
    )
    result = simulate(
        workload,
        ClusterConfig(num_instances=2, capacity=8),
        InstanceConfig(total_kv_blocks=80),
        admission=AdmissionConfig(mode="priority"),
        slo=Slo(ttft_ms=200),
    )
    path = tmp_path_factory.mktemp("page") / "run.html"
    result.report(path)
    return path.read_text(encoding="utf-8")


def seen_by_browser(page: str, folder: Path, *flags: str, probe: str = PROBE) -> Any:
    """Return what the probe saw of the page."""
    path = folder / "probed.html"
    path.write_text(page.replace("</body>", f"{probe}</body>"), encoding="utf-8")
    assert CHROMIUM is not None
    command = [
        *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
        *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars"),
        *(f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=4000", *flags, "--dump-dom", path.as_uri()),
    ]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert '<pre id="seen">' in dom, dom[-2000:]
    return json.loads(unescape(dom.split('<pre id="seen">')[1].split("</pre>")[0]))


def test_a_long_path_as_title_stays_on_a_narrow_page(page: str, tmp_path: Path) -> None:
    with_path = re.sub(
        "<h1>.*?</h1>", f"<h1>azure:/{'data' * 60}.csv</h1><p>Today: azure:/{'data' * 60}.csv</p>", page, flags=re.DOTALL
    )
    assert with_path != page
    assert seen_by_browser(with_path, tmp_path, "--window-size=500,900")["overflow"] <= 0


@pytest.mark.parametrize(
    ("flags", "paper"),
    [
        (["--window-size=1200,900"], "rgb(252, 252, 251)"),
        (["--window-size=1200,900", "--blink-settings=preferredColorScheme=0"], "rgb(22, 21, 20)"),
        (["--window-size=500,900"], "rgb(252, 252, 251)"),
    ],
    ids=["light", "dark", "narrow"],
)
def test_every_chart_is_drawn_read_and_zoomed(page: str, tmp_path: Path, flags: list[str], paper: str) -> None:
    seen = seen_by_browser(page, tmp_path, *flags)
    assert seen["errors"] == []
    assert seen["overflow"] <= 0
    if "--window-size=500,900" in flags:
        assert seen["cut"] == 0  # a phone shows the tables whole
    assert seen["paper"] == paper
    assert len(seen["charts"]) == page.count('data-chart="') + page.count('data-timeline="') >= 11
    for chart in seen["charts"]:
        assert chart["ink"] > 500, chart
        assert chart["tip"], chart
        assert all(chart["tips"]), chart
        assert chart["zoomed"][1] - chart["zoomed"][0] > 0
        assert chart["reset"], chart
        assert chart["after"] is None, chart
    assert seen["ticks"]
    assert all(float(tick).is_integer() for tick in seen["ticks"])  # of charts that count requests
    assert seen["ids"] == [[71, "500"], [143, "1000"], [214, "1500"], [286, "2000"]]  # 7 · 71 + 3 = 500, 7 · 143 + 3 = 1,004
    timeline = seen["charts"][-1]
    assert "request " in timeline["tip"]
    assert "SLO 200 ms" in seen["charts"][0]["tip"].replace("\n", " ").replace("  ", " ")


def test_the_picture_of_a_study_is_drawn_and_read(tmp_path: Path) -> None:
    picture = Scatter(
        title="Front",
        about="Two candidates.",
        x="GPUs",
        y="TTFT p99 ms",
        groups=(
            Group(label="candidates", points=(Point(x=1, y=900.0, hollow=True), Point(x=4, y=20.0))),
            Group(label="middle", points=(Point(x=2.5, y=150.0, low=2, high=3, text="in the middle"),), line="straight"),
        ),
        limits=(LimitLine(label="constraint", axis="y", at=500),),
        log_y=True,
    )
    at_the_point = """u.setCursor({ left: u.valToPos(2.5, "x"), top: u.valToPos(150, "y") }); about.tip = tip(plot);"""
    probe = PROBE.replace("about.tip = tip(plot);", at_the_point)
    page = "".join(page_parts("A study", "sweep", "", [scatter_html(picture)]))
    seen = seen_by_browser(page, tmp_path, "--window-size=900,700", probe=probe)
    assert seen["errors"] == []
    (chart,) = seen["charts"]
    assert chart["ink"] > 500
    assert chart["reset"]
    assert "middle in the middle" in " ".join(chart["tip"].split())
