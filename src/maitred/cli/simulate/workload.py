"""The workload that flags describe: a recorded trace, or a synthetic one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from maitred.cli.simulate.config import of_flag
from maitred.cli.simulate.flags import Flags
from maitred.errors import ConfigError, nearest
from maitred.units import from_ms

if TYPE_CHECKING:
    from maitred.workload import Job, Trace

_USAGE = "give --trace FORMAT:FILE, or --rate RATE --num-requests N"
_LONGEST_PAUSE_MS = 1e11
_DEFAULT_LENGTHS = "normal:512,256"


def opened(flags: Flags, spec: str) -> Trace:
    from maitred.workload import BadRows, open_trace

    _forbid(flags, "--trace", ("rate", "num_requests", "input_tokens", "output_tokens"))
    if flags.max_requests is not None and flags.max_requests < 0:
        raise ConfigError(f"{flags.max_requests} requests cannot be read", where="--max-requests", hint="0 or more")
    return open_trace(spec, bad_rows=BadRows.SKIP if flags.skip_bad_rows else BadRows.REFUSE)


def jobs_of(flags: Flags, trace: Trace | None) -> Iterable[Job]:
    if trace is None:
        return _synthetic(flags)
    from maitred.workload import parse_mix, parse_tenant_mix, reclassed, with_tenants

    jobs = _sessions(flags, trace)
    if flags.class_mix is not None:
        jobs = reclassed(jobs, parse_mix(flags.class_mix, where="--class-mix"), flags.seed)
    if flags.tenant_mix is not None:
        jobs = with_tenants(jobs, parse_tenant_mix(flags.tenant_mix, where="--tenant-mix"), flags.seed)
    return jobs


def _sessions(flags: Flags, trace: Trace) -> Iterable[Job]:
    if flags.session_mode == "closed-loop":
        pause, limit = flags.think_time_ms, flags.max_sessions
        if pause is not None and not 0 <= pause <= _LONGEST_PAUSE_MS:
            raise ConfigError(f"{pause:g} cannot be used", where="--think-time-ms", hint=f"from 0 to {_LONGEST_PAUSE_MS:g}")
        if limit is not None and limit < 1:
            raise ConfigError(f"{limit} sessions cannot be open", where="--max-sessions", hint="1 or more")
        return trace.closed_loop(think=None if pause is None else from_ms(pause), limit=limit, most=flags.max_requests)
    if flags.session_mode not in (None, "open"):
        hint = nearest(flags.session_mode, ("open", "closed-loop"))
        raise ConfigError(f"unknown session mode {flags.session_mode!r}", where="--session-mode", hint=hint)
    for name in ("think_time_ms", "max_sessions"):
        if getattr(flags, name) is not None:
            where = f"--{name.replace('_', '-')}"
            raise ConfigError("nobody waits for an answer", where=where, hint="it goes with --session-mode closed-loop")
    return islice(trace, flags.max_requests)


def _synthetic(flags: Flags) -> Iterator[Job]:
    from maitred.workload import synthetic

    if flags.rate is None and flags.num_requests is None:
        raise ConfigError("there is no workload", hint=_USAGE)
    if flags.rate is None or flags.num_requests is None:
        missing = "--rate" if flags.rate is None else "--num-requests"
        raise ConfigError(f"{missing} is missing", hint=_USAGE)
    _forbid(flags, "--rate", ("max_requests", "skip_bad_rows", "session_mode", "think_time_ms", "max_sessions"))
    try:
        return synthetic(
            flags.rate,
            flags.num_requests,
            seed=flags.seed,
            input_tokens=_DEFAULT_LENGTHS if flags.input_tokens is None else flags.input_tokens,
            output_tokens=_DEFAULT_LENGTHS if flags.output_tokens is None else flags.output_tokens,
            class_mix=flags.class_mix,
            tenant_mix=flags.tenant_mix,
        )
    except ConfigError as error:  # it names the argument, and a flag is called after its argument
        raise of_flag(f"--{error.where.replace('_', '-')}", error) from error


def _forbid(flags: Flags, given: str, others: tuple[str, ...]) -> None:
    for name in others:
        if getattr(flags, name) is not None:
            raise ConfigError(f"--{name.replace('_', '-')} does not go with {given}", hint=_USAGE)
