"""A load that is made: by a specification, at a rate, or in a closed loop."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from maitred.errors import ConfigError, nearest
from maitred.workload.job import Job
from maitred.workload.lengths import parse_lengths
from maitred.workload.load.keys import NOT_OF_TRACES, OF_TRACES, Load
from maitred.workload.load.mixed import USUAL_SEED, mixed
from maitred.workload.load.naming import Naming, usage
from maitred.workload.presets import PRESETS, USUAL, Preset, Spread
from maitred.workload.spec import Workload
from maitred.workload.synthetic import closed_loop, synthetic

_DEFAULT_LENGTHS: Final = "normal:512,256"


def specification(load: Load, call: Naming) -> Workload | None:
    """What `workload_spec` says; None: it is not there. Raises ConfigError for a file that is wrong."""
    if load.workload_spec is None:
        return None
    own = {"workload_spec", "num_requests"}
    others = (*(name for name in NOT_OF_TRACES if name not in own), *OF_TRACES, "think_time_ms")
    load.forbid("workload_spec", others, call)
    said = load.workload_spec
    workload = said if isinstance(said, Workload) else Workload.from_yaml(Path(said))
    if load.num_requests is None:
        return workload
    if load.num_requests < 1:
        raise ConfigError(f"{load.num_requests} requests cannot be made", where=call("num_requests"), hint="1 or more")
    return replace(workload, num_requests=load.num_requests)


def synthetic_jobs(load: Load, seed: int | None, workload: Workload | None, call: Naming) -> Iterable[Job]:
    """`workload`: its specification, if it has one. Raises ConfigError for what cannot be."""
    if workload is not None:
        return _specified(load, seed, workload, call)
    if load.rate is None and load.concurrency is None and load.num_requests is None:
        raise ConfigError("there is no workload", hint=usage(call))
    if load.rate is None and load.concurrency is None:
        raise ConfigError(f"{call('rate')} is missing", hint=usage(call))
    if load.num_requests is None:
        raise ConfigError(f"{call('num_requests')} is missing", hint=usage(call))
    begun = _at_a_rate if load.concurrency is None else _in_a_loop
    try:
        return begun(load, load.num_requests, USUAL_SEED if seed is None else seed, call)
    except _ArgumentError as error:
        raise ConfigError(error.of.what, where=call(error.of.where), hint=error.of.hint) from error


class _ArgumentError(Exception):
    """A ConfigError whose `where` is the name of an argument, and keys are called after their arguments."""

    def __init__(self, of: ConfigError) -> None:
        self.of = of


def _specified(load: Load, seed: int | None, workload: Workload, call: Naming) -> Iterable[Job]:
    seed = workload.seed if seed is None else seed
    return mixed(load, workload.jobs(seed=seed, rate_scale=load.rate_factor(call)), seed, call)


def _at_a_rate(load: Load, num_requests: int, seed: int, call: Naming) -> Iterable[Job]:
    load.forbid("rate", (*OF_TRACES, "think_time_ms"), call)
    assert load.rate is not None
    rate, lengths = load.rate * load.rate_factor(call), _lengths(load, call)
    try:
        return synthetic(
            rate,
            num_requests,
            seed=seed,
            arrival="poisson" if load.arrival is None else load.arrival,
            **lengths,
            prefix_tokens=load.prefix_tokens or 0,
            class_mix=load.class_mix,
            tenant_mix=load.tenant_mix,
        )
    except ConfigError as error:
        raise _ArgumentError(error) from error


def _in_a_loop(load: Load, num_requests: int, seed: int, call: Naming) -> Iterable[Job]:
    load.forbid("concurrency", ("rate", "arrival", "rate_scale", *OF_TRACES), call)
    assert load.concurrency is not None
    lengths = _lengths(load, call)
    try:
        return closed_loop(
            load.concurrency,
            num_requests,
            think_time_ms=load.think_time_ms or 0.0,
            seed=seed,
            **lengths,
            prefix_tokens=load.prefix_tokens or 0,
            class_mix=load.class_mix,
            tenant_mix=load.tenant_mix,
        )
    except ConfigError as error:
        raise _ArgumentError(error) from error


def _lengths(load: Load, call: Naming) -> dict[str, str]:
    if load.workload is not None and load.workload not in PRESETS:
        hint = nearest(load.workload, PRESETS)
        raise ConfigError(f"unknown kind of workload {load.workload!r}", where=call("workload"), hint=hint)
    if load.workload is None:
        return _spreads(load, None, call)
    lengths = _spreads(load, PRESETS[load.workload], call)
    if lengths == _spreads(load, None, call) and PRESETS[load.workload] != USUAL:
        hint = f"leave it out, or {call('input_tokens')} or {call('output_tokens')}"
        raise ConfigError("it has no effect: the lengths are said without it", where=call("workload"), hint=hint)
    return lengths


def _spreads(load: Load, preset: Preset | None, call: Naming) -> dict[str, str]:
    prompts, answers = (None, None) if preset is None else (preset.prompts, preset.answers)
    return {
        "input_tokens": _spread(load, "prompt_tokens", load.input_tokens, prompts, USUAL.prompts, call),
        "output_tokens": _spread(load, "output_tokens", load.output_tokens, answers, USUAL.answers, call),
    }


def _spread(load: Load, name: str, said: str | int | None, preset: Spread | None, usual: Spread, call: Naming) -> str:
    """Lengths as BLIS's keys say them, which override a preset one by one; otherwise as `said`."""
    keys = {"deviation": f"{name}_stdev", "low": f"{name}_min", "high": f"{name}_max"}
    values = {part: value for part, key in keys.items() if (value := getattr(load, key)) is not None}
    mean = None if said is None else _number(said)
    if not values and (preset is None or (said is not None and mean is None)):
        return _DEFAULT_LENGTHS if said is None else str(said)
    if said is not None and mean is None:
        first = call(keys[next(iter(values))])
        raise ConfigError(f"{said!r} has a spread of its own", where=first, hint="it goes with a mean, such as 512")
    spread = str(replace(preset or usual, **values, **({} if mean is None else {"mean": mean})))
    try:
        parse_lengths(spread)
    except ConfigError as error:
        where = ", ".join(call(keys[part]) for part in values) or call("workload")
        raise ConfigError(error.what, where=where, hint=error.hint) from error
    return spread


def _number(text: str | int) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
