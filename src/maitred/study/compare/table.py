"""A comparison as a person reads it: a table for each pair within 80 columns, and below it what its figures mean."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from maitred.report.wording import NOTHING, number, share
from maitred.study.compare.comparison import Comparison, Difference, Pairing, letter
from maitred.study.metrics import Metric, metric

_WIDEST = 1_000
_COLUMNS = 80


def as_text(comparison: Comparison) -> str:
    """What `print_comparison` prints, without colours."""
    out = StringIO()
    print_comparison(comparison, Console(file=out, width=_COLUMNS, color_system=None))
    return out.getvalue().rstrip()


def print_comparison(comparison: Comparison, console: Console) -> None:
    """No figure is ever cut: on a console that is narrower than a table, its lines run on as they are."""
    for index, pairing in enumerate(comparison.pairings, 1):
        other = letter(index)
        for short, name in (("A", pairing.a), (other, pairing.b)):
            if name != short:
                console.print(f"{short} = {name}", highlight=False, markup=False, soft_wrap=True)
        table = _table(pairing, other)
        wide = console.options.update(max_width=_WIDEST)
        table.width = Measurement.get(console, wide, table).maximum
        console.print(table, no_wrap=True, crop=False, overflow="ignore")
    for line in _notes(comparison):
        console.print(line, style="dim", highlight=False, markup=False)


def _table(pairing: Pairing, other: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("metric", style="bold")
    for name in ("A", other, f"{other} - A", "95 % interval", "A wins", "P(A)"):
        table.add_column(name, justify="right")
    for each in pairing.differences:
        table.add_row(*_row(each))
    return table


def _row(of: Difference) -> tuple[str, ...]:
    kind = metric(of.metric)
    wins = f"{of.wins}/{of.seeds}" if of.seeds and of.ties < of.seeds else "="
    chance = NOTHING if of.probability is None or of.ties == of.seeds else f"{of.probability:.2f}"
    interval = NOTHING if of.low is None or of.high is None else f"{_signed(kind, of.low)}, {_signed(kind, of.high)}"
    return (
        _name(of.metric, kind),
        _figure(kind, of.a),
        _figure(kind, of.b),
        _signed(kind, of.difference),
        interval,
        wins,
        chance,
    )


def _name(name: str, kind: Metric) -> str:
    group = name.rpartition(".")[0]
    return f"{group}\n  {kind.label}" if group else kind.label


def _figure(kind: Metric, value: float | None) -> str:
    return share(value) if kind.is_share else number(value)


def _signed(kind: Metric, value: float | None) -> str:
    if value is None:
        return NOTHING
    said = _figure(kind, abs(value))
    return said if not value else f"{'+' if value > 0 else '-'}{said}"


def _notes(comparison: Comparison) -> Iterator[str]:
    count = len(comparison.seeds)
    seeds = "1 seed" if count == 1 else f"{count} seeds"
    yield f"{comparison.workload}; {seeds}, the same workload for all in each."
    if count == 1:
        yield "With one seed there is no interval: --seeds 10 shows how much is chance."
    else:
        yield (
            f"Intervals: percentile bootstrap over seeds, {comparison.resamples:,} resamples. A wins: in so many seeds A is "
            "better. P(A): share of the resamples in which the mean of A is better, ties by half."
        )
    yield from _residuals(comparison)
    if any(each.metric.endswith(("goodput_rps", "slo_attainment")) for each in comparison.pairings[0].differences):
        yield f"SLO: {comparison.slo}."
    for pairing in comparison.pairings:
        short = [each for each in pairing.differences if each.seeds < count]
        if short:
            named = ", ".join(f"{each.metric} ({each.seeds})" for each in short)
            yield f"Not all seeds of A and {pairing.b} have a figure: {named}."


def _residuals(comparison: Comparison) -> Iterator[str]:
    errors = comparison.latency_errors
    unknown = ", ".join(letter(index) for index, error in enumerate(errors) if error is None)
    if not any(errors):
        why = "nobody has said or published it" if unknown else "latency_error is 0"
        yield f"No model error is in these figures: {why} (maitred calibrate measures it)."
        return
    said = ", ".join(f"{letter(index)} {error:.1%}" for index, error in enumerate(errors) if error is not None)
    yield f"The error of the latency models is in them, drawn anew for each seed: {said} (standard deviation; 0: exact)."
    if unknown:
        yield f"That of {unknown} is not: nobody has said or published it, and the intervals are too narrow for want of it."
    apart = [letter(index) for index, same in enumerate(comparison.same_residuals) if not same]
    if apart:
        yield f"Of {', '.join(apart)} by draws of its own, for its latency model is another one than A's."
    if len(apart) < len(errors) - 1:
        yield "Sides with the same latency model on the same hardware err alike."
