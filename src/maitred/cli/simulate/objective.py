"""The service level objective and the horizon that flags state, in µs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from msgspec.structs import asdict

from maitred.cli.simulate.objective_flags import ObjectiveFlags
from maitred.core.errors import ConfigError
from maitred.core.units import MILLISECOND, SECOND, Micros, from_ms, from_seconds

if TYPE_CHECKING:
    from maitred.report import Slo, Targets
    from maitred.workload import Trace, Workload

_LONGEST = 1e11
"""Of a span that a flag gives, in whatever unit: three thousand years of seconds."""
_UNITS: Final = {"us": 1, "µs": 1, "ms": MILLISECOND, "s": SECOND}


def slo(flags: ObjectiveFlags, workload: Workload | Trace | None) -> Slo:
    """What flags ask of all; of classes, what the workload says and flags over it."""
    from maitred.report import DEFAULT_SLO, Slo

    said = Slo(
        ttft=_positive("--slo-ttft-ms", flags.slo_ttft_ms, from_ms),
        tpot=_positive("--slo-tpot-ms", flags.slo_tpot_ms, from_ms),
        e2e=_positive("--slo-e2e-ms", flags.slo_e2e_ms, from_ms),
        classes=_of_classes(flags, workload),
    )
    return said or DEFAULT_SLO


def _of_classes(flags: ObjectiveFlags, workload: Workload | Trace | None) -> dict[str, Targets]:
    from maitred.report import Targets, workload_targets

    classes = {name: asdict(targets) for name, targets in workload_targets(workload).items()}
    for flag, target, text in (
        ("--slo-ttft", "ttft", flags.slo_ttft),
        ("--slo-itl", "tpot", flags.slo_itl),
        ("--slo-e2e", "e2e", flags.slo_e2e),
    ):
        for name, limit in _parsed(flag, text):
            classes.setdefault(name, {})[target] = limit
    return {name: Targets(**targets) for name, targets in classes.items()}


def _parsed(flag: str, text: str | None) -> Iterator[tuple[str, Micros]]:
    """As BLIS writes it: `critical=100ms,standard=500ms`."""
    for part in (text or "").split(",") if text is not None else ():
        parts = re.fullmatch(r"\s*([^=\s]+)\s*=\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*(us|µs|ms|s)\s*", part)
        try:
            limit = round(float(parts[2]) * _UNITS[parts[3]]) if parts else 0
        except (ValueError, OverflowError):
            limit = 0
        if parts is None or not 0 < limit <= from_seconds(_LONGEST):
            raise ConfigError(f"cannot read {part.strip()!r}", where=flag, hint="write it as critical=100ms,standard=2s")
        yield parts[1], limit


def horizon(flags: ObjectiveFlags) -> Micros | None:
    """When the run ends, whatever is left."""
    if flags.horizon is None:
        return _positive("--horizon-secs", flags.horizon_secs, from_seconds)
    if flags.horizon_secs is not None:
        raise ConfigError("--horizon and --horizon-secs are two names for one thing", hint="give one of them")
    if not 1 <= flags.horizon <= from_seconds(_LONGEST):
        hint = f"from 1 to {from_seconds(_LONGEST):.0e}"
        raise ConfigError(f"{flags.horizon} µs cannot be used", where="--horizon", hint=hint)
    return flags.horizon


def short_horizon(flags: ObjectiveFlags) -> Iterator[str]:
    """A warning for those who meant seconds."""
    if flags.horizon is not None and flags.horizon < SECOND:
        yield f"--horizon is in µs, as in BLIS: the run ends after {flags.horizon / SECOND:g} s (--horizon-secs takes seconds)"


def _positive(flag: str, value: float | None, convert: Callable[[float], Micros]) -> Micros | None:
    if value is None:
        return None
    if not (0 < value <= _LONGEST and convert(value)):
        raise ConfigError(f"{value:g} cannot be used", where=flag, hint=f"from a microsecond up to {_LONGEST:g}")
    return convert(value)
