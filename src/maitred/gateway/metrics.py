"""All that is known, in Prometheus' format. Its objects are made when somebody asks, from books and counters.

Names are SMG's with the prefix `maitred_`, where it has one. One law holds at every scrape, for each class:

    arrivals_total = sum of admit_total over its outcomes + queue_depth + inflight
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from maitred.admission import Admission
from maitred.core.histogram import DURATION_BOUNDS, ERROR_BOUNDS, Histogram
from maitred.core.request import PriorityClass
from maitred.gateway import families
from maitred.gateway.counters import GatewayCounters
from maitred.gateway.families import SCHEDULER_PREFIX, counter, gauge, histogram
from maitred.gateway.state_snapshot import GatewayState

CLASS_HISTOGRAMS: Final = {
    "queue_wait": ("queue_wait", "Time in the queue, of those that queued.", DURATION_BOUNDS),
    "slot_hold": ("slot_hold", "Time for which slots were held.", DURATION_BOUNDS),
    "wasted": ("wasted_slot_time", "Time for which victims held their slots: work that was thrown away.", DURATION_BOUNDS),
    "retry_after_error": ("retry_after_error", "What Retry-After promised minus what it would have taken.", ERROR_BOUNDS),
}


class GatewayCollector(Collector):
    def __init__(self, counts: GatewayCounters, core: Admission, state: Callable[[], GatewayState]) -> None:
        self._counters = counts
        self._core = core
        self._state = state

    def render(self) -> bytes:
        """All metrics in the text format."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterator[Metric]:
        state = self._state()
        for family in (
            families.scheduler_families,
            families.slot_families,
            families.limiter_families,
            families.tenant_families,
            families.backend_families,
        ):
            yield from family(state)
        yield from self._header_families()
        yield from self._duration_families()
        yield from self._trouble_families()
        parked = "Request bodies that are being read or kept, all together."
        yield gauge("maitred_parked_body_bytes", parked, [], [([], state.parked_body_bytes)])
        fallback = "1 if the configuration could not be used as a whole, or the reservations exceed the capacity."
        yield gauge("maitred_config_fallback", fallback, [], [([], state.config_fallback is not None)])
        failed = "1 if the decision log could not be written: nothing is recorded any more."
        yield gauge("maitred_decision_log_failed", failed, [], [([], state.decision_log_failed)])

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
        counts = self._counters
        refused = (([code], n) for code, n in counts.refused_before_admission.items())
        yield counter("maitred_refused", "Requests refused before admission.", ["code"], refused)
        failures = (([reason], n) for reason, n in counts.upstream_failures.items())
        yield counter("maitred_upstream_failures", "Failed attempts.", ["reason"], failures)
        reloads = (([result], n) for result, n in counts.reloads.items())
        yield counter("maitred_config_reload", "Reloads of the configuration.", ["result"], reloads)
        yield counter("maitred_retries", "Requests tried on another backend.", [], [([], counts.retries)])
