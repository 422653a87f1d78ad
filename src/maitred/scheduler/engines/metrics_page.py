"""MetricsPage: the samples of a page in Prometheus' text format, and which of them count.

An engine writes one metric in several rows, told apart by their labels, and what the rows are to each other differs:

    parts     each row is a part of the engine, and all count: data-parallel ranks, models, reasons
    copies    each row is the same number, from another process: tensor-parallel ranks, pipeline stages. The first one counts
    totals    one row, in which the label is empty, is the sum of the others, and counts alone: SGLang's priorities

Rows that differ in any other label are neither added up nor dropped, because either may be wrong by a factor: the metric is
unknown, and `Misfit` says why.

*Example.* SGLang with two pipeline stages and priority scheduling writes num_running_reqs six times: for each `pp_rank` the
total 4 (`priority=""`), and 1 and 3 for two priorities. The rows of `pp_rank="0"` count, and of these the total: 4, not 16."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from maitred.scheduler.engines.report import parse_number

Labels: TypeAlias = Mapping[str, str]
_LABEL: Final = re.compile(r'\b(\w+)="((?:[^"\\]|\\.)*)"')


class Sample(NamedTuple):
    """One row of a metric."""

    labels: Labels
    value: float | None
    """Its number, or None for one that no gauge or counter of an engine can have."""


Samples: TypeAlias = Sequence[Sample]


class Misfit(Exception):  # noqa: N818  # It never leaves the parser.
    """Rows of a metric differ in a label whose meaning is not known."""


class RowLabels(msgspec.Struct, frozen=True):
    """What the labels of an engine tell apart."""

    rank: str | None = None
    """Data-parallel ranks, which are parts."""
    parts: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
    """The first of them is looked at first: of the rows of the first pipeline stage, those of its first tensor-parallel
    rank."""
    totals: tuple[str, ...] = ()

    def counted(self, samples: Samples) -> Samples:
        """Return the rows that count. Raises Misfit."""
        if len(samples) < 2:
            return samples
        found = [row for rank in self._by_rank(samples) for row in self._of_one_rank(rank)]
        known = {self.rank, *self.parts, *self.copies, *self.totals}
        for label in sorted({label for row in found for label in row.labels} - known):
            if len({row.labels.get(label) for row in found}) > 1:
                raise Misfit(label)
        return found

    def _by_rank(self, samples: Samples) -> Iterable[Samples]:
        groups: dict[str, list[Sample]] = {}
        for row in samples:
            groups.setdefault(row.labels.get(self.rank, "") if self.rank else "", []).append(row)
        return groups.values()

    def _of_one_rank(self, rows: Samples) -> Samples:
        for label in self.copies:
            first = min((row.labels.get(label, "") for row in rows), key=_number_first)
            rows = [row for row in rows if row.labels.get(label, "") == first]
        for label in self.totals:
            rows = [row for row in rows if not row.labels.get(label)] or rows
        return rows


def _number_first(rank: str) -> tuple[int, str]:
    return (int(rank) if rank.isdecimal() else -1, rank)


class MetricsPage:
    """The rows of a page with the names that `pattern` matches, which has the groups name, labels and value."""

    def __init__(self, body: bytes | bytearray, pattern: re.Pattern[str]) -> None:
        found: dict[str, dict[str, Sample]] = {}
        for name, labels, text in pattern.findall(body.decode("utf-8", "replace")):
            # A row is a series, which has one value: where it stands twice, the last one counts.
            found.setdefault(name, {})[labels] = Sample(dict(_LABEL.findall(labels)) if labels else {}, parse_number(text))
        self._series = {name: list(rows.values()) for name, rows in found.items()}

    @property
    def names(self) -> Iterable[str]:
        """The names of all series."""
        return self._series

    def samples(self, names: Iterable[str]) -> Samples:
        """Return all rows of the first of these metrics that is there."""
        return next((self._series[name] for name in names if name in self._series), ())


def samples_pattern(names: Iterable[str]) -> re.Pattern[str]:
    """Return the pattern of the rows of these metrics. A page has a thousand more lines, most of them buckets, and to parse
    them all would take the event loop 10 ms."""
    return re.compile(rf"^({'|'.join(map(re.escape, names))})(\{{.*\}})?[ \t]+(\S+)", re.MULTILINE)
