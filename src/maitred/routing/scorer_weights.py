"""The scorers that `weighted` adds up with their weights, and how they are written.

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
"""A comma that is not in brackets."""


class WeightedScorer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A scorer and its weight."""

    name: str
    """The name of the scorer, with parameters where needed."""
    weight: float = 1.0


class ScorerWeights(msgspec.Struct, frozen=True):
    """At least one scorer, none twice, with weights above 0."""

    scorers: tuple[WeightedScorer, ...]

    def normalized(self) -> list[float]:
        """Return the weights, scaled to a sum of 1."""
        total = sum(scorer.weight for scorer in self.scorers)
        return [scorer.weight / total for scorer in self.scorers]


WrittenWeights: TypeAlias = str | tuple[str | WeightedScorer, ...]
DEFAULT_WEIGHTS: Final = ScorerWeights(
    (WeightedScorer("precise-prefix-cache", 2.0), WeightedScorer("queue-depth", 1.0), WeightedScorer("kv-utilization", 1.0))
)
"""The weights of BLIS, which come from llm-d."""


def parse_scorer_weights(written: WrittenWeights) -> ScorerWeights:
    """Return the scorers that are written, or `DEFAULT_WEIGHTS` if none is. Does not check that the scorers exist. Raises
    ConfigError for what cannot be read, a weight that is not above 0, or a scorer that is named twice."""
    scorers = tuple(_scorers(written))
    _check(scorers)
    return ScorerWeights(scorers) if scorers else DEFAULT_WEIGHTS


def _scorers(written: WrittenWeights) -> Iterator[WeightedScorer]:
    items: Sequence[str | WeightedScorer]
    items = _COMMA.split(written) if isinstance(written, str) and written.strip() else tuple(written)
    for item in items:
        if isinstance(item, str) and item.strip():
            yield _scorer(item.strip())
        elif isinstance(item, WeightedScorer):
            yield item
        elif not isinstance(written, str) or written.strip():
            raise ConfigError("a scorer is missing between two commas", hint=_USAGE)


def _scorer(text: str) -> WeightedScorer:
    name, colon, weight = text.rpartition(":")
    if not colon:
        raise ConfigError(f"{text!r} has no weight", hint=_USAGE)
    try:
        return WeightedScorer(name.strip(), float(weight))
    except ValueError:
        raise ConfigError(f"the weight of {name.strip()!r} is {weight.strip()!r}: expected a number", hint=_USAGE) from None


def _check(scorers: Sequence[WeightedScorer]) -> None:
    seen: set[str] = set()
    for scorer in scorers:
        if not (isfinite(scorer.weight) and scorer.weight > 0):
            raise ConfigError(f"the weight of {scorer.name!r} is {scorer.weight:g}", hint="a number above 0; or leave it out")
        if scorer.name in seen:
            raise ConfigError(f"the scorer {scorer.name!r} is named twice", hint="name each once, with one weight")
        seen.add(scorer.name)
    if not isfinite(sum(scorer.weight for scorer in scorers)):
        raise ConfigError("the weights add up to more than a number holds", hint="only their ratios count")
