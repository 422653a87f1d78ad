"""`maitred tune`: rules that hold an SLO on recorded traffic, searched by replays.

    space.py    which keys are varied, and their values
    goal.py     limits, prices, and how sure a difference is
    search.py   which candidates are replayed: successive halving, with children of the survivors
    trials.py   the replays, on all cores or a Ray cluster
    rules.py    a candidate as a configuration; the file that is written
    result.py   what is printed and written

**Not fitted to the past.** The traffic is cut in two by time. The search sees the first part alone; what is told of the best
candidates comes from the second one, in replays of the whole traffic of which only the requests of that part count. Step times
of the engines are fitted to all of it.

Example: 10,000 requests, of which 30 % are held out. Rungs are the first 1,750, 3,500 and 7,000 of them. The five best
candidates and today's rules are replayed with all 10,000, by several seeds, and judged by the last 3,000.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from maitred.core.errors import ConfigError
from maitred.study.candidate import Candidate
from maitred.study.runs import Progress
from maitred.study.tune.goal import Limit, Part, Score, judge, parse_limit, streaming
from maitred.study.tune.result import Tuned, TunedCandidate
from maitred.study.tune.rules import Rules
from maitred.study.tune.search import RUNGS, Halving, num_candidates
from maitred.study.tune.space import Point, Space, default_space, read_space, vary
from maitred.study.tune.trials import Trial, Trials
from maitred.study.what_if.figures import Groups
from maitred.study.what_if.recorded import Recorded, read_recorded
from maitred.study.what_if.world import CENTRAL, ReplayedRun, ReplayWorld

__all__ = ["Tuned", "tune"]

BUDGET: Final = 60
BEST: Final = 5
SEEDS: Final = 3
HOLDOUT: Final = 0.3
MAY_REFUSE: Final = 0.01
_LEAST_REQUESTS: Final = 100
"""In each part. Fewer say nothing of a percentile."""


def tune(
    logs: Sequence[Path],
    records: Sequence[Path],
    slo: Sequence[str],
    *,
    config: Path | None = None,
    engine: dict[str, Any] | None = None,
    space: Path | None = None,
    varied: Sequence[str] = (),
    budget: float = BUDGET,
    holdout: float = HOLDOUT,
    may_refuse: float = MAY_REFUSE,
    seeds: int = SEEDS,
    seed: int = 42,
    jobs: int | None = 1,
    ray: str | None = None,
    progress: Progress | None = None,
) -> Tuned:
    """Search rules under which recorded traffic (a decision log and its record) holds `slo`, limits as `interactive.ttft_p99_ms
    <= 500`, and does so at the least price for its classes.

    `config` is today's configuration, whose other keys are in what is written. `engine` are keys of `instance` that are known
    of the engines. `space` and `varied` say what is varied (`space`). The search costs as much as `budget` replays of the first
    part of the traffic; `holdout` is the share of the traffic that it does not see, `may_refuse` the share of a class that may
    be refused and is served today. `jobs` is the number of processes (1: this one; None: one for each core). The result does
    not depend on it. Raises ConfigError.
    """
    if not slo:
        raise ConfigError("there is nothing to hold", where="--slo", hint="--slo 'interactive.ttft_p99_ms <= 500'")
    for flag, value, least, most in (
        ("--budget", budget, 1, 100_000),
        ("--seeds", seeds, 1, 100),
        ("--may-refuse", may_refuse, 0, 1),
        ("--holdout", holdout, 0.05, 0.8),
        ("--seed", seed, 0, 10**9),
    ):
        if not least <= value <= most:
            raise ConfigError(f"{value:g} is out of range", where=flag, hint=f"{least:g} to {most:g}")
    limits = [parse_limit(text) for text in slo]
    recorded = read_recorded(logs, records)
    first = _split(recorded, holdout)
    _check_groups(recorded, limits, first)
    world = ReplayWorld.calibrated(recorded, engine)
    rules = Rules(world, config)
    found = _space(rules, space, varied)
    worlds = [_first_part(world, max(1, round(share * first))) for share in RUNGS] + [world]
    with Trials(worlds, jobs=jobs, ray=ray) as trials:
        work = _Search(rules, trials, worlds, limits, may_refuse, progress, seed)
        ranked = work.search(found, budget)
        chosen = [point for _, point in ranked[:BEST]]
        return work.told(chosen, first, seeds, num_varied=len(found))


def _split(recorded: Recorded, holdout: float) -> int:
    """Return how many requests the search may see. Raises ConfigError if either part has too few."""
    count = len(recorded.requests)
    first = round(count * (1 - holdout))
    if min(first, count - first) < _LEAST_REQUESTS:
        problem = f"{count:,} requests are too few to tune by: {first:,} to search on, and {count - first:,} held out"
        hint = f"at least {_LEAST_REQUESTS} of each: record {ceil(_LEAST_REQUESTS / min(holdout, 1 - holdout)):,} or more"
        share = ceil(100 * _LEAST_REQUESTS / max(1, count)) / 100
        if share <= 0.5:
            hint += f", or --holdout {share:g}"
        raise ConfigError(problem, where="the record", hint=hint)
    return first


def _check_groups(recorded: Recorded, limits: Sequence[Limit], first: int) -> None:
    """Raise ConfigError for a limit on requests that either part of the traffic lacks."""
    groups, streams = Groups(recorded.requests), streaming(recorded.requests)
    for limit in limits:
        rows = limit.counted(groups, streams)
        if not (rows[:first].any() and rows[first:].any()):
            problem = f"{limit.text}: there are no such requests in both what is searched on and what is held out"
            hint = "an answer that does not stream has no TTFT" if limit.is_of_streams else ""
            raise ConfigError(problem, where="--slo", hint=hint)


def _first_part(world: ReplayWorld, count: int) -> ReplayWorld:
    return ReplayWorld(replace(world.recorded, requests=world.recorded.requests[:count]), world.engines)


def _space(rules: Rules, path: Path | None, varied: Sequence[str]) -> Space:
    space = (
        read_space(path)
        if path is not None
        else default_space(
            rules.classes, mode=rules.mode, num_engines=rules.world.engines.num_instances, has_programs=rules.has_programs
        )
    )
    return vary(space, varied) if varied else space


class _Search:
    """A search under way."""

    def __init__(
        self,
        rules: Rules,
        trials: Trials,
        worlds: Sequence[ReplayWorld],
        limits: Sequence[Limit],
        may_refuse: float,
        progress: Progress | None,
        seed: int,
    ) -> None:
        self._rules, self._trials, self._worlds, self._limits = rules, trials, worlds, limits
        self._may_refuse, self._progress, self._seed = may_refuse, progress, seed
        self._done, self._total = 0, 1
        self._problem: ConfigError | None = None
        """Why the first rules that were impossible are."""

    def search(self, space: Space, budget: float) -> list[tuple[Score, Point]]:
        count = num_candidates(budget)
        self._total = round(count * (1 + 2 / 3 + 4 / 9)) + len(RUNGS)
        ranked = Halving(space, count, self._seed).run(self._scores)
        if not ranked:
            assert self._problem is not None
            raise ConfigError(f"no rules of this space can be simulated; the first: {self._problem}")
        return ranked

    def _scores(self, points: Sequence[Point], rung: int) -> list[Score | None]:
        made = {index: each for index, point in enumerate(points) if (each := self._candidate(point)) is not None}
        today, *runs = self._run([Trial(rung, each, CENTRAL) for each in (self._rules.today, *made.values())])
        if isinstance(today, ConfigError):
            raise today
        part = self._part(rung, np.ones(len(self._worlds[rung].recorded.requests), dtype=bool), today)
        found: list[Score | None] = [None] * len(points)
        for index, run in zip(made, runs, strict=True):
            if isinstance(run, ConfigError):
                self._problem = self._problem or run
            else:
                found[index] = part.score(run)
        return found

    def _candidate(self, point: Point) -> Candidate | None:
        """Return the candidate of a point, or None for rules that no configuration may have."""
        try:
            return self._rules.candidate(point)
        except ConfigError as error:
            self._problem = self._problem or error
            return None

    def _part(self, world: int, rows: Any, today: ReplayedRun) -> Part:
        return Part(self._worlds[world].recorded.requests, rows, self._limits, today, self._may_refuse)

    def _run(self, trials: Sequence[Trial]) -> list[ReplayedRun | ConfigError]:
        runs = self._trials.run(trials, self._show)
        self._done += len(trials)
        return runs

    def _show(self, done: int, total: int) -> None:
        if self._progress is not None:
            self._progress(min(self._done + done, self._total), self._total)

    def told(self, points: Sequence[Point], first: int, seeds: int, *, num_varied: int) -> Tuned:
        """Return the results of these points on the part of the record that was held out."""
        world, whole = self._worlds[-1], len(self._worlds) - 1
        held_out = np.arange(len(world.recorded.requests)) >= first
        drawn = [CENTRAL, *(self._seed + index for index in range(1, seeds))]
        made = [self._rules.today, *(self._rules.candidate(point) for point in points)]
        self._total = self._done + len(made) * len(drawn)
        runs = self._run([Trial(whole, each, seed) for each in made for seed in drawn])
        known: list[ReplayedRun] = []
        for run in runs:
            if isinstance(run, ConfigError):  # Rules that serve the first part may be impossible for what comes later.
                raise run
            known.append(run)
        sides = [known[at : at + len(drawn)] for at in range(0, len(known), len(drawn))]
        parts = [self._part(whole, rows, sides[0][0]) for rows in (held_out, ~held_out)]
        told = [
            TunedCandidate(
                settings=self._rules.settings(point),
                config=self._rules.text(point),
                held_out=judge(parts[0], sides[0], side, self._seed),
                searched=judge(parts[1], sides[0], side, self._seed),
            )
            for point, side in zip(points, sides[1:], strict=True)
        ]
        # By what the search has seen: to choose by the part that was held out would fit the choice to it.
        return Tuned(
            candidates=tuple(told),
            slo=tuple(limit.text for limit in self._limits),
            num_requests=len(held_out),
            num_held_out=int(held_out.sum()),
            num_varied=num_varied,
            num_replays=self._trials.num_done,
            seeds=tuple(drawn),
        )
