"""Tuned: the best candidates of a search, what the held-out traffic says of them, and how that is shown."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from rich.table import Table

from maitred.report.panels import Group, LimitLine, Point, Scatter
from maitred.report.table import new_table
from maitred.study.presentation import Presentation, ShownTable, StudyResult
from maitred.study.tune.goal import ForetoldFigure, Judgement


class TunedCandidate(msgspec.Struct, frozen=True, kw_only=True):
    """Rules that the search has found."""

    settings: dict[str, Any]
    """What differs from today, by key."""
    config: str
    """The rules as YAML: admission, routing and programs, and the keys of other sections that were varied."""
    held_out: Judgement
    """What the part says that the search has not seen."""
    searched: Judgement
    """What the part says that it has seen: better than the other, as the search has chosen by it."""


class Tuned(StudyResult, frozen=True, kw_only=True):
    """What came of a search."""

    candidates: tuple[TunedCandidate, ...]
    """The best one by the part that was searched on first."""
    slo: tuple[str, ...]
    num_requests: int
    num_held_out: int
    num_varied: int
    num_replays: int
    seeds: tuple[int, ...]
    """Those of the runs of the held-out part."""

    @property
    def best(self) -> TunedCandidate:
        return self.candidates[0]

    @property
    def is_better(self) -> bool:
        """Whether the best one is better than today on the held-out part, with a probability of 95 %."""
        return self.best.held_out.probability >= 0.95

    def presentation(self) -> Presentation:
        names = [f"#{number}" for number in range(1, len(self.candidates) + 1)]
        return Presentation(
            title="Rules for an SLO",
            command="tune",
            tables=(
                ShownTable(table=self._figures(names), caption="On the traffic that was held out", lines=self._lines()),
                ShownTable(table=self._settings(names), caption="What differs from today", lines=()),
            ),
            notes=self._notes(),
            scatter=self._scatter(names),
        )

    def _lines(self) -> tuple[str, ...]:
        slo = "; ".join(self.slo)
        held = f"{self.num_held_out:,} of {self.num_requests:,} requests, the last ones"
        return f"SLO: {slo}", f"Held out of the search: {held}. {self.num_replays:,} replays; keys varied: {self.num_varied}."

    def _figures(self, names: list[str]) -> Table:
        table = new_table({"": ""}, ("today", *names))
        shown = [each.held_out for each in self.candidates]
        table.add_row("better than today", "", *(f"{each.probability:.0%}" for each in shown))
        for text in self.slo:
            told = [each.limits[text] for each in shown]
            table.add_row(f"{text.split('<=')[0].strip()}", number(told[0].today), *(in_words(each) for each in told))
        for name in shown[0].prices:
            table.add_row(f"{name}: time of a request", "1", *(_ratio(each.prices[name]) for each in shown))
            table.add_row(
                f"{name}: served", f"{shown[0].served[name][0]:.1%}", *(f"{each.served[name][1]:.1%}" for each in shown)
            )
        return table

    def _settings(self, names: list[str]) -> Table:
        table = new_table({"key": ""}, names)
        for key in dict.fromkeys(key for each in self.candidates for key in each.settings):
            table.add_row(key, *(_value(each.settings[key]) if key in each.settings else "" for each in self.candidates))
        return table

    def _notes(self) -> tuple[str, ...]:
        best, seen = self.best.held_out, self.best.searched
        notes = [
            "[low, high]: 95 % of the resamples of blocks of time and seeds.",
            "Time of a request: its mean, in times of today's; one that was not served took as long as the longest one today.",
        ]
        if best.excess > 0:
            notes.append("#1 does not hold the SLO on the held-out traffic.")
        if not self.is_better:
            notes.append("#1 is not better than today beyond doubt: a longer record or a larger budget may show more.")
        if best.probability < seen.probability - 0.2:
            notes.append(f"On the traffic that #1 was chosen by it was better with {seen.probability:.0%}: it fits that one.")
        return tuple(notes)

    def _scatter(self, names: list[str]) -> Scatter:
        groups = tuple(
            Group(
                label=label,
                points=tuple(
                    Point(x=told.other, y=index, low=told.low, high=told.high, text=f"{name}, {label}: {_ratio(told)}")
                    for index, (name, each) in enumerate(zip(names, self.candidates, strict=True))
                    for told in (each.held_out.prices[label],)
                ),
            )
            for label in self.best.held_out.prices
        )
        return Scatter(
            title="What it costs each class",
            about="; ".join(point.text for group in groups for point in group.points),
            x="times of today's",
            y="candidates",
            groups=groups,
            limits=(LimitLine(label="today", axis="x", at=1),),
            names=tuple(names),
        )


def number(value: float) -> str:
    """Return a time in ms."""
    return "never" if math.isinf(value) else f"{value:,.0f}" if value >= 100 else f"{value:,.1f}"


def in_words(told: ForetoldFigure) -> str:
    """Return a figure in ms with its interval."""
    return f"{number(told.other)} [{number(told.low)}, {number(told.high)}]"


def _ratio(told: ForetoldFigure) -> str:
    return f"{told.other:.2f} [{told.low:.2f}, {told.high:.2f}]"


def _value(value: Any) -> str:
    return "true" if value is True else "false" if value is False else str(value)
