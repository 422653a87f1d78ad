"""The synthetic workload that flags describe: by a specification, at a rate, or in a closed loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from maitred.cli.flags import of_flag
from maitred.cli.simulate.flags import Flags
from maitred.cli.simulate.synthetic_flags import NOT_OF_TRACES
from maitred.errors import ConfigError, nearest

if TYPE_CHECKING:
    from maitred.workload import Job, Workload
    from maitred.workload.presets import Spread

USAGE = "give --trace FORMAT:FILE, --workload-spec FILE, or --rate RATE (or --concurrency N) and --num-requests N"
_DEFAULT_LENGTHS = "normal:512,256"
_OF_TRACES = ("max_requests", "skip_bad_rows", "session_mode", "concurrent_sessions")


def specification(flags: Flags) -> Workload | None:
    """What --workload-spec says; None: it is not there. Raises ConfigError for a file that is wrong."""
    if flags.workload_spec is None:
        return None
    from maitred.workload import Workload

    own = {"workload_spec", "num_requests"}
    forbid(flags, "--workload-spec", (*(name for name in NOT_OF_TRACES if name not in own), *_OF_TRACES, "think_time_ms"))
    workload = Workload.from_yaml(flags.workload_spec)
    if flags.num_requests is None:
        return workload
    if flags.num_requests < 1:
        raise ConfigError(f"{flags.num_requests} requests cannot be made", where="--num-requests", hint="1 or more")
    return replace(workload, num_requests=flags.num_requests)


def synthetic_jobs(flags: Flags, workload: Workload | None) -> Iterable[Job]:
    """Raises ConfigError for what cannot be."""
    if workload is not None:
        return _specified(flags, workload)
    if flags.rate is None and flags.concurrency is None and flags.num_requests is None:
        raise ConfigError("there is no workload", hint=USAGE)
    if flags.rate is None and flags.concurrency is None:
        raise ConfigError("--rate is missing", hint=USAGE)
    if flags.num_requests is None:
        raise ConfigError("--num-requests is missing", hint=USAGE)
    try:
        return _at_a_rate(flags, flags.num_requests) if flags.concurrency is None else _in_a_loop(flags, flags.num_requests)
    except ConfigError as error:  # it names the argument, and a flag is called after its argument
        raise of_flag(f"--{error.where.removeprefix('--').replace('_', '-')}", error) from error


def forbid(flags: Flags, given: str, others: Iterable[str]) -> None:
    """Raises ConfigError if one of `others` is said beside the flag `given`."""
    for name in others:
        if getattr(flags, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} does not go with {given}", hint=USAGE)


def rate_scale_of(flags: Flags) -> float:
    """1 if nothing is said. Raises ConfigError for a factor that cannot be one."""
    from maitred.workload.scaled import checked_scale

    return 1.0 if flags.rate_scale is None else checked_scale(flags.rate_scale, "--rate-scale")


def _specified(flags: Flags, workload: Workload) -> Iterable[Job]:
    from maitred.workload import parse_mix, parse_tenant_mix, reclassed, with_tenants

    seed = workload.seed if flags.seed is None else flags.seed
    jobs: Iterable[Job] = workload.jobs(seed=seed, rate_scale=rate_scale_of(flags))
    if flags.class_mix is not None:
        jobs = reclassed(jobs, parse_mix(flags.class_mix, where="--class-mix"), seed)
    if flags.tenant_mix is not None:
        jobs = with_tenants(jobs, parse_tenant_mix(flags.tenant_mix, where="--tenant-mix"), seed)
    return jobs


def _at_a_rate(flags: Flags, num_requests: int) -> Iterable[Job]:
    from maitred.workload import synthetic

    forbid(flags, "--rate", (*_OF_TRACES, "think_time_ms"))
    assert flags.rate is not None
    return synthetic(
        flags.rate * rate_scale_of(flags),
        num_requests,
        seed=flags.run_seed,
        arrival=flags.arrival or "poisson",
        **_lengths(flags),
        class_mix=flags.class_mix,
        tenant_mix=flags.tenant_mix,
    )


def _in_a_loop(flags: Flags, num_requests: int) -> Iterable[Job]:
    from maitred.workload import closed_loop

    forbid(flags, "--concurrency", ("rate", "arrival", "rate_scale", *_OF_TRACES))
    assert flags.concurrency is not None
    return closed_loop(
        flags.concurrency,
        num_requests,
        think_time_ms=flags.think_time_ms or 0.0,
        seed=flags.run_seed,
        **_lengths(flags),
        class_mix=flags.class_mix,
        tenant_mix=flags.tenant_mix,
    )


def _lengths(flags: Flags) -> dict[str, str]:
    from maitred.workload.presets import PRESETS, USUAL

    if flags.workload is not None and flags.workload not in PRESETS:
        hint = nearest(flags.workload, PRESETS)
        raise ConfigError(f"unknown kind of workload {flags.workload!r}", where="--workload", hint=hint)
    preset = None if flags.workload is None else PRESETS[flags.workload]
    return {
        "input_tokens": _spread(
            flags, "prompt_tokens", flags.input_tokens, None if preset is None else preset.prompts, USUAL.prompts
        ),
        "output_tokens": _spread(
            flags, "output_tokens", flags.output_tokens, None if preset is None else preset.answers, USUAL.answers
        ),
    }


def _spread(flags: Flags, name: str, said: str | None, preset: Spread | None, usual: Spread) -> str:
    """Lengths as BLIS's flags say them, which override a preset one by one; otherwise as `said`."""
    keys = {"deviation": f"{name}_stdev", "low": f"{name}_min", "high": f"{name}_max"}
    values = {key: value for key, flag in keys.items() if (value := getattr(flags, flag)) is not None}
    if not values and (preset is None or (said is not None and not _number(said))):
        return said or _DEFAULT_LENGTHS
    if said is not None and not _number(said):
        first = f"--{keys[next(iter(values))].replace('_', '-')}"
        raise ConfigError(f"{said!r} has a spread of its own", where=first, hint="it goes with a mean, such as 512")
    return str(replace(preset or usual, **values, **({} if said is None else {"mean": float(said)})))


def _number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
