"""What happened when: panels over the time of the run, from the instants in its rows and from samples if any were taken."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from maitred.report.panels import Curve, Floats, Panel
from maitred.report.wording import number, share
from maitred.sim import Outcome, Results
from maitred.units import SECOND

_POINTS = 120
"""Of a curve. A chart is some 500 pixels wide."""


def over_time(results: Results) -> list[Panel]:
    """What there is to be seen; nothing of a run that took no time."""
    if not results.end or not len(results):
        return []
    edges = np.linspace(0, results.end, _POINTS + 1)
    return [_requests(results, edges), _tokens(results, edges), *_hits(results, edges), *_sampled(results)]


def _requests(results: Results, edges: Floats) -> Panel:
    finished = results.finished[results.outcome == Outcome.COMPLETED]
    curves = (
        _per_second("arriving", results.arrival, edges),
        _per_second("completing", finished, edges),
    )
    about = f"Requests per second: up to {_most(curves[0])} arriving, up to {_most(curves[1])} completing."
    return _panel("Requests", "requests/s", about, curves)


def _tokens(results: Results, edges: Floats) -> Panel:
    """As if each answer came evenly between its first and its last token."""
    tokens, first = results.output_tokens, results.first_token
    last = np.where(results.finished >= 0, results.finished, results.end)
    came = (tokens > 0) & (first >= 0)
    first, last = first[came].astype(np.float64), last[came].astype(np.float64)
    slope = tokens[came] / np.maximum(last - first, 1)
    at = np.concatenate([first, np.maximum(last, first + 1)])
    order = np.argsort(at, kind="stable")
    at, slopes = at[order], np.cumsum(np.concatenate([slope, -slope])[order])
    so_far = np.concatenate([[0.0], np.cumsum(slopes[:-1] * np.diff(at))]) if len(at) else np.zeros(0)
    emitted = np.interp(edges, at, so_far) if len(at) else np.zeros(len(edges))
    curve = Curve(label="output tokens", x=_middles(edges), y=np.maximum(np.diff(emitted) / np.diff(edges) * SECOND, 0))
    return _panel("Output", "tokens/s", f"Output tokens per second, up to {_most(curve)}.", (curve,))


def _hits(results: Results, edges: Floats) -> Iterator[Panel]:
    if not results.cached_tokens.any():
        return
    ran = results.scheduled >= 0
    at = results.scheduled[ran]
    cached, _ = np.histogram(at, edges, weights=results.cached_tokens[ran])
    asked, _ = np.histogram(at, edges, weights=results.prompt_tokens[ran])
    there = asked > 0
    curve = Curve(label="cached", x=_middles(edges)[there], y=cached[there] / asked[there])
    yield _panel(
        "Prefix cache hits", "of prompt tokens", "Share of prompt tokens found in the prefix cache.", (curve,), shares=True
    )


def _sampled(results: Results) -> Iterator[Panel]:
    samples = results.samples
    if samples is None or not len(samples.at):
        return
    at = samples.at / SECOND
    waiting = [_by_instance("waiting", at, samples.waiting)]
    if samples.in_front.any():
        waiting.append(Curve(label="before any instance", x=at, y=samples.in_front.astype(np.float64)))
    most = "; ".join(f"{curve.label} up to {_most(curve)}" for curve in waiting)
    yield _panel("Waiting", "requests", f"Requests that wait: {most}.", tuple(waiting))
    running = _by_instance("running", at, samples.running)
    yield _panel("Running batch", "requests", f"Requests in the running batch, up to {_most(running)}.", (running,))
    used = _by_instance("used", at, samples.blocks_used / samples.total_blocks)
    peak = share(float((used.y if used.high is None else used.high).max()))
    yield _panel("KV cache", "of the blocks", f"Share of the KV blocks in use, up to {peak}.", (used,), shares=True)


def _by_instance(what: str, at: Floats, values: NDArray[Any]) -> Curve:
    """The mean over the instances, and between which of them the least and the most had."""
    if values.shape[1] == 1:
        return Curve(label=what, x=at, y=values[:, 0].astype(np.float64))
    low, high = values.min(axis=1).astype(np.float64), values.max(axis=1).astype(np.float64)
    return Curve(label=f"{what}: instances' mean and range", x=at, y=values.mean(axis=1), low=low, high=high)


def _per_second(label: str, instants: NDArray[np.int64], edges: Floats) -> Curve:
    counts, _ = np.histogram(instants, edges)
    return Curve(label=label, x=_middles(edges), y=counts / np.diff(edges) * SECOND)


def _middles(edges: Floats) -> Floats:
    """Of the intervals, in seconds."""
    return (edges[1:] + edges[:-1]) / (2 * SECOND)


def _most(curve: Curve) -> str:
    return number(float(curve.y.max(initial=0)))


def _panel(title: str, y_label: str, about: str, curves: tuple[Curve, ...], *, shares: bool = False) -> Panel:
    return Panel(title=title, about=about, x_label="s", y_label=y_label, curves=curves, shares=shares)
