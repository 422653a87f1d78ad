"""The mix of scorers that `weighted` adds up, and how it is written.

    queue-depth:2, kv-utilization:2, load-balance:1         in one text, as a flag
    [queue-depth:2, prefix-affinity(block=32):3]            as a list, in a file
    [{name: queue-depth, weight: 2}]                        as BLIS has it, in a file

Weights are relative: only their ratios count.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Final, TypeAlias

import msgspec

from maitred.core.errors import ConfigError

_USAGE: Final = "write NAME:WEIGHT, NAME:WEIGHT, ... as in queue-depth:2, load-balance:1"
_COMMA: Final = re.compile(r",(?![^(]*\))")
"""Not those in brackets."""


class WeightedScorer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A scorer, written as policies are, and what it counts."""

    name: str
    weight: float = 1.0


class ScorerWeights(msgspec.Struct, frozen=True):
    """At least one scorer, none twice, with weights above 0."""

    scorers: tuple[WeightedScorer, ...]

    def normalized(self) -> list[float]:
        """Summing up to 1."""
        total = sum(part.weight for part in self.scorers)
        return [part.weight / total for part in self.scorers]


WrittenWeights: TypeAlias = str | tuple[str | WeightedScorer, ...]
DEFAULT_WEIGHTS: Final = ScorerWeights(
    (WeightedScorer("precise-prefix-cache", 2.0), WeightedScorer("queue-depth", 1.0), WeightedScorer("kv-utilization", 1.0))
)
"""BLIS's, which has it from llm-d."""


def parse_scorer_weights(written: WrittenWeights) -> ScorerWeights:
    """`DEFAULT_WEIGHTS` if nothing is written. Raises ConfigError; whether there are such scorers, is not asked."""
    parts = tuple(_parts(written))
    _check(parts)
    return ScorerWeights(parts) if parts else DEFAULT_WEIGHTS


def _parts(written: WrittenWeights) -> Iterator[WeightedScorer]:
    items: Sequence[str | WeightedScorer] = (
        _COMMA.split(written) if isinstance(written, str) and written.strip() else tuple(written)
    )
    for item in items:
        if isinstance(item, str) and item.strip():
            yield _part(item.strip())
        elif isinstance(item, WeightedScorer):
            yield item
        elif not isinstance(written, str) or written.strip():
            raise ConfigError("a scorer is missing between two commas", hint=_USAGE)


def _part(text: str) -> WeightedScorer:
    name, colon, weight = text.rpartition(":")
    if not colon:
        raise ConfigError(f"{text!r} has no weight", hint=_USAGE)
    try:
        return WeightedScorer(name.strip(), float(weight))
    except ValueError:
        raise ConfigError(f"the weight of {name.strip()!r} is {weight.strip()!r}: expected a number", hint=_USAGE) from None


def _check(parts: Sequence[WeightedScorer]) -> None:
    seen: set[str] = set()
    for part in parts:
        if not (isfinite(part.weight) and part.weight > 0):
            raise ConfigError(f"the weight of {part.name!r} is {part.weight:g}", hint="a number above 0; or leave it out")
        if part.name in seen:
            raise ConfigError(f"the scorer {part.name!r} is named twice", hint="name each once, with one weight")
        seen.add(part.name)
    if not isfinite(sum(part.weight for part in parts)):
        raise ConfigError("the weights add up to more than a number holds", hint="only their ratios count")
