"""Ramp: arrivals at a rate that grows from the first request to the last, as `vllm bench serve --ramp-up-strategy` has it.

The gaps of an arrival process at one request per second are divided by the rate that holds at their place in the run:

    linear        start + (end - start) · i / n
    exponential   start · (end / start)^(i / n)

Example: from 1 to 3 requests per second over 4 requests, with gaps of one second at a rate of 1: the second request is
due after 1 / 1.5 s, the third 1 / 2 s later, the fourth 1 / 2.5 s later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Literal, TypeAlias, get_args

from msgspec.structs import replace

from maitred.core.errors import ConfigError, nearest_name_hint
from maitred.core.units import Micros
from maitred.workload import Job

RampStrategy: TypeAlias = Literal["linear", "exponential"]
STRATEGIES: Final = get_args(RampStrategy)


def check_ramp(strategy: str, start: float | None, end: float | None) -> tuple[RampStrategy, float, float]:
    """Return a ramp that can be. Raises ConfigError, naming the flag."""
    if strategy not in STRATEGIES:
        hint = nearest_name_hint(strategy, STRATEGIES)
        raise ConfigError(f"there is no strategy {strategy!r}", where="--ramp-up-strategy", hint=hint)
    for name, rate in (("--ramp-up-start-rps", start), ("--ramp-up-end-rps", end)):
        if rate is None or not 0 < rate < 1e9:
            problem = "is missing" if rate is None else f"{rate:g} cannot be used"
            raise ConfigError(problem, where=name, hint="requests per second, above 0")
    assert start is not None
    assert end is not None
    return "linear" if strategy == "linear" else "exponential", start, end


def ramped(jobs: Iterable[Job], count: int, strategy: RampStrategy, start: float, end: float) -> Iterator[Job]:
    """Yield `count` jobs, which arrive at one per second on average, at rates from `start` to `end` per second."""
    before: Micros = 0
    at = 0.0
    for index, job in enumerate(jobs):
        share = index / count
        rate = start + (end - start) * share if strategy == "linear" else start * (end / start) ** share
        arrival = job.request.arrival
        at += (arrival - before) / rate
        before = arrival
        yield replace(job, request=replace(job.request, arrival=round(at)))
