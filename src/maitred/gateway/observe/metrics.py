"""The gateway's metrics in Prometheus' format, made from the state and the counters when they are scraped.

Names are SMG's with the prefix `maitred_`, where SMG has one. One law holds at every scrape, for each class:

    arrivals_total = sum of admit_total over its outcomes + queue_depth + inflight

The functions with names in `_families` make the metrics of one subject each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from prometheus_client.core import Metric

from maitred.admission import ClassView
from maitred.core.histogram import DURATION_BOUNDS, ERROR_BOUNDS, Histogram
from maitred.core.request import PriorityClass
from maitred.core.steps import Steps, run_at_once
from maitred.gateway.access.page_access import Shown, Viewer
from maitred.gateway.observe.metric_families import Samples, counter, gauge, histogram
from maitred.gateway.observe.metric_rows import rows_of_tenant, summary_rows
from maitred.gateway.observe.openmetrics import END, openmetrics_text
from maitred.gateway.observe.shared_page import SharedPages, without_text, write_metrics
from maitred.gateway.observe.state import ClassState, GatewayCounters, GatewayState, TenantRequests
from maitred.gateway.observe.state_snapshots import Snapshot
from maitred.gateway.observe.tenant_views import TenantViews
from maitred.scheduler.interface import Backend, FleetView

SCHEDULER_PREFIX: Final = "maitred_scheduler_"
CLASS_HISTOGRAMS: Final = {
    "queue_wait": ("queue_wait", "Time in the queue, of those that queued.", DURATION_BOUNDS),
    "slot_hold": ("slot_hold", "Time for which slots were held.", DURATION_BOUNDS),
    "wasted": ("wasted_slot_time", "Time for which victims held their slots: work that was thrown away.", DURATION_BOUNDS),
    "retry_after_error": ("retry_after_error", "What Retry-After promised minus what it would have taken.", ERROR_BOUNDS),
}


class GatewayCollector:
    """Makes all metrics at every scrape."""

    def __init__(
        self,
        counters: GatewayCounters,
        take_snapshot: Callable[[], Steps[Snapshot]],
        tenants: TenantViews,
        pages: SharedPages,
        more_families: Sequence[Callable[[], Iterable[Metric]]] = (),
    ) -> None:
        """`more_families` return the metrics that have no place in the state or the counters."""
        self._tenants = tenants
        self._more_families = [*more_families]
        self._counters = counters
        self._take_snapshot = take_snapshot
        self._pages = pages

    def add(self, families: Callable[[], Iterable[Metric]]) -> None:
        """Have these metrics, too."""
        self._more_families.append(families)

    async def render(self, viewer: Viewer, *, as_openmetrics: bool = False) -> bytes:
        """Return the metrics that `viewer` may see, in the text format, or as OpenMetrics."""
        key = viewer if viewer.shown is Shown.OWN else viewer.shown
        return await self._pages.page(("metrics", key, as_openmetrics), lambda: self._write(viewer, as_openmetrics))

    def _write(self, viewer: Viewer, as_openmetrics: bool) -> Iterator[bytes]:
        snapshot = yield from without_text(self._take_snapshot())
        tenants: Mapping[str, TenantRequests] = snapshot.state.tenants
        shown: Callable[[Metric], Metric | None] = _all_rows
        if viewer.shown is Shown.SUMMARY:
            shown = summary_rows
        elif viewer.shown is Shown.OWN:
            own = yield from without_text(self._tenants.requests(viewer.tenant))
            tenants, shown = {viewer.tenant: own}, partial(rows_of_tenant, tenant=viewer.tenant)
        families = self._families(snapshot, tenants)
        if as_openmetrics:
            yield from write_metrics(families, shown, openmetrics_text)
            yield END
        else:
            yield from write_metrics(families, shown)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        snapshot = run_at_once(self._take_snapshot())
        return self._families(snapshot, snapshot.state.tenants)

    def _families(self, snapshot: Snapshot, tenants: Mapping[str, TenantRequests]) -> Iterator[Metric]:
        """Yield all metrics: of one snapshot and these tenants, and of the counters when they are asked for."""
        state = snapshot.state
        for family in (scheduler_families, slot_families, limiter_families, model_families, backend_families, learned_families):
            yield from family(state)
        yield from tenant_families(tenants)
        for families in self._more_families:
            yield from families()
        yield from self._header_families()
        yield from _duration_families(snapshot.classes)
        yield from self._trouble_families()
        connections = "Connections of clients, idle or not."
        yield gauge("maitred_http_connections_active", connections, [], [([], state.num_connections)])
        parked = "Request bodies that are being read or kept, all together."
        yield gauge("maitred_parked_body_bytes", parked, [], [([], state.parked_body_bytes)])
        fallback = "1 if the configuration cannot be used as a whole, or reservations exceed the slots; /health says the cure."
        yield gauge("maitred_config_fallback", fallback, [], [([], state.config_fallback is not None)])
        exhausted = "1 if no file descriptor is left: new connections are dropped."
        evicted = "Idle connections of clients that were closed because descriptors were short."
        yield counter("maitred_http_connections_evicted", evicted, [], [([], state.num_evicted_connections)])
        yield gauge("maitred_out_of_descriptors", exhausted, [], [([], state.is_out_of_descriptors)])
        failed = "1 while the decision log cannot be written."
        yield gauge("maitred_decision_log_failed", failed, [], [([], state.decision_log_failed)])
        dropped = (([file], n) for file, n in state.dropped_lines.items())
        yield counter("maitred_dropped_lines", "Lines that were not written, because a disk failed or hung.", ["file"], dropped)

    def _header_families(self) -> Iterator[Metric]:
        labels = ["tenant", "requested_class", "effective_class"]
        clamps = "Requests for a class above their tenant's highest."
        yield counter(SCHEDULER_PREFIX + "clamp", clamps, labels, self._counters.clamped_classes.items())
        unknown = (([tenant], n) for tenant, n in self._counters.unknown_class.items())
        yield counter(SCHEDULER_PREFIX + "unknown_priority_value", "Priority headers that name no class.", ["tenant"], unknown)

    def _trouble_families(self) -> Iterator[Metric]:
        counters = self._counters
        refused = (([code], n) for code, n in counters.refused_before_admission.items())
        yield counter("maitred_refused", "Requests refused before admission.", ["code"], refused)
        of_tenants = ((list(label), n) for label, n in counters.refusals_by_label().items())
        text = "Requests that the gateway has answered with an error, before admission or after, by its code."
        yield counter("maitred_tenant_refused", text, ["tenant", "code"], of_tenants)
        failures = (([reason], n) for reason, n in counters.upstream_failures.items())
        yield counter("maitred_upstream_failures", "Failed attempts.", ["reason"], failures)
        unreadable = (([url], n) for url, n in counters.unreadable_answers.items())
        text = "Answers that it has compressed unasked: errors and tokens in them are not seen."
        yield counter("maitred_backend_unreadable_answers", text, ["backend"], unreadable)
        if counters.spans:
            spans = (([outcome], n) for outcome, n in counters.spans.items())
            yield counter("maitred_trace_spans", "Spans of traces, exported or dropped.", ["outcome"], spans)
        reloads = (([result], n) for result, n in counters.reloads.items())
        yield counter("maitred_config_reload", "Reloads of the configuration.", ["result"], reloads)
        yield counter("maitred_retries", "Requests sent once more after a failure.", [], [([], counters.retries)])
        text = "Requests not sent once more because the retry budget was spent."
        yield counter("maitred_retry_budget_spent", text, [], [([], counters.retries_over_budget)])


def _all_rows(family: Metric) -> Metric:
    return family


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
    yield counter(
        SCHEDULER_PREFIX + "retry",
        "Requests that lost their slot and waited again.",
        ["class"],
        _per_class(state, lambda c: c.retried),
    )
    yield gauge(SCHEDULER_PREFIX + "inflight", "Slots in use.", ["class"], _per_class(state, lambda c: c.in_flight))
    waiting = _per_class(state, lambda c: c.waiting)
    yield gauge(SCHEDULER_PREFIX + "queue_depth", "Requests waiting for a slot.", ["class"], waiting)
    ends = (([name, end], n) for name, c in state.classes.items() for end, n in _end_counts(c))
    yield counter("maitred_requests_ended", "Requests that held a slot.", ["class", "end"], ends)


def _duration_families(views: Mapping[PriorityClass, ClassView]) -> Iterator[Metric]:
    for name, (attribute, text, bounds) in CLASS_HISTOGRAMS.items():
        by_class = {c: getattr(views[c], attribute) if c in views else Histogram(bounds) for c in PriorityClass}
        times = (([c.label], of_class) for c, of_class in by_class.items())
        yield histogram(f"{SCHEDULER_PREFIX}{name}_seconds", text, ["class"], times)


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
    held = (([name, model], n) for model, pool in pools for name, n in pool.held.items())
    text = "Idle slots that are held back for the class now."
    yield gauge(SCHEDULER_PREFIX + "reserved_held", text, ["class", "model"], held)


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


def model_families(state: GatewayState) -> Iterator[Metric]:
    """Yield what runs and waits of each model, as admission sees it."""
    pools = state.pools.items()
    running = (([model], pool.in_flight) for model, pool in pools)
    yield gauge("maitred_num_requests_running", "Requests that hold a slot.", ["model"], running)
    waiting = (([model], pool.waiting) for model, pool in pools)
    yield gauge("maitred_num_requests_waiting", "Requests that wait for a slot.", ["model"], waiting)


def tenant_families(tenants: Mapping[str, TenantRequests]) -> Iterator[Metric]:
    """Yield what each tenant, by its label, holds and waits for."""
    each = tenants.items()
    yield gauge("maitred_tenant_inflight", "Slots in use.", ["tenant"], (([name], t.in_flight) for name, t in each))
    yield gauge("maitred_tenant_queue_depth", "Requests waiting.", ["tenant"], (([name], t.waiting) for name, t in each))


def backend_families(state: GatewayState) -> Iterator[Metric]:
    """Yield the health and the load of each backend."""
    each = state.backends
    yield gauge("maitred_backend_healthy", "1 if it is.", ["backend"], (([b.url], b.healthy) for b in each))
    in_flight = "Sequences of the requests sent there and not ended."
    yield gauge("maitred_backend_inflight", in_flight, ["backend"], (([b.url], b.in_flight) for b in each))
    connections = (([b.url], b.connections) for b in each)
    yield gauge("maitred_backend_connections", "Open connections to it, idle or not.", ["backend"], connections)
    loads = [(b.url, b.load) for b in each if b.load is not None]
    running = (([url], load.running) for url, load in loads)
    yield gauge("maitred_backend_requests_running", "Requests that it runs, as routing sees it.", ["backend"], running)
    waiting = (([url], load.waiting) for url, load in loads if load.waiting is not None)
    yield gauge("maitred_backend_requests_waiting", "Requests in its own queue, as routing sees it.", ["backend"], waiting)
    usage = (([url], load.kv_usage) for url, load in loads if load.kv_usage is not None)
    text = "Share of its KV memory in use, 0 to 1, as routing sees it."
    yield gauge("maitred_backend_kv_cache_usage_perc", text, ["backend"], usage)


def ejection_families(fleet: FleetView) -> Iterator[Metric]:
    """Yield which backends are ejected, and how often."""
    states = (([b.url, b.circuit.state], 1) for b in fleet.backends)
    text = "1 for the state of its circuit: closed (in use), ejected, half_open (probed)."
    yield gauge("maitred_backend_circuit", text, ["backend", "state"], states)
    changes = (([url, state], n) for (url, state), n in fleet.ejection.counts.items())
    yield counter("maitred_backend_circuit_changes", "Changes of that state, by what it became.", ["backend", "state"], changes)
    resting = (([b.url], b.circuit.rests_until is not None) for b in fleet.backends)
    text = "1 while the engine has asked to be left alone (Retry-After)."
    yield gauge("maitred_backend_rests", text, ["backend"], resting)


def upstream_families(backends: Sequence[Backend]) -> Iterator[Metric]:
    """Yield how long backends take."""
    times = (([b.url], b.first_data_times) for b in backends)
    text = "Sending a request to a backend, to the first data of its answer."
    yield histogram("maitred_upstream_first_data_seconds", text, ["backend"], times)


def learned_families(state: GatewayState) -> Iterator[Metric]:
    """Yield the slots of each backend, where they come from, and what is believed where they are learned."""
    slots = (([b.url, b.source], b.slots) for b in state.backends if b.slots is not None)
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
