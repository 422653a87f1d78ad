"""Figures and objectives in the form in which they are printed."""

from __future__ import annotations

from maitred.core.units import to_ms
from maitred.report.slo import Slo, Targets

NO_VALUE = "–"
"""Printed in place of a figure that does not exist."""


def format_number(value: float | None) -> str:
    """Return the value with at least three digits."""
    if value is None:
        return NO_VALUE
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.1f}" if value >= 10 else f"{value:,.2f}"


def format_share(value: float | None) -> str:
    """Return a share of 1 in percent."""
    return NO_VALUE if value is None else f"{value:.1%}"


def format_slo(slo: Slo) -> str:
    """Return an SLO in words: the targets for all, then those of classes."""
    own = [f"{name}: {_targets(targets)}" for name, targets in slo.classes.items()]
    return "; ".join(filter(None, (_targets(slo), *own)))


def _targets(targets: Targets) -> str:
    given = {"TTFT": targets.ttft, "TPOT": targets.tpot, "E2E": targets.e2e}
    return ", ".join(f"{name} ≤ {to_ms(us):,g} ms" for name, us in given.items() if us is not None)
