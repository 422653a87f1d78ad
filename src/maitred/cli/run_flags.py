"""Flags that `maitred simulate` and `maitred compare` share: workload, service level objective, seed and horizon."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from maitred.cli.flags import CommandFlags, flag
from maitred.core.errors import ConfigError
from maitred.core.units import MILLISECOND, SECOND, Micros, from_ms, from_seconds

if TYPE_CHECKING:
    from maitred.report import Slo, Targets
    from maitred.workload import Trace, Workload
    from maitred.workload.load import Load

_SLO: Final = "Service level objective (default: TTFT within 2,000 ms, TPOT within 200 ms)"
RUN: Final = "The run"
_OF_CLASSES: Final = "{} by class, as critical=100ms,standard=2s."
_TARGETS: Final = "CLASS=TIME,..."
_LONGEST = 1e11
"""The largest span that a flag may give, in any unit: three thousand years of seconds."""
_UNITS: Final = {"us": 1, "µs": 1, "ms": MILLISECOND, "s": SECOND}


@dataclass(frozen=True, kw_only=True)
class RunFlags(CommandFlags):
    """The workload of a run, what the run is judged by, and when it ends."""

    slo_ttft_ms: Annotated[float | None, flag(_SLO, "--slo-ttft-ms", "Longest time to first token, in ms.", "MS")] = None
    slo_tpot_ms: Annotated[float | None, flag(_SLO, "--slo-tpot-ms", "Longest mean gap between tokens, in ms.", "MS")] = None
    slo_e2e_ms: Annotated[float | None, flag(_SLO, "--slo-e2e-ms", "Longest time to last token, in ms.", "MS")] = None
    slo_ttft: Annotated[str | None, flag(_SLO, "--slo-ttft", _OF_CLASSES.format("TTFT"), _TARGETS)] = None
    slo_itl: Annotated[str | None, flag(_SLO, "--slo-itl", _OF_CLASSES.format("Mean gap"), _TARGETS)] = None
    slo_e2e: Annotated[str | None, flag(_SLO, "--slo-e2e", _OF_CLASSES.format("E2E"), _TARGETS)] = None

    seed: Annotated[int | None, flag(RUN, "--seed", "Same seed, same results. Default: 42.", "SEED")] = None
    horizon: Annotated[
        int | None, flag(RUN, "--horizon", "End of the run in simulated µs; the rest counts as unfinished.", "µs")
    ] = None
    horizon_secs: Annotated[float | None, flag(RUN, "--horizon-secs", "The same in seconds.", "SECONDS")] = None

    @property
    def load(self) -> Load:
        """The workload that the flags describe."""
        from maitred.workload.load import Load

        prefix = "workload."
        given: dict[str, Any] = {
            key.removeprefix(prefix): value for key, value in self.values.items() if key.startswith(prefix)
        }
        return Load(**given)


def slo(flags: RunFlags, workload: Workload | Trace | None) -> Slo:
    """Return the objective of the flags; targets of classes are the workload's, overridden by the flags."""
    from maitred.report import DEFAULT_SLO, Slo

    targets = Slo(
        ttft=_positive("--slo-ttft-ms", flags.slo_ttft_ms, from_ms),
        tpot=_positive("--slo-tpot-ms", flags.slo_tpot_ms, from_ms),
        e2e=_positive("--slo-e2e-ms", flags.slo_e2e_ms, from_ms),
        classes=_class_targets(flags, workload),
    )
    return targets or DEFAULT_SLO


def _class_targets(flags: RunFlags, workload: Workload | Trace | None) -> dict[str, Targets]:
    from msgspec.structs import asdict

    from maitred.report import Targets, workload_targets

    classes = {name: asdict(targets) for name, targets in workload_targets(workload).items()}
    for name, target, text in (
        ("--slo-ttft", "ttft", flags.slo_ttft),
        ("--slo-itl", "tpot", flags.slo_itl),
        ("--slo-e2e", "e2e", flags.slo_e2e),
    ):
        for slo_class, limit in _parse_limits(name, text):
            classes.setdefault(slo_class, {})[target] = limit
    return {name: Targets(**targets) for name, targets in classes.items()}


def _parse_limits(flag: str, text: str | None) -> Iterator[tuple[str, Micros]]:
    """Yield class and limit of each part of `critical=100ms,standard=500ms`, as BLIS writes it."""
    for part in (text or "").split(",") if text is not None else ():
        parts = re.fullmatch(r"\s*([^=\s]+)\s*=\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*(us|µs|ms|s)\s*", part)
        try:
            limit = round(float(parts[2]) * _UNITS[parts[3]]) if parts else 0
        except (ValueError, OverflowError):
            limit = 0
        if parts is None or not 0 < limit <= from_seconds(_LONGEST):
            raise ConfigError(f"cannot read {part.strip()!r}", where=flag, hint="write it as critical=100ms,standard=2s")
        yield parts[1], limit


def horizon(flags: RunFlags) -> Micros | None:
    """Return the end of the run in µs, or None if it ends with the last request. Raises ConfigError."""
    if flags.horizon is None:
        return _positive("--horizon-secs", flags.horizon_secs, from_seconds)
    if flags.horizon_secs is not None:
        raise ConfigError("--horizon and --horizon-secs are two names for one thing", hint="give one of them")
    if not 1 <= flags.horizon <= from_seconds(_LONGEST):
        hint = f"from 1 to {from_seconds(_LONGEST):.0e}"
        raise ConfigError(f"{flags.horizon} µs cannot be used", where="--horizon", hint=hint)
    return flags.horizon


def short_horizon(flags: RunFlags) -> Iterator[str]:
    """Yield a warning if --horizon is so short that seconds are probably meant."""
    if flags.horizon is not None and flags.horizon < SECOND:
        yield f"--horizon is in µs, as in BLIS: the run ends after {flags.horizon / SECOND:g} s (--horizon-secs takes seconds)"


def _positive(flag: str, value: float | None, convert: Callable[[float], Micros]) -> Micros | None:
    if value is None:
        return None
    if not (0 < value <= _LONGEST and convert(value)):
        raise ConfigError(f"{value:g} cannot be used", where=flag, hint=f"from a microsecond up to {_LONGEST:g}")
    return convert(value)
