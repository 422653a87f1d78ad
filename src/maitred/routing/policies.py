"""Routers that look at load alone, or at nothing, and `weighted`, which adds up scores. Those that send a request where its KV
is are in `affinity` and `hashing`.

**weighted.** Each scorer (`scorers`) gives each instance a score from 0 to 1, 1 being best; scores outside are cut off.
The weights are normalised to a sum of 1, and the weighted scores are added up in the order in which the scorers are
written, because the sum of floats depends on the order and ties are exact. Then the scorers are told which instance was
chosen, because some remember it. (GAIE, llm-d and BLIS do it in this way.)

Scores are no more than 1, and loads are not bounded. So whatever the weights, an instance that is overloaded (`load_bound`) is
chosen only if all are: a prefix that scores 2/3 would outweigh any queue where the score of the load is 1/3 at most.

Example: `a:2, b:1` has the weights 2/3 and 1/3. Instance 0 scores 1.0 by `a` and 0.4 by `b`, instance 1 scores 0.5 and 1.0.
The sums are 0.8 and 0.667, so instance 0 is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import reduce
from operator import or_
from random import Random

from maitred.core.contracts import Choice, FleetView, InstanceView, Router
from maitred.core.errors import InvariantError
from maitred.core.request import Request
from maitred.core.units import Micros
from maitred.routing.base import (
    ROUTERS,
    BaseRouter,
    RandomTieBreaker,
    RouterInfo,
    Signals,
    check_policy,
    effective_load,
    known_loads,
    signals_read,
)
from maitred.routing.load_bound import ABS_THRESHOLD, REL_THRESHOLD, LoadBound
from maitred.routing.per_fleet import InFlightOrder, InFlightRouter
from maitred.routing.scorer_weights import DEFAULT_WEIGHTS, ScorerWeights
from maitred.routing.scorers import SCORERS


@ROUTERS.register("round-robin")
class RoundRobin(BaseRouter):
    """Each instance in turn, whatever their load (BLIS `round-robin`: counter mod n).

    Each model has a turn of its own. With one turn for all, two models that alternate would each use every second instance.
    """

    about = RouterInfo(summary="each in turn, whatever their load; a turn for each model", complexity="O(1)")

    def __init__(self) -> None:
        self._turns: dict[str, int] = {}

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        if not fleet:
            raise ValueError("no instance to choose from")
        turn = self._turns.get(request.model, 0)
        self._turns[request.model] = turn + 1
        return Choice(fleet[turn % len(fleet)].index, "round_robin")

    def check(self) -> None:
        for model, turn in self._turns.items():
            if turn < 1:
                raise InvariantError(f"model {model!r}: {turn} turns are counted, and each model here has had one")


class LoadMeasure(Enum):
    """What counts as load."""

    IN_FLIGHT = "in_flight"
    """Requests in flight. The driver counts them itself, so the number is never stale."""
    EFFECTIVE = "effective"
    """BLIS's: waiting + running + in flight. It counts each request twice, and is as stale as what is known of queues. Where an
    instance does not report its queue, all are compared by the requests in flight."""


@ROUTERS.register("least-loaded")
class LeastLoaded(RandomTieBreaker):
    """The instance with the fewest requests in flight; among equals the least recently used one, so that an idle fleet is used
    in turn.

    `load=effective` is what BLIS calls `least-loaded`: waiting + running + in flight, ties drawn.
    """

    about = RouterInfo(
        summary="fewest requests in flight; among equals the least recently used one",
        complexity="O(log n); O(n) if load=effective",
        reads="in flight",
    )

    def __init__(self, rng: Random, load: LoadMeasure = LoadMeasure.IN_FLIGHT) -> None:
        super().__init__(rng)
        self.signals = Signals.LOAD if load is LoadMeasure.EFFECTIVE else Signals.NOTHING
        self.in_flight = None if load is LoadMeasure.EFFECTIVE else InFlightRouter()
        if self.in_flight is not None:
            # Without a call between, for it is asked very often.
            self.choose = self.in_flight.choose  # type: ignore[method-assign]
            self.on_request_end = self.in_flight.on_request_end  # type: ignore[method-assign]
            self.check = self.in_flight.check  # type: ignore[method-assign]

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        return Choice(self._break_tie(request, _least_effective(fleet)).index, "least_effective_load")


def in_flight_order(router: Router, fleet: FleetView) -> InFlightOrder | None:
    """The order by which `router` chooses among `fleet`, to be asked without a call in between; None unless it
    goes by the requests in flight."""
    in_flight = router.in_flight if type(router) is LeastLoaded else None
    return None if in_flight is None else in_flight.order_of(fleet)


def _least_effective(fleet: FleetView) -> Sequence[InstanceView]:
    """Return the instances with the least effective load."""
    if not fleet:
        raise ValueError("no instance to choose from")
    loads = known_loads(fleet, effective_load)
    least = min(loads)
    return [view for view, load in zip(fleet, loads, strict=True) if load == least]


@ROUTERS.register("power-of-two")
class PowerOfTwo(BaseRouter):
    """Of two drawn instances the one with fewer requests in flight, of two equal ones the one drawn first.

    This is nearly as even as looking at all (Mitzenmacher, "The Power of Two Choices", 2001), and several gateways that do not
    know of each other's requests do not all choose the same instance.
    """

    about = RouterInfo(
        summary="of two drawn instances the one with fewer requests in flight", complexity="O(1)", reads="in flight"
    )

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        count = len(fleet)
        if not count:
            raise ValueError("no instance to choose from")
        if count == 1:
            return Choice(fleet[0].index, "only_one")
        first = int(self._rng.random() * count)
        # The second is drawn from the others, so that two instances are always compared and all pairs are equally likely.
        second = int(self._rng.random() * (count - 1))
        one, other = fleet[first], fleet[second + (second >= first)]
        return Choice(other.index if other.in_flight < one.in_flight else one.index, "better_of_two")


@ROUTERS.register("random")
class RandomChoice(BaseRouter):
    """Any instance, with equal chances (SMG's `random`)."""

    about = RouterInfo(summary="any, with equal chances", complexity="O(1)")

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        if not fleet:
            raise ValueError("no instance to choose from")
        return Choice(fleet[int(self._rng.random() * len(fleet))].index, "drawn")


@ROUTERS.register("always-busiest")
class AlwaysBusiest(BaseRouter):
    """The instance with the most to do (BLIS `always-busiest`: waiting + running + in flight, the first among equals).

    For tests only: whatever tells a good router from a bad one must tell this one from all others.
    """

    about = RouterInfo(
        summary="for tests only: the busiest, to see what harm that does",
        complexity="O(n)",
        reads="in flight, waiting, running",
    )
    signals = Signals.LOAD

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        if not fleet:
            raise ValueError("no instance to choose from")
        loads = known_loads(fleet, effective_load)
        return Choice(fleet[loads.index(max(loads))].index, "busiest")


@ROUTERS.register("weighted")
class WeightedRouter(RandomTieBreaker):
    """The highest sum of weighted scores of the instances that are not overloaded; exact ties are drawn.

    The scorers are those of `scorers` (`--routing-scorers`), the thresholds those of `load_bound`."""

    about = RouterInfo(
        summary="the highest sum of weighted scores (--routing-scorers) of those not overloaded; exact ties are drawn",
        complexity="O(n), times what the scorers take",
        reads="in flight; what its scorers read",
    )

    def __init__(
        self,
        rng: Random,
        weights: ScorerWeights = DEFAULT_WEIGHTS,
        balance_abs_threshold: float = ABS_THRESHOLD,
        balance_rel_threshold: float = REL_THRESHOLD,
    ) -> None:
        """Raises ConfigError for an unknown scorer, and ValueError for a threshold that is out of range."""
        super().__init__(rng)
        # The names have their parameters: `prefix-affinity(block=32)`.
        self.scorers = {scorer.name: SCORERS.create(scorer.name) for scorer in weights.scorers}
        self.weighted = list(zip(self.scorers.values(), weights.normalized(), strict=True))
        self._bound = LoadBound(balance_abs_threshold, balance_rel_threshold)
        self._limit_beside_idle = self._bound.limit(0)
        self.signals = reduce(or_, map(signals_read, self.scorers.values()), Signals.NOTHING)

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        if not fleet:
            raise ValueError("no instance to choose from")
        sums = [0.0] * len(fleet)
        for scorer, weight in self.weighted:
            scores = scorer.scores(request, fleet)
            sums = [
                total + (1.0 if score > 1.0 else score if score > 0.0 else 0.0) * weight  # a score that is no number is 0
                for total, score in zip(sums, scores, strict=True)
            ]
        tied, reason = _best(fleet, sums), "best_score"
        if any(view.in_flight > self._limit_beside_idle for view in tied):
            counts = [view.in_flight for view in fleet]
            limit = self._bound.limit(min(counts))
            if any(view.in_flight > limit for view in tied):
                # Less than any sum. The instance with the fewest in flight is within the limit, so one is left.
                within = [-1.0 if count > limit else total for count, total in zip(counts, sums, strict=True)]
                tied, reason = _best(fleet, within), "best_score_within_bound"
        chosen = self._break_tie(request, tied)
        # Only after the tie is broken: a scorer such as `prefix-affinity` must learn where the request really goes.
        for scorer, _ in self.weighted:
            scorer.on_chosen(request, chosen)
        return Choice(chosen.index, reason)

    def check(self) -> None:
        for scorer in self.scorers.values():
            check_policy(scorer)


def _best(fleet: FleetView, sums: Sequence[float]) -> Sequence[InstanceView]:
    """Return the instances with the highest sum."""
    best = max(sums)
    return [view for view, total in zip(fleet, sums, strict=True) if total == best]
