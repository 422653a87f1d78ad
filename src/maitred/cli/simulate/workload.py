"""The workload that flags describe: a recorded trace, or a synthetic one."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING

from maitred.cli.simulate.flags import Flags
from maitred.cli.simulate.synthetic import forbid, rate_scale_of, synthetic_jobs
from maitred.cli.simulate.synthetic_flags import NOT_OF_TRACES
from maitred.errors import ConfigError, nearest
from maitred.units import from_ms

if TYPE_CHECKING:
    from maitred.workload import Job, Trace, Workload

_LONGEST_PAUSE_MS = 1e11


def opened(flags: Flags, spec: str) -> Trace:
    from maitred.workload import BadRows, open_trace

    forbid(flags, "--trace", NOT_OF_TRACES)
    if flags.max_requests is not None and flags.max_requests < 0:
        raise ConfigError(f"{flags.max_requests} requests cannot be read", where="--max-requests", hint="0 or more")
    return open_trace(spec, bad_rows=BadRows.SKIP if flags.skip_bad_rows else BadRows.REFUSE)


def described(flags: Flags) -> str:
    """The workload in a few words."""
    if flags.trace is not None:
        return flags.trace
    if flags.workload_spec is not None:
        return flags.workload_spec.name
    count = "" if flags.num_requests is None else f"{flags.num_requests:,} requests"
    return count if flags.rate is None else f"{count}, {flags.rate:g} per second"


def jobs_of(flags: Flags, trace: Trace | None, workload: Workload | None) -> Iterable[Job]:
    jobs = synthetic_jobs(flags, workload) if trace is None else _recorded(flags, trace)
    if flags.time_scale is None:
        return jobs
    from maitred.workload.scaled import checked_scale, time_scaled

    return time_scaled(jobs, checked_scale(flags.time_scale, "--time-scale"))


def _recorded(flags: Flags, trace: Trace) -> Iterable[Job]:
    from maitred.workload import parse_mix, parse_tenant_mix, reclassed, with_tenants

    jobs = _sessions(flags, trace)
    if flags.class_mix is not None:
        jobs = reclassed(jobs, parse_mix(flags.class_mix, where="--class-mix"), flags.run_seed)
    if flags.tenant_mix is not None:
        jobs = with_tenants(jobs, parse_tenant_mix(flags.tenant_mix, where="--tenant-mix"), flags.run_seed)
    return jobs


def _sessions(flags: Flags, trace: Trace) -> Iterable[Job]:
    if flags.session_mode == "closed-loop":
        pause, limit = flags.think_time_ms, flags.concurrent_sessions
        if pause is not None and not 0 <= pause <= _LONGEST_PAUSE_MS:
            raise ConfigError(f"{pause:g} cannot be used", where="--think-time-ms", hint=f"from 0 to {_LONGEST_PAUSE_MS:g}")
        if limit is not None and limit < 1:
            raise ConfigError(f"{limit} sessions cannot be open", where="--concurrent-sessions", hint="1 or more")
        think = None if pause is None else from_ms(pause)
        return trace.closed_loop(think=think, limit=limit, most=flags.max_requests, rate_scale=rate_scale_of(flags))
    if flags.session_mode not in (None, "open", "fixed"):
        hint = nearest(flags.session_mode, ("open", "fixed", "closed-loop"))
        raise ConfigError(f"unknown session mode {flags.session_mode!r}", where="--session-mode", hint=hint)
    for name in ("think_time_ms", "concurrent_sessions"):
        if getattr(flags, name) is not None:
            where = f"--{name.replace('_', '-')}"
            raise ConfigError("nobody waits for an answer", where=where, hint="it goes with --session-mode closed-loop")
    jobs = islice(trace, flags.max_requests)
    if flags.rate_scale is None:
        return jobs
    from maitred.workload import rate_scaled

    return rate_scaled(jobs, rate_scale_of(flags))
