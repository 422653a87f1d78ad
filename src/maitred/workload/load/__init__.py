"""A load: what arrives, said by keys. These are the flags of `maitred simulate` for workloads, and the section `workload` of a
study; whoever reads them says how the user spells them (`naming`), so that a mistake is named as it was made.

    keys.py       Load: the keys
    naming.py     how they are spelled where they are said
    mixed.py      classes and tenants by share
    recorded.py   a trace
    synthetic.py  a specification, one stream of requests, a group of users
    begun.py      any of them, as jobs

How the keys of a load are spelled where they are said: as flags, or as keys.

The keys of a load.

Classes and tenants drawn by share, in place of those that a workload has.

A load that was recorded.

Kinds of work by name, as BLIS ships them: how long prompts and answers are.

A load that is made: by a specification, at a rate, or in a closed loop.

Any load, begun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from maitred.core.errors import ConfigError, nearest_name_hint
from maitred.core.units import from_ms
from maitred.workload.job import Job
from maitred.workload.lengths import parse_lengths
from maitred.workload.spec import MAX_REQUESTS, Workload
from maitred.workload.synthetic import closed_loop, synthetic
from maitred.workload.trace import BadRows, Trace, open_trace
from maitred.workload.trace_format import FORMATS
from maitred.workload.transforms import (
    check_scale,
    parse_class_mix,
    parse_tenant_mix,
    scale_rate,
    scale_time,
    with_class_mix,
    with_tenant_mix,
    with_timeout,
)

if TYPE_CHECKING:
    from maitred.workload.job import Job


__all__ = [
    "KeySpelling",
    "Load",
    "as_flag",
    "as_key",
    "build_jobs",
    "describe",
    "make_self_contained",
    "open_load_trace",
    "read_workload_spec",
]


KeySpelling: TypeAlias = Callable[[str], str]
"""From a key to what the user calls it."""


def as_flag(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def as_key(key: str) -> str:
    return key


def usage_hint(spell: KeySpelling) -> str:
    """What is to be said, at least."""
    of_traces, of_specs = f"{spell('trace')} FORMAT:FILE", f"{spell('workload_spec')} FILE"
    return f"give {of_traces}, {of_specs}, or {spell('rate')} RATE (or {spell('concurrency')} N) and {spell('num_requests')} N"


TRACE_KEYS: Final = ("trace_header", "max_requests", "skip_bad_rows", "session_mode", "concurrent_sessions")
"""What only a trace takes."""
SYNTHETIC_KEYS: Final = (
    "rate",
    "num_requests",
    "input_tokens",
    "output_tokens",
    "prefix_tokens",
    "workload_spec",
    "workload",
    "concurrency",
    "arrival",
    "prompt_tokens_stdev",
    "prompt_tokens_min",
    "prompt_tokens_max",
    "output_tokens_stdev",
    "output_tokens_min",
    "output_tokens_max",
)
"""What a trace says itself."""


class Load(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A recorded trace, a specification, requests at a rate, or users who wait. What is None is not said.

    `jobs(seed)` begins it; the same seed makes the same requests again.
    """

    trace: str | None = None
    """A recorded trace: FILE, FORMAT:FILE (see maitred formats) or sample:mixed; plain or gzipped."""
    trace_header: str | None = None
    """Header of a `blis` trace. Null: NAME.yaml beside it."""
    max_requests: int | None = None
    """Most requests that are read."""
    skip_bad_rows: bool | None = None
    """Leave out rows that cannot be used, and count them."""
    session_mode: str | None = None
    """`open` (or `fixed`): turns arrive as recorded; `closed-loop`: a turn waits for the response before. Null: open."""
    concurrent_sessions: int | None = None
    """Closed loop: sessions at once; the next one starts when one ends."""

    workload_spec: str | Workload | None = None
    """Clients, cohorts and sessions: the path of a YAML file in BLIS's keys, or in Python the specification itself."""

    rate: float | None = None
    """Requests per second."""
    concurrency: int | None = None
    """In place of `rate`: users who each wait for a response before the next request."""
    num_requests: int | None = None
    """Requests that arrive."""
    arrival: str | None = None
    """Arrival process: poisson, constant, gamma:CV, weibull:CV or normalized. Null: poisson."""
    workload: str | None = None
    """Lengths by kind: chatbot, contentgen, summarization, multidoc, distribution."""
    input_tokens: str | int | None = None
    """Lengths of the prompts: TOKENS, normal:MEAN,SD, lognormal:MEAN,SD (both of the lengths), uniform:LOW,HIGH or others.
    Null: normal:512,256."""
    output_tokens: str | int | None = None
    """Lengths of the outputs, written as those of the prompts. Null: normal:512,256."""
    prefix_tokens: int | None = None
    """Tokens that all prompts share at their beginning, in addition to `input_tokens`."""
    prompt_tokens_stdev: float | None = None
    """Prompts are normal around `input_tokens` with this standard deviation, as in BLIS."""
    prompt_tokens_min: int | None = None
    """Least tokens of such a prompt."""
    prompt_tokens_max: int | None = None
    """Most tokens of such a prompt."""
    output_tokens_stdev: float | None = None
    """Outputs are normal around `output_tokens` with this standard deviation."""
    output_tokens_min: int | None = None
    """Least tokens of such an output."""
    output_tokens_max: int | None = None
    """Most tokens of such an output."""

    think_time_ms: float | None = None
    """Closed loop: from a response to the next turn, in ms. Null: as the trace says."""
    timeout_secs: float | None = None
    """Seconds after which clients leave; 0: never. Null: as the workload says, else never."""
    class_mix: str | None = None
    """Classes by share: interactive:0.3,bulk:0.7. Over a trace they replace its own."""
    tenant_mix: str | None = None
    """Tenants by share: auth:acme:0.3,auth:globex:0.7. Over a trace they replace its own."""
    rate_scale: float | None = None
    """Factor on the density of arrivals; pauses, deadlines and users stay."""
    time_scale: float | None = None
    """Factor on all times: arrivals, pauses, deadlines, targets."""

    @contextmanager
    def jobs(self, seed: int | None = None) -> Iterator[Iterable[Job]]:
        """Its requests, while the block lasts. None: the seed of the specification, else 42.

        Raises ConfigError for what cannot be, and while they are read for rows of a trace that cannot be used.
        """

        workload = read_workload_spec(self, as_key)
        with open_load_trace(self, as_key) if self.trace is not None else nullcontext() as trace:
            yield build_jobs(self, seed, trace, workload, as_key)

    def forbid(self, given: str, others: Iterable[str], spell: KeySpelling) -> None:
        """Raises ConfigError if one of `others` is said beside `given`."""
        for name in others:
            if getattr(self, name) is not None:
                raise ConfigError(f"{spell(name)} does not go with {spell(given)}", hint=usage_hint(spell))

    def rate_factor(self, spell: KeySpelling) -> float:
        """1 if nothing is said of a `rate_scale`. Raises ConfigError for a factor that cannot be one."""
        from maitred.workload.transforms import check_scale

        return 1.0 if self.rate_scale is None else check_scale(self.rate_scale, spell("rate_scale"))


DEFAULT_SEED: Final = 42


def apply_mixes(load: Load, jobs: Iterable[Job], seed: int, spell: KeySpelling) -> Iterable[Job]:
    """`jobs`, with classes and tenants from the mixes of `load` if it has some. Raises ConfigError for those that cannot be."""
    if load.class_mix is not None:
        jobs = with_class_mix(jobs, parse_class_mix(load.class_mix, where=spell("class_mix")), seed)
    if load.tenant_mix is not None:
        jobs = with_tenant_mix(jobs, parse_tenant_mix(load.tenant_mix, where=spell("tenant_mix")), seed)
    return jobs


_MAX_THINK_TIME_MS: Final = 1e11


def open_load_trace(load: Load, spell: KeySpelling) -> Trace:
    """Its trace. Raises ConfigError for one that cannot be read, and for keys that do not go with a trace."""
    assert load.trace is not None
    load.forbid("trace", SYNTHETIC_KEYS, spell)
    if load.max_requests is not None and not 0 <= load.max_requests <= MAX_REQUESTS:
        hint = f"from 0 to {MAX_REQUESTS:.0e}"
        raise ConfigError(f"{load.max_requests} requests cannot be read", where=spell("max_requests"), hint=hint)
    header = None if load.trace_header is None else Path(load.trace_header)
    return open_trace(load.trace, bad_rows=BadRows.SKIP if load.skip_bad_rows else BadRows.REFUSE, header=header)


def recorded_jobs(load: Load, trace: Trace, seed: int, spell: KeySpelling) -> Iterable[Job]:
    """Those of `trace`, as `load` wants them; classes and tenants are drawn by `seed`. Raises ConfigError."""
    return apply_mixes(load, _replayed_jobs(load, trace, spell), seed, spell)


def _replayed_jobs(load: Load, trace: Trace, spell: KeySpelling) -> Iterable[Job]:
    if load.session_mode == "closed-loop":
        return _closed_loop_replay(load, trace, spell)
    if load.session_mode not in (None, "open", "fixed"):
        hint = nearest_name_hint(load.session_mode, ("open", "fixed", "closed-loop"))
        raise ConfigError(f"unknown session mode {load.session_mode!r}", where=spell("session_mode"), hint=hint)
    for name in ("think_time_ms", "concurrent_sessions"):
        if getattr(load, name) is not None:
            hint = f"it goes with {spell('session_mode')} closed-loop"
            raise ConfigError("nobody waits for an answer", where=spell(name), hint=hint)
    jobs = islice(trace, load.max_requests)
    return jobs if load.rate_scale is None else scale_rate(jobs, load.rate_factor(spell))


def _closed_loop_replay(load: Load, trace: Trace, spell: KeySpelling) -> Iterable[Job]:
    pause, limit = load.think_time_ms, load.concurrent_sessions
    if pause is not None and not 0 <= pause <= _MAX_THINK_TIME_MS:
        raise ConfigError(f"{pause:g} cannot be used", where=spell("think_time_ms"), hint=f"from 0 to {_MAX_THINK_TIME_MS:g}")
    if limit is not None and limit < 1:
        raise ConfigError(f"{limit} sessions cannot be open", where=spell("concurrent_sessions"), hint="1 or more")
    think = None if pause is None else from_ms(pause)
    return trace.closed_loop(
        think_time=think, max_sessions=limit, max_rows=load.max_requests, rate_scale=load.rate_factor(spell)
    )


class ClampedNormalParams(msgspec.Struct, frozen=True):
    """Lengths as BLIS's flags have them: normal, clamped to low..high. In tokens."""

    mean: float
    deviation: float
    low: int
    high: int

    def __str__(self) -> str:
        """As users write it."""
        return f"gaussian:{self.mean:g},{self.deviation:g},{self.low},{self.high}"


class LengthPreset(msgspec.Struct, frozen=True):
    """A kind of work."""

    prompts: ClampedNormalParams
    outputs: ClampedNormalParams


DEFAULT_PRESET: Final = LengthPreset(ClampedNormalParams(512, 256, 2, 7000), ClampedNormalParams(512, 256, 2, 7000))
"""BLIS's, where nothing is said."""

PRESETS: Final[Mapping[str, LengthPreset]] = {
    "distribution": DEFAULT_PRESET,
    "chatbot": LengthPreset(ClampedNormalParams(256, 100, 2, 800), ClampedNormalParams(256, 100, 1, 1024)),
    "contentgen": LengthPreset(ClampedNormalParams(1024, 150, 10, 2048), ClampedNormalParams(1024, 200, 10, 2048)),
    "summarization": LengthPreset(ClampedNormalParams(4096, 500, 100, 8192), ClampedNormalParams(512, 150, 10, 2048)),
    "multidoc": LengthPreset(ClampedNormalParams(10240, 1200, 500, 20480), ClampedNormalParams(1536, 300, 50, 4096)),
}


_DEFAULT_LENGTHS: Final = "normal:512,256"


def read_workload_spec(load: Load, spell: KeySpelling) -> Workload | None:
    """What `workload_spec` says; None: it is not there. Raises ConfigError for a file that is wrong."""
    if load.workload_spec is None:
        return None
    own = {"workload_spec", "num_requests"}
    others = (*(name for name in SYNTHETIC_KEYS if name not in own), *TRACE_KEYS, "think_time_ms")
    load.forbid("workload_spec", others, spell)
    said = load.workload_spec
    workload = said if isinstance(said, Workload) else Workload.from_yaml(Path(said))
    if load.num_requests is None:
        return workload
    if load.num_requests < 1:
        raise ConfigError(f"{load.num_requests} requests cannot be made", where=spell("num_requests"), hint="1 or more")
    return replace(workload, num_requests=load.num_requests)


def synthetic_jobs(load: Load, seed: int | None, workload: Workload | None, spell: KeySpelling) -> Iterable[Job]:
    """`workload`: its specification, if it has one. Raises ConfigError for what cannot be."""
    if workload is not None:
        return _spec_jobs(load, seed, workload, spell)
    if load.rate is None and load.concurrency is None and load.num_requests is None:
        raise ConfigError("there is no workload", hint=usage_hint(spell))
    if load.rate is None and load.concurrency is None:
        raise ConfigError(f"{spell('rate')} is missing", hint=usage_hint(spell))
    if load.num_requests is None:
        raise ConfigError(f"{spell('num_requests')} is missing", hint=usage_hint(spell))
    begun = _open_loop_jobs if load.concurrency is None else _closed_loop_jobs
    try:
        return begun(load, load.num_requests, DEFAULT_SEED if seed is None else seed, spell)
    except _ArgumentError as error:
        raise ConfigError(error.error.problem, where=spell(error.error.where), hint=error.error.hint) from error


class _ArgumentError(Exception):
    """A ConfigError whose `where` is the name of an argument, and keys are called after their arguments."""

    def __init__(self, of: ConfigError) -> None:
        self.error = of


def _spec_jobs(load: Load, seed: int | None, workload: Workload, spell: KeySpelling) -> Iterable[Job]:
    seed = workload.seed if seed is None else seed
    return apply_mixes(load, workload.jobs(seed=seed, rate_scale=load.rate_factor(spell)), seed, spell)


def _open_loop_jobs(load: Load, num_requests: int, seed: int, spell: KeySpelling) -> Iterable[Job]:
    load.forbid("rate", (*TRACE_KEYS, "think_time_ms"), spell)
    assert load.rate is not None
    rate, lengths = load.rate * load.rate_factor(spell), _length_arguments(load, spell)
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


def _closed_loop_jobs(load: Load, num_requests: int, seed: int, spell: KeySpelling) -> Iterable[Job]:
    load.forbid("concurrency", ("rate", "arrival", "rate_scale", *TRACE_KEYS), spell)
    assert load.concurrency is not None
    lengths = _length_arguments(load, spell)
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


def _length_arguments(load: Load, spell: KeySpelling) -> dict[str, str]:
    if load.workload is not None and load.workload not in PRESETS:
        hint = nearest_name_hint(load.workload, PRESETS)
        raise ConfigError(f"unknown kind of workload {load.workload!r}", where=spell("workload"), hint=hint)
    if load.workload is None:
        return _lengths_by_preset(load, None, spell)
    lengths = _lengths_by_preset(load, PRESETS[load.workload], spell)
    if lengths == _lengths_by_preset(load, None, spell) and PRESETS[load.workload] != DEFAULT_PRESET:
        hint = f"leave it out, or {spell('input_tokens')} or {spell('output_tokens')}"
        raise ConfigError("it has no effect: the lengths are said without it", where=spell("workload"), hint=hint)
    return lengths


def _lengths_by_preset(load: Load, preset: LengthPreset | None, spell: KeySpelling) -> dict[str, str]:
    prompts, answers = (None, None) if preset is None else (preset.prompts, preset.outputs)
    return {
        "input_tokens": _length_argument(load, "prompt_tokens", load.input_tokens, prompts, DEFAULT_PRESET.prompts, spell),
        "output_tokens": _length_argument(load, "output_tokens", load.output_tokens, answers, DEFAULT_PRESET.outputs, spell),
    }


def _length_argument(
    load: Load,
    name: str,
    given: str | int | None,
    preset: ClampedNormalParams | None,
    default: ClampedNormalParams,
    spell: KeySpelling,
) -> str:
    """Lengths as BLIS's keys say them, which override a preset one by one; otherwise as `said`."""
    keys = {"deviation": f"{name}_stdev", "low": f"{name}_min", "high": f"{name}_max"}
    values = {part: value for part, key in keys.items() if (value := getattr(load, key)) is not None}
    mean = None if given is None else _as_number(given)
    if not values and (preset is None or (given is not None and mean is None)):
        return _DEFAULT_LENGTHS if given is None else str(given)
    if given is not None and mean is None:
        first = spell(keys[next(iter(values))])
        raise ConfigError(f"{given!r} has a spread of its own", where=first, hint="it goes with a mean, such as 512")
    spread = str(replace(preset or default, **values, **({} if mean is None else {"mean": mean})))
    try:
        parse_lengths(spread)
    except ConfigError as error:
        where = ", ".join(spell(keys[part]) for part in values) or spell("workload")
        raise ConfigError(error.problem, where=where, hint=error.hint) from error
    return spread


def _as_number(text: str | int) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


_SAMPLE_PREFIX = "sample"


def build_jobs(
    load: Load, seed: int | None, trace: Trace | None, workload: Workload | None, spell: KeySpelling
) -> Iterable[Job]:
    """Its requests; `trace` and `workload` are those that `load` names. None: the seed of the specification, else 42.

    Raises ConfigError for what cannot be.
    """
    if trace is None:
        jobs = synthetic_jobs(load, seed, workload, spell)
    else:
        jobs = recorded_jobs(load, trace, DEFAULT_SEED if seed is None else seed, spell)
    if load.timeout_secs is not None:
        jobs = with_timeout(jobs, load.timeout_secs, where=spell("timeout_secs"))
    return jobs if load.time_scale is None else scale_time(jobs, check_scale(load.time_scale, spell("time_scale")))


def describe(load: Load) -> str:
    """In a few words."""
    if load.trace is not None:
        return load.trace
    if load.workload_spec is not None:
        return Path(load.workload_spec).name if isinstance(load.workload_spec, str) else "a specification"
    count = "" if load.num_requests is None else f"{load.num_requests:,} requests"
    return count if load.rate is None else f"{count}, {load.rate:g} per second"


def make_self_contained(load: Load, spell: KeySpelling) -> Load:
    """The same, for a process in another folder: with its specification in it, and the whole path of its trace.

    Raises ConfigError for files that cannot be read, and for whatever else keeps it from being begun.
    """
    workload = read_workload_spec(load, spell)
    if load.trace is None:
        build_jobs(load, None, None, workload, spell)
        return replace(load, workload_spec=workload, num_requests=None) if workload else load
    prefix, colon, _ = load.trace.partition(":")
    with open_load_trace(load, spell) as trace:
        build_jobs(load, None, trace, None, spell)
        path = trace.path.resolve()
    if load.trace_header is not None:
        load = replace(load, trace_header=str(Path(load.trace_header).resolve()))
    if colon and prefix == _SAMPLE_PREFIX:
        return load
    return replace(load, trace=f"{prefix}:{path}" if colon and prefix in FORMATS else str(path))
