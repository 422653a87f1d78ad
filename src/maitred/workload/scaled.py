"""The same workload denser, or slower.

    rate scale F    arrivals F times as dense. Jobs that come at times of their own come at 1/F of them; nothing else changes:
                    pauses, deadlines and how many users there are stay.
    time scale F    everything in time takes F times as long: arrivals, pauses, deadlines and targets. On instances that are
                    F times as slow, all times of a run are F times what they were.

Who waits for answers is made denser where he is made: `Workload.jobs(rate_scale=F)` multiplies rates and leaves windows where
they are, `Trace.closed_loop(rate_scale=F)` begins sessions more densely and leaves their pauses.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from maitred.errors import ConfigError
from maitred.request import Request
from maitred.units import Micros
from maitred.workload.job import Job
from maitred.workload.reactive import Reactive

LEAST, MOST = 1e-6, 1e6


def checked_scale(factor: float, where: str) -> float:
    """Raises ConfigError for a factor that cannot be one."""
    if not LEAST <= factor <= MOST:
        raise ConfigError(
            f"{factor:g} cannot be used", where=where, hint=f"a factor from {LEAST:g} to {MOST:g}; 1 changes nothing"
        )
    return factor


def rate_scaled(jobs: Iterable[Job], factor: float) -> Iterator[Job]:
    """Arrivals `factor` times as dense. Raises ConfigError for a factor that cannot be one, and for jobs that react."""
    checked_scale(factor, "rate_scale")
    if isinstance(jobs, Reactive):
        hint = "give the rate_scale to Workload.jobs or Trace.closed_loop"
        raise ConfigError("a workload that waits for answers has no arrivals to be scaled", where="rate_scale", hint=hint)
    return (_denser(job, factor) for job in jobs)


def time_scaled(jobs: Iterable[Job], factor: float) -> Iterable[Job]:
    """Everything in time `factor` times as long. Raises ConfigError for a factor that cannot be one."""
    checked_scale(factor, "time_scale")
    return _Slower(jobs, factor) if isinstance(jobs, Reactive) else (_slower(job, factor) for job in jobs)


def _denser(job: Job, factor: float) -> Job:
    request = job.request
    arrival = round(request.arrival / factor)
    deadline = None if request.deadline is None else request.deadline + arrival - request.arrival
    return Job(replace(request, arrival=arrival, deadline=deadline), job.output_tokens, job.whole)


def _slower(job: Job, factor: float) -> Job:
    request = job.request
    arrival = round(request.arrival * factor)
    deadline = None if request.deadline is None else arrival + round((request.deadline - request.arrival) * factor)
    target = None if request.slo_target is None else round(request.slo_target * factor)
    return Job(replace(request, arrival=arrival, deadline=deadline, slo_target=target), job.output_tokens, job.whole)


class _Slower:
    """The workload lives by a clock of its own, which goes `factor` times as slow as the driver's."""

    def __init__(self, jobs: Reactive, factor: float) -> None:
        self._jobs, self._factor = jobs, factor

    def __iter__(self) -> Iterator[Job]:
        return (_slower(job, self._factor) for job in self._jobs)

    def ended(self, request: Request, completed: bool, output_tokens: int, now: Micros) -> Iterator[Job]:
        its_now = math.ceil(now / self._factor)
        for job in self._jobs.ended(request, completed, output_tokens, its_now):
            slower = _slower(job, self._factor)
            late = max(0, now - slower.request.arrival)  # a rounding
            yield Job(replace(slower.request, arrival=slower.request.arrival + late), job.output_tokens, job.whole)
