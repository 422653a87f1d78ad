"""What was tried of an option, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from maitred.core.student_t import Interval
from maitred.study.metrics import Figures


class KneePoint(msgspec.Struct, frozen=True, kw_only=True):
    """A size at a rate: means over the seeds."""

    instances: int
    """Or how often the stated groups are there."""
    shape: str = ""
    """The instances in words: `4`, or `1P + 3D` with prefill and decode instances."""
    rate: float
    """Requests per second."""
    stretch: float = 1.0
    """The factor on all step times."""
    holds: bool
    """Whether the means meet all constraints, and the rate lasts."""
    lasts: bool = True
    """Whether the rate is within the limit of the latency model, and fewer than half of the runs have a queue that grows
    without end."""
    probability: float = 1.0
    """How probable it is that the true means meet the constraints, by Student's t of the seeds; 0 or 1 of one seed."""
    excess: float = 0.0
    """By which share of its limit the worst constraint is violated; 0 or less if all are met."""
    seeds: int = 1
    figures: Figures
    intervals: Mapping[str, Interval | None] = {}
    """The means of the constraints' metrics with their intervals of 95 %; None of one seed."""


class CapacityOption(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of GPU with a tensor parallelism."""

    hardware: str
    """Empty without a model; the kinds of all groups."""
    tensor_parallel_size: int | None
    """None of unequal groups."""
    instances: int | None
    """The smallest number that holds today's rate, or the given one."""
    shape: str = ""
    """The instances in words: `4`, `1P + 3D` with prefill and decode instances, or `2 H100 + 4 L40S` with groups."""
    size: int | None = None
    """The number of instances, or how often the stated groups are there."""
    sizes: tuple[int, int] | None = None
    """The smallest size that the runs do not rule out, and the smallest one that surely holds (97.5 %); None if the size was
    given, or if there is one seed."""
    gpus: int | None
    cost: float | None
    """Per hour, if prices are given."""
    cost_per_million: float | None = None
    """Per million output tokens at today's rate, if prices are given."""
    highest_rate: float | None
    """The highest rate that these instances hold, in requests per second."""
    rates: tuple[float, float] | None = None
    """The rate that surely holds (97.5 %), and the one that surely does not or is the limit; infinite if the largest rate that
    is tried, 100 times today's, holds. None of one seed."""
    headroom: float | None
    """The highest rate, divided by that of today."""
    stretch: float | None = None
    """The largest factor on all step times with which today's rate holds."""
    model_error: float | None = None
    """The standard deviation of the factor by which the latency model is wrong; None if it is not known."""
    probability: float | None = None
    """How probable it is that today's rate holds: by the seeds, and by `model_error` if it is known; None if neither tells."""
    seeds: int = 1
    """Seeds of each point of the last round."""
    today: KneePoint | None
    """What was measured of that many instances at today's rate."""
    answer_share: float | None = None
    """The mean time of a request, at the highest rate or at today's, as a share of the time in which requests arrive. Above a
    half the runs are too short to show what lasts."""
    simulated: str
    """What was simulated, as a run says it; empty if nothing was."""
    problem: str
    """Why there is no answer, or empty."""
    points: tuple[KneePoint, ...]
    """Everything that was tried, by size and rate."""

    @property
    def knee(self) -> list[KneePoint]:
        """The points at the size of this option with the step times of the model, by rate."""
        points = (each for each in self.points if each.instances == (self.size or self.instances) and each.stretch == 1.0)
        return sorted(points, key=lambda each: each.rate)
