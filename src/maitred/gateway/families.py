"""The families of metrics, one by one: what each is called, and what of the gateway's state it says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from maitred.core.histogram import Histogram
from maitred.gateway.state_snapshot import ClassState, GatewayState

Samples: TypeAlias = Iterable[tuple[Sequence[str], float]]
"""Values of the labels, and the value."""
SCHEDULER_PREFIX: Final = "maitred_scheduler_"


def scheduler_families(state: GatewayState) -> Iterator[Metric]:
    """What became of requests, and who is here."""
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
    """How many there are, and for whom."""
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
    """The path without classes; and the gate in front of the path with them."""
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
    each = state.tenants.items()
    yield gauge("maitred_tenant_inflight", "Slots in use.", ["tenant"], (([name], t.in_flight) for name, t in each))
    yield gauge("maitred_tenant_queue_depth", "Requests waiting.", ["tenant"], (([name], t.waiting) for name, t in each))


def backend_families(state: GatewayState) -> Iterator[Metric]:
    each = state.backends
    yield gauge("maitred_backend_healthy", "1 if it is.", ["backend"], (([b.url], b.healthy) for b in each))
    yield gauge(
        "maitred_backend_inflight", "Requests sent there and not ended.", ["backend"], (([b.url], b.in_flight) for b in each)
    )


def counter(name: str, help_text: str, labels: Sequence[str], samples: Samples) -> Metric:
    family = CounterMetricFamily(name, help_text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def gauge(name: str, help_text: str, labels: Sequence[str], samples: Samples) -> Metric:
    family = GaugeMetricFamily(name, help_text, labels=labels)
    for values, value in samples:
        family.add_metric(values, value)
    return family


def histogram(name: str, help_text: str, by_class: Iterable[tuple[str, Histogram]]) -> Metric:
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
