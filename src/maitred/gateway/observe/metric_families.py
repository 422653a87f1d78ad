"""Metrics in Prometheus' form, made of their samples when they are scraped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.samples import Exemplar

from maitred.core.histogram import Histogram
from maitred.gateway.observe.openmetrics import Examples

Samples: TypeAlias = Iterable[tuple[Sequence[str], float]]
"""The values of the labels, and the value."""
_NONE: Final[Mapping[tuple[str, ...], Examples]] = MappingProxyType({})


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


def histogram(
    name: str,
    help_text: str,
    labels: Sequence[str],
    samples: Iterable[tuple[Sequence[str], Histogram]],
    examples: Mapping[tuple[str, ...], Examples] = _NONE,
) -> Metric:
    """Return a histogram with its samples, in Prometheus' form, with examples by the values of their labels."""
    family = HistogramMetricFamily(name, help_text, labels=labels)
    for values, durations in samples:
        buckets, total = durations.prometheus_buckets()
        found = examples.get(tuple(values)) if examples else None
        family.add_metric(values, _with_exemplars(buckets, found) if found else buckets, total)
    return family


def _with_exemplars(
    buckets: Sequence[tuple[str, float]], examples: Examples
) -> list[tuple[str, float] | tuple[str, float, Exemplar]]:
    return [(*bucket, examples[n].exemplar()) if n in examples else bucket for n, bucket in enumerate(buckets)]
