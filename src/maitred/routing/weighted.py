"""weighted: the instance with the highest sum of weighted scores.

Each scorer gives each instance a score from 0 to 1, 1 being best; scores beyond are cut off. The weights are normalised to a
sum of 1 and the scores added up in the order in which the scorers are written, because the sum of floats depends on it and
ties are exact. Then the scorers are told who was chosen: some remember it. (GAIE, llm-d and BLIS do it so.)
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from random import Random

from maitred.contracts import Choice, FleetView
from maitred.request import Request
from maitred.routing.mix import USUAL_MIX, Mix
from maitred.routing.policy import ROUTERS, Drawing, Reads, RouterInfo, what_it_reads
from maitred.routing.scorers import SCORERS
from maitred.units import Micros


@ROUTERS.register("weighted")
class Weighted(Drawing):
    """The highest sum of weighted scores; exact ties are drawn. What is added up says `scorers` (`--routing-scorers`)."""

    about = RouterInfo(
        line="the highest sum of weighted scores (--routing-scorers); exact ties are drawn",
        complexity="O(n), times what the scorers take",
        reads="what its scorers read",
    )

    def __init__(self, rng: Random, mix: Mix = USUAL_MIX) -> None:
        """Raises ConfigError for a scorer that there is not."""
        super().__init__(rng)
        self.scorers = {part.name: SCORERS.create(part.name) for part in mix.parts}
        self._weighed = list(zip(self.scorers.values(), mix.weights(), strict=True))
        self.reads = reduce(or_, map(what_it_reads, self.scorers.values()), Reads.NOTHING)

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        if not fleet:
            raise ValueError("no instance to choose from")
        sums = [0.0] * len(fleet)
        for scorer, weight in self._weighed:
            scores = scorer.scores(request, fleet)
            sums = [
                total + (1.0 if score > 1.0 else score if score > 0.0 else 0.0) * weight  # what is no number is 0
                for total, score in zip(sums, scores, strict=True)
            ]
        best = max(sums)
        tied = [view for view, total in zip(fleet, sums, strict=True) if total == best]
        chosen = self._tie(request, tied)
        for scorer, _ in self._weighed:
            scorer.chosen(request, chosen)
        return Choice(chosen.index, "best_score")
