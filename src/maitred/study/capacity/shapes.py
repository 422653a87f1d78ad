"""Shapes: the clusters that an option can be at a size, and the most that each can take by the latency model.

An option of equal instances has one shape for each size. With prefill and decode instances (P/D) a size of n has n - 1 shapes,
P + D = n. The latency model says how many requests per second one instance of each kind takes, p and d, and the share of
prefill instances at which neither waits for the other:

    P / n = d / (p + d)         limit of a shape = min(P · p, D · d)

Only the shape nearest to that and its two neighbours are tried, because queues, batches and transfers may move the best one a
little. A size holds if one of its shapes does.

    a prefill instance takes 6 requests/s, a decode instance 12: of 9 instances 6 prefill, so 5, 6 and 7 are tried

A fleet of unequal instances (groups) grows as a whole: its size is how often it has the stated groups. Its limit is the sum of
theirs, as behind a router that goes by their weights.

    H100:1,L40S:2 of size 3 is 3 H100 + 6 L40S

Two groups with P/D are the prefill and the decode instances, on GPUs of their own, and are split as equal instances are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from maitred.core.errors import ConfigError
from maitred.instance import InstanceConfig
from maitred.instance.throughput_limit import RequestMix, find_throughput_limit
from maitred.study.candidate import Candidate

_NEIGHBOURS: Final = (0, 1, -1)


class Shape(msgspec.Struct, frozen=True):
    """A number of instances, and how many of them prefill only (0: all do both)."""

    size: int
    prefill: int = 0
    groups: tuple[tuple[int, str], ...] = ()
    """Instances of each group at the size 1, and what they are; empty if all are equal. With `prefill` both pools."""

    def cluster_of(self, candidate: Candidate) -> Candidate:
        """Return the candidate with this shape."""
        cluster, groups, disaggregation = candidate.cluster, candidate.cluster.groups, candidate.cluster.disaggregation
        if self.prefill:
            pools = self.prefill, self.size - self.prefill
            groups = [replace(each, num_instances=count) for each, count in zip(groups, pools, strict=False)]
            disaggregation = replace(disaggregation, prefill_instances=pools[0], decode_instances=pools[1])
        else:
            groups = [replace(each, num_instances=each.num_instances * self.size) for each in groups]
        total = sum(each.num_instances for each in groups) or self.size
        return replace(candidate, cluster=replace(cluster, num_instances=total, groups=groups, disaggregation=disaggregation))

    def in_words(self) -> str:
        """Return `4`, `1P + 3D` with prefill and decode instances, `2 H100 + 4 L40S` with groups, or `1P H100 + 3D L40S`."""
        if self.groups and self.prefill:
            prefill, decode = (name for _, name in self.groups)
            return f"{self.prefill}P {prefill} + {self.size - self.prefill}D {decode}"
        if self.groups:
            return " + ".join(f"{count * self.size:,} {name}" for count, name in self.groups)
        return f"{self.prefill}P + {self.size - self.prefill}D" if self.prefill else f"{self.size:,}"


class ShapeLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What instances of an option take of a traffic, in requests per second."""

    instance: float
    """One that does both; of groups, all of them together."""
    prefill: float
    decode: float
    bound: str
    """The key that keeps the batch of an instance from growing."""
    is_split: bool = False
    """Whether there are prefill and decode instances."""
    groups: tuple[tuple[int, str], ...] = ()
    """As of a shape."""

    @property
    def least_size(self) -> int:
        """The smallest size that there can be."""
        return 2 if self.is_split else 1

    def check_size(self, size: int | None) -> None:
        """Raise ConfigError if a size that was stated is none that there can be."""
        if size is not None and size < self.least_size:
            what = f"a prefill and a decode instance are {self.least_size} instances, and {size} was stated"
            raise ConfigError(what, where="--num-instances", hint="it counts the instances of both kinds together")

    def most_in_words(self, size: int) -> str:
        """Return in words the highest rate of one instance, of all groups, or of the best split of a size, and its bound."""
        if not self.is_split:
            who = "the groups take" if self.groups else "one takes"
            return f"{who} {self.instance:.3g} requests/s at most, bound by {self.bound}"
        best = self.shapes(max(size, self.least_size))[0]
        is_prefill = best.prefill * self.prefill < (best.size - best.prefill) * self.decode
        bound = "its prefill instances" if is_prefill else f"{self.bound} of its decode instances"
        return f"{best.in_words()} takes {self.of(best):.3g} requests/s at most, bound by {bound}"

    def of(self, shape: Shape) -> float:
        """Return the most that a shape takes."""
        if not shape.prefill:
            return shape.size * self.instance
        return min(shape.prefill * self.prefill, (shape.size - shape.prefill) * self.decode)

    def of_size(self, size: int) -> float:
        """Return the most that the best shape of a size takes."""
        return max(map(self.of, self.shapes(size)))

    def shapes(self, size: int) -> list[Shape]:
        """Return the shapes of a size that are tried, the most promising one first."""
        if not self.is_split:
            return [Shape(size, groups=self.groups)]
        best = round(size * self.decode / (self.prefill + self.decode))
        counts = dict.fromkeys(min(max(best + each, 1), size - 1) for each in _NEIGHBOURS)
        return sorted((Shape(size, count, self.groups) for count in counts), key=self.of, reverse=True)


def find_limits(
    instances: Sequence[InstanceConfig], mix: RequestMix, *, is_split: bool, groups: tuple[tuple[int, str], ...] = ()
) -> ShapeLimits:
    """Find the highest rate of this traffic that instances take. `instances` are resolved: those of a fleet of size 1,
    or of P/D one of each pool."""
    limits = [find_throughput_limit(instance, mix) for instance in instances]
    both, bound = sum(limit.rate for limit in limits), limits[0].bound
    if not is_split:
        return ShapeLimits(instance=both, prefill=both, decode=both, bound=bound, groups=groups)
    prefill = find_throughput_limit(instances[0], replace(mix, output=1.0))
    # The first token of an answer is of the prefill instance: where the others are decoded, the second one is the first.
    decode = find_throughput_limit(instances[-1], replace(mix, output=max(mix.output - 1, 1.0), cached=mix.prompt))
    return ShapeLimits(
        instance=both, prefill=prefill.rate, decode=decode.rate, bound=decode.bound, is_split=True, groups=groups
    )
