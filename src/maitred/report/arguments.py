"""Arguments of the Python interface, checked where they come in, so that a slip has one clear error and no run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from maitred.core.errors import ConfigError
from maitred.core.units import Micros, from_ms, from_seconds
from maitred.report.slo import Slo
from maitred.workload import Workload

_LONGEST_SECS = 1e11


def horizon_of(seconds: float | None) -> Micros | None:
    """Return the end of a run in µs, or None if it ends with the last request. Raises ConfigError."""
    if seconds is None:
        return None
    if type(seconds) not in (int, float) or not 0 < seconds <= _LONGEST_SECS or not from_seconds(seconds):
        hint = f"a number of seconds up to {_LONGEST_SECS:g}"
        raise ConfigError(f"a run cannot end after {seconds!r}", where="horizon_secs", hint=hint)
    return from_seconds(seconds)


def sample_distance_of(milliseconds: float | None) -> Micros | None:
    """Return the first distance of samples in µs, or None if there are to be none. Raises ConfigError."""
    if milliseconds is None:
        return None
    if type(milliseconds) not in (int, float) or not 0 < milliseconds <= 1_000 * _LONGEST_SECS or not from_ms(milliseconds):
        hint = "a number of milliseconds from 0.001 up"
        raise ConfigError(f"samples cannot be taken every {milliseconds!r}", where="sample_every_ms", hint=hint)
    return from_ms(milliseconds)


def check_seed_and_slo(seed: object, slo: object) -> None:
    """Raise ConfigError for a seed that is no whole number, or an SLO of another type."""
    if type(seed) is not int:
        raise ConfigError(f"must be a whole number, not {seed!r}", where="seed")
    check_slo(slo)


def check_slo(slo: object) -> Slo:
    """Return `slo`. Raises ConfigError for another type."""
    if not isinstance(slo, Slo):
        raise ConfigError(f"must be Slo, not {type(slo).__name__}", where="slo", hint="write Slo(ttft_ms=500)")
    return slo


def check_sections(workload: object, sections: Sequence[object], kinds: Mapping[str, type]) -> None:
    """Raise ConfigError for a section that is not of its kind, or a section in place of the workload."""
    order = f"in this order: workload, {', '.join(kinds)}"
    if isinstance(workload, msgspec.Struct) and not isinstance(workload, Workload):
        raise ConfigError(f"a {type(workload).__name__} is no workload", where="workload", hint=order)
    if not isinstance(workload, str | Iterable | Workload):
        hint = "jobs, a trace as FORMAT:FILE, or maitred.synthetic(rate=10, num_requests=1000)"
        raise ConfigError(f"a {type(workload).__name__} is no workload", where="workload", hint=hint)
    for given, (name, kind) in zip(sections, kinds.items(), strict=True):
        if given is not None and not isinstance(given, kind):
            raise ConfigError(f"must be {kind.__name__}, not {type(given).__name__}", where=name, hint=order)
