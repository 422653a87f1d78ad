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
from maitred.gateway import families
from maitred.gateway.counts import Counts
from maitred.gateway.families import SCHEDULER, counter, gauge, histogram
from maitred.gateway.state import GatewayState
from maitred.histogram import DURATIONS, ERRORS, Histogram
from maitred.request import PriorityClass

OF_CLASSES: Final = {
    "queue_wait": ("Time in the queue, of those that queued.", DURATIONS),
    "slot_hold": ("Time for which slots were held.", DURATIONS),
    "wasted": ("Time for which victims held their slots: work that was thrown away.", DURATIONS),
    "retry_after_error": ("What Retry-After promised minus what it would have taken.", ERRORS),
}


class GatewayCollector(Collector):
    def __init__(self, counts: Counts, core: Admission, state: Callable[[], GatewayState]) -> None:
        self._counts = counts
        self._core = core
        self._state = state

    def text(self) -> bytes:
        """All metrics in the text format."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterator[Metric]:
        state = self._state()
        for family in (families.scheduler, families.slots, families.limiter, families.tenants, families.backends):
            yield from family(state)
        yield from self._headers()
        yield from self._durations()
        yield from self._troubles()
        parked = "Request bodies that are being read or kept, all together."
        yield gauge("maitred_parked_body_bytes", parked, [], [([], state.parked_body_bytes)])
        fallback = "1 if the configuration could not be used as a whole, or the reservations exceed the capacity."
        yield gauge("maitred_config_fallback", fallback, [], [([], state.config_fallback is not None)])
        failed = "1 if the decision log could not be written: nothing is recorded any more."
        yield gauge("maitred_decision_log_failed", failed, [], [([], state.decision_log_failed)])

    def _headers(self) -> Iterator[Metric]:
        labels = ["tenant", "requested_class", "effective_class"]
        clamps = "Requests for a class above their tenant's highest."
        yield counter(SCHEDULER + "clamp", clamps, labels, self._counts.clamps.items())
        unknown = (([tenant], n) for tenant, n in self._counts.unknown_class.items())
        yield counter(SCHEDULER + "unknown_priority_value", "Priority headers that name no class.", ["tenant"], unknown)

    def _durations(self) -> Iterator[Metric]:
        ttft = ((c.label, times) for c, times in zip(PriorityClass, self._counts.ttft, strict=True))
        yield histogram("maitred_ttft_seconds", "Arrival to first data, streamed answers.", ttft)
        books = [self._core.view(pool).classes for pool in self._core.pools]
        for name, (text, bounds) in OF_CLASSES.items():
            by_class = {c: Histogram(bounds) for c in PriorityClass}
            for classes in books:
                for c, view in classes.items():
                    by_class[c].add(getattr(view, name))
            yield histogram(f"{SCHEDULER}{name}_seconds", text, ((c.label, times) for c, times in by_class.items()))

    def _troubles(self) -> Iterator[Metric]:
        counts = self._counts
        refused = (([code], n) for code, n in counts.refused.items())
        yield counter("maitred_refused", "Requests refused before admission.", ["code"], refused)
        failures = (([reason], n) for reason, n in counts.upstream_failures.items())
        yield counter("maitred_upstream_failures", "Failed attempts.", ["reason"], failures)
        reloads = (([result], n) for result, n in counts.reloads.items())
        yield counter("maitred_config_reload", "Reloads of the configuration.", ["result"], reloads)
        yield counter("maitred_retries", "Requests tried on another backend.", [], [([], counts.retries)])
