"""Which rows of the metrics a viewer gets (`page_access`): all; those with its tenant's label; those that name no tenant and no
backend.

    maitred_tenant_inflight{tenant="auth:acme"} 3            of auth:acme
    maitred_scheduler_inflight{class="default"} 5            of no tenant: for a summary
    maitred_backend_inflight{backend="http://10.0.0.1"} 5    for the operator alone

The gauges of a tenant's own page are those of its requests, whether it has a label of its own (`tenant_metric_top_n`) or not.
Counters of a tenant without one are in the sums of `other`, so it gets none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from prometheus_client.core import Metric

_TENANT: Final = "tenant"
_NAMES_OF_OTHERS: Final = frozenset((_TENANT, "backend"))


def label_names(family: Metric) -> Sequence[str]:
    """Return the labels of a metric, also of one that has no row yet."""
    names: Sequence[str] = vars(family).get("_labelnames", ())
    return names


def summary_rows(families: Iterable[Metric]) -> Iterator[Metric]:
    """Yield the metrics that name no tenant and no backend."""
    return (family for family in families if _NAMES_OF_OTHERS.isdisjoint(label_names(family)))


def rows_of_tenant(families: Iterable[Metric], tenant: str, gauges: Sequence[Metric]) -> Iterator[Metric]:
    """Yield `gauges`, which are of this tenant, and the rows of all other metrics that have its label."""
    yield from gauges
    made = {gauge.name for gauge in gauges}
    for family in families:
        own = [sample for sample in family.samples if sample.labels.get(_TENANT) == tenant]
        if own and family.name not in made:
            family.samples = own
            yield family
