"""weighted: the instance with the highest sum of weighted scores.

Each scorer gives each instance a score from 0 to 1, 1 being best; scores outside are cut off. The weights are
normalised to a sum of 1, and the weighted scores are added up in the order in which the scorers are written, because
the sum of floats depends on the order and ties are exact. Then the scorers are told which instance was chosen, because
some remember it. (GAIE, llm-d and BLIS do it in this way.)
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from random import Random

from maitred.core.contracts import Choice, FleetView
from maitred.core.request import Request
from maitred.core.units import Micros
from maitred.routing.base import ROUTERS, RandomTieBreaker, RouterInfo, Signals, signals_read
from maitred.routing.scorer_weights import DEFAULT_WEIGHTS, ScorerWeights
from maitred.routing.scorers import SCORERS


@ROUTERS.register("weighted")
class WeightedRouter(RandomTieBreaker):
    """The highest sum of weighted scores; exact ties are drawn. The scorers are those of `scorers`
    (`--routing-scorers`)."""

    about = RouterInfo(
        summary="the highest sum of weighted scores (--routing-scorers); exact ties are drawn",
        complexity="O(n), times what the scorers take",
        reads="what its scorers read",
    )

    def __init__(self, rng: Random, weights: ScorerWeights = DEFAULT_WEIGHTS) -> None:
        """Raises ConfigError for an unknown scorer."""
        super().__init__(rng)
        self.scorers = {scorer.name: SCORERS.create(scorer.name) for scorer in weights.scorers}
        self._weighted = list(zip(self.scorers.values(), weights.normalized(), strict=True))
        self.signals = reduce(or_, map(signals_read, self.scorers.values()), Signals.NOTHING)

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        if not fleet:
            raise ValueError("no instance to choose from")
        sums = [0.0] * len(fleet)
        for scorer, weight in self._weighted:
            scores = scorer.scores(request, fleet)
            sums = [
                total + (1.0 if score > 1.0 else score if score > 0.0 else 0.0) * weight  # a score that is no number is 0
                for total, score in zip(sums, scores, strict=True)
            ]
        best = max(sums)
        tied = [view for view, total in zip(fleet, sums, strict=True) if total == best]
        chosen = self._break_tie(request, tied)
        # Only after the tie is broken: a scorer such as `prefix-affinity` must learn where the request really goes.
        for scorer, _ in self._weighted:
            scorer.on_chosen(request, chosen)
        return Choice(chosen.index, "best_score")
