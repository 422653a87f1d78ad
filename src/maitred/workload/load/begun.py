"""Any load, begun."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from maitred.workload.job import Job
from maitred.workload.load.keys import Load
from maitred.workload.load.mixed import USUAL_SEED
from maitred.workload.load.naming import Naming
from maitred.workload.load.recorded import opened, recorded_jobs
from maitred.workload.load.synthetic import specification, synthetic_jobs
from maitred.workload.row import FORMATS
from maitred.workload.scaled import checked_scale, time_scaled
from maitred.workload.spec import Workload
from maitred.workload.timeouts import with_timeout
from maitred.workload.trace import Trace

_SAMPLE = "sample"


def jobs_of(load: Load, seed: int | None, trace: Trace | None, workload: Workload | None, call: Naming) -> Iterable[Job]:
    """Its requests; `trace` and `workload` are those that `load` names. None: the seed of the specification, else 42.

    Raises ConfigError for what cannot be.
    """
    if trace is None:
        jobs = synthetic_jobs(load, seed, workload, call)
    else:
        jobs = recorded_jobs(load, trace, USUAL_SEED if seed is None else seed, call)
    if load.timeout_secs is not None:
        jobs = with_timeout(jobs, load.timeout_secs, where=call("timeout_secs"))
    return jobs if load.time_scale is None else time_scaled(jobs, checked_scale(load.time_scale, call("time_scale")))


def described(load: Load) -> str:
    """In a few words."""
    if load.trace is not None:
        return load.trace
    if load.workload_spec is not None:
        return Path(load.workload_spec).name if isinstance(load.workload_spec, str) else "a specification"
    count = "" if load.num_requests is None else f"{load.num_requests:,} requests"
    return count if load.rate is None else f"{count}, {load.rate:g} per second"


def on_its_own(load: Load, call: Naming) -> Load:
    """The same, for a process in another folder: with its specification in it, and the whole path of its trace.

    Raises ConfigError for files that cannot be read, and for whatever else keeps it from being begun.
    """
    workload = specification(load, call)
    if load.trace is None:
        jobs_of(load, None, None, workload, call)
        return replace(load, workload_spec=workload, num_requests=None) if workload else load
    prefix, colon, _ = load.trace.partition(":")
    with opened(load, call) as trace:
        jobs_of(load, None, trace, None, call)
        path = trace.path.resolve()
    if load.trace_header is not None:
        load = replace(load, trace_header=str(Path(load.trace_header).resolve()))
    if colon and prefix == _SAMPLE:
        return load
    return replace(load, trace=f"{prefix}:{path}" if colon and prefix in FORMATS else str(path))
