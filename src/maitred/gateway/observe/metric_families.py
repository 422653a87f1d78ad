"""Metrics in Prometheus' form, made of their samples when they are scraped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from maitred.core.histogram import Histogram

Samples: TypeAlias = Iterable[tuple[Sequence[str], float]]
"""The values of the labels, and the value."""


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


def histogram(name: str, help_text: str, labels: Sequence[str], samples: Iterable[tuple[Sequence[str], Histogram]]) -> Metric:
    """Return a histogram with its samples, in Prometheus' form."""
    family = HistogramMetricFamily(name, help_text, labels=labels)
    for values, durations in samples:
        buckets, total = durations.prometheus_buckets()
        family.add_metric(values, buckets, total)
    return family
