"""Acting estimators: how many of its tokens a program counts while one of its tools works.

The KV of an acting program can be evicted while it is not used, at the cost of computing it again. The longer a tool already
works, the less is lost by giving its memory to a program that could use it now. An estimator says which share of the tokens of
a program counts after it has acted for some time. The pass that pauses and the one that resumes use the same share.

Times are kept for each program (`ToolTimes`), so an estimator may learn from the tools of the very program.
"""

from __future__ import annotations

from typing import Final, Protocol

from maitred.core.registry import Registry
from maitred.core.units import SECOND, Micros, from_seconds

_MOMENTUM: Final = 0.8
"""Weight of what was known before a new time, as for ThunderAgent's token estimate."""
_USUAL_TIMES: Final = 4
"""How many times as long as usual a tool may take before `learned` counts less. Tool times have long tails."""


class ToolTimes:
    """How long the tools of one program took: from the end of its last request to its next one."""

    __slots__ = ("count", "mean")

    def __init__(self) -> None:
        self.count = 0
        self.mean = 0.0
        """Mean with exponentially falling weights, µs; 0 before the first one."""

    def add(self, duration: Micros) -> None:
        """Learn one time, µs."""
        self.mean = float(duration) if not self.count else (1 - _MOMENTUM) * duration + _MOMENTUM * self.mean
        self.count += 1


class ActingEstimator(Protocol):
    """The share of its tokens that an acting program counts."""

    @property
    def changes_with_time(self) -> bool:
        """Whether the share depends on how long the program has acted. If not, it is asked for only as it begins to."""
        ...

    def share(self, acting_for: Micros, tools: ToolTimes) -> float:
        """Return the share, at least 0, of a program that has acted for this long, µs."""
        ...


ACTING_ESTIMATORS: Registry[ActingEstimator] = Registry(
    "acting estimator",
    ActingEstimator,
    group="maitred.acting_estimators",
    packages=["maitred.programs"],
    methods=["share"],
    flag="--acting-estimator",
    headings={"summary": "counts of an acting program"},
)


@ACTING_ESTIMATORS.register("fixed")
class FixedShare(ActingEstimator):
    """All its tokens, times `weight` (ThunderAgent's --acting-token-weight). Raises ValueError for a negative weight."""

    changes_with_time = False

    def __init__(self, weight: float = 1.0) -> None:
        if not 0 <= weight <= 1000:
            raise ValueError("weight must be from 0 to 1000")
        self._weight = weight

    def share(self, acting_for: Micros, tools: ToolTimes) -> float:
        return self._weight


@ACTING_ESTIMATORS.register("decay")
class Decay(ActingEstimator):
    """Half of its tokens after each `half_life_secs` (ThunderAgent's 2^-t).

    Raises ValueError for a half-life that is not above 0."""

    changes_with_time = True

    def __init__(self, half_life_secs: float = 1.0) -> None:
        if not 0 < half_life_secs <= 1e6:
            raise ValueError("half_life_secs must be more than 0")
        self._half_life = max(1, from_seconds(half_life_secs))

    def share(self, acting_for: Micros, tools: ToolTimes) -> float:
        return float(2.0 ** (-acting_for / self._half_life))


@ACTING_ESTIMATORS.register("learned")
class Learned(ActingEstimator):
    """All its tokens for four times as long as its tools usually take, at least `least_secs`; then half of them after each
    second.

    Raises ValueError for a `least_secs` that is not above 0."""

    changes_with_time = True

    def __init__(self, least_secs: float = 5.0) -> None:
        if not 0 < least_secs <= 1e6:
            raise ValueError("least_secs must be more than 0")
        self._least = least_secs * SECOND

    def share(self, acting_for: Micros, tools: ToolTimes) -> float:
        # Nearly all tools have ended by then, so hardly a program that comes back has lost its memory. One that has ended
        # without saying so gives its memory to others step by step.
        grace = max(_USUAL_TIMES * tools.mean, self._least)
        return 1.0 if acting_for <= grace else float(2.0 ** ((grace - acting_for) / SECOND))
