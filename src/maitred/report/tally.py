"""Tally: the figures of requests that nobody keeps, in memory that does not grow with their number.

Rows come block by block as requests end (`sim.simulate(sink=tally.add)`). What can be counted is counted exactly; latencies go
into sketches, so their means are exact and their percentiles within half a percent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from maitred.report.breakdown import By, groups
from maitred.report.counts import Counts, count, latencies, together
from maitred.report.slo import Slo, absent
from maitred.report.spread import sketched
from maitred.report.summary import Group, Summary, grouped, summed_up, wanted
from maitred.request import PriorityClass
from maitred.sim import Results
from maitred.sketch import Sketch


class Tally:
    """Add up, then ask for the summary."""

    def __init__(self, slo: Slo, by: Iterable[By] = (By.CLASS,)) -> None:
        """`by`: the breakdowns that are wanted."""
        self._slo = slo
        self._by = wanted(by)
        self._total = _Share()
        self._shares: dict[By, dict[str, _Share]] = {each: {} for each in self._by}
        self._tokens: Counter[str] = Counter()
        self._without = [*slo.classes]

    def add(self, part: Results) -> None:
        """These requests, too."""
        self._total.add(part, self._slo)
        for by in self._by:
            for label, members in groups(part, by):
                self._shares[by].setdefault(label, _Share()).add(members, self._slo)
        for label, members in groups(part, By.TENANT):
            self._tokens[label] += int(members.output_tokens.sum())
        missing = absent(part, self._slo)
        self._without = [name for name in self._without if name in missing]

    def summary(self, results: Results) -> Summary:
        """With what `results`, a run without rows, says of its instances."""
        if self._total.counts is None:
            self._total.add(results, self._slo)
        return summed_up(
            results,
            self._slo,
            total=self._total.group(),
            by={by: {label: shares[label].group() for label in _ordered(by, shares)} for by, shares in self._shares.items()},
            tokens=[*self._tokens.values()],
            without=self._without,
        )


class _Share:
    """The requests of one group."""

    def __init__(self) -> None:
        self.counts: Counts | None = None
        self._latencies: dict[str, Sketch] = {}

    def add(self, part: Results, slo: Slo) -> None:
        counts = count(part, slo)
        self.counts = counts if self.counts is None else together(self.counts, counts)
        for name, values in latencies(part).items():
            self._latencies.setdefault(name, Sketch()).add_all(values)

    def group(self) -> Group:
        assert self.counts is not None
        return grouped(self.counts, {name: sketched(sketch) for name, sketch in self._latencies.items()})


def _ordered(by: By, labels: Iterable[str]) -> list[str]:
    """As `groups` gives them; they came up in any order."""
    if by is By.CLASS:
        return [kind.label for kind in sorted(PriorityClass, reverse=True) if kind.label in labels]
    return sorted(labels, key=int) if by is By.INSTANCE else [*labels]
