"""What the gateway counts beside the counters of admission: plain additions, since most of them happen for every request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from maitred.core.histogram import Histogram
from maitred.core.request import PriorityClass

OTHER_TENANTS = "other"
"""The label of all tenants without a label of their own."""


class GatewayCounters:
    """Everything that is counted per request."""

    def __init__(self, max_tenant_labels: int = 32) -> None:
        """The first `max_tenant_labels` tenants get labels of their own: clients may invent tenants, and metrics stay few."""
        self.ttft: Sequence[Histogram] = [Histogram() for _ in PriorityClass]
        """Time from the arrival of a request to the first data of its streamed answer, µs, by class."""
        self.unknown_class: Counter[str] = Counter()
        """Requests whose priority header names no class, by the label of the tenant."""
        self.clamped_classes: Counter[tuple[str, str, str]] = Counter()
        """Requests that got a lower class than they asked for, by label of the tenant, requested and effective class."""
        self.refused_before_admission: Counter[str] = Counter()
        """Requests refused before admission, by error code."""
        self.upstream_failures: Counter[str] = Counter()
        """Attempts at a backend that failed, by reason."""
        self.retries = 0
        """Attempts at another backend, after one failed before the first byte."""
        self.reloads: Counter[str] = Counter()
        """Reloads of the configuration, by result: `ok`, `failed`."""
        self._max_tenant_labels = max_tenant_labels
        self._labelled: set[str] = set()

    def tenant_label(self, tenant: str) -> str:
        """Return the label of `tenant`: its own name, or `other`."""
        if tenant in self._labelled:
            return tenant
        if len(self._labelled) >= self._max_tenant_labels:
            return OTHER_TENANTS
        self._labelled.add(tenant)
        return tenant
