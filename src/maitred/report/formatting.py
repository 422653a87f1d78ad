"""Figures and objectives as people read them."""

from __future__ import annotations

from maitred.core.units import to_ms
from maitred.report.slo import Slo, Targets

NO_VALUE = "–"
"""There is no such figure."""


def format_number(value: float | None) -> str:
    """Three digits or more: enough to compare, few enough to read."""
    if value is None:
        return NO_VALUE
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.1f}" if value >= 10 else f"{value:,.2f}"


def format_share(value: float | None) -> str:
    """In percent, of a share of 1."""
    return NO_VALUE if value is None else f"{value:.1%}"


def format_slo(slo: Slo) -> str:
    """An SLO: for all, then for the classes that have targets of their own."""
    own = [f"{name}: {_targets(targets)}" for name, targets in slo.classes.items()]
    return "; ".join(filter(None, (_targets(slo), *own)))


def _targets(targets: Targets) -> str:
    given = {"TTFT": targets.ttft, "TPOT": targets.tpot, "E2E": targets.e2e}
    return ", ".join(f"{name} ≤ {to_ms(us):,g} ms" for name, us in given.items() if us is not None)
