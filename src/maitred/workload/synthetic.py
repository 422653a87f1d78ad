"""The synthetic workload: Poisson arrivals, lengths from distributions.

Each quantity draws from a stream of its own, named and derived from the seed (`42/arrivals`, `42/input_tokens`, ...), so
that changing one distribution leaves the draws of the others where they were: two runs that differ in the lengths of the
answers see the same arrivals.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from random import Random

from maitred.errors import ConfigError
from maitred.request import PriorityClass, Request
from maitred.units import SECOND
from maitred.workload.job import Job
from maitred.workload.lengths import Lengths, parse_lengths
from maitred.workload.mixes import ClassMix, TenantMix, parse_mix, parse_tenant_mix, with_tenants

LOWEST_RATE, HIGHEST_RATE = 1e-6, 1e9
"""Requests per second. Outside, no span of simulated time makes sense any more."""


def synthetic(
    rate: float,
    num_requests: int,
    *,
    seed: int = 42,
    input_tokens: str | int | Lengths = 512,
    output_tokens: str | int | Lengths = 128,
    class_mix: str | ClassMix | None = None,
    tenant_mix: str | TenantMix | None = None,
) -> Iterator[Job]:
    """`num_requests` jobs whose gaps are exponential with mean 1/`rate` (`rate` in requests per second).

    Lengths are given as users write them (see `lengths`), in tokens; `class_mix` likewise (`interactive:0.3,bulk:0.7`),
    None: every request is `default`. `tenant_mix` (`auth:acme:0.3,auth:globex:0.7`): None: nobody knows whose they are.
    Raises ConfigError at once, not at the first job; its `where` is the name of the argument.
    """
    if not LOWEST_RATE <= rate <= HIGHEST_RATE:
        hint = f"a number between {LOWEST_RATE:g} and {HIGHEST_RATE:g} requests per second"
        raise ConfigError(f"a rate of {rate:g} cannot be used", where="rate", hint=hint)
    count = _count(num_requests)
    prompts = parse_lengths(input_tokens, where="input_tokens") if isinstance(input_tokens, str | int) else input_tokens
    answers = parse_lengths(output_tokens, where="output_tokens") if isinstance(output_tokens, str | int) else output_tokens
    mix = parse_mix(class_mix, where="class_mix") if isinstance(class_mix, str) else class_mix
    tenants = parse_tenant_mix(tenant_mix, where="tenant_mix") if isinstance(tenant_mix, str) else tenant_mix
    jobs = _jobs(rate, count, seed, prompts=prompts, answers=answers, mix=mix or ClassMix({PriorityClass.DEFAULT: 1.0}))
    return jobs if tenants is None else with_tenants(jobs, tenants, seed)


def _count(num_requests: int) -> int:
    try:
        count = operator.index(num_requests)
    except TypeError:
        count = -1
    if count < 0:
        raise ConfigError(f"{num_requests} requests cannot be made", where="num_requests", hint="a whole number, 0 or more")
    return count


def _jobs(rate: float, count: int, seed: int, *, prompts: Lengths, answers: Lengths, mix: ClassMix) -> Iterator[Job]:
    gap, prompt, answer, cls = (
        Random(f"{seed}/{stream}").random for stream in ("arrivals", "input_tokens", "output_tokens", "classes")
    )
    draw_prompt, draw_answer, draw_class, log = prompts.draw, answers.draw, mix.draw, math.log
    mean_gap = SECOND / rate
    at = 0.0
    for number in range(count):
        # summed as a float and rounded once, so that gaps of less than a microsecond keep their mean
        at -= mean_gap * log(1.0 - gap())
        request = Request(id=number, arrival=round(at), prompt_tokens=draw_prompt(prompt), priority_class=draw_class(cls))
        yield Job(request, draw_answer(answer))
