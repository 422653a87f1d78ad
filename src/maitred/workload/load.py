"""A load: what arrives, described by keys. They are the workload flags of `maitred simulate` and the section `workload` of a
study.

A load is a trace, a specification, requests at a rate, or the users of a closed loop. Each excludes the keys of the others
(`Load.forbid`). The reader of the keys passes a `KeySpelling`, so that an error names a key as the user wrote it: `--rate` for
a flag, `rate` in a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import asdict, replace

from maitred.core.errors import ConfigError, located, nearest_name_hint
from maitred.core.field_types import check_field_types
from maitred.core.units import from_ms
from maitred.workload.job import Job
from maitred.workload.spec import MAX_REQUESTS, Workload
from maitred.workload.synthetic import agent_programs, closed_loop, length_arguments, synthetic
from maitred.workload.trace import SAMPLE, BadRows, Trace, open_trace, split_trace_spec
from maitred.workload.transforms import check_scale, parse_mixes, scale_rate, scale_time, with_mixes, with_timeout

DEFAULT_SEED: Final = 42
_MAX_THINK_TIME_MS: Final = 1e11

TRACE_KEYS: Final = ("trace_header", "max_requests", "skip_bad_rows", "session_mode", "concurrent_sessions")
"""Keys that go with a trace only."""
PROGRAM_KEYS: Final = ("num_programs", "turns", "start_tokens", "tool_time_ms")
"""Keys that go with synthetic agent programs only."""
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
"""Keys that do not go with a trace, which has these values itself."""


def check_load(load: Load) -> None:
    """Raise ConfigError for a key of another type: a program may make a `Load` of anything."""
    if type(load.trace) not in (str, type(None)):
        hint = "give a Load(rate=...), or a trace"
        raise ConfigError(f"a {type(load.trace).__name__} is no load", where="workload", hint=hint)
    try:
        check_field_types(load)
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error), where="workload") from error


KeySpelling: TypeAlias = Callable[[str], str]
"""A function from a key to what the user calls it."""


def as_flag(key: str) -> str:
    """Return the key as a flag: `--rate`."""
    return f"--{key.replace('_', '-')}"


def as_key(key: str) -> str:
    """Return the key as it is."""
    return key


def usage_hint(spell: KeySpelling) -> str:
    """Return the hint of an error that says which keys a load needs at least."""
    of_traces, of_specs = f"{spell('trace')} FORMAT:FILE", f"{spell('workload_spec')} FILE"
    of_rates = f"{spell('rate')} RATE (or {spell('concurrency')} N) and {spell('num_requests')} N"
    return f"give {of_traces}, {of_specs}, {spell('programs')} N, or {of_rates}"


class Load(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A recorded trace, a specification, requests at a rate, or the users of a closed loop. A key that is None is not given.

    `jobs(seed)` opens the load; the same seed gives the same requests again.
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
    """In place of `rate`: the number of users. Each waits for a response before the next request."""
    num_requests: int | None = None
    """Requests that arrive."""
    programs: int | None = None
    """In place of `rate`: agent programs at once. Each is a session of turns; the next one starts when one ends. With a trace:
    its sessions in a closed loop, this many at once."""
    num_programs: int | None = None
    """Agent programs in all. Null: as many as there are at once, unless `num_requests` says when it ends."""
    turns: str | int | None = None
    """Turns of an agent program, written as lengths are. Null: uniform:20,60."""
    start_tokens: str | int | None = None
    """Prompt tokens of its first turn, beside `prefix_tokens`; each later one adds `input_tokens` to all before it. Null:
    lognormal:3000,2000."""
    tool_time_ms: str | int | None = None
    """Time from a response to its next turn, in ms and written as lengths are, such as quantiles:300,2000,10000,60000. Null:
    lognormal:1000,2000."""
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
    """Factor on the density of arrivals; think times, deadlines and users stay."""
    time_scale: float | None = None
    """Factor on all times: arrivals, think times, deadlines, targets."""

    @contextmanager
    def jobs(self, seed: int | None = None) -> Iterator[Iterable[Job]]:
        """Open the load and return its requests, in a `with` block. `seed` defaults to that of the specification, else 42.

        Raises ConfigError for keys that are wrong, and, while the requests are read, for rows of a trace that cannot be used.
        """
        workload = read_workload_spec(self, as_key)
        with open_load_trace(self, as_key) if self.trace is not None else nullcontext() as trace:
            yield build_jobs(self, seed, trace, workload, as_key)

    def forbid(self, given: str, others: Iterable[str], spell: KeySpelling) -> None:
        """Raise ConfigError if one of the keys `others` is given together with the key `given`."""
        for name in others:
            if getattr(self, name) is not None:
                raise ConfigError(f"{spell(name)} does not go with {spell(given)}", hint=usage_hint(spell))

    def rate_factor(self, spell: KeySpelling) -> float:
        """Return the `rate_scale`, or 1. Raises ConfigError for a factor out of range."""
        return 1.0 if self.rate_scale is None else check_scale(self.rate_scale, spell("rate_scale"))


def open_load_trace(load: Load, spell: KeySpelling) -> Trace:
    """Open the trace of the load. Raises ConfigError if it cannot be read, and for keys that do not go with a trace."""
    assert load.trace is not None
    load.forbid("trace", (*SYNTHETIC_KEYS, *PROGRAM_KEYS), spell)
    if load.max_requests is not None and not 0 <= load.max_requests <= MAX_REQUESTS:
        hint = f"from 0 to {MAX_REQUESTS:.0e}"
        raise ConfigError(f"{load.max_requests} requests cannot be read", where=spell("max_requests"), hint=hint)
    header = None if load.trace_header is None else Path(load.trace_header)
    return open_trace(load.trace, bad_rows=BadRows.SKIP if load.skip_bad_rows else BadRows.REFUSE, header=header)


_NOT_BESIDE_SPEC: Final = tuple(
    name
    for name in (*SYNTHETIC_KEYS, "programs", *PROGRAM_KEYS, *TRACE_KEYS, "think_time_ms")
    if name not in ("workload_spec", "num_requests")
)
"""The keys that do not go with a specification, which has its own."""


def read_workload_spec(load: Load, spell: KeySpelling) -> Workload | None:
    """Return the specification of the load, or None if it has none. Raises ConfigError for a file with mistakes."""
    if load.workload_spec is None:
        return None
    load.forbid("workload_spec", _NOT_BESIDE_SPEC, spell)
    spec = load.workload_spec
    workload = spec if isinstance(spec, Workload) else Workload.from_yaml(Path(spec))
    if load.num_requests is None:
        return workload
    if load.num_requests < 1:
        raise ConfigError(f"{load.num_requests} requests cannot be made", where=spell("num_requests"), hint="1 or more")
    return replace(workload, num_requests=load.num_requests)


def build_jobs(
    load: Load, seed: int | None, trace: Trace | None, workload: Workload | None, spell: KeySpelling
) -> Iterable[Job]:
    """Return the requests of the load. `trace` and `workload` are those that the load names.

    `seed` defaults to that of the specification, else 42. Raises ConfigError for keys that are wrong.
    """
    if trace is not None:
        jobs = _trace_jobs(load, trace, spell)
    elif workload is not None:
        seed = workload.seed if seed is None else seed
        jobs = workload.jobs(seed=seed, rate_scale=load.rate_factor(spell))
    else:
        jobs = _synthetic_jobs(load, DEFAULT_SEED if seed is None else seed, spell)
    # Requests at a rate draw their classes and tenants as they are made.
    if trace is not None or workload is not None:
        mixes = parse_mixes(load.class_mix, load.tenant_mix, spell)
        jobs = with_mixes(jobs, mixes, DEFAULT_SEED if seed is None else seed)
    # Before the time scale, which stretches deadlines too.
    if load.timeout_secs is not None:
        jobs = with_timeout(jobs, load.timeout_secs, where=spell("timeout_secs"))
    return jobs if load.time_scale is None else scale_time(jobs, check_scale(load.time_scale, spell("time_scale")))


def _trace_jobs(load: Load, trace: Trace, spell: KeySpelling) -> Iterable[Job]:
    if load.programs is not None:
        if load.session_mode not in (None, "closed-loop"):
            raise ConfigError("no program waits for a response", where=spell("session_mode"), hint="leave it out")
        load.forbid("programs", ("concurrent_sessions",), spell)
        if load.programs < 1:
            raise ConfigError(f"there cannot be {load.programs} programs at once", where=spell("programs"), hint="1 or more")
        return _closed_loop_replay(load, trace, load.programs, spell)
    if load.session_mode == "closed-loop":
        return _closed_loop_replay(load, trace, load.concurrent_sessions, spell)
    _check_open_loop(load, spell)
    jobs = islice(trace, load.max_requests)
    return jobs if load.rate_scale is None else scale_rate(jobs, load.rate_factor(spell))


def _check_open_loop(load: Load, spell: KeySpelling) -> None:
    """Raise ConfigError for a mode that does not exist, and for a key that only a closed loop has."""
    if load.session_mode not in (None, "open", "fixed"):
        hint = nearest_name_hint(load.session_mode, ("open", "fixed", "closed-loop"))
        raise ConfigError(f"unknown session mode {load.session_mode!r}", where=spell("session_mode"), hint=hint)
    for name in ("think_time_ms", "concurrent_sessions"):
        if getattr(load, name) is not None:
            hint = f"it goes with {spell('session_mode')} closed-loop"
            raise ConfigError("no request waits for an answer", where=spell(name), hint=hint)


def _closed_loop_replay(load: Load, trace: Trace, limit: int | None, spell: KeySpelling) -> Iterable[Job]:
    think_ms = load.think_time_ms
    if think_ms is not None and not 0 <= think_ms <= _MAX_THINK_TIME_MS:
        hint = f"from 0 to {_MAX_THINK_TIME_MS:g}"
        raise ConfigError(f"{think_ms:g} cannot be used", where=spell("think_time_ms"), hint=hint)
    if limit is not None and limit < 1:
        raise ConfigError(f"{limit} sessions cannot be open", where=spell("concurrent_sessions"), hint="1 or more")
    think_time, factor = None if think_ms is None else from_ms(think_ms), load.rate_factor(spell)
    return trace.closed_loop(think_time=think_time, max_sessions=limit, max_rows=load.max_requests, rate_scale=factor)


def _synthetic_jobs(load: Load, seed: int, spell: KeySpelling) -> Iterable[Job]:
    if load.programs is not None:
        return _program_jobs(load, seed, spell)
    for name in PROGRAM_KEYS:
        if getattr(load, name) is not None:
            raise ConfigError("it goes with agent programs", where=spell(name), hint=f"give {spell('programs')} N")
    if load.rate is None and load.concurrency is None and load.num_requests is None:
        raise ConfigError("there is no workload", hint=usage_hint(spell))
    if load.rate is None and load.concurrency is None:
        raise ConfigError(f"{spell('rate')} is missing", hint=usage_hint(spell))
    if load.num_requests is None:
        raise ConfigError(f"{spell('num_requests')} is missing", hint=usage_hint(spell))
    make = _open_loop_jobs if load.concurrency is None else _closed_loop_jobs
    return make(load, load.num_requests, seed, spell)


def _open_loop_jobs(load: Load, num_requests: int, seed: int, spell: KeySpelling) -> Iterable[Job]:
    load.forbid("rate", (*TRACE_KEYS, "think_time_ms"), spell)
    assert load.rate is not None
    rate, arguments = load.rate * load.rate_factor(spell), _common_arguments(load, seed, spell)
    with located(spell):  # An argument has the name of its key.
        return synthetic(rate, num_requests, arrival="poisson" if load.arrival is None else load.arrival, **arguments)


def _closed_loop_jobs(load: Load, num_requests: int, seed: int, spell: KeySpelling) -> Iterable[Job]:
    load.forbid("concurrency", ("rate", "arrival", "rate_scale", *TRACE_KEYS), spell)
    assert load.concurrency is not None
    arguments = _common_arguments(load, seed, spell)
    with located(spell):
        return closed_loop(load.concurrency, num_requests, think_time_ms=load.think_time_ms or 0.0, **arguments)


def _program_jobs(load: Load, seed: int, spell: KeySpelling) -> Iterable[Job]:
    load.forbid("programs", ("rate", "concurrency", "arrival", "rate_scale", "think_time_ms", *TRACE_KEYS), spell)
    assert load.programs is not None
    given = {name: value for name in PROGRAM_KEYS if (value := getattr(load, name)) is not None}
    arguments = given | _common_arguments(load, seed, spell)
    with located(spell):
        return agent_programs(load.programs, num_requests=load.num_requests, **arguments)


def _common_arguments(load: Load, seed: int, spell: KeySpelling) -> dict[str, Any]:
    """Return the arguments that all generated workloads take."""
    return {
        "seed": seed,
        **length_arguments(asdict(load), spell),
        "prefix_tokens": load.prefix_tokens or 0,
        "class_mix": load.class_mix,
        "tenant_mix": load.tenant_mix,
    }


def describe(load: Load) -> str:
    """Return the load in a few words, for titles."""
    if load.trace is not None:
        return load.trace
    if load.workload_spec is not None:
        return Path(load.workload_spec).name if isinstance(load.workload_spec, str) else "a specification"
    if load.programs is not None:
        return f"{load.programs:,} agent programs at once"
    count = "" if load.num_requests is None else f"{load.num_requests:,} requests"
    return count if load.rate is None else f"{count}, {load.rate:g} per second"


def make_self_contained(load: Load, spell: KeySpelling) -> Load:
    """Return the load for a process in another folder: with its specification inside, and the absolute path of its trace.

    Raises ConfigError for files that cannot be read, and for every other mistake that would show when the load is opened.
    """
    workload = read_workload_spec(load, spell)
    if load.trace is None:
        build_jobs(load, None, None, workload, spell)
        return replace(load, workload_spec=workload, num_requests=None) if workload else load
    with open_load_trace(load, spell) as trace:
        build_jobs(load, None, trace, None, spell)
        path = trace.path.resolve()
    return _with_absolute_paths(load, load.trace, path)


def trace_files(load: Load) -> Sequence[Path]:
    """Return the files that a self-contained load is read from; none if they come with maitred. Raises ConfigError."""
    if load.trace is None or split_trace_spec(load.trace)[0] == SAMPLE:
        return ()
    with open_load_trace(load, as_key) as trace:
        return trace.files


def _with_absolute_paths(load: Load, name: str, path: Path) -> Load:
    """Return the load with the trace `name`, which is at `path`, and its header by their absolute paths."""
    if load.trace_header is not None:
        load = replace(load, trace_header=str(Path(load.trace_header).resolve()))
    written, _ = split_trace_spec(name)
    if written == SAMPLE:
        return load
    return replace(load, trace=f"{written}:{path}" if written else str(path))
