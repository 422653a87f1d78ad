"""A run as one HTML page that needs nothing else: no network, no server, no library.

    page      what stands where
    tables    figures
    chart     a panel of curves
    ticks     axes

Style and script are files beside this one and are copied into the page. The same run gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from importlib.resources import files
from typing import Any

import msgspec

from maitred.report.over_time import over_time
from maitred.report.page.chart import chart
from maitred.report.page.tables import breakdowns, tiles
from maitred.report.panels import Panel, latencies
from maitred.report.setup import Setup
from maitred.report.summary import Summary
from maitred.report.wording import objective
from maitred.sim import Results
from maitred.units import to_seconds

_TERMS = {
    "TTFT": "time to first token: from a request's arrival until its first token",
    "TPOT": "time per output token: the mean gap after the first, of a completed request",
    "E2E": "from arrival to the last token, of completed requests",
    "p50, p99": "half of the requests, 99 in 100, took no longer",
    "within SLO": "completed within every target, of all requests that arrived",
    "goodput": "requests within the SLO, per second",
    "longest wait": "until a request first ran, or left without having run",
    "waiting": "in the wait queue of an instance, or still in front of it (admission, latencies)",
    "fairness": "Jain's index of output tokens over tenants: 1 if all got the same, 1/n if one of n got everything",
}


def write_page(results: Results, summary: Summary, setup: Setup, write: Callable[[bytes], object]) -> None:
    """The whole, as UTF-8. Charts of queues and KV need the samples of `results`."""
    write("".join(_parts(results, summary, setup)).encode())


def _parts(results: Results, summary: Summary, setup: Setup) -> Iterator[str]:
    title = setup.workload or "A simulated run"
    yield '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    yield f"<title>{escape(title)} – maitred</title>\n<style>\n{_file('style.css')}</style>\n</head>\n<body>\n"
    yield f'<header><div class="eyebrow">maitred simulate</div><h1>{escape(title)}</h1>\n'
    yield f'<p class="quiet">{escape(_subtitle(summary, setup))}</p>\n'
    yield "".join(f'<p class="warning" role="alert">{escape(warning)}</p>\n' for warning in summary.warnings)
    yield f"</header>\n<main>\n{tiles(summary)}"
    yield from _charts("Latency, by class" if len(summary.classes) > 1 else "Latency", latencies(results, summary.slo))
    yield from _charts("Over time", over_time(results))
    yield f"<section><h2>Who got what</h2>\n{breakdowns(summary)}</section>\n"
    yield from _setup(setup)
    terms = "".join(f"<dt>{escape(term)}</dt><dd>{escape(meaning)}</dd>" for term, meaning in _TERMS.items())
    yield f'<section><h2>Terms</h2>\n<dl class="terms">{terms}</dl></section>\n</main>\n'
    yield f"<script>\n{_file('script.js')}</script>\n</body>\n</html>\n"


def _subtitle(summary: Summary, setup: Setup) -> str:
    total = summary.total
    done = f"{total.arrived:,} requests" if total.completed < total.arrived else f"all of {total.arrived:,} requests completed"
    said = [f"{done}, {to_seconds(summary.duration):,.1f} s simulated, seed {setup.seed}"]
    if setup.horizon is not None:
        said.append(f"ended after {to_seconds(setup.horizon):,g} s")
    if summary.slo:
        said.append(f"SLO: {objective(summary.slo)}")
    return " · ".join(said)


def _charts(title: str, panels: Sequence[Panel]) -> Iterator[str]:
    if panels:
        pairs = " pairs" if len(panels) % 3 == 1 else ""
        charts = "".join(map(chart, panels))
        yield f'<section><h2>{escape(title)}</h2>\n<div class="charts{pairs}">\n{charts}</div></section>\n'


def _setup(setup: Setup) -> Iterator[str]:
    yield '<section><h2>What was simulated</h2>\n<p class="quiet">Settings that differ from their defaults are bold.</p>\n'
    if setup.command:
        yield f"<pre>{escape(setup.command)}</pre>\n"
    yield '<div class="config">\n'
    for name, keys in setup.written().items():
        lines = "\n".join(_line(key, value, usual) for key, (value, usual) in keys.items())
        yield f"<pre>{escape(name)}:\n{lines}</pre>\n"
    yield "</div></section>\n"


def _line(key: str, value: Any, usual: bool) -> str:
    said = escape(f"  {key}: {value if isinstance(value, str) else msgspec.json.encode(value).decode()}")
    return said if usual else f"<b>{said}</b>"


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
