"""The mix of priority classes in a workload, as users write it: `interactive:0.3,bulk:0.7`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from random import Random

import msgspec

from maitred.errors import ConfigError, nearest
from maitred.request import PriorityClass
from maitred.workload.job import Job
from maitred.workload.lengths import UnitDraw

_FORM = "write it as interactive:0.3,bulk:0.7; the shares are relative"


class ClassMix:
    """Draws classes by their shares. The shares are relative: they need not add up to 1."""

    def __init__(self, shares: Mapping[PriorityClass, float]) -> None:
        """Raises ValueError unless the shares are finite, not negative, and some is above 0."""
        total = sum(shares.values())
        if not all(0 <= share < float("inf") for share in shares.values()) or not 0 < total < float("inf"):
            raise ValueError("shares must be numbers of 0 or more, and not all of them 0")
        present = {cls: share for cls, share in shares.items() if share}
        self._classes = list(present)
        self._bounds = list(accumulate(share / total for share in present.values()))[:-1]

    def draw(self, uniform: UnitDraw) -> PriorityClass:
        return self._classes[bisect_right(self._bounds, uniform())]


def parse_mix(text: str, *, where: str = "") -> ClassMix:
    """Raises ConfigError that says what is right."""
    shares: dict[PriorityClass, float] = {}
    for part in text.split(","):
        label, colon, share = (piece.strip() for piece in part.partition(":"))
        cls = PriorityClass.of(label)
        if cls is None:
            hint = nearest(label, (known.label for known in PriorityClass))
            raise ConfigError(f"unknown class {label!r} in {text!r}", where=where, hint=hint)
        if cls in shares:
            raise ConfigError(f"class {label!r} appears twice in {text!r}", where=where, hint=_FORM)
        if not colon:
            raise ConfigError(f"{label!r} has no share", where=where, hint=_FORM)
        try:
            shares[cls] = float(share)
        except ValueError as error:
            raise ConfigError(f"the share of {label!r} is {share!r}, not a number", where=where, hint=_FORM) from error
    try:
        return ClassMix(shares)
    except ValueError as error:
        raise ConfigError(f"{text!r}: {error}", where=where, hint=_FORM) from error


def reclassed(jobs: Iterable[Job], mix: ClassMix, seed: int) -> Iterator[Job]:
    """The same jobs with classes drawn from `mix`: for traces that name none."""
    uniform = Random(f"{seed}/classes").random
    for job in jobs:
        yield Job(msgspec.structs.replace(job.request, priority_class=mix.draw(uniform)), job.output_tokens)
