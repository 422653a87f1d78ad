"""Mixes: which share of a workload is of which class, or of which tenant, as users write it: `interactive:0.3,bulk:0.7`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from itertools import accumulate
from random import Random
from typing import Generic, TypeAlias, TypeVar

from msgspec.structs import replace

from maitred.admission.tenant_names import tenant_problem
from maitred.errors import ConfigError, nearest
from maitred.request import PriorityClass, Request
from maitred.workload.changed import changed
from maitred.workload.job import Job
from maitred.workload.lengths import UnitDraw

T = TypeVar("T")


class Mix(Generic[T]):
    """Draws by shares. The shares are relative: they need not add up to 1."""

    def __init__(self, shares: Mapping[T, float]) -> None:
        """Raises ValueError unless the shares are finite, not negative, and some is above 0."""
        total = sum(shares.values())
        if not all(0 <= share < float("inf") for share in shares.values()) or not 0 < total < float("inf"):
            raise ValueError("shares must be numbers of 0 or more, and not all of them 0")
        present = {kind: share for kind, share in shares.items() if share}
        self._kinds = list(present)
        self._bounds = list(accumulate(share / total for share in present.values()))[:-1]

    def draw(self, uniform: UnitDraw) -> T:
        return self._kinds[bisect_right(self._bounds, uniform())]


ClassMix: TypeAlias = Mix[PriorityClass]
TenantMix: TypeAlias = Mix[str]


def parse_mix(text: str, *, where: str = "") -> ClassMix:
    """`interactive:0.3,bulk:0.7`. Raises ConfigError that says what is right."""

    def named(label: str) -> PriorityClass:
        cls = PriorityClass.of(label)
        if cls is None:
            hint = nearest(label, (known.label for known in PriorityClass))
            raise ConfigError(f"unknown class {label!r} in {text!r}", where=where, hint=hint)
        return cls

    form = "write it as interactive:0.3,bulk:0.7; the shares are relative"
    return _parsed(text, lambda part: part.partition(":"), named, "class", where, form)


def parse_tenant_mix(text: str, *, where: str = "") -> TenantMix:
    """`auth:acme:0.3,auth:globex:0.7`: tenants as policies name them. Raises ConfigError that says what is right."""
    form = "write it as auth:acme:0.3,auth:globex:0.7; the shares are relative"

    def named(tenant: str) -> str:
        problem = tenant_problem(tenant)
        if problem:
            raise ConfigError(f"{problem} (in {text!r})", where=where, hint=form)
        return tenant

    return _parsed(text, lambda part: part.rpartition(":"), named, "tenant", where, form)


def _parsed(
    text: str, split: Callable[[str], tuple[str, str, str]], named: Callable[[str], T], noun: str, where: str, form: str
) -> Mix[T]:
    shares: dict[T, float] = {}
    for part in text.split(","):
        label, colon, share = (piece.strip() for piece in split(part))
        kind = named(label)
        if kind in shares:
            raise ConfigError(f"{noun} {label!r} appears twice in {text!r}", where=where, hint=form)
        if not colon:
            raise ConfigError(f"{label!r} has no share", where=where, hint=form)
        try:
            shares[kind] = float(share)
        except ValueError as error:
            raise ConfigError(f"the share of {label!r} is {share!r}, not a number", where=where, hint=form) from error
    try:
        return Mix(shares)
    except ValueError as error:
        raise ConfigError(f"{text!r}: {error}", where=where, hint=form) from error


def reclassed(jobs: Iterable[Job], mix: ClassMix, seed: int) -> Iterable[Job]:
    """The same jobs with classes drawn from `mix`: for traces that name none. A reactive workload stays one."""
    uniform = Random(f"{seed}/classes").random
    return changed(jobs, lambda job: _with(job, replace(job.request, priority_class=mix.draw(uniform))))


def with_tenants(jobs: Iterable[Job], mix: TenantMix, seed: int) -> Iterable[Job]:
    """The same jobs with tenants drawn from `mix`. A reactive workload stays one."""
    uniform = Random(f"{seed}/tenants").random
    return changed(jobs, lambda job: _with(job, replace(job.request, tenant=mix.draw(uniform))))


def _with(job: Job, request: Request) -> Job:
    return Job(request, job.output_tokens, job.whole)
