"""What scorers have in common: their registry, and two shapes that most of them have."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

from maitred.contracts import FleetView, InstanceView
from maitred.registry import Registry
from maitred.request import Request
from maitred.routing.policy import Reads


class Scorer(Protocol):
    """How good would each instance be, in one respect?"""

    def scores(self, request: Request, fleet: FleetView) -> Sequence[float]:
        """From 0 to 1, best, for each instance of `fleet`, in its order. There is at least one."""
        ...

    def chosen(self, request: Request, view: InstanceView) -> None:
        """Of those that were scored last, `view` was chosen."""
        ...


SCORERS: Registry[Scorer] = Registry(
    "scorer", Scorer, group="maitred.scorers", packages=["maitred.routing.scorers"], methods=["scores", "chosen"]
)


class BaseScorer(Scorer):
    """A scorer that remembers nothing."""

    reads = Reads.LOAD

    def chosen(self, request: Request, view: InstanceView) -> None:
        pass


class ViewScorer(BaseScorer):
    """A scorer that looks at each instance by itself."""

    @abstractmethod
    def score(self, view: InstanceView) -> float: ...

    def scores(self, request: Request, fleet: FleetView) -> Sequence[float]:
        return [self.score(view) for view in fleet]


class LeastIsBest(BaseScorer):
    """A scorer that compares: `(most - count) / (most - least)`, and 1 for all if they are equal."""

    @abstractmethod
    def count(self, view: InstanceView) -> int: ...

    def scores(self, request: Request, fleet: FleetView) -> Sequence[float]:
        counts = [self.count(view) for view in fleet]
        most, least = max(counts), min(counts)
        if most == least:
            return [1.0] * len(counts)
        return [(most - count) / (most - least) for count in counts]
