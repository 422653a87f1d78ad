"""The result of a replay under other rules: what `maitred replay` prints, writes as JSON, and shows as a page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from statistics import median
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray
from rich.table import Table

from maitred.core.errors import ConfigError
from maitred.instance.latency import LinearLatency
from maitred.report.panels import Group, LimitLine, Point, Scatter
from maitred.report.table import NO_VALUE, new_table
from maitred.study.calibration.validation import Validation, ValidationLine, compare_latencies
from maitred.study.candidate import Candidate
from maitred.study.presentation import Presentation, ShownTable, StudyResult
from maitred.study.runs import Progress
from maitred.study.what_if.bounds import Bound
from maitred.study.what_if.differences import ReplayedDifference, compare_runs
from maitred.study.what_if.figures import MAKESPAN, Figure, Groups, find_figure
from maitred.study.what_if.world import CENTRAL, ReplayedRun, ReplayWorld, replay_all

DEFAULT_METRICS: Final = (
    *("ttft_p50_ms", "ttft_p99_ms", "e2e_p50_ms", "e2e_p99_ms", "completed_requests", "rejected_requests"),
    *("timed_out_requests", "failed_requests", MAKESPAN),
)
_MOST_TENANTS: Final = 10
_FIRST_SEED: Final = 42
_FAR_OFF: Final = 0.1
"""Errors of the replay that are worth a warning."""
_COMPARED: Final = {"p50", "p90"}


class KeptBound(msgspec.Struct, frozen=True):
    """A bound, and whether it is kept."""

    text: str
    value: float | None
    """Under the other rules."""
    holds: bool


class WhatIf(StudyResult, frozen=True, kw_only=True):
    """Recorded traffic under other rules, beside those of the recording."""

    log: str
    other: str
    """The file of the other rules."""
    requests: int
    engines: str
    """In words."""
    notes: tuple[str, ...]
    accuracy: tuple[Validation, ...]
    """The replay under the rules of the recording, held against the record: for all requests, and by class."""
    differences: tuple[ReplayedDifference, ...]
    bounds: tuple[KeptBound, ...] = ()

    @property
    def worst_error(self) -> float | None:
        """The largest error of a p50 or p90 of TTFT or E2E, as a share."""
        return max((abs(line.error) for each in self.accuracy for line in _lines(each)), default=None)

    def presentation(self) -> Presentation:
        found = [(find_figure(each.figure), each) for each in self.differences if not _is_nothing(each)]
        tables = [ShownTable(_table(found), f"{self.other} beside the rules of the recording", tuple(self._headlines(found)))]
        if self.accuracy:
            tables.append(
                ShownTable(_accuracy_table(self.accuracy), "The replay, held against the record", (self._error_line(),))
            )
        if self.bounds:
            tables.append(ShownTable(_bounds_table(self.bounds), "Bounds", ()))
        return Presentation(
            title=f"{self.log} under {self.other}",
            command="replay",
            tables=tuple(tables),
            notes=(self.engines, *self.notes),
            scatter=_scatter(found, self.other),
        )

    def _headlines(self, found: Sequence[tuple[Figure, ReplayedDifference]]) -> Iterator[str]:
        yield f"{self.requests:,} requests of {self.log}, replayed under {self.other}"
        by_group: dict[str, list[str]] = {}
        for figure, each in found:
            if figure.plain in ("ttft_p99_ms", MAKESPAN) and (text := _in_words(figure, each)):
                by_group.setdefault(figure.group or "all", []).append(text)
        yield from (f"{name}: {', '.join(parts)}" for name, parts in by_group.items())

    def _error_line(self) -> str:
        worst = self.worst_error
        if worst is None:
            return "Nothing of the replay can be held against the record."
        total = self.accuracy[0]
        mean = sum(abs(line.error) for line in _lines(total)) / max(1, len(_lines(total)))
        doubt = ": what is told above may be off by as much" if worst > _FAR_OFF else ""
        errors = f"{mean:.1%} on average, {worst:.1%} at worst"
        return f"Replayed under the rules of the recording, p50 and p90 are off by {errors}{doubt}."


def what_if(
    world: ReplayWorld,
    other: Candidate,
    *,
    log: str = "log",
    name: str = "other",
    metrics: Sequence[str] = DEFAULT_METRICS,
    bounds: Sequence[Bound] = (),
    seeds: int = 10,
    jobs: int | None = 1,
    progress: Progress | None = None,
) -> WhatIf:
    """Replay a run under `other` and under the rules of the recording, and compare them request by request.

    `metrics` are figures of all requests, of each class and of the ten tenants with the most requests; one with the name of a
    class or tenant in front is told of that alone. `seeds` is how many runs are beside the one with the latency model as it
    was fitted: what is told is their median, and intervals are over the seeds; 0: there are none. Raises ConfigError for
    impossible rules, and for figures and groups that there are not.
    """
    groups = Groups(world.recorded.requests)
    wanted = {each: groups.rows(each.group) for each in _wanted(metrics, bounds, groups)}
    drawn = [CENTRAL, *range(_FIRST_SEED, _FIRST_SEED + seeds)]
    sides = [(side, seed) for side in (world.in_force, other) for seed in drawn]
    runs = replay_all(world, sides, jobs=jobs, progress=progress)
    today, others = runs[: len(drawn)], runs[len(drawn) :]
    found = compare_runs(wanted, world.truth, today, others)
    values = {each.figure: each for each in found}
    kept = (KeptBound(each.text, (of := values[each.figure.name]).other, each.holds(of.today, of.other)) for each in bounds)
    return WhatIf(
        log=log,
        other=name,
        requests=len(world.recorded.requests),
        engines=_engines_in_words(world),
        notes=(*_notes(world, other, seeds, len(groups.tenants)), *_one_sided_note(today[0], others[0])),
        accuracy=tuple(_accuracy(world, today, groups)),
        differences=tuple(found),
        bounds=tuple(kept),
    )


def _wanted(metrics: Iterable[str], bounds: Iterable[Bound], groups: Groups) -> Iterator[Figure]:
    """Yield each figure once: those of all requests, then of each class, of tenants, and those that are named by themselves."""
    plain = [each for each in map(find_figure, metrics) if not each.group]
    single = [each for each in map(find_figure, metrics) if each.group]
    tenants = list(groups.tenants)[:_MOST_TENANTS] if len(groups.tenants) > 1 else []
    classes = list(groups.classes) if len(groups.classes) > 1 else []
    for group in ("", *classes, *tenants):
        yield from (find_figure(f"{group}.{each.plain}") if group else each for each in plain)
    yield from single
    yield from (each.figure for each in bounds)


def _accuracy(world: ReplayWorld, today: Sequence[ReplayedRun], groups: Groups) -> Iterator[Validation]:
    truth, several = world.truth, groups.classes if len(groups.classes) > 1 else {}
    for name, rows in {"all": groups.rows(""), **several}.items():
        measured = _latencies(truth, rows)
        found = [compare_latencies(name, int(rows.sum()), measured, _latencies(run, rows)) for run in today]
        # A run in which no request of a class is answered has no line of it: as with the figures, the others tell it.
        by_line: dict[tuple[str, str], list[ValidationLine]] = {}
        for line in chain.from_iterable(each.lines for each in found):
            by_line.setdefault((line.metric, line.statistic), []).append(line)
        lines = [replace(same[0], predicted=median(line.predicted for line in same)) for same in by_line.values()]
        if _lines(median_run := replace(found[0], lines=lines)):
            yield median_run


def _latencies(run: ReplayedRun, rows: NDArray[np.bool_]) -> dict[str, NDArray[np.float64]]:
    columns = {"ttft": run.ttft[rows], "e2e": run.e2e[rows], "tpot": np.zeros(0)}
    return {name: values[~np.isnan(values)] for name, values in columns.items()}


def _lines(validation: Validation) -> list[Any]:
    return [line for line in validation.lines if line.statistic in _COMPARED]


def _is_nothing(each: ReplayedDifference) -> bool:
    """Return whether there is nothing to tell: a count of 0 everywhere, or a figure that no request has."""
    return not any((each.recorded, each.today, each.other))


def _engines_in_words(world: ReplayWorld) -> str:
    engines = world.engines
    latency, count = engines.instance.latency, engines.num_instances
    what = f"{count} engine{'s' if count > 1 else ''} of {engines.instance.max_num_seqs} sequences at once"
    if not engines.num_fitted:
        return f"{what}, with the step times that were stated."
    fitted = f"fitted to {engines.num_fitted:,} answers of the record (standard deviation {engines.instance.latency_error:.1%})"
    if isinstance(latency, LinearLatency):
        b0, b1, b2 = latency.beta
        times = f"{b0:,.0f} + {b1:.3g} · prompt tokens + {b2:.3g} · decodes µs, {latency.alpha[0]:,.0f} µs beside them"
        return f"{what}; a step takes {times}: {fitted}."
    return f"{what}; step times {fitted}."


def _notes(world: ReplayWorld, other: Candidate, seeds: int, num_tenants: int) -> Iterator[str]:
    recorded, requests = world.recorded, world.recorded.requests
    followers = sum(bool(each.follows) for each in requests)
    if followers:
        yield f"{followers:,} requests come their think time after the answers that their program waited for."
    unknown = sum(not each.is_complete for each in requests)
    if unknown:
        yield f"{unknown:,} requests did not complete: their answers are as long as others of their tenant and class, drawn."
    if recorded.num_unknown:
        yield f"{recorded.num_unknown:,} rows of the record are left out, as the log does not know them."
    if recorded.rules.num_others:
        yield f"{recorded.rules.num_others:,} requests came under other rules than most: all are replayed under those of most."
    if not recorded.knows_asked:
        yield "The log does not say which classes clients asked for, so they ask for those that they had."
    now, then = world.in_force.cluster.capacity, other.cluster.capacity
    if now != then:
        yield f"Slots: {_slots(now)} when it was recorded, {_slots(then)} under the other rules."
    if other.instance.max_num_seqs > world.engines.instance.max_num_seqs:
        yield "More slots than the engines were seen to fill: they are taken to run all of them at once."
    if num_tenants > _MOST_TENANTS:
        yield f"Of {num_tenants:,} tenants those with the most requests are told; --metric TENANT.ttft_p99_ms tells another."
    if seeds:
        yield (
            f"Intervals: 95 %, over {seeds} seeds (the error of the step times, answers that are not known, draws of routers) "
            "and blocks of requests, the same ones on both sides."
        )


def _one_sided_note(today: ReplayedRun, other: ReplayedRun) -> Iterator[str]:
    """Yield how many requests only one side has a latency of: a rule that rejects slow ones makes the others look fast."""
    has_today, has_other = (~np.isnan(run.e2e) for run in (today, other))
    lost, gained = (int(np.count_nonzero(of)) for of in (has_today & ~has_other, has_other & ~has_today))
    if lost or gained:
        yield (
            f"Latencies are of the requests that complete, which are not the same ones: {lost:,} complete under the rules of "
            f"the recording only, {gained:,} under the other rules only."
        )


def _slots(number: int | None) -> str:
    return "no limit" if number is None else f"{number:,}"


def _table(found: Sequence[tuple[Figure, ReplayedDifference]]) -> Table:
    table = new_table({"figure": "bold"}, ("recorded", "replayed", "other", "change", "95 % interval"))
    group = ""
    for figure, each in found:
        if figure.group != group:
            group = figure.group
            table.add_section()
            table.add_row(group, *[""] * 5)
        values = (_shown(figure, value) for value in (each.recorded, each.today, each.other))
        change, reach = NO_VALUE if each.change is None else f"{each.change:+.1%}", each.change_interval
        between = NO_VALUE if reach is None else f"{reach.low:+.1%}, {reach.high:+.1%}"
        table.add_row(f"{'  ' if group else ''}{figure.metric.label}", *values, change, between)
    return table


def _shown(figure: Figure, value: float | None) -> str:
    return f"{value:,.0f}" if value is not None and figure.is_count else figure.metric.format(value)


def _in_words(figure: Figure, each: ReplayedDifference) -> str:
    """Return `p99 TTFT 820 → 310 ms [280, 350]`, or `makespan +9.0 %`; empty where a side has none."""
    if each.today is None or each.other is None:
        return ""
    if figure.plain == MAKESPAN:
        return "" if each.change is None else f"makespan {100 * each.change:+.1f} %"
    name, which, _ = figure.metric.label.split()
    show, own = figure.metric.format, each.other_interval
    sure = "" if own is None else f" [{show(own.low)}, {show(own.high)}]"
    return f"{which} {name} {show(each.today)} → {show(each.other)} ms{sure}"


def _accuracy_table(accuracy: Sequence[Validation]) -> Table:
    table = new_table({"class": "bold", "figure": "cyan"}, ("recorded ms", "replayed ms", "error"))
    for each in accuracy:
        for line in _lines(each):
            name = f"{line.metric.upper()} {line.statistic}"
            table.add_row(each.name, name, f"{line.measured:,.1f}", f"{line.predicted:,.1f}", f"{line.error:+.1%}")
    return table


def _bounds_table(bounds: Sequence[KeptBound]) -> Table:
    table = new_table({"bound": "bold"}, ("value", "kept"))
    for each in bounds:
        table.add_row(each.text, NO_VALUE if each.value is None else f"{each.value:,.4g}", "yes" if each.holds else "NO")
    return table


def _scatter(found: Sequence[tuple[Figure, ReplayedDifference]], other: str) -> Scatter:
    shown = [(figure, each) for figure, each in found if each.change is not None]
    names = tuple(f"{figure.group} {figure.metric.label}".strip() for figure, _ in shown)
    points = tuple(_point(figure, each, y) for y, (figure, each) in enumerate(shown))
    return Scatter(
        title=f"What {other} changes",
        about=f"Differences in percent, with 95 % intervals. {'; '.join(point.text for point in points)}.",
        x="% of today",
        y="95 % intervals",
        groups=(Group(label=other, points=points),),
        limits=(LimitLine(label="no difference", axis="x", at=0),),
        names=names,
    )


def _point(figure: Figure, each: ReplayedDifference, y: int) -> Point:
    assert each.change is not None
    reach = each.change_interval
    low, high = (None, None) if reach is None else (100 * reach.low, 100 * reach.high)
    name = f"{figure.group} {figure.metric.label}".strip()
    return Point(x=100 * each.change, y=y, low=low, high=high, text=f"{name}: {each.change:+.1%}")


def check_bounds(bounds: Iterable[Bound], world: ReplayWorld) -> None:
    """Raise ConfigError for a bound on a class or tenant of which no request is recorded."""
    groups = Groups(world.recorded.requests)
    for bound in bounds:
        try:
            groups.rows(bound.figure.group)
        except ConfigError as error:
            raise error.at("--constraint") from error
