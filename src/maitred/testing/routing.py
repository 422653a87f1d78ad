"""What every router and scorer promises."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random

from maitred.core.contracts import Router
from maitred.core.request import Request
from maitred.routing import ROUTERS, SCORERS, Scorer, Signals, signals_read
from maitred.routing.scorer_weights import DEFAULT_WEIGHTS, ScorerWeights
from maitred.testing.samples import InstanceSample, blaming, factory_of, sample_request

_READ_BY = {"waiting": Signals.LOAD, "running": Signals.LOAD, "kv_usage": Signals.LOAD, "cached_blocks": Signals.CACHES}


def check_router(router: str | Callable[[Random], Router], *, seeds: int = 20) -> None:
    """Raise AssertionError unless it chooses among the instances that it is shown, changes nothing there, looks at no more than
    its `reads` says, chooses alike for the same seed, and calls an empty fleet a ValueError.

    A class is called with a `Random`.
    """
    for seed in range(seeds):
        with blaming(router, seed):
            first, again = (_choices(_made(router, seed), seed) for _ in range(2))
            assert first == again, "the same seed makes other choices"
    with blaming(router, 0):
        _check_empty_fleet(_made(router, 0))
        for index in (0, 7):
            chosen = _made(router, 0).choose(sample_request(Random(0), 0, 0), [InstanceSample(index)], 0)
            assert chosen.instance == index, f"of instance {index} alone it chooses {chosen.instance}"


def _check_empty_fleet(router: Router) -> None:
    try:
        router.choose(sample_request(Random(0), 0, 0), [], 0)
    except ValueError:
        return
    raise AssertionError("an empty fleet is no ValueError")


def _made(router: str | Callable[[Random], Router], seed: int) -> Router:
    rng = Random(seed)
    return ROUTERS.create(router, {Random: rng, ScorerWeights: DEFAULT_WEIGHTS}) if isinstance(router, str) else router(rng)


def _choices(router: Router, seed: int) -> list[int]:
    """Send 60 requests, of which some end, to fleets of 6 or fewer, and return where they went."""
    rng = Random(seed)
    instances = _instances(rng, range(6))
    everybody = list(instances)
    down = list(instances[:-2])
    there: list[tuple[Request, InstanceSample]] = []
    went = []
    for number in range(60):
        request = sample_request(rng, number, 100 * number)
        fleet = everybody if rng.random() < 0.8 else down
        choice = router.choose(request, fleet, 100 * number)
        chosen = next((view for view in fleet if view.index == choice.instance), None)
        assert chosen is not None, f"it chooses {choice.instance}, which it was not shown"
        assert choice.reason, "it gives no reason"
        chosen.change(+1)
        there.append((request, chosen))
        went.append(choice.instance)
        if rng.random() < 0.5:
            request, left = there.pop(rng.randrange(len(there)))
            left.change(-1)
            router.on_request_end(request, left.index, 100 * number)
    _check_reads(router, instances)
    return went


def check_scorer(scorer: str | Callable[[], Scorer], *, seeds: int = 20) -> None:
    """Raise AssertionError unless it gives each instance one score from 0 to 1, looks at no more than its `reads` says, and
    scores alike what it has seen alike."""
    make = factory_of(scorer, SCORERS)
    for seed in range(seeds):
        with blaming(scorer, seed):
            first, again = (_scores(make(), seed) for _ in range(2))
            assert first == again, "another one scores the same fleets otherwise"


def _scores(scorer: Scorer, seed: int) -> list[Sequence[float]]:
    rng, seen = Random(seed), list[Sequence[float]]()
    for number in range(30):
        instances = _instances(rng, range(rng.randint(1, 6)))
        request = sample_request(rng, number, 100 * number)
        scores = scorer.scores(request, instances)
        assert len(scores) == len(instances), f"{len(scores)} scores for {len(instances)} instances"
        assert all(0.0 <= score <= 1.0 for score in scores), f"scores of {list(scores)} are not all from 0 to 1"
        _check_reads(scorer, instances)
        scorer.on_chosen(request, rng.choice(instances))
        seen.append(list(scores))
    return seen


def _instances(rng: Random, indices: Iterable[int]) -> list[InstanceSample]:
    return [
        InstanceSample(index, rng.randint(0, 9), rng.randint(0, 9), rng.randint(0, 9), rng.random(), rng.randint(0, 12))
        for index in indices
    ]


def _check_reads(policy: object, instances: Sequence[InstanceSample]) -> None:
    reads = signals_read(policy)
    for name in sorted(set().union(*(view.looked_at for view in instances))):
        assert _READ_BY[name] in reads, f"it looks at {name}, and its `reads` says {reads}"
