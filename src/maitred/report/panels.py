"""Charts as data: the panels of a run, as curves, and the scatters of studies, as points in groups. `figure` draws them with
matplotlib, `page` as HTML.

Panels over time come from the instants in the rows, and from the samples if any were taken. Curves have at most some hundred
points, so a million requests make no larger a chart than a thousand.

A scatter has candidates in a Pareto plot, rates on both sides of a knee, or differences with their intervals. A point may have
an interval along x, and a text that its tooltip shows. The points of a group may be joined by a line. Instead of numbers the y
axis may have names, one for each whole number from 0 on, downwards.

    Scatter("Pareto front", x="GPUs", y="TTFT p99 ms", groups=(Group(label="candidates", points=(Point(x=2, y=812.0),)),))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from maitred.core.units import MILLISECOND, SECOND, Micros
from maitred.report.breakdown import By, group_codes, group_label, itl_by_group, split_by
from maitred.report.latencies import last_tokens
from maitred.report.request_statistics import request_latencies
from maitred.report.slo import Slo
from maitred.report.table import format_number, format_share
from maitred.sim import Outcome, Results

Floats: TypeAlias = NDArray[np.float64]

_RANKS = np.concatenate([np.linspace(0, 0.9, 110), np.linspace(0.9, 0.99, 30)[1:], np.linspace(0.99, 1, 22)[1:]])
"""The ranks at which the curve of a distribution is drawn; they are close together in the tail."""
_ALL = "all"
_REQUESTS = "requests"
_LEAST_SHOWN = ((0.01, 1.0), (0.05, 4.0))
_MOST_SPAN = (0.99, 1000.0)
"""A logarithmic axis begins at the first hundredth of all values, but not below a quarter of the first twentieth, nor below a
thousandth of the last hundredth: gaps of 0 between tokens that came together would leave the others no room."""
_MAX_TARGET_RATIO = 4
"""A target beyond this many times the largest value is not shown, because it would dwarf the curves."""
_POINTS = 120
"""Points of a curve over time. A chart is some 500 pixels wide."""
_MAX_INSTANCES = 6
"""As many instances have a curve each; of more, their mean and range is shown."""
_MAX_LINEAR_RATIO = 20
"""Largest ratio of the greatest to the least value on a linear y axis of a scatter."""


class Curve(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A line through points, with an optional band around it."""

    label: str
    x: Floats
    y: Floats
    low: Floats | None = None
    high: Floats | None = None


class Panel(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One chart."""

    title: str
    about: str
    """A description in words, for screen readers."""
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    log_x: bool = False
    shares: bool = False
    """Whether the values are shares from 0 to 1, to be shown in percent."""
    target: float | None = None
    """The SLO target for all requests, on the x axis."""
    over_time: bool = False
    """Whether the x axis is the time of the run, in seconds."""

    @property
    def counts_requests(self) -> bool:
        """Whether the values are numbers of requests, so that ticks are whole numbers."""
        return self.y_label == _REQUESTS

    @property
    def log_from(self) -> float:
        """Where a logarithmic x axis begins, in its unit; 0 if everything is 0."""
        least = [min(self._values_at(rank)) / times for rank, times in _LEAST_SHOWN]
        return max(*least, max(self._values_at(_MOST_SPAN[0])) / _MOST_SPAN[1])

    def _values_at(self, rank: float) -> list[float]:
        return [float(np.interp(rank, curve.y, curve.x)) for curve in self.curves]


def latency_panels(results: Results, slo: Slo) -> list[Panel]:
    """Return the distributions of TTFT, TPOT and E2E by class, each if any request has one."""
    classes = [*split_by(results, By.CLASS)]
    parts = classes if len(classes) > 1 else [(_ALL, results)]
    panels = []
    latencies = [(label, request_latencies(part)) for label, part in parts]
    for name, about, target in (
        ("ttft", "time to first token", slo.ttft),
        ("tpot", "time per output token", slo.tpot),
        ("e2e", "time to last token", slo.e2e),
    ):
        curves = tuple(_distribution(label, of[name] / MILLISECOND) for label, of in latencies if len(of[name]))
        if curves:
            panels.append(_distribution_panel(name.upper(), about, "requests", curves, _shown_target(target, curves)))
    return [*panels, *_gaps(results)]


def _distribution_panel(name: str, about: str, what: str, curves: tuple[Curve, ...], target: float | None = None) -> Panel:
    """Chart the share of `what` that is within each latency."""
    return Panel(
        title=f"{name}, {about}",
        about=f"Distribution of {name}. {'; '.join(map(_in_words, curves))}.",
        x_label="ms",
        y_label=f"{what} within",
        curves=curves,
        log_x=True,
        shares=True,
        target=target,
    )


def _gaps(results: Results) -> Iterator[Panel]:
    """Yield the distribution of the gaps between tokens by class, if they were recorded."""
    codes = group_codes(results, By.CLASS)
    sketches = itl_by_group(results, codes)
    curves = tuple(
        Curve(
            label=group_label(results, By.CLASS, code) if len(sketches) > 1 else _ALL,
            x=np.array([sketch.percentile(100 * rank) for rank in _RANKS]) / MILLISECOND,
            y=_RANKS,
        )
        for code, sketch in sketches.items()
    )
    if curves:
        yield _distribution_panel("ITL", "gap between tokens", "gaps", curves)


def _distribution(label: str, values: Floats) -> Curve:
    return Curve(label=label, x=np.quantile(values, _RANKS), y=_RANKS)


def _shown_target(target: Micros | None, curves: tuple[Curve, ...]) -> float | None:
    """Return the target in ms, or None if there is none or if it lies too far away."""
    if target is None or target / MILLISECOND > _MAX_TARGET_RATIO * max(float(curve.x[-1]) for curve in curves):
        return None
    return max(target / MILLISECOND, 1 / MILLISECOND)


def _in_words(curve: Curve) -> str:
    return f"{curve.label}: half within {_latency_at(curve, 0.5)}, 99 % within {_latency_at(curve, 0.99)}"


def _latency_at(curve: Curve, rank: float) -> str:
    return f"{format_number(float(np.interp(rank, curve.y, curve.x)))} ms"


def time_panels(results: Results) -> list[Panel]:
    """Return the panels over time; none for a run that took no time."""
    if not results.end or not len(results):
        return []
    edges = np.linspace(0, results.end, _POINTS + 1)
    return [
        _requests(results, edges),
        _tokens(results, edges),
        *_by_class(results),
        *_hits(results, edges),
        *_sampled(results),
    ]


def _requests(results: Results, edges: Floats) -> Panel:
    finished = results.finished[results.outcome == Outcome.COMPLETED]
    curves = (
        _per_second("arriving", results.arrival, edges),
        _per_second("completing", finished, edges),
    )
    about = f"Requests per second: up to {_peak(curves[0])} arriving, up to {_peak(curves[1])} completing."
    return _panel("Requests", "requests/s", about, curves)


def _by_class(results: Results) -> Iterator[Panel]:
    """Yield the requests in the cluster over time by class, and those of them that do not run yet.

    A request waits until it last entered a running batch: one whose KV was freed and that runs again counts as waiting before.
    Clients see no batch, so that a measured request waits until its first token.
    """
    at = np.linspace(0, results.end, _POINTS + 1)
    left = np.where(results.finished >= 0, results.finished, results.end + 1)
    begun = results.first_token if results.is_measured else results.scheduled
    ran = np.where(begun >= 0, begun, left)
    waiting = ("No token yet", ran, "have no token yet") if results.is_measured else ("Not running yet", ran, "do not run yet")
    codes = group_codes(results, By.CLASS)
    classes = sorted({*codes.tolist()})
    for title, until, about in (
        waiting,
        ("In flight", left, "have not ended"),
    ):
        curves = tuple(
            Curve(
                label=group_label(results, By.CLASS, code) if len(classes) > 1 else _ALL,
                x=at / SECOND,
                y=_present(results.arrival[codes == code], until[codes == code], at),
            )
            for code in classes
        )
        most = "; ".join(f"{curve.label} up to {_peak(curve)}" for curve in curves)
        yield _panel(title, _REQUESTS, f"Requests that have arrived and {about}: {most}.", curves)


def _present(since: NDArray[np.int64], until: NDArray[np.int64], at: Floats) -> Floats:
    """Return how many of the periods from `since` to before `until` each instant of `at` lies in."""
    begun, over = (np.searchsorted(np.sort(instants), at, side="right") for instants in (since, until))
    return np.asarray(begun - over, dtype=np.float64)


def _tokens(results: Results, edges: Floats) -> Panel:
    """Chart the output tokens per second, as if each answer came evenly between its first and its last token."""
    tokens, first = results.output_tokens, results.first_token
    last = last_tokens(results)
    last = np.where(last >= 0, last, results.end)
    has_output = (tokens > 0) & (first >= 0)
    first, last = first[has_output].astype(np.float64), last[has_output].astype(np.float64)
    # Each answer adds its slope at its first token and takes it back at its last one. The running sum is the rate of all
    # answers, and its integral the tokens so far. So the cost is one sort, and not answers times intervals.
    slope = tokens[has_output] / np.maximum(last - first, 1)
    at = np.concatenate([first, np.maximum(last, first + 1)])
    order = np.argsort(at, kind="stable")
    at, slopes = at[order], np.cumsum(np.concatenate([slope, -slope])[order])
    so_far = np.concatenate([[0.0], np.cumsum(slopes[:-1] * np.diff(at))]) if len(at) else np.zeros(0)
    emitted = np.interp(edges, at, so_far) if len(at) else np.zeros(len(edges))
    curve = Curve(label="output tokens", x=_midpoints_s(edges), y=np.maximum(np.diff(emitted) / np.diff(edges) * SECOND, 0))
    return _panel("Output", "tokens/s", f"Output tokens per second, up to {_peak(curve)}.", (curve,))


def _hits(results: Results, edges: Floats) -> Iterator[Panel]:
    if not results.cached_tokens.any():
        return
    ran = results.scheduled >= 0
    at = results.scheduled[ran]
    cached, _ = np.histogram(at, edges, weights=results.cached_tokens[ran])
    asked, _ = np.histogram(at, edges, weights=results.prompt_tokens[ran])
    there = asked > 0
    curve = Curve(label="cached", x=_midpoints_s(edges)[there], y=cached[there] / asked[there])
    yield _panel(
        "Prefix cache hits", "of prompt tokens", "Share of prompt tokens found in the prefix cache.", (curve,), shares=True
    )


def _sampled(results: Results) -> Iterator[Panel]:
    samples = results.samples
    if samples is None or not len(samples.at):
        return
    at = samples.at / SECOND
    waiting = [*_by_instance("waiting", at, samples.waiting)]
    if samples.outside_instances.any():
        waiting.append(Curve(label="before any instance", x=at, y=samples.outside_instances.astype(np.float64)))
    yield _sampled_panel("Waiting", _REQUESTS, "Requests that wait", waiting)
    title, about = ("Generating", "that receive tokens") if results.is_measured else ("Running batch", "in the running batch")
    yield _sampled_panel(title, _REQUESTS, f"Requests {about}", _by_instance("running", at, samples.running))
    if samples.total_blocks:  # Not if it was measured from outside.
        used = _by_instance("used", at, samples.blocks_used / samples.total_blocks)
        yield _sampled_panel("KV cache", "of the blocks", "Share of the KV blocks in use", used, shares=True)


def _sampled_panel(title: str, y_label: str, about: str, curves: list[Curve], *, shares: bool = False) -> Panel:
    """Return a panel of the samples, described by what its curves reach at most."""
    tops = [float((curve.y if curve.high is None else curve.high).max()) for curve in curves]
    most = "; ".join(
        f"{curve.label} up to {format_share(top) if shares else format_number(top)}"
        for curve, top in zip(curves, tops, strict=True)
    )
    return _panel(title, y_label, f"{about}: {most}.", tuple(curves), shares=shares)


def _by_instance(what: str, at: Floats, values: NDArray[Any]) -> list[Curve]:
    """Return a curve for each instance; of many instances the mean, with a band from the least to the greatest."""
    count = values.shape[1]
    if count <= _MAX_INSTANCES:
        names = [f"instance {index}" for index in range(count)] if count > 1 else [what]
        return [Curve(label=name, x=at, y=values[:, index].astype(np.float64)) for index, name in enumerate(names)]
    low, high = values.min(axis=1).astype(np.float64), values.max(axis=1).astype(np.float64)
    return [Curve(label=f"{what}: instances' mean and range", x=at, y=values.mean(axis=1), low=low, high=high)]


def _per_second(label: str, instants: NDArray[np.int64], edges: Floats) -> Curve:
    counts, _ = np.histogram(instants, edges)
    return Curve(label=label, x=_midpoints_s(edges), y=counts / np.diff(edges) * SECOND)


def _midpoints_s(edges: Floats) -> Floats:
    """Return the midpoints of the intervals, in seconds."""
    return (edges[1:] + edges[:-1]) / (2 * SECOND)


def _peak(curve: Curve) -> str:
    return format_number(float(curve.y.max(initial=0)))


def _panel(title: str, y_label: str, about: str, curves: tuple[Curve, ...], *, shares: bool = False) -> Panel:
    return Panel(title=title, about=about, x_label="s", y_label=y_label, curves=curves, shares=shares, over_time=True)


class Point(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A point. `low` and `high` are the ends of its interval."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    hollow: bool = False
    text: str = ""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Points of one colour."""

    label: str
    points: tuple[Point, ...]
    line: str = ""
    """How they are joined: "straight", "steps" or not at all."""


class LimitLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line across the picture."""

    label: str
    axis: str
    """The axis on which it stands: "x" or "y"."""
    at: float


class Scatter(msgspec.Struct, frozen=True, kw_only=True):
    """A picture."""

    title: str
    about: str
    """A description in words, for screen readers."""
    x: str
    y: str
    groups: tuple[Group, ...]
    limits: tuple[LimitLine, ...] = ()
    names: tuple[str, ...] = ()
    """The names on the y axis, if it has no numbers."""
    log_y: bool = False


def spans_decades(heights: Sequence[float]) -> bool:
    """Return whether the least of `heights` could not be seen beside the greatest on a linear axis."""
    return bool(heights) and min(heights) > 0 and max(heights) > _MAX_LINEAR_RATIO * min(heights)
