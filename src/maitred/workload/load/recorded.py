"""A load that was recorded."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Final

from maitred.errors import ConfigError, nearest
from maitred.units import from_ms
from maitred.workload.job import Job
from maitred.workload.load.keys import NOT_OF_TRACES, Load
from maitred.workload.load.mixed import mixed
from maitred.workload.load.naming import Naming
from maitred.workload.scaled import rate_scaled
from maitred.workload.spec import MOST_REQUESTS
from maitred.workload.trace import BadRows, Trace, open_trace

_LONGEST_PAUSE_MS: Final = 1e11


def opened(load: Load, call: Naming) -> Trace:
    """Its trace. Raises ConfigError for one that cannot be read, and for keys that do not go with a trace."""
    assert load.trace is not None
    load.forbid("trace", NOT_OF_TRACES, call)
    if load.max_requests is not None and not 0 <= load.max_requests <= MOST_REQUESTS:
        hint = f"from 0 to {MOST_REQUESTS:.0e}"
        raise ConfigError(f"{load.max_requests} requests cannot be read", where=call("max_requests"), hint=hint)
    header = None if load.trace_header is None else Path(load.trace_header)
    return open_trace(load.trace, bad_rows=BadRows.SKIP if load.skip_bad_rows else BadRows.REFUSE, header=header)


def recorded_jobs(load: Load, trace: Trace, seed: int, call: Naming) -> Iterable[Job]:
    """Those of `trace`, as `load` wants them; classes and tenants are drawn by `seed`. Raises ConfigError."""
    return mixed(load, _sessions(load, trace, call), seed, call)


def _sessions(load: Load, trace: Trace, call: Naming) -> Iterable[Job]:
    if load.session_mode == "closed-loop":
        return _closed_loop(load, trace, call)
    if load.session_mode not in (None, "open", "fixed"):
        hint = nearest(load.session_mode, ("open", "fixed", "closed-loop"))
        raise ConfigError(f"unknown session mode {load.session_mode!r}", where=call("session_mode"), hint=hint)
    for name in ("think_time_ms", "concurrent_sessions"):
        if getattr(load, name) is not None:
            hint = f"it goes with {call('session_mode')} closed-loop"
            raise ConfigError("nobody waits for an answer", where=call(name), hint=hint)
    jobs = islice(trace, load.max_requests)
    return jobs if load.rate_scale is None else rate_scaled(jobs, load.rate_factor(call))


def _closed_loop(load: Load, trace: Trace, call: Naming) -> Iterable[Job]:
    pause, limit = load.think_time_ms, load.concurrent_sessions
    if pause is not None and not 0 <= pause <= _LONGEST_PAUSE_MS:
        raise ConfigError(f"{pause:g} cannot be used", where=call("think_time_ms"), hint=f"from 0 to {_LONGEST_PAUSE_MS:g}")
    if limit is not None and limit < 1:
        raise ConfigError(f"{limit} sessions cannot be open", where=call("concurrent_sessions"), hint="1 or more")
    think = None if pause is None else from_ms(pause)
    return trace.closed_loop(think=think, limit=limit, most=load.max_requests, rate_scale=load.rate_factor(call))
