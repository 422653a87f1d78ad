"""A workload with each job changed as it comes, reactive if it was.

Mixes: which share of a workload is of which class, or of which tenant, as users write it: `interactive:0.3,bulk:0.7`.

The same workload denser, or slower.

    rate scale F    arrivals F times as dense. Jobs that come at times of their own come at 1/F of them; nothing else changes:
                    pauses, deadlines and how many users there are stay.
    time scale F    everything in time takes F times as long: arrivals, pauses, deadlines and targets. On instances that are
                    F times as slow, all times of a run are F times what they were.

Who waits for answers is made denser where he is made: `Workload.jobs(rate_scale=F)` multiplies rates and leaves windows where
they are, `Trace.closed_loop(rate_scale=F)` begins sessions more densely and leaves their pauses.

How long clients wait for an answer before they leave, said for a whole workload in place of what it says itself.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from random import Random
from typing import Final, Generic, TypeAlias, TypeVar

from msgspec.structs import replace

from maitred.admission.tenant_names import tenant_problem
from maitred.core.errors import ConfigError, nearest_name_hint
from maitred.core.request import PriorityClass, Request
from maitred.core.units import Micros, from_seconds
from maitred.workload.job import Job, ReactiveWorkload
from maitred.workload.lengths import UnitDraw

JobTransform: TypeAlias = Callable[[Job], Job]
"""Leaves id, arrival and program as they are."""


def map_jobs(jobs: Iterable[Job], transform: JobTransform) -> Iterable[Job]:
    return _MappedWorkload(jobs, transform) if isinstance(jobs, ReactiveWorkload) else map(transform, jobs)


class _MappedWorkload:
    def __init__(self, jobs: ReactiveWorkload, change: JobTransform) -> None:
        self._jobs = jobs
        self._transform = change

    def __iter__(self) -> Iterator[Job]:
        return map(self._transform, self._jobs)

    def on_request_end(self, request: Request, completed: bool, output_tokens: int, now: Micros) -> Iterable[Job]:
        return [self._transform(job) for job in self._jobs.on_request_end(request, completed, output_tokens, now)]


T = TypeVar("T")


class Mix(Generic[T]):
    """Draws by shares. The shares are relative: they need not add up to 1."""

    def __init__(self, shares: Mapping[T, float]) -> None:
        """Raises ValueError unless the shares are finite, not negative, and some is above 0."""
        total = sum(shares.values())
        if not all(0 <= share < float("inf") for share in shares.values()) or not 0 < total < float("inf"):
            raise ValueError("shares must be numbers of 0 or more, and not all of them 0")
        present = {kind: share for kind, share in shares.items() if share}
        self._labels = list(present)
        self._bounds = list(accumulate(share / total for share in present.values()))[:-1]

    def draw(self, uniform: UnitDraw) -> T:
        return self._labels[bisect_right(self._bounds, uniform())]


ClassMix: TypeAlias = Mix[PriorityClass]
TenantMix: TypeAlias = Mix[str]


def parse_class_mix(text: str, *, where: str = "") -> ClassMix:
    """`interactive:0.3,bulk:0.7`. Raises ConfigError that says what is right."""

    def named(label: str) -> PriorityClass:
        cls = PriorityClass.from_label(label)
        if cls is None:
            hint = nearest_name_hint(label, (known.label for known in PriorityClass))
            raise ConfigError(f"unknown class {label!r} in {text!r}", where=where, hint=hint)
        return cls

    form = "write it as interactive:0.3,bulk:0.7; the shares are relative"
    return _parse_shares(text, lambda part: part.partition(":"), named, "class", where, form)


def parse_tenant_mix(text: str, *, where: str = "") -> TenantMix:
    """`auth:acme:0.3,auth:globex:0.7`: tenants as policies name them. Raises ConfigError that says what is right."""
    form = "write it as auth:acme:0.3,auth:globex:0.7; the shares are relative"

    def named(tenant: str) -> str:
        problem = tenant_problem(tenant)
        if problem:
            raise ConfigError(f"{problem} (in {text!r})", where=where, hint=form)
        return tenant

    return _parse_shares(text, lambda part: part.rpartition(":"), named, "tenant", where, form)


def _parse_shares(
    text: str, split: Callable[[str], tuple[str, str, str]], to_label: Callable[[str], T], noun: str, where: str, hint: str
) -> Mix[T]:
    shares: dict[T, float] = {}
    for part in text.split(","):
        label, colon, share = (piece.strip() for piece in split(part))
        kind = to_label(label)
        if kind in shares:
            raise ConfigError(f"{noun} {label!r} appears twice in {text!r}", where=where, hint=hint)
        if not colon:
            raise ConfigError(f"{label!r} has no share", where=where, hint=hint)
        try:
            shares[kind] = float(share)
        except ValueError as error:
            raise ConfigError(f"the share of {label!r} is {share!r}, not a number", where=where, hint=hint) from error
    try:
        return Mix(shares)
    except ValueError as error:
        raise ConfigError(f"{text!r}: {error}", where=where, hint=hint) from error


def with_class_mix(jobs: Iterable[Job], mix: ClassMix, seed: int) -> Iterable[Job]:
    """The same jobs with classes drawn from `mix`: for traces that name none. A reactive workload stays one."""
    uniform = Random(f"{seed}/classes").random
    return map_jobs(jobs, lambda job: _with_request(job, replace(job.request, priority_class=mix.draw(uniform))))


def with_tenant_mix(jobs: Iterable[Job], mix: TenantMix, seed: int) -> Iterable[Job]:
    """The same jobs with tenants drawn from `mix`. A reactive workload stays one."""
    uniform = Random(f"{seed}/tenants").random
    return map_jobs(jobs, lambda job: _with_request(job, replace(job.request, tenant=mix.draw(uniform))))


def _with_request(job: Job, request: Request) -> Job:
    return Job(request, job.output_tokens, job.conversation_prefix)


MIN_SCALE, MAX_SCALE = 1e-6, 1e6


def check_scale(factor: float, where: str) -> float:
    """Raises ConfigError for a factor that cannot be one."""
    if not MIN_SCALE <= factor <= MAX_SCALE:
        raise ConfigError(
            f"{factor:g} cannot be used", where=where, hint=f"a factor from {MIN_SCALE:g} to {MAX_SCALE:g}; 1 changes nothing"
        )
    return factor


def scale_rate(jobs: Iterable[Job], factor: float) -> Iterator[Job]:
    """Arrivals `factor` times as dense. Raises ConfigError for a factor that cannot be one, and for jobs that react."""
    check_scale(factor, "rate_scale")
    if isinstance(jobs, ReactiveWorkload):
        hint = "give the rate_scale to Workload.jobs or Trace.closed_loop"
        raise ConfigError("a workload that waits for answers has no arrivals to be scaled", where="rate_scale", hint=hint)
    return (_scale_job_rate(job, factor) for job in jobs)


def scale_time(jobs: Iterable[Job], factor: float) -> Iterable[Job]:
    """Everything in time `factor` times as long. Raises ConfigError for a factor that cannot be one."""
    check_scale(factor, "time_scale")
    return (
        _TimeScaledWorkload(jobs, factor)
        if isinstance(jobs, ReactiveWorkload)
        else (_scale_job_time(job, factor) for job in jobs)
    )


def _scale_job_rate(job: Job, factor: float) -> Job:
    request = job.request
    arrival = round(request.arrival / factor)
    deadline = None if request.deadline is None else request.deadline + arrival - request.arrival
    return Job(replace(request, arrival=arrival, deadline=deadline), job.output_tokens, job.conversation_prefix)


def _scale_job_time(job: Job, factor: float) -> Job:
    request = job.request
    arrival = round(request.arrival * factor)
    deadline = None if request.deadline is None else arrival + round((request.deadline - request.arrival) * factor)
    target = None if request.slo_target is None else round(request.slo_target * factor)
    return Job(
        replace(request, arrival=arrival, deadline=deadline, slo_target=target), job.output_tokens, job.conversation_prefix
    )


class _TimeScaledWorkload:
    """The workload lives by a clock of its own, which goes `factor` times as slow as the driver's."""

    def __init__(self, jobs: ReactiveWorkload, factor: float) -> None:
        self._jobs, self._factor = jobs, factor

    def __iter__(self) -> Iterator[Job]:
        return (_scale_job_time(job, self._factor) for job in self._jobs)

    def on_request_end(self, request: Request, completed: bool, output_tokens: int, now: Micros) -> Iterator[Job]:
        its_now = math.ceil(now / self._factor)
        for job in self._jobs.on_request_end(request, completed, output_tokens, its_now):
            slower = _scale_job_time(job, self._factor)
            late = max(0, now - slower.request.arrival)  # a rounding
            yield Job(
                replace(slower.request, arrival=slower.request.arrival + late), job.output_tokens, job.conversation_prefix
            )


MAX_TIMEOUT_SECS: Final = 1e9
"""Thirty years."""


def with_timeout(jobs: Iterable[Job], seconds: float, *, where: str = "") -> Iterable[Job]:
    """The same jobs, each to be answered within so many seconds of its arrival; 0: whenever. A reactive workload stays one.

    Raises ConfigError, said of `where`, for what is no such time.
    """
    if not (seconds == 0 or 1e-6 <= seconds <= MAX_TIMEOUT_SECS):
        hint = f"seconds from a microsecond to {MAX_TIMEOUT_SECS:g}; 0: clients do not leave"
        raise ConfigError(f"{seconds:g} cannot be used", where=where, hint=hint)
    span: Micros | None = from_seconds(seconds) or None

    def patient(job: Job) -> Job:
        deadline = None if span is None else job.request.arrival + span
        return Job(replace(job.request, deadline=deadline), job.output_tokens, job.conversation_prefix)

    return map_jobs(jobs, patient)
