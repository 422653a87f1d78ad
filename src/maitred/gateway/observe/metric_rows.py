"""Which rows of the metrics a viewer gets (`access.page_access`): all; those with its tenant's label; or a summary, which names
no tenant and no backend.

    maitred_scheduler_inflight{class="default"} 5                       in a summary, as it is
    maitred_tenant_inflight{tenant="auth:acme"} 3, {tenant="..."} 2     in a summary the sum over tenants, 5; the first row
                                                                        for auth:acme
    maitred_backend_inflight{backend="http://10.0.0.1:8000"} 5          for the operator alone, as are exemplars

The gauges of a tenant's own page are those of its requests, whether it has a label of its own (`tenant_metric_top_n`) or not.
Counters of a tenant without one are in the sums of `other`, so it gets none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from prometheus_client.core import Metric, Sample

_TENANT: Final = "tenant"
_BACKEND: Final = "backend"


def label_names(family: Metric) -> Sequence[str]:
    """Return the labels of a metric, also of one that has no row yet."""
    names: Sequence[str] = vars(family).get("_labelnames", ())
    return names


def summary_rows(family: Metric) -> Metric | None:
    """Return a metric summed up over tenants, or None for one of single backends."""
    names = label_names(family)
    if _TENANT in names:
        family.samples = _summed_over_tenants(family.samples)
    elif any(sample.exemplar is not None for sample in family.samples):
        family.samples = [Sample(sample.name, sample.labels, sample.value) for sample in family.samples]
    return None if _BACKEND in names else family


def _summed_over_tenants(samples: Sequence[Sample]) -> list[Sample]:
    sums: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for sample in samples:
        others = tuple((name, value) for name, value in sample.labels.items() if name != _TENANT)
        sums[sample.name, others] = sums.get((sample.name, others), 0.0) + sample.value
    return [Sample(name, dict(labels), value) for (name, labels), value in sums.items()]


def rows_of_tenant(family: Metric, tenant: str) -> Metric | None:
    """Return the rows of a metric that have the label of this tenant, or None if there are none."""
    if _TENANT not in label_names(family):
        return None
    family.samples = [sample for sample in family.samples if sample.labels[_TENANT] == tenant]
    return family if family.samples else None
