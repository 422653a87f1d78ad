"""What the gateway counts beside admission's own books, and all of it in Prometheus' format.

Counting happens on the way of every request and is therefore plain additions; Prometheus' objects are made when somebody asks.
SMG's names are kept where it has one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from maitred.gateway.state import GatewayState
from maitred.request import PriorityClass
from maitred.units import Micros, to_seconds

BOUNDS_SECS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Histogram:
    """Durations of one class."""

    __slots__ = ("_counts", "_sum")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_SECS) + 1)
        self._sum = 0.0

    def observe(self, span: Micros) -> None:
        secs = to_seconds(span)
        self._counts[bisect_left(BOUNDS_SECS, secs)] += 1
        self._sum += secs

    def export(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulative buckets and the sum."""
        total, buckets = 0, []
        for bound, count in zip((*map(str, BOUNDS_SECS), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        return buckets, self._sum


class Counts:
    """Everything that is counted per request."""

    def __init__(self) -> None:
        self.queue_wait: Sequence[Histogram] = [Histogram() for _ in PriorityClass]
        """By class; only of requests that queued, whatever became of them."""
        self.ttft: Sequence[Histogram] = [Histogram() for _ in PriorityClass]
        """By class; from arrival to the first data of a streamed answer."""
        self.unknown_class = 0
        self.refused: Counter[str] = Counter()
        """Refused before admission, by code."""
        self.upstream_failures: Counter[str] = Counter()
        """By reason."""
        self.retries = 0
        """Requests sent to another backend after one failed before the first byte."""


class GatewayCollector(Collector):
    def __init__(self, counts: Counts, state: Callable[[], GatewayState]) -> None:
        self._counts = counts
        self._state = state

    def text(self) -> bytes:
        """All metrics in the text format."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterator[Metric]:
        state = self._state()
        yield from self._scheduler(state)
        yield from self._histograms()
        yield from self._backends(state)
        failed = "1 if the decision log could not be written: nothing is recorded any more."
        yield GaugeMetricFamily("maitred_decision_log_failed", failed, value=state.decision_log_failed)
        yield _counter("maitred_refused", "Requests refused before admission.", ["code"], self._counts.refused)
        yield _counter("maitred_upstream_failures", "Failed attempts.", ["reason"], self._counts.upstream_failures)
        yield _counter("maitred_retries", "Requests tried on another backend.", [], {(): self._counts.retries})

    def _scheduler(self, state: GatewayState) -> Iterator[Metric]:
        admit = CounterMetricFamily("smg_scheduler_admit", "Outcomes of admission.", labels=["class", "outcome"])
        ended = CounterMetricFamily("maitred_requests_ended", "Requests that held a slot.", labels=["class", "end"])
        in_flight = GaugeMetricFamily("smg_scheduler_inflight", "Slots in use.", labels=["class"])
        depth = GaugeMetricFamily("smg_scheduler_queue_depth", "Requests waiting for a slot.", labels=["class"])
        for name, c in state.classes.items():
            admit.add_metric([name, "admitted"], c.admitted)
            admit.add_metric([name, "rejected_queue_full"], c.queue_full)
            admit.add_metric([name, "rejected_queue_timeout"], c.queue_timeout)
            admit.add_metric([name, "client_cancelled"], c.cancelled)
            ended.add_metric([name, "drained"], c.completed)
            ended.add_metric([name, "client_gone"], c.client_gone)
            ended.add_metric([name, "failed"], c.failed)
            in_flight.add_metric([name], c.in_flight)
            depth.add_metric([name], c.waiting)
        yield from (admit, ended, in_flight, depth)
        capacity = GaugeMetricFamily("maitred_capacity", "Slots.", labels=["model"])
        for model, pool in state.pools.items():
            capacity.add_metric([model], pool.capacity)
        yield capacity
        used = state.in_flight / state.capacity if state.capacity else 0.0
        yield GaugeMetricFamily("smg_scheduler_utilization", "Slots in use over capacity.", value=used)
        unknown = "Priority headers that name no class."
        yield _counter("smg_scheduler_unknown_priority_value", unknown, [], {(): self._counts.unknown_class})

    def _histograms(self) -> Iterator[Metric]:
        kinds = (
            ("smg_scheduler_queue_wait_seconds", "Time in the queue, of those that queued.", self._counts.queue_wait),
            ("maitred_ttft_seconds", "Arrival to first data, streamed answers.", self._counts.ttft),
        )
        for name, text, by_class in kinds:
            family = HistogramMetricFamily(name, text, labels=["class"])
            for priority_class, histogram in zip(PriorityClass, by_class, strict=True):
                buckets, total = histogram.export()
                family.add_metric([priority_class.label], buckets, total)
            yield family

    def _backends(self, state: GatewayState) -> Iterator[Metric]:
        healthy = GaugeMetricFamily("maitred_backend_healthy", "1 if it is.", labels=["backend"])
        in_flight = GaugeMetricFamily("maitred_backend_inflight", "Requests sent there and not ended.", labels=["backend"])
        for backend in state.backends:
            healthy.add_metric([backend.url], backend.healthy)
            in_flight.add_metric([backend.url], backend.in_flight)
        yield from (healthy, in_flight)


def _counter(name: str, text: str, labels: list[str], values: dict[str, int] | dict[tuple[()], int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for label, value in values.items():
        family.add_metric([label] if isinstance(label, str) else [], value)
    return family
