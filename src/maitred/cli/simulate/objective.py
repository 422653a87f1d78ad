"""The service level objective and the horizon that flags state, in µs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from maitred.cli.simulate.flags import Flags
from maitred.errors import ConfigError
from maitred.units import Micros, from_ms, from_seconds

if TYPE_CHECKING:
    from maitred.report import Slo

_LONGEST = 1e11
"""Of a span that a flag gives, in whatever unit: three thousand years of seconds."""


def slo(flags: Flags) -> Slo:
    from maitred.report import USUAL_SLO, Slo

    said = Slo(
        ttft=_positive("--slo-ttft-ms", flags.slo_ttft_ms, from_ms),
        tpot=_positive("--slo-tpot-ms", flags.slo_tpot_ms, from_ms),
        e2e=_positive("--slo-e2e-ms", flags.slo_e2e_ms, from_ms),
    )
    return said or USUAL_SLO


def horizon(flags: Flags) -> Micros | None:
    return _positive("--horizon", flags.horizon, from_seconds)


def _positive(flag: str, value: float | None, convert: Callable[[float], Micros]) -> Micros | None:
    if value is None:
        return None
    if not (0 < value <= _LONGEST and convert(value)):
        raise ConfigError(f"{value:g} cannot be used", where=flag, hint=f"from a microsecond up to {_LONGEST:g}")
    return convert(value)
