"""Flags that several commands share and that stand for no single key.

`RunFlags`: service level objective, seed and horizon, of `maitred simulate` and `maitred compare`.

`InstanceFlags`: the latency model of an instance, of `maitred simulate` and `maitred engine`, under BLIS's and vLLM's names.
Coefficients belong to `linear` or to `trained-physics`; where `--latency-model` does not say which, their number does: 7 or
more β are those of trained-physics.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from maitred.cli.config_flags import HARDWARE, INSTANCE, SYNTHETIC
from maitred.cli.flags import SWITCH, CommandFlags, flag
from maitred.core.errors import ConfigError, located
from maitred.core.units import MILLISECOND, SECOND, Micros, from_ms, from_seconds, to_ms

if TYPE_CHECKING:
    from maitred.instance.latency import LatencyConfig
    from maitred.report import Slo, Targets
    from maitred.sim.fleet_config import InstanceGroup
    from maitred.workload import Trace, Workload
    from maitred.workload.load import Load


_SLO: Final = "Service level objective (default: TTFT within 2,000 ms, TPOT within 200 ms)"
RUN: Final = "The run"
_OF_CLASSES: Final = "{} by class, as critical=100ms,standard=2s."
_TARGETS: Final = "CLASS=TIME,..."
_LONGEST = 1e11
"""The largest span that a flag may give, in any unit: three thousand years of seconds."""
_LEAST_SHAPE: Final = 1e-4
_UNITS: Final = {"us": 1, "µs": 1, "ms": MILLISECOND, "s": SECOND}
_LATENCY: Final = "--latency-model"
_CACHING: Final = "instance.enable_prefix_caching"


@dataclass(frozen=True, kw_only=True)
class RunFlags(CommandFlags):
    """The workload of a run, what the run is judged by, and when it ends."""

    slo_ttft_ms: Annotated[
        float | None, flag(_SLO, "Longest time to first token, in ms. Default: 2,000 if no target is given.", "MS")
    ] = None
    slo_tpot_ms: Annotated[
        float | None, flag(_SLO, "Longest mean gap between tokens, in ms. Default: 200 if no target is given.", "MS")
    ] = None
    slo_e2e_ms: Annotated[float | None, flag(_SLO, "Longest time to last token, in ms.", "MS")] = None
    slo_ttft: Annotated[str | None, flag(_SLO, _OF_CLASSES.format("TTFT"), _TARGETS)] = None
    slo_itl: Annotated[str | None, flag(_SLO, _OF_CLASSES.format("Mean gap"), _TARGETS)] = None
    slo_e2e: Annotated[str | None, flag(_SLO, _OF_CLASSES.format("E2E"), _TARGETS)] = None

    burstiness: Annotated[
        float | None,
        flag(
            SYNTHETIC,
            "vLLM's name for how regular arrivals are: 1 is --arrival poisson, B is gamma:1/√B; below 1 they come in bursts. "
            "Default: 1.",
            "B",
        ),
    ] = None

    seed: Annotated[int | None, flag(RUN, "Same seed, same results. Default: 42.", "SEED")] = None
    horizon: Annotated[int | None, flag(RUN, "End of the run in simulated µs; the rest counts as unfinished.", "µs")] = None
    horizon_secs: Annotated[float | None, flag(RUN, "The same in seconds.", "SECONDS")] = None

    @property
    def run_seed(self) -> int:
        """The seed of the run, and of its workload if that names none."""
        from maitred.workload.load import DEFAULT_SEED

        return DEFAULT_SEED if self.seed is None else self.seed

    @property
    def spec_file(self) -> Path | None:
        """The file of the workload specification, or None."""
        spec = self.load.workload_spec
        return Path(spec) if isinstance(spec, str) else None

    @property
    def load(self) -> Load:
        """The workload that the flags describe."""
        from maitred.workload.load import Load

        prefix = "workload."
        given: dict[str, Any] = {
            key.removeprefix(prefix): value for key, value in self.values.items() if key.startswith(prefix)
        }
        if self.burstiness is not None:
            given["arrival"] = _gamma_arrivals(self.burstiness, given.get("arrival"))
        return Load(**given)


def _gamma_arrivals(burstiness: float, arrival: object) -> str:
    """Return the arrival process in which gaps are gamma with the shape `burstiness`: their CV is 1/√burstiness, as in vLLM.

    Raises ConfigError."""
    if arrival is not None:
        raise ConfigError("--burstiness does not go with --arrival", hint="give one of them")
    if not _LEAST_SHAPE <= burstiness <= 1 / _LEAST_SHAPE:
        hint = f"from {_LEAST_SHAPE:g} to {1 / _LEAST_SHAPE:g}; 1 is poisson"
        raise ConfigError(f"{burstiness:g} cannot be used", where="--burstiness", hint=hint)
    return "poisson" if burstiness == 1 else f"gamma:{burstiness**-0.5:g}"


def slo(flags: RunFlags, workload: Workload | Trace | None) -> Slo:
    """Return the objective of the flags; targets of classes are the workload's, overridden by the flags."""
    from maitred.report import DEFAULT_SLO, Slo

    targets = Slo(
        ttft_ms=_checked("--slo-ttft-ms", flags.slo_ttft_ms, from_ms),
        tpot_ms=_checked("--slo-tpot-ms", flags.slo_tpot_ms, from_ms),
        e2e_ms=_checked("--slo-e2e-ms", flags.slo_e2e_ms, from_ms),
        classes=_class_targets(flags, workload),
    )
    return targets or DEFAULT_SLO


def _class_targets(flags: RunFlags, workload: Workload | Trace | None) -> dict[str, Targets]:
    from msgspec.structs import asdict

    from maitred.report import Targets, workload_targets

    classes = {name: asdict(targets) for name, targets in workload_targets(workload).items()}
    for name, target, text in (
        ("--slo-ttft", "ttft_ms", flags.slo_ttft),
        ("--slo-itl", "tpot_ms", flags.slo_itl),
        ("--slo-e2e", "e2e_ms", flags.slo_e2e),
    ):
        for slo_class, limit in _parse_limits(name, text):
            classes.setdefault(slo_class, {})[target] = to_ms(limit)
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
        seconds = _checked("--horizon-secs", flags.horizon_secs, from_seconds)
        return None if seconds is None else from_seconds(seconds)
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


def _checked(flag: str, value: float | None, convert: Callable[[float], Micros]) -> float | None:
    """Return `value` if it is a time of at least 1 µs, which `convert` returns. Raises ConfigError."""
    if value is not None and not (0 < value <= _LONGEST and convert(value)):
        raise ConfigError(f"{value:g} cannot be used", where=flag, hint=f"from a microsecond up to {_LONGEST:g}")
    return value


@dataclass(frozen=True, kw_only=True)
class InstanceFlags(CommandFlags):
    """Latency model, and prefix caching turned off."""

    latency_model: Annotated[
        str | None,
        flag(
            HARDWARE.panel,
            "Time of a step: linear:β0,β1,β2 (µs per step, prefill token, decode; blackbox), aiconfigurator, roofline, "
            "trained-physics, table:FILE, or module:Class. Default: linear; with --model aiconfigurator if it is installed, "
            "else roofline.",
            "NAME",
            alias="--latency",
            name=_LATENCY,
        ),
    ] = None
    alpha_coeffs: Annotated[
        str | None, flag(HARDWARE.panel, "Overheads of a request, in µs, as BLIS has them.", "α0,α1,α2")
    ] = None
    beta_coeffs: Annotated[
        str | None, flag(HARDWARE.panel, "Coefficients: 3 for linear, 7 to 11 for trained-physics.", "β0,β1,...")
    ] = None
    no_enable_prefix_caching: Annotated[
        bool | None,
        flag(INSTANCE.panel, "Turn prefix caching off, whatever the file says.", SWITCH, alias="--no-prefix-caching"),
    ] = None


def instance_values(flags: InstanceFlags) -> dict[str, object]:
    """Return the values that `flags` give, by key. Raises ConfigError for flags that contradict each other."""
    values = {**flags.values, "instance.latency": latency_of_flags(flags)}
    if flags.no_enable_prefix_caching:
        if _CACHING in values:
            raise ConfigError(
                "contradicts --enable-prefix-caching", where="--no-enable-prefix-caching", hint="give one of them"
            )
        values[_CACHING] = False
    return values


def _check_coefficients(latency_model: str | None, beta: Sequence[float] | None) -> None:
    """Raise ConfigError for coefficients that belong to no model, or to one that has its own."""
    if latency_model is None and beta is None:
        hint = "give both, or say which model they are for: --latency-model linear"
        raise ConfigError("without --beta-coeffs it has no effect", where="--alpha-coeffs", hint=hint)
    if latency_model is not None and set(":(") & set(latency_model) and beta is not None:
        hint = f"{_LATENCY} {latency_model.partition(':')[0]}, or without --beta-coeffs"
        raise ConfigError("--latency-model with numbers and --beta-coeffs are two names for one thing", hint=hint)


def latency_of_flags(flags: InstanceFlags) -> LatencyConfig | str | None:
    """Return the latency model that `flags` give, or None if they give none. Raises ConfigError, naming the flag."""
    if (flags.latency_model, flags.alpha_coeffs, flags.beta_coeffs) == (None, None, None):
        return None
    from maitred.instance.latency import parse_latency, with_coefficients

    alpha = _numbers("--alpha-coeffs", flags.alpha_coeffs)
    beta = _numbers("--beta-coeffs", flags.beta_coeffs)
    _check_coefficients(flags.latency_model, beta)
    default = "linear" if beta is None or len(beta) < 7 else "trained-physics"
    with located(_LATENCY):
        model = parse_latency(default if flags.latency_model is None else flags.latency_model)
    try:
        return with_coefficients(model, alpha, beta)
    except ConfigError as error:
        about_alpha = beta is None or error.problem.startswith("--alpha-coeffs")
        raise error.at("--alpha-coeffs" if about_alpha else "--beta-coeffs") from error


def _numbers(name: str, text: str | None) -> tuple[float, ...] | None:
    from maitred.instance.latency import numbers

    with located(name):
        return None if text is None else numbers(text)


def parse_groups(text: str) -> list[InstanceGroup]:
    """Return the groups of `2xH100:3,L40S:4`. Raises ConfigError."""
    from maitred.sim.fleet_config import InstanceGroup

    groups: list[InstanceGroup] = []
    for part in text.split(","):
        found = re.fullmatch(r"(?:(\d+)x)?([^:]+):(\d+)", part.strip())
        if found is None:
            hint = "as H100:2,L40S:4, or 2xH100:3 with two GPUs in each instance"
            raise ConfigError(f"{part.strip()!r} is no [TPx]GPU:N", where="--instance-groups", hint=hint)
        gpus, hardware, count = found.groups()
        size = None if gpus is None else int(gpus)
        try:
            groups.append(InstanceGroup(num_instances=int(count), hardware=hardware, tensor_parallel_size=size))
        except ValueError as error:
            raise ConfigError(str(error), where="--instance-groups") from error
    return groups
