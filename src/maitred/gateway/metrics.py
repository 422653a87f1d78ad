"""The gateway's metrics in Prometheus' format, made from the state and the counters when they are scraped.

Names are SMG's with the prefix `maitred_`, where SMG has one. One law holds at every scrape, for each class:

    arrivals_total = sum of admit_total over its outcomes + queue_depth + inflight

The functions with names in `_families` make the metrics of one subject each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from maitred.admission import Admission
from maitred.core.histogram import DURATION_BOUNDS, ERROR_BOUNDS, Histogram
from maitred.core.request import PriorityClass
from maitred.gateway.state import ClassState, GatewayCounters, GatewayState

Samples: TypeAlias = Iterable[tuple[Sequence[str], float]]
"""The values of the labels, and the value."""
SCHEDULER_PREFIX: Final = "maitred_scheduler_"
CLASS_HISTOGRAMS: Final = {
    "queue_wait": ("queue_wait", "Time in the queue, of those that queued.", DURATION_BOUNDS),
    "slot_hold": ("slot_hold", "Time for which slots were held.", DURATION_BOUNDS),
    "wasted": ("wasted_slot_time", "Time for which victims held their slots: work that was thrown away.", DURATION_BOUNDS),
    "retry_after_error": ("retry_after_error", "What Retry-After promised minus what it would have taken.", ERROR_BOUNDS),
}


class GatewayCollector(Collector):
    """Makes all metrics at every scrape."""

    def __init__(
        self,
        counters: GatewayCounters,
        core: Admission,
        take_snapshot: Callable[[], GatewayState],
        program_families: Callable[[], Iterable[Metric]] | None = None,
    ) -> None:
        """`program_families` returns the metrics of the programs; None if there are no programs."""
        self._program_families = program_families
        self._counters = counters
        self._core = core
        self._take_snapshot = take_snapshot

    def render(self) -> bytes:
        """Return all metrics in the text format."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, of one snapshot and of the counters at the same instant."""
        state = self._take_snapshot()
        for family in (
            scheduler_families,
            slot_families,
            limiter_families,
            tenant_families,
            backend_families,
            learned_families,
        ):
            yield from family(state)
        if self._program_families is not None:
            yield from self._program_families()
        yield from self._header_families()
        yield from self._duration_families()
        yield from self._trouble_families()
        parked = "Request bodies that are being read or kept, all together."
        yield gauge("maitred_parked_body_bytes", parked, [], [([], state.parked_body_bytes)])
        fallback = "1 if the configuration could not be used as a whole, or the reservations exceed the capacity."
        yield gauge("maitred_config_fallback", fallback, [], [([], state.config_fallback is not None)])
        exhausted = "1 if no file descriptor is left: new connections are dropped."
        yield gauge("maitred_out_of_descriptors", exhausted, [], [([], state.is_out_of_descriptors)])
        failed = "1 if the decision log could not be written: nothing is recorded any more."
        yield gauge("maitred_decision_log_failed", failed, [], [([], state.decision_log_failed)])
        dropped = (([file], n) for file, n in state.dropped_lines.items())
        yield counter("maitred_dropped_lines", "Lines that were not written, because a disk failed or hung.", ["file"], dropped)

    def _header_families(self) -> Iterator[Metric]:
        labels = ["tenant", "requested_class", "effective_class"]
        clamps = "Requests for a class above their tenant's highest."
        yield counter(SCHEDULER_PREFIX + "clamp", clamps, labels, self._counters.clamped_classes.items())
        unknown = (([tenant], n) for tenant, n in self._counters.unknown_class.items())
        yield counter(SCHEDULER_PREFIX + "unknown_priority_value", "Priority headers that name no class.", ["tenant"], unknown)

    def _duration_families(self) -> Iterator[Metric]:
        ttft = ((c.label, times) for c, times in zip(PriorityClass, self._counters.ttft, strict=True))
        yield histogram("maitred_ttft_seconds", "Arrival to first data, streamed answers.", ttft)
        views = self._core.class_views()
        for name, (attribute, text, bounds) in CLASS_HISTOGRAMS.items():
            by_class = {c: getattr(views[c], attribute) if c in views else Histogram(bounds) for c in PriorityClass}
            yield histogram(f"{SCHEDULER_PREFIX}{name}_seconds", text, ((c.label, times) for c, times in by_class.items()))

    def _trouble_families(self) -> Iterator[Metric]:
        counters = self._counters
        refused = (([code], n) for code, n in counters.refused_before_admission.items())
        yield counter("maitred_refused", "Requests refused before admission.", ["code"], refused)
        failures = (([reason], n) for reason, n in counters.upstream_failures.items())
        yield counter("maitred_upstream_failures", "Failed attempts.", ["reason"], failures)
        reloads = (([result], n) for result, n in counters.reloads.items())
        yield counter("maitred_config_reload", "Reloads of the configuration.", ["result"], reloads)
        yield counter("maitred_retries", "Requests tried on another backend.", [], [([], counters.retries)])


def scheduler_families(state: GatewayState) -> Iterator[Metric]:
    """Yield what became of requests, and how many wait and are in flight."""
    outcomes = (([name, outcome], n) for name, c in state.classes.items() for outcome, n in _outcome_counts(c))
    yield counter(SCHEDULER_PREFIX + "admit", "What became of requests.", ["class", "outcome"], outcomes)
    arrivals = _per_class(state, lambda c: c.arrived)
    yield counter(SCHEDULER_PREFIX + "arrivals", "Requests that asked for a slot.", ["class"], arrivals)
    victims = (([name, by], n) for name, c in state.classes.items() for by, n in c.preempted_by.items() if n)
    yield counter(SCHEDULER_PREFIX + "preemption", "Slots taken away.", ["victim_class", "by_class"], victims)
    promoted = _per_class(state, lambda c: c.promoted)
    yield counter(SCHEDULER_PREFIX + "starvation_promotion", "Starved requests that went first.", ["class"], promoted)
    yield counter(SCHEDULER_PREFIX + "retry", "Victims that waited again.", ["class"], _per_class(state, lambda c: c.retried))
    yield gauge(SCHEDULER_PREFIX + "inflight", "Slots in use.", ["class"], _per_class(state, lambda c: c.in_flight))
    waiting = _per_class(state, lambda c: c.waiting)
    yield gauge(SCHEDULER_PREFIX + "queue_depth", "Requests waiting for a slot.", ["class"], waiting)
    ends = (([name, end], n) for name, c in state.classes.items() for end, n in _end_counts(c))
    yield counter("maitred_requests_ended", "Requests that held a slot.", ["class", "end"], ends)


def slot_families(state: GatewayState) -> Iterator[Metric]:
    """Yield how many slots there are, and how many are reserved."""
    pools = state.pools.items()
    limited = (([model], pool.capacity) for model, pool in pools if pool.capacity is not None)
    yield gauge(SCHEDULER_PREFIX + "capacity", "Slots.", ["model"], limited)
    used = state.in_flight / state.capacity if state.capacity else 0.0
    yield gauge(SCHEDULER_PREFIX + "utilization", "Slots in use over capacity.", [], [([], used)])
    if state.mode != "priority":
        return
    limits = _per_class(state, lambda c: c.queue_size)
    yield gauge(SCHEDULER_PREFIX + "queue_size_limit", "Requests that may wait, over all models.", ["class"], limits)
    pressure = _per_class(state, lambda c: c.pressure)
    text = "0 to 1: how full its queue is, or what it may use beyond its reservation, where that is highest."
    yield gauge(SCHEDULER_PREFIX + "class_capacity_pressure", text, ["class"], pressure)
    reserved = (([name, model], n) for model, pool in pools for name, n in pool.reserved.items())
    yield gauge(
        SCHEDULER_PREFIX + "reserved_effective", "Reserved slots, scaled down if need be.", ["class", "model"], reserved
    )


def limiter_families(state: GatewayState) -> Iterator[Metric]:
    """Yield the metrics of admission without classes, and those of the rate limit in front of classes."""
    classes = state.classes.values()
    total, text = "maitred_http_rate_limit", "Requests, by what the limiter said."
    if state.mode != "legacy":
        stopped = sum(c.rate_limited for c in classes)
        yield counter(total, text, ["result"], [(["rejected"], stopped)] if stopped else [])
        return
    full, late = sum(c.queue_full for c in classes), sum(c.queue_timeout for c in classes)
    results = [(["allowed"], sum(c.admitted for c in classes)), (["rejected"], full + late)]
    yield counter(total, text, ["result"], results)
    yield gauge("maitred_admission_queue_depth", "Requests waiting.", [], [([], state.waiting)])
    yield gauge("maitred_admission_inflight", "Requests in flight.", [], [([], state.in_flight)])
    has_queue = any(c.queue_size for c in classes)
    reasons = [(["full"], full if has_queue else 0), (["timeout"], late)]
    yield counter("maitred_admission_queue_rejected", "Requests that the queue turned away.", ["reason"], reasons)


def tenant_families(state: GatewayState) -> Iterator[Metric]:
    """Yield what each tenant holds and waits for."""
    each = state.tenants.items()
    yield gauge("maitred_tenant_inflight", "Slots in use.", ["tenant"], (([name], t.in_flight) for name, t in each))
    yield gauge("maitred_tenant_queue_depth", "Requests waiting.", ["tenant"], (([name], t.waiting) for name, t in each))


def backend_families(state: GatewayState) -> Iterator[Metric]:
    """Yield the health and the load of each backend."""
    each = state.backends
    yield gauge("maitred_backend_healthy", "1 if it is.", ["backend"], (([b.url], b.healthy) for b in each))
    yield gauge(
        "maitred_backend_inflight", "Requests sent there and not ended.", ["backend"], (([b.url], b.in_flight) for b in each)
    )


def learned_families(state: GatewayState) -> Iterator[Metric]:
    """Yield the slots of each backend, where they come from, and what is believed where they are learned."""
    slots = (([b.url, b.source], b.slots) for b in state.backends)
    text = "Requests that it may have in flight, for each model, and where this number comes from."
    yield gauge("maitred_backend_slots", text, ["backend", "source"], slots)
    learned = [(b.url, b.learned) for b in state.backends if b.learned is not None]
    limits = (([url], of.limit) for url, of in learned if of.limit is not None)
    yield gauge("maitred_backend_slots_limit", "Requests that it runs at once, as is believed.", ["backend"], limits)
    for bound in ("least", "most"):
        bounds = (([url], float(getattr(of, bound))) for url, of in learned)
        yield gauge(f"maitred_backend_slots_{bound}", "A bound of learned slots.", ["backend"], bounds)
    states = (([url, of.state], 1) for url, of in learned)
    yield gauge("maitred_backend_slots_state", "1 for the state of learned slots.", ["backend", "state"], states)
    changes = (([url], of.changed_secs_ago) for url, of in learned if of.changed_secs_ago is not None)
    yield gauge("maitred_backend_slots_age_seconds", "Time since learned slots last changed.", ["backend"], changes)


def counter(name: str, help_text: str, labels: Sequence[str], samples: Samples) -> Metric:
    """Return a counter with its samples."""
    family = CounterMetricFamily(name, help_text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def gauge(name: str, help_text: str, labels: Sequence[str], samples: Samples) -> Metric:
    """Return a gauge with its samples."""
    family = GaugeMetricFamily(name, help_text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def histogram(name: str, help_text: str, by_class: Iterable[tuple[str, Histogram]]) -> Metric:
    """Return a histogram by class, in Prometheus' form."""
    family = HistogramMetricFamily(name, help_text, labels=["class"])
    for label, durations in by_class:
        buckets, total = durations.prometheus_buckets()
        family.add_metric([label], buckets, total)
    return family


def _per_class(state: GatewayState, value_of: Callable[[ClassState], float]) -> Samples:
    return (([name], value_of(c)) for name, c in state.classes.items())


def _outcome_counts(c: ClassState) -> Iterator[tuple[str, int]]:
    yield "admitted", c.completed + c.failed + c.client_gone
    yield "preempted", c.preempted
    yield "rejected_queue_full", c.queue_full
    yield "rejected_tenant_queue_full", c.tenant_queue_full
    yield "rejected_queue_timeout", c.queue_timeout
    yield "client_cancelled", c.cancelled
    for reason, n in c.refused.items():
        yield f"rejected_{reason}", n


def _end_counts(c: ClassState) -> Iterator[tuple[str, int]]:
    yield "drained", c.completed
    yield "failed", c.failed
    yield "client_gone", c.client_gone
    yield "preempted", c.preempted
