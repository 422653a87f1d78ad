"""Page: a run as one HTML page that needs no network and no server; and as a small table for notebooks.

    __init__  the parts of the page: tiles for the run, a table for each breakdown, the configuration; the table for notebooks
    timeline  single requests over time
    parts     the frame of every page, its tables and its charts

Style, script and uPlot, which draws, are files in this folder that are copied into the page. The same run gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

import msgspec

from maitred.core.units import SECOND, to_ms, to_seconds
from maitred.report.breakdown import By
from maitred.report.costs import cost_lines
from maitred.report.page.parts import ZOOM_NOTE, chart_html, framed_table, labelled_cell, page_parts, table_html
from maitred.report.page.timeline import timeline_html
from maitred.report.panels import Panel, latency_panels, time_panels
from maitred.report.request_statistics import LatencyStatistics
from maitred.report.run_setup import RunSetup
from maitred.report.steady_state import SteadyState
from maitred.report.steady_table import slowdown_lines, steady_lines, steady_table
from maitred.report.summary import GroupSummary, InstanceSummary, Summary
from maitred.report.table import LATENCIES, NO_VALUE, format_number, format_share, format_slo
from maitred.report.utilisation import utilisation_lines
from maitred.report.verdicts import Assessment, assess
from maitred.sim import Results

_NOTEBOOK_FIGURES = ("mean", "p50", "p90", "p99")
_TERMS = {
    "TTFT": "time to first token: from a request's arrival until its first token",
    "TPOT": "time per output token: the mean gap after the first, of a completed request",
    "E2E": "from arrival to the last token, of completed requests",
    "p50, p99": "half of the requests, 99 in 100, took no longer",
    "within SLO": "completed within every target, of all requests that arrived",
    "goodput": "requests within the SLO, per second",
    "longest wait": "until a request first ran, or left without having run",
    "waiting": "in the wait queue of an instance, or still in front of it (admission, latencies)",
    "fairness": "Jain's index of output tokens over tenants: 1 if all got the same, 1/n if one of n got everything",
}
_MAX_GROUPS = 50
_ALL = "all"
_TITLES = {
    By.CLASS: "By class",
    By.SLO_CLASS: "By SLO class",
    By.TENANT: "By tenant",
    By.MODEL: "By model",
    By.INSTANCE: "By instance",
}


def notebook_html(summary: Summary, setup: RunSetup) -> str:
    """Return the setup of a run and a small table of latencies as HTML, in the colours of the notebook."""
    head = "".join(f"<th>{name}</th>" for name in ("", "class", *_NOTEBOOK_FIGURES))
    body = "".join(_notebook_rows(summary))
    said = f"<p>{escape(setup.in_one_line())}</p><p>{escape(_notebook_sentence(summary))}</p>"
    return f"{said}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _notebook_rows(summary: Summary) -> Iterator[str]:
    classes = summary.by[By.CLASS]
    groups = {**(classes if len(classes) > 1 else {}), "all": summary.total}
    for name in ("TTFT", "TPOT", "E2E"):
        for label, group in groups.items():
            cells = "".join(f"<td>{_shown(getattr(group, name.lower()), figure)}</td>" for figure in _NOTEBOOK_FIGURES)
            yield f"<tr><th>{name} ms</th><td>{escape(label)}</td>{cells}</tr>"


def _notebook_sentence(summary: Summary) -> str:
    total = summary.total
    span = f"{to_seconds(summary.duration):,.1f} {_how(summary)} seconds"
    sentence = f"{total.completed:,} of {total.arrived:,} requests completed in {span}"
    return sentence + (f"; {format_share(total.attainment)} within {format_slo(summary.slo)}" if summary.slo else "")


def write_page(
    results: Results,
    summary: Summary,
    setup: RunSetup,
    write: Callable[[bytes], object],
    assessment: Assessment | None = None,
) -> None:
    """Write the whole page as UTF-8. Charts of queues and KV need the samples of `results`. `assessment` is that of the run, if
    it is known."""
    write("".join(_page_parts(results, summary, setup, assessment or assess(results, summary, setup))).encode())


def _page_parts(results: Results, summary: Summary, setup: RunSetup, assessment: Assessment) -> Iterator[str]:
    title = setup.workload or f"A {_how(summary)} run"
    lines = [f"<p>{escape(setup.in_one_line())}</p>\n", f'<p class="quiet">{escape(_subtitle(summary, setup))}</p>\n']
    said = [*summary.warnings, *(verdict.text for verdict in assessment.verdicts)]
    lines += [f'<p class="warning" role="alert">{escape(each)}</p>\n' for each in said]
    command = "bench" if summary.is_measured else "simulate"
    yield from page_parts(title, command, "".join(lines), _body(results, summary, setup, assessment))


def _body(results: Results, summary: Summary, setup: RunSetup, assessment: Assessment) -> Iterator[str]:
    slower, costs = slowdown_lines(assessment.slowdown), cost_lines(assessment.costs)
    use = " ".join((*utilisation_lines(assessment.utilisation), *slower, *costs))
    yield f'{headline_tiles(summary)}<p class="quiet">{escape(use)}</p>\n'
    yield from _charts("Latency, by class" if len(summary.classes) > 1 else "Latency", latency_panels(results, summary.slo))
    yield from _charts("Over time", time_panels(results))
    if len(results):
        yield f'<section><h2>Request by request</h2>\n<p class="quiet">{ZOOM_NOTE}</p>\n{timeline_html(results)}</section>\n'
    if assessment.steady_state is not None:
        yield _steady_state(assessment.steady_state)
    yield f"<section><h2>By group</h2>\n{breakdown_tables(summary)}</section>\n"
    yield from _setup(setup)
    terms = "".join(f"<dt>{escape(term)}</dt><dd>{escape(meaning)}</dd>" for term, meaning in _TERMS.items())
    yield f'<section><h2>Terms</h2>\n<dl class="terms">{terms}</dl></section>\n'


def _steady_state(steady: SteadyState) -> str:
    said = "".join(f'<p class="quiet">{escape(line)}</p>\n' for line in steady_lines(steady))
    table = "" if steady.problem else table_html(steady_table(steady), "What a longer run would come to")
    return f"<section><h2>Steady state</h2>\n{said}{table}</section>\n"


def _how(summary: Summary) -> str:
    return "measured" if summary.is_measured else "simulated"


def _subtitle(summary: Summary, setup: RunSetup) -> str:
    total = summary.total
    done = f"{total.arrived:,} requests" if total.completed < total.arrived else f"all of {total.arrived:,} requests completed"
    parts = [f"{done}, {to_seconds(summary.duration):,.1f} s {_how(summary)}, seed {setup.seed}"]
    if setup.horizon is not None:
        parts.append(f"ended after {to_seconds(setup.horizon):,g} s")
    if summary.slo:
        parts.append(f"SLO: {format_slo(summary.slo)}")
    return " · ".join(parts)


def _charts(title: str, panels: Sequence[Panel]) -> Iterator[str]:
    if panels:
        pairs = " pairs" if len(panels) % 3 == 1 else ""
        charts = "".join(map(chart_html, panels))
        yield f'<section><h2>{escape(title)}</h2>\n<div class="charts{pairs}">\n{charts}</div></section>\n'


def _setup(setup: RunSetup) -> Iterator[str]:
    note = "The settings that were in force. Those that differ from their defaults are bold."
    done, about = ("measured", setup.in_one_line()) if setup.measured else ("simulated", note)
    yield f'<section><h2>What was {done}</h2>\n<p class="quiet">{escape(about)}</p>\n'
    if setup.command:
        yield f"<pre>{escape(setup.command)}</pre>\n"
    yield '<div class="config">\n'
    for name, keys in setup.settings_in_force().items():
        if not keys:
            continue
        lines = "\n".join(_config_line(key, value, is_default) for key, (value, is_default) in keys.items())
        yield f"<pre>{escape(name)}:\n{lines}</pre>\n"
    yield "</div></section>\n"


def _config_line(key: str, value: Any, is_default: bool) -> str:
    line = escape(f"  {key}: {value if isinstance(value, str) else msgspec.json.encode(value).decode()}")
    return line if is_default else f"<b>{line}</b>"


class HeadlineTile(msgspec.Struct, frozen=True):
    """One figure with its name and a note."""

    name: str
    value: str
    note: str


class _Column(msgspec.Struct, frozen=True):
    """A column. `above` is a heading over neighbouring columns that have it in common."""

    title: str
    of: Callable[[str, GroupSummary], str]
    above: str = ""


def headline_tiles(summary: Summary) -> str:
    """Return the headline figures as a `dl` element."""
    return f'<dl class="tiles">{"".join(map(_tile, _headlines(summary)))}</dl>\n'


def _tile(tile: HeadlineTile) -> str:
    note = f'<span class="note">{escape(tile.note)}</span>'
    return f'<div class="tile"><dt>{escape(tile.name)}</dt><dd>{escape(tile.value)}{note}</dd></div>'


def _headlines(summary: Summary) -> Iterator[HeadlineTile]:
    total = summary.total
    if summary.slo:
        yield HeadlineTile(
            "Within SLO", format_share(total.attainment), f"goodput {format_number(summary.per_second(total.within_slo))}/s"
        )
    for name, spread in (("TTFT", total.ttft), ("TPOT", total.tpot), ("E2E", total.e2e)):
        if spread is not None:
            yield HeadlineTile(f"{name} p99", _time(spread.p99), f"p50 {_time(spread.p50)}")
    yield HeadlineTile("Output", format_number(summary.per_second(total.output_tokens)), "tokens/s")
    if total.completed < total.arrived:
        yield HeadlineTile("Completed", f"{total.completed:,}", f"of {total.arrived:,} requests")
    if summary.all_instances.utilisation is not None:
        yield HeadlineTile("With work", format_share(summary.all_instances.utilisation), "of the instances' time")
    if total.longest_wait >= SECOND:
        yield HeadlineTile("Longest wait", _time(total.longest_wait), "to run for the first time")
    if total.cached_tokens:
        yield HeadlineTile("Prefix hits", format_share(total.hit_rate), "of prompt tokens")
    if total.preemptions:
        yield HeadlineTile("KV preemptions", f"{total.preemptions:,}", f"{format_share(total.waste)} of the work done twice")
    if summary.programs is not None:
        steps = summary.programs.steps_per_minute
        pauses = f"{summary.programs.completed:,} programs over, {summary.programs.pauses:,} pauses"
        yield HeadlineTile("Steps per minute", format_number(steps), pauses)
    if summary.fairness is not None:
        yield HeadlineTile("Fairness", f"{summary.fairness:.3f}", "Jain's index among tenants")


def _time(us: float) -> str:
    return f"{format_number(us / SECOND)} s" if us >= SECOND else f"{format_number(to_ms(us))} ms"


def breakdown_tables(summary: Summary) -> str:
    """Return a table for each breakdown with several groups, or one table of the whole run if there is none."""
    shown = {by: groups for by, groups in summary.by.items() if len(groups) > 1}
    return "".join(_table(summary, by, groups) for by, groups in (shown or {By.CLASS: {}}).items())


def _table(summary: Summary, by: By, groups: Mapping[str, GroupSummary]) -> str:
    columns = [*_columns(summary), *(_instance_columns(summary) if by is By.INSTANCE else ())]
    rows = list(groups.items())
    left_out = len(rows) - _MAX_GROUPS
    title = _TITLES[by]
    if left_out > 0:
        rows.sort(key=lambda item: -item[1].arrived)
        title += f": the {_MAX_GROUPS} with the most requests, {left_out:,} more left out"
    body = "".join(_row(columns, label, group) for label, group in [*rows[:_MAX_GROUPS], (_ALL, summary.total)])
    return framed_table(title, _head(columns, by), body)


def _head(columns: list[_Column], by: By) -> str:
    """Return the head of a table in two rows: the common headings of neighbours, and the headings of columns."""
    above = "".join(
        f'<th colspan="{len([*same])}" scope="colgroup">{escape(name)}</th>' if name else "<td></td>" * len([*same])
        for name, same in groupby(columns, lambda column: column.above)
    )
    below = "".join(f'<th scope="col">{escape(column.title)}</th>' for column in columns)
    return f'<tr><td></td>{above}</tr><tr><th scope="col">{escape(by.value)}</th>{below}</tr>'


def _row(columns: list[_Column], label: str, group: GroupSummary) -> str:
    cells = "".join(
        labelled_cell(f"{column.above} {column.title}".strip(), escape(column.of(label, group))) for column in columns
    )
    return f'<tr><th scope="row" title="{escape(label)}">{escape(label)}</th>{cells}</tr>'


def _columns(summary: Summary) -> Iterator[_Column]:
    total = summary.total
    yield _Column("requests", lambda _, group: f"{group.arrived:,}")
    if total.completed < total.arrived:
        yield _Column("completed", lambda _, group: f"{group.completed:,}")
    for name, of in LATENCIES:
        for figure in ("p50", "p99"):
            yield _Column(figure, _percentile(of, figure), name)
    yield _Column("mean", lambda _, group: format_number(None if group.itl_mean is None else to_ms(group.itl_mean)), "ITL ms")
    for figure in ("p50", "p99"):
        yield _Column(figure, _percentile(lambda group: group.itl, figure), "ITL ms")
    yield _Column("longest wait s", lambda _, group: format_number(to_seconds(group.longest_wait)))
    yield _Column("tokens/s", lambda _, group: format_number(summary.per_second(group.output_tokens)))
    if total.cached_tokens:
        yield _Column("prefix hits", lambda _, group: format_share(group.hit_rate))
    if total.preemptions:
        yield _Column("preemptions", lambda _, group: f"{group.preemptions:,}")
    if summary.slo:
        yield _Column("goodput/s", lambda _, group: format_number(summary.per_second(group.within_slo)))
        yield _Column("in SLO", lambda _, group: format_share(group.attainment))


def _instance_columns(summary: Summary) -> Iterator[_Column]:
    def engine(label: str) -> InstanceSummary:
        return summary.instances.get(label, summary.all_instances)

    yield _Column("with work", lambda label, _: format_share(engine(label).utilisation))


def _percentile(of: Callable[[GroupSummary], LatencyStatistics | None], figure: str) -> Callable[[str, GroupSummary], str]:
    return lambda _, group: _shown(of(group), figure)


def _shown(spread: LatencyStatistics | None, figure: str) -> str:
    return NO_VALUE if spread is None else format_number(to_ms(getattr(spread, figure)))
