"""Routers for instances of unequal speed, which go by the weight of each (`routing.weights`).

    weighted-random         an instance with the probability weight / Σ weights
    weighted-least-loaded   the least (requests in flight + 1) / weight

A weight is the rate that an instance serves, in any unit: only ratios count. In a simulation of instance groups the weights
that are not given are the throughput limits of the groups (`sim.instance_groups`).

With `weighted-random`, servers of rates μ that Poisson arrivals λ are split over are M/M/1 queues of their own: with p = μ / Σμ
all have the same utilisation, and the mean time in the system is n / (Σμ - λ). `weighted-least-loaded` is the rule of the
shortest expected delay (S. A. Banawan, J. Zahorjan, Load sharing in heterogeneous queueing systems, 1989), and Envoy's
weighted least request with a bias of 1 where loads are large.

Example: of two instances with the weights 3 and 1, the first gets the fourth request while the second is idle if it has 2 in
flight: 3 / 3 against 1 / 1, and among equals the first wins.
"""

from __future__ import annotations

from random import Random

from maitred.core.contracts import Choice, FleetView
from maitred.core.request import Request
from maitred.core.units import Micros
from maitred.routing.base import ROUTERS, BaseRouter, RouterInfo
from maitred.routing.instance_weights import EQUAL_WEIGHTS, InstanceWeights


@ROUTERS.register("weighted-random")
class WeightedRandom(BaseRouter):
    """Any instance, with chances in proportion to the weights."""

    about = RouterInfo(summary="any, with chances as routing.weights", complexity="O(n)")

    def __init__(self, rng: Random, instance_weights: InstanceWeights = EQUAL_WEIGHTS) -> None:
        self._rng = rng
        self._weights = instance_weights

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        if not fleet:
            raise ValueError("no instance to choose from")
        weights = [self._weights.of(view.index) for view in fleet]
        return Choice(self._rng.choices(fleet, weights)[0].index, "drawn")


@ROUTERS.register("weighted-least-loaded")
class WeightedLeastLoaded(BaseRouter):
    """The instance with the least expected work: requests in flight and this one, divided by its weight; the first among
    equals."""

    about = RouterInfo(
        summary="fewest requests in flight for its weight (routing.weights)", complexity="O(n)", reads="in flight"
    )

    def __init__(self, instance_weights: InstanceWeights = EQUAL_WEIGHTS) -> None:
        self._weights = instance_weights

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        if not fleet:
            raise ValueError("no instance to choose from")
        of = self._weights.of
        return Choice(min(fleet, key=lambda view: (view.in_flight + 1) / of(view.index)).index, "least_expected_work")
