"""Shares: what each worker has counted since it started, and how the parent adds it up.

A share is whole, not a difference, so none can be lost or come twice. The parent keeps the last one of each process
(`LastShares`). A page is made of the sum: what was counted by processes that have ended stays in it, and what they had open
does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from maitred.core.histogram import DURATION_BOUNDS, Histogram
from maitred.core.request import PriorityClass
from maitred.gateway.observe.openmetrics import TraceExample
from maitred.gateway.observe.request_metrics import RequestMetrics, TokenCounts
from maitred.gateway.observe.state import GatewayCounters
from maitred.scheduler.interface import GatewayId

HistogramShare: TypeAlias = tuple[list[int], int]
"""The counts by bucket, and the sum of all values."""


class SeriesShare(msgspec.Struct, frozen=True):
    """What was counted for the requests of one class and model."""

    priority_class: int
    model: str
    ttft: HistogramShare
    itl: HistogramShare
    e2e: HistogramShare
    tokens: dict[str, tuple[int, int, int, int]]
    """By the label of the tenant: prompt and output as reported, prompt and output as estimated."""
    examples: dict[str, dict[int, TraceExample]]


class Gauges(msgspec.Struct):
    """What a process has now."""

    connections: int = 0
    parked_body_bytes: int = 0
    is_out_of_descriptors: bool = False
    upstream_connections: list[int] = []
    """Open connections to each backend."""
    in_flight: dict[str, int] = {}
    """Sequences at each backend, by its URL, where the parent does not know them by itself."""
    tenants: dict[str, tuple[int, int]] = {}
    """The requests in flight and waiting of each tenant, by its label, where the parent does not know them by itself."""
    mode: str = "linked"
    """How the link to a scheduler elsewhere is, if there is one."""
    problem: str | None = None
    """Why there is no such link."""


class LinkShare(msgspec.Struct, frozen=True):
    """What one process has counted at its link."""

    grants: int
    declined: int
    answer_times: HistogramShare


class Share(msgspec.Struct, frozen=True):
    """What one process has counted."""

    unknown_class: dict[str, int]
    clamped_classes: list[tuple[tuple[str, str, str], int]]
    refused_before_admission: dict[str, int]
    upstream_failures: dict[str, int]
    unreadable_answers: dict[str, int]
    spans: dict[str, int]
    refused_by_tenant: dict[str, dict[str, int]]
    retries: int
    retries_over_budget: int
    responses: list[tuple[tuple[int, str], int]]
    series: list[SeriesShare]
    evicted_connections: int
    dropped_log_lines: int
    loop_lag: HistogramShare
    gauges: Gauges
    link: LinkShare | None = None
    """What was counted at the link to a scheduler elsewhere, if there is one."""
    first_data: dict[str, HistogramShare] = {}
    """How long each backend took, by its URL, where the parent does not see it by itself."""


class LastShares:
    """The last share of each process: of those that are there one by one, as each will tell more, and of those that have ended
    together. A process has ended when another one tells of its name; a broken link says nothing of that."""

    def __init__(self, totals: Totals) -> None:
        self._totals = totals
        self._last: dict[GatewayId, Share] = {}
        self._ended: list[Share] = []
        """The sum of those that have ended, or nothing."""

    def note(self, process: GatewayId, share: Share) -> None:
        """Take what a process tells."""
        formers = [] if process in self._last else [each for each in self._last if each[0] == process[0]]
        self._last[process] = share
        if formers:
            self._totals.set_to([*self._ended, *map(self._last.pop, formers)])
            self._ended = [self._totals.share()]
            self.add_up()  # A page may be being made.

    def add_up(self) -> None:
        """Set the totals to the sum of all."""
        self._totals.set_to([*self._ended, *self._last.values()])

    def gauges(self, present: Iterable[GatewayId]) -> list[Gauges]:
        """Return the latest gauges of each process that is present."""
        return [self._last[each].gauges for each in present if each in self._last]


class Totals:
    """The sums of shares, in the objects that pages are made of."""

    def __init__(self, counters: GatewayCounters, metrics: RequestMetrics, loop_lag: Histogram) -> None:
        """These are the parent's own, which serves no request and counts nothing beside reloads."""
        self._counters, self._metrics, self._loop_lag = counters, metrics, loop_lag
        self.evicted_connections = self.dropped_log_lines = 0
        self.num_grants = self.num_declined = 0
        self.answer_times = Histogram(DURATION_BOUNDS)
        self.first_data: Callable[[], Mapping[str, Histogram]] = dict
        """Returns those of the backends of the parent by URL, if that does not see by itself how long they take."""

    def set_to(self, shares: Iterable[Share]) -> None:
        """Make the sums those of these shares."""
        counters = self._counters
        for counts in (
            *(counters.unknown_class, counters.clamped_classes, counters.refused_before_admission),
            *(
                counters.upstream_failures,
                counters.unreadable_answers,
                counters.spans,
                counters.refused_by_tenant,
                self._metrics.responses,
            ),
        ):
            counts.clear()
        counters.retries = counters.retries_over_budget = self.evicted_connections = self.dropped_log_lines = 0
        self.num_grants = self.num_declined = 0
        self._metrics.clear()
        for times in (self._loop_lag, self.answer_times, *self.first_data().values()):
            times.clear()
        for share in shares:
            self._add(share)

    def share(self) -> Share:
        """Return the sums as one share, of a process that has nothing open."""
        gone = self.evicted_connections, self.dropped_log_lines
        share = take_share(self._counters, self._metrics, self._loop_lag, *gone, Gauges())
        link = LinkShare(self.num_grants, self.num_declined, self.answer_times.share())
        return replace(share, link=link, first_data={url: times.share() for url, times in self.first_data().items()})

    def _add(self, share: Share) -> None:
        counters = self._counters
        counters.unknown_class.update(share.unknown_class)
        counters.clamped_classes.update(dict(share.clamped_classes))
        counters.refused_before_admission.update(share.refused_before_admission)
        counters.upstream_failures.update(share.upstream_failures)
        counters.unreadable_answers.update(share.unreadable_answers)
        counters.spans.update(share.spans)
        for tenant, codes in share.refused_by_tenant.items():
            counters.refused_by_tenant[counters.own_name(tenant)].update(codes)
        counters.retries += share.retries
        counters.retries_over_budget += share.retries_over_budget
        self.evicted_connections += share.evicted_connections
        self.dropped_log_lines += share.dropped_log_lines
        self._metrics.responses.update(dict(share.responses))
        self._loop_lag.add(*share.loop_lag)
        if share.link is not None:
            self.num_grants += share.link.grants
            self.num_declined += share.link.declined
            self.answer_times.add(*share.link.answer_times)
        for url, times in self.first_data().items() if share.first_data else ():
            if (of_worker := share.first_data.get(url)) is not None:
                times.add(*of_worker)
        for series in share.series:
            self._add_series(series)

    def _add_series(self, share: SeriesShare) -> None:
        series = self._metrics.series(PriorityClass(share.priority_class), share.model)
        series.ttft.add(*share.ttft)
        series.itl.add(*share.itl)
        series.e2e.add(*share.e2e)
        series.exemplars.add(share.examples)
        for tenant, counts in share.tokens.items():
            tokens = series.tokens_of(self._counters.tenant_label(tenant))
            tokens.reported_prompt += counts[0]
            tokens.reported_output += counts[1]
            tokens.estimated_prompt += counts[2]
            tokens.estimated_output += counts[3]


def take_share(
    counters: GatewayCounters,
    metrics: RequestMetrics,
    loop_lag: Histogram,
    evicted_connections: int,
    dropped_log_lines: int,
    gauges: Gauges,
) -> Share:
    """Collect all counters of a process into a share."""
    return Share(
        unknown_class=dict(counters.unknown_class),
        clamped_classes=[*counters.clamped_classes.items()],
        refused_before_admission=dict(counters.refused_before_admission),
        upstream_failures=dict(counters.upstream_failures),
        unreadable_answers=dict(counters.unreadable_answers),
        spans=dict(counters.spans),
        refused_by_tenant={tenant: dict(codes) for tenant, codes in counters.refused_by_tenant.items()},
        retries=counters.retries,
        retries_over_budget=counters.retries_over_budget,
        responses=[*Counter(metrics.responses).items()],
        series=[_series_share(metrics, c, model) for c, model in metrics.labels],
        evicted_connections=evicted_connections,
        dropped_log_lines=dropped_log_lines,
        loop_lag=loop_lag.share(),
        gauges=gauges,
    )


def _series_share(metrics: RequestMetrics, c: PriorityClass, model: str) -> SeriesShare:
    series = metrics.series(c, model)
    tokens = {tenant: _token_share(counts) for tenant, counts in series.tokens.items()}
    return SeriesShare(c, model, series.ttft.share(), series.itl.share(), series.e2e.share(), tokens, series.exemplars.of)


def _token_share(counts: TokenCounts) -> tuple[int, int, int, int]:
    return counts.reported_prompt, counts.reported_output, counts.estimated_prompt, counts.estimated_output
