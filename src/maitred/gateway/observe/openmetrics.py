"""`/metrics` as OpenMetrics 1.0, for who asks for it, with exemplars: in each bucket of a latency the trace of a request.

    ..._latency_seconds_bucket{...,le="0.5"} 17.0 # {trace_id="4bf92f3577b34da6a3ce929d0e0e4736"} 0.41 1795764433.2

The exemplar of a bucket is the last sampled request that was counted there. Without traces there are none. In Prometheus' own
text format, which everybody else gets, there is no place for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from maitred.core.histogram import Histogram
from maitred.core.units import Micros, to_seconds

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST.encode()
END: Final = b"# EOF\n"
_OPENMETRICS: Final = "application/openmetrics-text"
_BUCKET: Final = "_bucket"


class TraceExample(NamedTuple):
    """A request that was counted in a bucket."""

    value: Micros
    trace_id: str
    """32 hexadecimal digits."""
    at: Micros
    """When it was counted, µs since 1970."""

    def exemplar(self) -> Exemplar:
        """Return it in Prometheus' form."""
        return Exemplar({"trace_id": self.trace_id}, to_seconds(self.value), to_seconds(self.at))


Examples: TypeAlias = Mapping[int, TraceExample]
"""By the number of the bucket."""


class Exemplars:
    """The examples of several histograms, by name."""

    def __init__(self) -> None:
        self.of: dict[str, dict[int, TraceExample]] = {}

    def note(self, name: str, histogram: Histogram, example: TraceExample) -> None:
        """Keep an example of a value that `histogram` has counted."""
        self.of.setdefault(name, {})[histogram.bucket_of(example.value)] = example

    def add(self, others: Mapping[str, Examples]) -> None:
        """Take over the examples of another process that are newer."""
        for name, examples in others.items():
            mine = self.of.setdefault(name, {})
            for bucket, example in examples.items():
                if bucket not in mine or mine[bucket].at < example.at:
                    mine[bucket] = example


def prefers_openmetrics(accept: bytes | None) -> bool:
    """Return whether an `Accept` header prefers OpenMetrics to plain text. Without one of the two it does not."""
    qualities = {_OPENMETRICS: 0.0, "text/plain": 0.0}
    for choice in (accept or b"").decode("latin-1").split(","):
        kind, *parameters = (part.strip().lower() for part in choice.split(";"))
        if kind in qualities:
            given = next((part[2:] for part in parameters if part.startswith("q=")), "1")
            qualities[kind] = max(qualities[kind], _number(given))
    return qualities[_OPENMETRICS] > 0 and qualities[_OPENMETRICS] >= qualities["text/plain"]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def openmetrics_text(registry: CollectorRegistry) -> bytes:
    """Return metrics in OpenMetrics' form, without its last line. Bounds of buckets are written as floats there."""
    for family in registry.collect():
        for sample in family.samples:
            if sample.name.endswith(_BUCKET):
                sample.labels["le"] = floatToGoString(float(sample.labels["le"]))  # type: ignore[no-untyped-call]
    text: bytes = generate_latest(registry)  # type: ignore[no-untyped-call]
    return text.removesuffix(END)
