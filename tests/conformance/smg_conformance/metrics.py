"""Counters, by the names and labels with which SMG's were recorded.

    admit_total{default}: {admitted: 2}                  a label's value alone: whatever the label is called
    preemption_total{victim_class=bulk,by_class=default}: 1
    preemption_total: {bulk by interactive: 2}           `x by y`: victim_class=x, by_class=y
    admit_total: {bulk: {preempted: 1}}                  nested: both values
    preemption_total: 0                                  all series together

`smg_` in front of a name stands for `maitred_`, and so does nothing. A counter that is not there is 0. Where values are listed,
the list is complete: what is not on it must be 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from prometheus_client.parser import text_string_to_metric_families

from .scenario import CannotCheck

Series: TypeAlias = tuple[str, frozenset[tuple[str, str]]]
"""A metric's name and its labels."""
_KEY = re.compile(r"(?P<name>[A-Za-z_]+)(?:\{(?P<labels>[^{}]*)\})?")
_PREFIXES = ("maitred_scheduler_", "maitred_")


class Selector:
    """Some series of one metric."""

    def __init__(self, name: str, labels: tuple[str, ...] = ()) -> None:
        self.name = name
        self.labels = labels

    def __str__(self) -> str:
        return f"{self.name}{{{','.join(self.labels)}}}" if self.labels else self.name

    def narrowed(self, label: str) -> Selector:
        by = re.fullmatch(r"(\w+) by (\w+)", label)
        more = (f"victim_class={by[1]}", f"by_class={by[2]}") if by else (label,)
        return Selector(self.name, (*self.labels, *more))

    def takes(self, labels: frozenset[tuple[str, str]]) -> bool:
        return all(self._has(labels, *label.partition("=")) for label in self.labels)

    @staticmethod
    def _has(labels: frozenset[tuple[str, str]], key: str, equals: str, value: str) -> bool:
        return (key, value) in labels if equals else any(key == found for _, found in labels)


class Metrics:
    """One reading of /metrics; several pages, one after the other, are summed up."""

    def __init__(self, text: str) -> None:
        self._values: dict[Series, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                key = sample.name, frozenset(sample.labels.items())
                self._values[key] = self._values.get(key, 0) + sample.value

    @property
    def series(self) -> Mapping[Series, float]:
        return self._values

    def since(self, before: Metrics) -> Metrics:
        """What has been added."""
        grown = Metrics("")
        grown._values = {key: value - before._values.get(key, 0) for key, value in self._values.items()}
        return grown

    def select(self, selector: Selector) -> dict[Series, float]:
        """The series meant that are not 0."""
        names = full_names(selector.name)
        name = next((n for n in names if any(n == known for known, _ in self._values)), names[0])
        return {
            (known, labels): value
            for (known, labels), value in self._values.items()
            if known == name and value and selector.takes(labels)
        }

    def total(self, selector: Selector) -> float:
        return sum(self.select(selector).values())


def full_names(recorded: str) -> list[str]:
    """What a recorded counter may be called here."""
    bare = recorded.removeprefix("smg_").removeprefix("scheduler_")
    return [prefix + bare for prefix in _PREFIXES]


def compare(expected: Mapping[str, Any], metrics: Metrics) -> Iterator[str]:
    """What is not as expected. Raises CannotCheck."""
    for key, value in expected.items():
        found = _KEY.fullmatch(key.replace(" ", ""))
        if found is None:
            raise CannotCheck(f"the metric {key!r}")
        labels = tuple(label.replace('"', "") for label in (found["labels"] or "").split(",") if label)
        yield from _compare(Selector(found["name"], labels), value, metrics)


def _compare(selector: Selector, expected: Any, metrics: Metrics) -> Iterator[str]:
    if isinstance(expected, dict):
        parts = {label: selector.narrowed(label) for label in expected}
        for label, part in parts.items():
            yield from _compare(part, expected[label], metrics)
        for (name, labels), value in metrics.select(selector).items():
            if not any(part.takes(labels) for part in parts.values()):
                yield f"metric {selector}: expected nothing but {', '.join(parts)}, got {_shown(name, labels)} = {value:g}"
    elif isinstance(expected, int | float) and not isinstance(expected, bool):
        got = metrics.total(selector)
        if got != expected:
            yield f"metric {selector}: expected {expected:g}, got {got:g}"
    else:
        raise CannotCheck(f"the metric {selector} with the value {expected!r}")


def _shown(name: str, labels: frozenset[tuple[str, str]]) -> str:
    return f"{name}{{{','.join(f'{key}={value}' for key, value in sorted(labels))}}}"
