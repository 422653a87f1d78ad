"""What the gateway counts beside admission's own books: plain additions, since they happen on the way of every request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from maitred.core.histogram import Histogram
from maitred.core.request import PriorityClass

OTHER_TENANTS = "other"
"""The label of all tenants that have none of their own."""


class GatewayCounters:
    """Everything that is counted per request. The first `most_tenants` tenants have labels of their own, so that metrics stay
    few however many tenants there are, or are made up."""

    def __init__(self, max_tenant_labels: int = 32) -> None:
        self.ttft: Sequence[Histogram] = [Histogram() for _ in PriorityClass]
        """By class; from arrival to the first data of a streamed answer."""
        self.unknown_class: Counter[str] = Counter()
        """Priority headers that name no class, by the label of the tenant."""
        self.clamped_classes: Counter[tuple[str, str, str]] = Counter()
        """Requests put into a lower class than they asked for: the label of the tenant, asked for, effective."""
        self.refused_before_admission: Counter[str] = Counter()
        """Refused before admission, by code."""
        self.upstream_failures: Counter[str] = Counter()
        """By reason."""
        self.retries = 0
        """Requests sent to another backend after one failed before the first byte."""
        self.reloads: Counter[str] = Counter()
        """Of the configuration, by result: `ok`, `failed`."""
        self._max_tenant_labels = max_tenant_labels
        self._labelled: set[str] = set()

    def tenant_label(self, tenant: str) -> str:
        """Its own name, or `other`."""
        if tenant in self._labelled:
            return tenant
        if len(self._labelled) >= self._max_tenant_labels:
            return OTHER_TENANTS
        self._labelled.add(tenant)
        return tenant
