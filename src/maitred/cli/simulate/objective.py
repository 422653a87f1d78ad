"""The service level objective and the horizon that flags state, in µs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from maitred.cli.simulate.flags import Flags
from maitred.errors import ConfigError
from maitred.units import Micros, from_ms, from_seconds

if TYPE_CHECKING:
    from maitred.report import Slo
    from maitred.report.slo import Targets
    from maitred.workload.spec import GoodputTargets, Workload

_LONGEST = 1e11
"""Of a span that a flag gives, in whatever unit: three thousand years of seconds."""


def slo(flags: Flags, workload: Workload | None) -> Slo:
    """What flags ask of all, and the workload for its classes."""
    from maitred.report import USUAL_SLO, Slo

    said = Slo(
        ttft=_positive("--slo-ttft-ms", flags.slo_ttft_ms, from_ms),
        tpot=_positive("--slo-tpot-ms", flags.slo_tpot_ms, from_ms),
        e2e=_positive("--slo-e2e-ms", flags.slo_e2e_ms, from_ms),
        classes={} if workload is None else {name: _targets(of) for name, of in workload.goodput_slo_targets.items()},
    )
    return said or USUAL_SLO


def _targets(said: GoodputTargets) -> Targets:
    from maitred.report.slo import Targets

    def micros(milliseconds: float | None) -> Micros | None:
        return None if milliseconds is None else from_ms(milliseconds)

    return Targets(ttft=micros(said.ttft_ms), tpot=micros(said.itl_ms), e2e=micros(said.e2e_ms))


def horizon(flags: Flags) -> Micros | None:
    return _positive("--horizon", flags.horizon, from_seconds)


def _positive(flag: str, value: float | None, convert: Callable[[float], Micros]) -> Micros | None:
    if value is None:
        return None
    if not (0 < value <= _LONGEST and convert(value)):
        raise ConfigError(f"{value:g} cannot be used", where=flag, hint=f"from a microsecond up to {_LONGEST:g}")
    return convert(value)
