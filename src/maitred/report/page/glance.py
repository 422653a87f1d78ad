"""A run at a glance, as a notebook shows it: a small table that wears the notebook's own colours."""

from __future__ import annotations

from html import escape

from maitred.report.breakdown import By
from maitred.report.spread import Spread
from maitred.report.summary import Summary
from maitred.report.wording import NOTHING, number, objective, share
from maitred.units import to_ms, to_seconds

_FIGURES = ("mean", "p50", "p90", "p99")


def glance(summary: Summary) -> str:
    """HTML."""
    classes = summary.by[By.CLASS]
    groups = {**(classes if len(classes) > 1 else {}), "all": summary.total}
    rows = [
        (f"{name} ms", label, getattr(group, name.lower()))
        for name in ("TTFT", "TPOT", "E2E")
        for label, group in groups.items()
    ]
    head = "".join(f"<th>{name}</th>" for name in ("", "class", *_FIGURES))
    body = "".join(
        f"<tr><th>{name}</th><td>{escape(label)}</td>{''.join(f'<td>{value}</td>' for value in _values(spread))}</tr>"
        for name, label, spread in rows
    )
    return f"<p>{escape(_sentence(summary))}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _sentence(summary: Summary) -> str:
    total = summary.total
    said = (
        f"{total.completed:,} of {total.arrived:,} requests completed in {to_seconds(summary.duration):,.1f} simulated seconds"
    )
    return said + (f"; {share(total.attainment)} within {objective(summary.slo)}" if summary.slo else "")


def _values(spread: Spread | None) -> list[str]:
    return [NOTHING if spread is None else number(to_ms(getattr(spread, figure))) for figure in _FIGURES]
