"""Summary: the figures of a run, for all requests and for groups of them.

    TTFT          first token - arrival, of every request that got a first token, whatever its outcome (as in BLIS)
    TPOT          (last token - first token) / (output tokens - 1), of completed requests with at least 2 output tokens that
                  did not come at once
    E2E           finished - arrival, of completed requests
    ITL           every single gap between tokens, whatever the outcome of the request. The instances keep the gaps in sketches,
                  so percentiles are within 0.5 %. If gaps were not recorded per request, groups have only the mean, over the
                  gaps of their completed requests.
    longest wait  the longest time from an arrival until the request first ran, or ended without having run

A figure without any request is None, never NaN and never 0.

Goodput is the number of requests within their SLO per simulated second. Attainment is the same number divided by all requests
that arrived, so rejecting requests does not improve it. Fairness is Jain's index of the tokens that tenants got, (Σx)² /
(n·Σx²): 1 if all got the same, 1/n if one of n got everything (R. Jain et al., A quantitative measure of fairness, 1984).

`summarise` reads rows that were kept. `StreamingSummary` adds up rows that come block by block and are not kept
(`sim.simulate(sink=summary.add)`): its counts, means and standard deviations are exact, its percentiles within 0.5 %, and its
memory does not grow with the number of requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from maitred.core.histogram import QuantileSketch
from maitred.core.request import PriorityClass
from maitred.core.units import Micros, to_seconds
from maitred.report.breakdown import By, group_codes, group_label, itl_by_group, split_by
from maitred.report.programs import ProgramSummary, summarise_programs
from maitred.report.request_statistics import (
    LatencyStatistics,
    RequestCounts,
    StreamedLatency,
    add_counts,
    count_requests,
    latency_statistics,
    peak_concurrency,
    request_latencies,
    sketch_statistics,
)
from maitred.report.slo import Slo, classes_without_requests
from maitred.sim import InstanceTotals, Results

THRASHING = 0.1
"""If more than this share of the computed tokens had been computed before, the KV memory is too small for the load."""


class GroupSummary(RequestCounts, frozen=True, kw_only=True):
    """The figures of some requests."""

    ttft: LatencyStatistics | None
    tpot: LatencyStatistics | None
    e2e: LatencyStatistics | None
    scheduling_delay: LatencyStatistics | None
    itl: LatencyStatistics | None = None
    """Statistics of all gaps between tokens, or None if there are none, or if the gaps were not recorded per request."""

    @property
    def itl_mean(self) -> float | None:
        """Mean of all gaps in µs, or of those of completed requests if that is all that is known."""
        return self.completed_itl_mean if self.itl is None else self.itl.mean


class InstanceSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one instance, or of all instances together."""

    steps: int
    fetched_blocks: int
    """KV blocks fetched from main memory."""
    utilisation: float | None
    """Share of the run in which it ran steps, 0..1; the mean if there are several instances."""
    availability: float | None = None
    """Share of the time in which it served, as opposed to being down, 0..1; None if it never failed."""
    itl: LatencyStatistics | None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a run."""

    duration: Micros
    """Simulated time from 0 to the end of the run."""
    slo: Slo
    total: GroupSummary
    by: Mapping[By, Mapping[str, GroupSummary]]
    """The requested breakdowns, and always that by class."""
    all_instances: InstanceSummary
    """All instances together."""
    instances: Mapping[str, InstanceSummary]
    """By the label of the instance, as in `by[By.INSTANCE]`."""
    fairness: float | None
    """Jain's index among tenants, 0..1, or None if there are not several."""
    peak_concurrency: int | None = None
    """The largest number of requests in flight at one instant; None if the rows were not kept."""
    programs: ProgramSummary | None = None
    """The agent programs; None if requests were routed one by one."""
    is_measured: bool = False
    """Whether clients measured the run at a live endpoint."""
    warnings: Sequence[str] = ()

    @property
    def classes(self) -> dict[PriorityClass, GroupSummary]:
        """The priority classes of which a request arrived, the most urgent first."""
        return {PriorityClass[label.upper()]: group for label, group in self.by[By.CLASS].items()}

    def per_second(self, count: int | None) -> float | None:
        """Return `count` per simulated second, or None if there is no count or no time passed."""
        return None if count is None or not self.duration else count / to_seconds(self.duration)


def summarise(results: Results, slo: Slo | None = None, by: Iterable[By] = By) -> Summary:
    """Return the summary of a run that has kept its rows, with the breakdowns `by`."""
    targets = slo or Slo()
    return build_summary(
        results,
        targets,
        total=summarise_group(results, targets),
        by={
            each: {label: summarise_group(part, targets) for label, part in split_by(results, each)}
            for each in requested_breakdowns(by)
        },
        tokens=_tokens_by_tenant(results),
        empty_classes=classes_without_requests(results, targets),
    )


def _tokens_by_tenant(results: Results) -> list[float]:
    if not len(results):
        return []
    tokens: list[float] = np.bincount(results.tenant, weights=results.output_tokens)[np.unique(results.tenant)].tolist()
    return tokens


def build_summary(
    results: Results,
    slo: Slo,
    *,
    total: GroupSummary,
    by: Mapping[By, Mapping[str, GroupSummary]],
    tokens: Sequence[float],
    empty_classes: Sequence[str],
) -> Summary:
    """Return a summary of the figures of requests, and of what `results` says beside its rows.

    `tokens` are the output tokens of each tenant, `empty_classes` the classes that have targets and no request.
    """
    engine = _instance_summary(results.instances, results.end)
    if results.is_measured:  # Clients know the gaps of each request, and no instances.
        gaps = itl_by_group(results, np.zeros(len(results), dtype=np.int64))
        engine = msgspec.structs.replace(engine, itl=sketch_statistics(gaps[0]) if gaps else None)
    engines = {str(index): _instance_summary([totals], results.end) for index, totals in enumerate(results.instances)}
    return Summary(
        duration=int(results.end),
        slo=slo,
        total=msgspec.structs.replace(total, itl=engine.itl),
        by={each: dict(_with_itl(results, each, groups, engine, engines)) for each, groups in by.items()},
        all_instances=engine,
        instances=engines,
        fairness=_fairness(tokens),
        peak_concurrency=peak_concurrency(results),
        programs=summarise_programs(results),
        is_measured=results.is_measured,
        warnings=(
            *_thrashing(total),
            *(f"there is an SLO for the class {name!r}, and no request of it" for name in empty_classes),
        ),
    )


def _with_itl(
    results: Results,
    by: By,
    groups: Mapping[str, GroupSummary],
    engine: InstanceSummary,
    engines: Mapping[str, InstanceSummary],
) -> Iterator[tuple[str, GroupSummary]]:
    """Yield each group with its ITL: that of its instance, that of the run for a single group, or that of its requests."""
    if by is By.INSTANCE:
        known = {label: engines[label].itl for label in groups if label in engines}
    elif len(groups) == 1:
        known = dict.fromkeys(groups, engine.itl)
    else:
        sketches = itl_by_group(results, group_codes(results, by))
        known = {group_label(results, by, code): sketch_statistics(sketch) for code, sketch in sketches.items()}
    for label, members in groups.items():
        yield label, msgspec.structs.replace(members, itl=known.get(label))


def requested_breakdowns(by: Iterable[By]) -> list[By]:
    """Return these breakdowns in the order of `By`, and always that by class."""
    asked = {By.CLASS, *by}
    return [each for each in By if each in asked]


def summarise_group(results: Results, slo: Slo) -> GroupSummary:
    """Return the figures of all rows of `results`."""
    return build_group(
        count_requests(results, slo), {name: latency_statistics(values) for name, values in request_latencies(results).items()}
    )


def build_group(counts: RequestCounts, spreads: Mapping[str, LatencyStatistics | None]) -> GroupSummary:
    figures: dict[str, Any] = {**msgspec.structs.asdict(counts), **spreads}
    return GroupSummary(**figures)


def _instance_summary(instances: Sequence[InstanceTotals], duration: Micros) -> InstanceSummary:
    gaps = QuantileSketch()
    for totals in instances:
        gaps.merge(totals.itl)
    available = sum(duration if totals.held is None else totals.held for totals in instances)
    # A step may outlast the run if its last client leaves.
    busy = sum(min(totals.busy, duration) for totals in instances)
    serving, down = (sum(getattr(totals, name) for totals in instances) for name in ("serving", "down"))
    return InstanceSummary(
        steps=sum(totals.steps for totals in instances),
        fetched_blocks=sum(totals.fetched_blocks for totals in instances),
        utilisation=busy / available if available else None,
        availability=serving / (serving + down) if down else None,
        itl=sketch_statistics(gaps),
    )


def _fairness(tokens: Sequence[float]) -> float | None:
    squares = sum(got * got for got in tokens)
    return sum(tokens) ** 2 / (len(tokens) * squares) if len(tokens) > 1 and squares else None


def _thrashing(total: GroupSummary) -> list[str]:
    if total.waste is None or total.waste <= THRASHING:
        return []
    what = f"KV thrashing: {total.preemptions:,} preemptions, {total.waste:.0%} of the tokens computed were computed again"
    return [f"{what} (more total_kv_blocks, fewer max_num_seqs, or admission with a capacity)"]


class StreamingSummary:
    """The summary of rows that are not kept: call `add` for each block of rows, then `summary`."""

    def __init__(self, slo: Slo, by: Iterable[By] = (By.CLASS,)) -> None:
        """`by` are the wanted breakdowns."""
        self._slo = slo
        self._by = requested_breakdowns(by)
        self._total = _StreamedGroup()
        self._groups: dict[By, dict[str, _StreamedGroup]] = {each: {} for each in self._by}
        self._tokens: Counter[str] = Counter()
        self._empty_classes = [*slo.classes]

    def add(self, part: Results) -> None:
        """Add these requests."""
        self._total.add(part, self._slo)
        for by in self._by:
            for label, members in split_by(part, by):
                self._groups[by].setdefault(label, _StreamedGroup()).add(members, self._slo)
        for label, members in split_by(part, By.TENANT):
            self._tokens[label] += int(members.output_tokens.sum())
        missing = classes_without_requests(part, self._slo)
        self._empty_classes = [name for name in self._empty_classes if name in missing]

    def summary(self, results: Results) -> Summary:
        """Return the summary. `results` is the result of the run, without rows."""
        if self._total.counts is None:
            self._total.add(results, self._slo)
        return build_summary(
            results,
            self._slo,
            total=self._total.summary(),
            by={
                by: {label: shares[label].summary() for label in _in_group_order(by, shares)}
                for by, shares in self._groups.items()
            },
            tokens=[*self._tokens.values()],
            empty_classes=self._empty_classes,
        )


class _StreamedGroup:
    """The counts and latencies of one group."""

    def __init__(self) -> None:
        self.counts: RequestCounts | None = None
        self._latencies: dict[str, StreamedLatency] = {}

    def add(self, part: Results, slo: Slo) -> None:
        counts = count_requests(part, slo)
        self.counts = counts if self.counts is None else add_counts(self.counts, counts)
        for name, values in request_latencies(part).items():
            self._latencies.setdefault(name, StreamedLatency()).add(values)

    def summary(self) -> GroupSummary:
        assert self.counts is not None
        return build_group(self.counts, {name: latency.statistics() for name, latency in self._latencies.items()})


def _in_group_order(by: By, labels: Iterable[str]) -> list[str]:
    """Return the labels in the order of `split_by`. They may have come up in any order."""
    if by is By.CLASS:
        return [kind.label for kind in sorted(PriorityClass, reverse=True) if kind.label in labels]
    return sorted(labels, key=int) if by is By.INSTANCE else [*labels]
