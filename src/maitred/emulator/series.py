"""Series of a page of metrics in Prometheus' text format, whose text is kept until a value changes.

An engine is scraped every few seconds, and most of its some 300 lines are the same each time. So a series writes its names and
labels once; a scrape writes numbers, and only of series that have changed. (`prometheus_client` makes an object, a dict and an
escaped name for each line of each scrape, which is 20 times the work.)

    family    the head (`# HELP`, `# TYPE`) and the text of its series
    series    a counter, a gauge that is read at each scrape, or a histogram, for one set of labels
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Protocol, TypeAlias, TypeVar

from prometheus_client.utils import floatToGoString

Labels: TypeAlias = Mapping[str, str]


class Series(Protocol):
    """The lines of one set of labels."""

    def text(self) -> str:
        """Return the lines."""
        ...


S = TypeVar("S", bound=Series)


class SeriesPage:
    """A page of families, in the order in which they were added."""

    def __init__(self) -> None:
        self._families: list[tuple[str, list[Series]]] = []

    def add(self, kind: str, name: str, what: str, *series: S) -> Sequence[S]:
        """Add a family of series, and return these. `kind` is Prometheus' type, `what` the text of its help."""
        self._families.append((f"# HELP {name} {what}\n# TYPE {name} {kind}\n", list(series)))
        return series

    def text(self) -> str:
        """Return the page."""
        return "".join(head + "".join([each.text() for each in series]) for head, series in self._families)


class Counter:
    """A number that grows."""

    def __init__(self, name: str, labels: Labels) -> None:
        """`name` ends with `_total`."""
        self._prefix = _prefix(name, labels)
        self._value = 0.0

    def inc(self, count: float = 1.0) -> None:
        """Add `count`."""
        self._value += count

    def text(self) -> str:
        """Return the line."""
        return f"{self._prefix}{_number(self._value)}\n"


class Gauge:
    """A number that is read at each scrape."""

    def __init__(self, name: str, labels: Labels, read: Callable[[], float]) -> None:
        self._prefix, self._read = _prefix(name, labels), read

    def text(self) -> str:
        """Return the line."""
        return f"{self._prefix}{_number(self._read())}\n"


class HistogramSeries:
    """Counts of values by upper bound, and their sum."""

    def __init__(self, name: str, labels: Labels, bounds: Sequence[float]) -> None:
        """`bounds` ascend, and end before infinity."""
        self._bounds = bounds
        self._prefixes = [_prefix(f"{name}_bucket", {**labels, "le": _number(bound)}) for bound in (*bounds, inf)]
        self._count_prefix, self._sum_prefix = _prefix(f"{name}_count", labels), _prefix(f"{name}_sum", labels)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._text = ""
        """The lines, or an empty string if a value has come since they were written."""

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value
        self._text = ""

    def text(self) -> str:
        """Return the lines."""
        if not self._text:
            self._text = self._write()
        return self._text

    def _write(self) -> str:
        so_far, told, number, lines = 0, -1, "", list[str]()
        for prefix, count in zip(self._prefixes, self._counts, strict=True):
            so_far += count
            if so_far != told:
                told, number = so_far, _number(so_far) + "\n"
            lines.append(prefix + number)
        return f"{''.join(lines)}{self._count_prefix}{number}{self._sum_prefix}{_number(self._sum)}\n"


def _prefix(name: str, labels: Labels) -> str:
    """Return a line up to its value. Labels come in the order of their names."""
    pairs = ",".join(f'{label}="{_escape(value)}"' for label, value in sorted(labels.items()))
    return f"{name}{{{pairs}}} "


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    text: str = floatToGoString(value)  # type: ignore[no-untyped-call]
    return text
