"""The search: successive halving, with children of the survivors.

    first generation   each single change of today's rules that the space has, and then random ones of two to five changes
    rungs              all candidates are replayed on the first quarter of the traffic, the first half, and all of it;
                       after each rung the best third survives
    between rungs      as many children as there are survivors join them: each entry of a child is of one of two parents, and
                       one entry is drawn anew
    at the end         changes are taken back without which the best candidate is as good

So cheap replays leave time for the candidates that are worth it. What is chosen depends on the seed and the figures alone, not
on the number of processes: all runs of a rung are made before any is judged.

Example: 81 candidates on a quarter, 27 + 27 on a half and 18 + 18 on all of it cost 20 + 27 + 36 = 83 replays of the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any, Final

from maitred.study.tune.goal import Score
from maitred.study.tune.space import Point, Space

RUNGS: Final = (1 / 4, 1 / 2, 1.0)
"""Shares of the traffic."""
_SURVIVORS: Final = 3
"""One of so many."""
_LEAST_SURVIVORS: Final = 2
_COST: Final = 1 / 4 + 2 / 3 / 2 + 4 / 9
"""Of one candidate of the first rung, with all that follows from it, in replays of the whole traffic."""

Evaluate = Callable[[Sequence[Point], int], Sequence[Score | None]]
"""Returns the scores of points on a rung (an index of `RUNGS`), None for one that cannot be simulated."""


def num_candidates(budget: float) -> int:
    """Return how many candidates a search can begin with that costs as much as `budget` replays of the whole traffic."""
    return max(4, int(budget / _COST))


class Halving:
    """A search of one space."""

    def __init__(self, space: Space, count: int, seed: int) -> None:
        self._space, self._count = space, count
        self._random = Random(f"{seed}/tune")

    def run(self, evaluate: Evaluate) -> list[tuple[Score, Point]]:
        """Return the points of the last rung with their scores, the best first."""
        points = self._first_generation()
        ranked: list[tuple[Score, Point]] = []
        for rung in range(len(RUNGS)):
            scores = evaluate(points, rung)
            pairs = [(score, point) for score, point in zip(scores, points, strict=True) if score is not None]
            ranked = sorted(pairs, key=lambda pair: _rank(*pair))
            if rung + 1 < len(RUNGS):
                survivors = [point for _, point in ranked[: max(_LEAST_SURVIVORS, len(ranked) // _SURVIVORS)]]
                points = self._with_children(survivors)
        return self._pruned(_distinct(ranked), evaluate)

    def _pruned(self, ranked: list[tuple[Score, Point]], evaluate: Evaluate) -> list[tuple[Score, Point]]:
        """Take every change back that the best point is as good without."""
        if not ranked:
            return []
        score, point = ranked[0]
        while len(point) > 1:
            fewer = [{key: value for key, value in point.items() if key != left} for left in point]
            found = [
                (each, less) for each, less in zip(evaluate(fewer, len(RUNGS) - 1), fewer, strict=True) if each is not None
            ]
            best = min(found, key=lambda pair: _rank(*pair), default=None)
            if best is None or _rank(*best) > _rank(score, point):
                break
            score, point = best
        return _distinct([(score, point), *ranked[1:]])

    def _first_generation(self) -> list[Point]:
        points: list[Point] = []
        singles = [{key: value} for key, values in self._space.items() for value in values]
        self._random.shuffle(singles)
        # Where there is room for few, half of it is for combinations.
        _add_new(points, iter(singles[: max(self._count // 2, self._count - 4 * len(singles))]), self._count)
        _add_new(points, (self._drawn() for _ in range(20 * self._count)), self._count)
        return points

    def _drawn(self) -> Point:
        """Return a random point, with two to five changes."""
        random, keys = self._random, [*self._space]
        chosen = random.sample(keys, min(len(keys), random.randint(2, 5)))
        return {key: random.choice(self._space[key]) for key in chosen}

    def _with_children(self, survivors: Sequence[Point]) -> list[Point]:
        points = list(survivors)
        _add_new(points, (self._child(survivors) for _ in range(20 * len(survivors))), 2 * len(survivors))
        return points

    def _child(self, parents: Sequence[Point]) -> Point:
        random = self._random
        # The better ones are parents more often.
        first, second = (parents[min(random.randrange(len(parents)), random.randrange(len(parents)))] for _ in range(2))
        child: dict[str, Any] = {}
        for key in self._space:
            parent = first if random.random() < 0.5 else second
            if key in parent:
                child[key] = parent[key]
        changed = random.choice([*self._space])
        if changed in child and random.random() < 0.3:
            del child[changed]  # back to what holds today
        else:
            child[changed] = random.choice(self._space[changed])
        return child


def _rank(score: Score, point: Point) -> tuple[float, float, int]:
    """Return the sort key of a candidate: of equal ones, to a hundredth of the price, that with fewer changes is first."""
    return round(score.excess, 3), round(score.price, 2), len(point)


def _distinct(ranked: list[tuple[Score, Point]]) -> list[tuple[Score, Point]]:
    """Return the candidates without those that do the same as a better one."""
    found: dict[tuple[float, float], tuple[Score, Point]] = {}
    for score, point in ranked:
        found.setdefault((round(score.excess, 4), round(score.price, 4)), (score, point))
    return [*found.values()]


def _add_new(points: list[Point], more: Iterator[Point], most: int) -> None:
    """Add points until there are `most`, none twice, and not today's rules."""
    known = {_key(point) for point in points}
    for point in more:
        if len(points) >= most:
            return
        if point and _key(point) not in known:
            known.add(_key(point))
            points.append(point)


def _key(point: Point) -> str:
    return repr(sorted(point.items()))
