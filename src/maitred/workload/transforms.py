"""Transforms: a workload with each of its jobs changed.

    with_class_mix, with_tenant_mix   classes or tenants drawn by share, in place of those that the workload has
    with_timeout                      one deadline for all, in place of those that the workload has
    scale_rate(F)                     arrivals F times as dense: jobs arrive at 1/F of their times. Think times, deadlines
                                      and the number of users stay as they are
    scale_time(F)                     everything takes F times as long: arrivals, think times, deadlines and targets. On
                                      instances that are F times as slow, all times of a run are multiplied by F
    ramp_up(N, HOW, START, END)       a rate that grows from the first request to the last, as `vllm bench serve
                                      --ramp-up-strategy` has it: the i-th gap at one request per second is divided by
                                      START + (END - START) · i / N, or by START · (END / START)^(i / N)

Example of a ramp from 1 to 3 requests per second over 4 requests, with gaps of one second at a rate of 1: the second request is
due after 1 / 1.5 s, the third 1 / 2 s later, the fourth 1 / 2.5 s later.

A reactive workload stays reactive, except under `scale_rate`: its later arrivals follow from answers, so it is made denser
where it is made. `Workload.jobs(rate_scale=F)` multiplies rates and leaves windows where they are;
`Trace.closed_loop(rate_scale=F)` starts sessions more densely and leaves their think times.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from random import Random
from typing import Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from msgspec.structs import replace

from maitred.admission.terms.tenants import tenant_problem
from maitred.core.errors import ConfigError, nearest_name_hint
from maitred.core.request import PriorityClass, Request
from maitred.core.units import Micros, from_seconds
from maitred.workload.job import Job, ReactiveWorkload, is_program_over
from maitred.workload.lengths import UnitDraw

MIN_SCALE, MAX_SCALE = 1e-6, 1e6
MAX_TIMEOUT_SECS: Final = 1e9
"""About thirty years."""

RampStrategy: TypeAlias = Literal["linear", "exponential"]
T = TypeVar("T")

JobTransform: TypeAlias = Callable[[Job], Job]
"""A function that returns a job with the same id, arrival and program."""


def map_jobs(jobs: Iterable[Job], transform: JobTransform) -> Iterable[Job]:
    """Return the workload with `transform` applied to each job as it comes."""
    return _MappedWorkload(jobs, transform) if isinstance(jobs, ReactiveWorkload) else map(transform, jobs)


class _MappedWorkload:
    def __init__(self, jobs: ReactiveWorkload, transform: JobTransform) -> None:
        self._jobs = jobs
        self._transform = transform

    def __iter__(self) -> Iterator[Job]:
        return map(self._transform, self._jobs)

    def on_request_end(self, request: Request, completed: bool, output_tokens: int, now: Micros) -> Iterable[Job]:
        return [self._transform(job) for job in self._jobs.on_request_end(request, completed, output_tokens, now)]

    def is_program_over(self, program: str) -> bool:
        return is_program_over(self._jobs, program)


class Mix(Generic[T]):
    """A discrete distribution over labels, from their shares. Shares are relative: they need not add up to 1."""

    def __init__(self, shares: Mapping[T, float]) -> None:
        """Raise ValueError unless the shares are finite and not negative, and at least one is above 0."""
        total = sum(shares.values())
        if not all(0 <= share < float("inf") for share in shares.values()) or not 0 < total < float("inf"):
            raise ValueError("shares must be numbers of 0 or more, and not all of them 0")
        present = {label: share for label, share in shares.items() if share}
        self._labels = list(present)
        self._bounds = list(accumulate(share / total for share in present.values()))[:-1]

    def draw(self, uniform: UnitDraw) -> T:
        """Return a label, drawn by the shares."""
        return self._labels[bisect_right(self._bounds, uniform())]


ClassMix: TypeAlias = Mix[PriorityClass]
TenantMix: TypeAlias = Mix[str]


def parse_class_mix(text: str, *, where: str = "") -> ClassMix:
    """Return the mix that a text such as `interactive:0.3,bulk:0.7` describes. Raises ConfigError."""

    def to_class(label: str) -> PriorityClass:
        priority_class = PriorityClass.from_label(label)
        if priority_class is None:
            hint = nearest_name_hint(label, (known.label for known in PriorityClass))
            raise ConfigError(f"unknown class {label!r} in {text!r}", where=where, hint=hint)
        return priority_class

    form = "write it as interactive:0.3,bulk:0.7; the shares are relative"
    return _parse_shares(text, lambda part: part.partition(":"), to_class, "class", where, form)


def parse_tenant_mix(text: str, *, where: str = "") -> TenantMix:
    """Return the mix that a text such as `auth:acme:0.3,auth:globex:0.7` describes. Tenants are written as in tenant policies.
    Raises ConfigError."""
    form = "write it as auth:acme:0.3,auth:globex:0.7; the shares are relative"

    def to_tenant(tenant: str) -> str:
        problem = tenant_problem(tenant)
        if problem:
            raise ConfigError(f"{problem} (in {text!r})", where=where, hint=form)
        return tenant

    return _parse_shares(text, lambda part: part.rpartition(":"), to_tenant, "tenant", where, form)


def _parse_shares(
    text: str, split: Callable[[str], tuple[str, str, str]], to_label: Callable[[str], T], noun: str, where: str, hint: str
) -> Mix[T]:
    shares: dict[T, float] = {}
    for part in text.split(","):
        name, colon, share = (piece.strip() for piece in split(part))
        label = to_label(name)
        if label in shares:
            raise ConfigError(f"{noun} {name!r} appears twice in {text!r}", where=where, hint=hint)
        if not colon:
            raise ConfigError(f"{name!r} has no share", where=where, hint=hint)
        try:
            shares[label] = float(share)
        except ValueError as error:
            raise ConfigError(f"the share of {name!r} is {share!r}, not a number", where=where, hint=hint) from error
    try:
        return Mix(shares)
    except ValueError as error:
        raise ConfigError(f"{text!r}: {error}", where=where, hint=hint) from error


def with_class_mix(jobs: Iterable[Job], mix: ClassMix, seed: int, *, by_program: bool = False) -> Iterable[Job]:
    """Return the same jobs with classes drawn from `mix`: for traces that name none. `by_program`: one for each program."""
    draw = _program_draw(mix, f"{seed}/classes") if by_program else _request_draw(mix, f"{seed}/classes")
    return map_jobs(jobs, lambda job: _with_request(job, replace(job.request, priority_class=draw(job.request))))


def with_tenant_mix(jobs: Iterable[Job], mix: TenantMix, seed: int, *, by_program: bool = False) -> Iterable[Job]:
    """Return the same jobs with tenants drawn from `mix`. `by_program`: one for each program."""
    draw = _program_draw(mix, f"{seed}/tenants") if by_program else _request_draw(mix, f"{seed}/tenants")
    return map_jobs(jobs, lambda job: _with_request(job, replace(job.request, tenant=draw(job.request))))


class Mixes(NamedTuple):
    """The mixes that a workload is given; None where it keeps its own."""

    classes: ClassMix | None
    tenants: TenantMix | None


def parse_mixes(
    class_mix: str | ClassMix | None, tenant_mix: str | TenantMix | None, spell: Callable[[str], str] = str
) -> Mixes:
    """Return mixes that may be written as text. Raises ConfigError that names `class_mix` or `tenant_mix` as `spell` has it."""
    classes = parse_class_mix(class_mix, where=spell("class_mix")) if isinstance(class_mix, str) else class_mix
    tenants = parse_tenant_mix(tenant_mix, where=spell("tenant_mix")) if isinstance(tenant_mix, str) else tenant_mix
    return Mixes(classes, tenants)


def with_mixes(jobs: Iterable[Job], mixes: Mixes, seed: int, *, by_program: bool = False) -> Iterable[Job]:
    """Return the same jobs with classes and tenants drawn from `mixes`. `by_program`: one of each for each program."""
    if mixes.classes is not None:
        jobs = with_class_mix(jobs, mixes.classes, seed, by_program=by_program)
    return jobs if mixes.tenants is None else with_tenant_mix(jobs, mixes.tenants, seed, by_program=by_program)


def _request_draw(mix: Mix[T], stream: str) -> Callable[[Request], T]:
    uniform = Random(stream).random
    return lambda request: mix.draw(uniform)


def _program_draw(mix: Mix[T], stream: str) -> Callable[[Request], T]:
    # A stream for each program: whichever sends first, the draw is the same, and nothing is kept.
    return lambda request: mix.draw(Random(f"{stream}/{request.program}").random)


def with_timeout(jobs: Iterable[Job], seconds: float, *, where: str = "") -> Iterable[Job]:
    """Return the same jobs, each with a deadline `seconds` after its arrival; 0 removes all deadlines. Raises ConfigError that
    names `where` if the timeout is out of range."""
    if not (seconds == 0 or 1e-6 <= seconds <= MAX_TIMEOUT_SECS):
        hint = f"seconds from a microsecond to {MAX_TIMEOUT_SECS:g}; 0: clients do not leave"
        raise ConfigError(f"{seconds:g} cannot be used", where=where, hint=hint)
    timeout: Micros | None = from_seconds(seconds) or None

    def set_deadline(job: Job) -> Job:
        deadline = None if timeout is None else job.request.arrival + timeout
        return _with_request(job, replace(job.request, deadline=deadline))

    return map_jobs(jobs, set_deadline)


def _with_request(job: Job, request: Request) -> Job:
    return replace(job, request=request)


def check_scale(factor: float, where: str) -> float:
    """Return `factor`. Raises ConfigError unless it is from `MIN_SCALE` to `MAX_SCALE`."""
    if not MIN_SCALE <= factor <= MAX_SCALE:
        raise ConfigError(
            f"{factor:g} cannot be used", where=where, hint=f"a factor from {MIN_SCALE:g} to {MAX_SCALE:g}; 1 changes nothing"
        )
    return factor


def scale_rate(jobs: Iterable[Job], factor: float) -> Iterator[Job]:
    """Return the jobs with arrivals `factor` times as dense. Raises ConfigError for a factor out of range and for a reactive
    workload."""
    check_scale(factor, "rate_scale")
    if isinstance(jobs, ReactiveWorkload):
        hint = "give the rate_scale to Workload.jobs or Trace.closed_loop"
        raise ConfigError("a workload that waits for answers has no arrivals to be scaled", where="rate_scale", hint=hint)
    return (_scale_job_rate(job, factor) for job in jobs)


def scale_time(jobs: Iterable[Job], factor: float) -> Iterable[Job]:
    """Return the jobs with all times multiplied by `factor`. Raises ConfigError for a factor out of range."""
    check_scale(factor, "time_scale")
    if isinstance(jobs, ReactiveWorkload):
        return _TimeScaledWorkload(jobs, factor)
    return (_scale_job_time(job, factor) for job in jobs)


def ramp_up(jobs: Iterable[Job], count: int, strategy: RampStrategy, start: float, end: float) -> Iterator[Job]:
    """Yield `count` jobs, which arrive at one per second on average, at rates from `start` to `end` per second."""
    before: Micros = 0
    at = 0.0
    for index, job in enumerate(jobs):
        share = index / count
        rate = start + (end - start) * share if strategy == "linear" else start * (end / start) ** share
        arrival = job.request.arrival
        at += (arrival - before) / rate
        before = arrival
        yield _with_request(job, replace(job.request, arrival=round(at)))


def _scale_job_rate(job: Job, factor: float) -> Job:
    request = job.request
    arrival = round(request.arrival / factor)
    deadline = None if request.deadline is None else request.deadline + arrival - request.arrival
    return _with_request(job, replace(request, arrival=arrival, deadline=deadline))


def _scale_job_time(job: Job, factor: float) -> Job:
    request = job.request
    arrival = round(request.arrival * factor)
    deadline = None if request.deadline is None else arrival + round((request.deadline - request.arrival) * factor)
    target = None if request.slo_target is None else round(request.slo_target * factor)
    think_time = None if job.think_time is None else round(job.think_time * factor)
    scaled = replace(request, arrival=arrival, deadline=deadline, slo_target=target)
    return replace(job, request=scaled, think_time=think_time)


class _TimeScaledWorkload:
    """A reactive workload on a clock that runs `factor` times as slow as the driver's clock."""

    def __init__(self, jobs: ReactiveWorkload, factor: float) -> None:
        self._jobs, self._factor = jobs, factor

    def __iter__(self) -> Iterator[Job]:
        return (_scale_job_time(job, self._factor) for job in self._jobs)

    def on_request_end(self, request: Request, completed: bool, output_tokens: int, now: Micros) -> Iterator[Job]:
        # Rounded up: what follows from an end must not lie before it on the clock of the workload.
        workload_now = math.ceil(now / self._factor)
        for job in self._jobs.on_request_end(request, completed, output_tokens, workload_now):
            scaled = _scale_job_time(job, self._factor)
            # Rounding may put the arrival before `now`, which a driver would refuse.
            late = max(0, now - scaled.request.arrival)
            yield _with_request(job, replace(scaled.request, arrival=scaled.request.arrival + late))

    def is_program_over(self, program: str) -> bool:
        return is_program_over(self._jobs, program)
