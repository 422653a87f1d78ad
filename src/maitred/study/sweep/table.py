"""A sweep as a person reads it: the best candidate, and those that none betters."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from maitred.report.wording import number, share
from maitred.study.metrics import metric
from maitred.study.sweep.swept import Swept, Tried

_WIDEST = 1_000
_COLUMNS = 80
_LONGEST_VALUE = 24
_LONGEST_HEADING = 14


def as_text(swept: Swept) -> str:
    """What `print_swept` prints, without colours."""
    out = StringIO()
    print_swept(swept, Console(file=out, width=_COLUMNS, color_system=None))
    return out.getvalue().rstrip()


def print_swept(swept: Swept, console: Console) -> None:
    """No figure is ever cut: on a console that is narrower than the table, its lines run on as they are."""
    table = _table(swept)
    wide = console.options.update(max_width=_WIDEST)
    table.width = Measurement.get(console, wide, table).maximum
    console.print(table, no_wrap=True, crop=False, overflow="ignore")
    for line in _notes(swept):
        console.print(line, style="dim", highlight=False, markup=False)


def _table(swept: Swept) -> Table:
    criteria, best, front = swept.criteria, swept.best, swept.front
    names = dict.fromkeys((criteria.objective, *criteria.pareto, *(each.metric for each in criteria.constraints)))
    keys = list(swept.tried[0].values)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("", style="bold")
    for key in keys:
        table.add_column(_short(key, keys), style="cyan", justify="right")
    for name in names:
        table.add_column(_heading(name), justify="right")
    if criteria.constraints:
        table.add_column("held", justify="right")
    shown = [best, *(each for each in front if each is not best)] if best else front
    for each in shown:
        held = [f"{each.held}/{each.seeds}"] if criteria.constraints else []
        mark = "best" if each is best else ""
        table.add_row(mark, *(_value(each.values[key]) for key in keys), *(_figure(name, each) for name in names), *held)
    return table


def _short(key: str, keys: list[str]) -> str:
    """The last part of a dotted key, if no other ends alike."""
    last = key.rpartition(".")[2]
    return _folded(last if sum(other.rpartition(".")[2] == last for other in keys) == 1 else key)


def _folded(name: str) -> str:
    """In two lines, if it is long."""
    breaks = [at for at, letter in enumerate(name) if letter in "_."]
    if len(name) <= _LONGEST_HEADING or not breaks:
        return name
    middle = min(breaks, key=lambda at: abs(2 * at - len(name)))
    return f"{name[: middle + 1]}\n{name[middle + 1 :]}"


def _heading(name: str) -> str:
    group = name.rpartition(".")[0]
    label = metric(name, costs=True).label
    return f"{group}\n{label}" if group else label


def _figure(name: str, of: Tried) -> str:
    value = of.figures[name]
    return share(value) if metric(name, costs=True).is_share else number(value)


def _value(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"


def _notes(swept: Swept) -> Iterator[str]:
    criteria, tried = swept.criteria, swept.tried
    first, second = criteria.pareto
    could = [each for each in tried if not each.problem]
    meeting = sum(each.meets for each in could)
    yield f"{len(tried)} candidates, {len(swept.runs)} runs. Shown: the best, and whom none betters in {first} and {second}."
    if criteria.constraints:
        said = ", ".join(f"{c.metric} {'<=' if c.better == 'lower' else '>='} {c.limit:g}" for c in criteria.constraints)
        yield f"{meeting} of them meet the constraints on average over their seeds ({said}); held: in so many seeds."
        if not meeting:
            yield "None meets them: nothing is best."
    if len(could) < len(tried):
        problem = next(each.problem for each in tried if each.problem)
        yield f"{len(tried) - len(could)} cannot be; the first: {problem}"
