"""The figures of a run, of all requests and of each group of them.

    TTFT        first token - arrival, of every request that got a first token, whatever became of it (as BLIS counts)
    TPOT        (finished - first token) / (output tokens - 1), of completed requests with at least 2 output tokens
    E2E         finished - arrival, of completed requests
    ITL         the gaps between tokens, one by one, whatever became of the request; kept as a sketch by the instances, so its
                percentiles are within 1 %; of classes, tenants and models, if nobody kept whose the gaps were, only the mean,
                over the gaps of their completed requests
    starvation  the longest that anybody waited to run for the first time, also of those who never did

What has no requests to be computed from is None, never NaN and never 0.

Goodput is good requests (`slo`) per simulated second; attainment is good requests over all that arrived, so that turning
requests away does not look like serving them well. Fairness is Jain's index of the tokens that tenants got, (Σx)² / (n·Σx²):
1 if all got the same, 1/n if one got everything (R. Jain et al., A quantitative measure of fairness, 1984).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from maitred.report.breakdown import By, codes_of, groups, label_of
from maitred.report.counts import Counts, count, latencies
from maitred.report.itl import itl_by_group
from maitred.report.slo import Slo, absent
from maitred.report.spread import Spread, sketched, spread
from maitred.request import PriorityClass
from maitred.sim import InstanceTotals, Results
from maitred.sketch import Sketch
from maitred.units import Micros, to_seconds

THRASHING = 0.1
"""If more than this share of the tokens that were computed had been computed before, KV is too small for the load."""


class Group(Counts, frozen=True, kw_only=True):
    """The figures of some requests, or of all."""

    ttft: Spread | None
    tpot: Spread | None
    e2e: Spread | None
    scheduling_delay: Spread | None
    itl: Spread | None = None
    """Of all gaps between tokens; None: there are none, or nobody kept whose they were."""

    @property
    def gap_mean(self) -> float | None:
        """Of all gaps, or else of those of completed requests, in µs."""
        return self.itl_mean if self.itl is None else self.itl.mean


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """What an instance did, or all of them."""

    steps: int
    fetched_blocks: int
    """KV blocks that came back from main memory."""
    utilisation: float | None
    """Share of the run in which it made steps, 0..1; of several, the mean."""
    itl: Spread | None


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a run."""

    duration: Micros
    """Simulated, from 0 to the end of the run."""
    slo: Slo
    total: Group
    by: Mapping[By, Mapping[str, Group]]
    """Breakdowns, as far as they were asked for; those of classes always."""
    engine: Engine
    """All instances together."""
    engines: Mapping[str, Engine]
    """By instance, as in `by[By.INSTANCE]`."""
    fairness: float | None
    """Among tenants, 0..1; None if there are not several."""
    warnings: Sequence[str] = ()

    @property
    def classes(self) -> dict[PriorityClass, Group]:
        """Only classes of which a request arrived, the most urgent first."""
        return {PriorityClass[label.upper()]: group for label, group in self.by[By.CLASS].items()}

    def per_second(self, count: int | None) -> float | None:
        """`count` per simulated second; None if there is no count or no time passed."""
        return None if count is None or not self.duration else count / to_seconds(self.duration)


def summarise(results: Results, slo: Slo | None = None, by: Iterable[By] = By) -> Summary:
    """`by`: the breakdowns that are wanted."""
    targets = slo or Slo()
    tokens = np.bincount(results.tenant, weights=results.output_tokens) if len(results) else np.zeros(0)
    return summed_up(
        results,
        targets,
        total=group(results, targets),
        by={each: {label: group(part, targets) for label, part in groups(results, each)} for each in wanted(by)},
        tokens=tokens[np.unique(results.tenant)].tolist(),
        without=absent(results, targets),
    )


def summed_up(
    results: Results,
    slo: Slo,
    *,
    total: Group,
    by: Mapping[By, Mapping[str, Group]],
    tokens: Sequence[float],
    without: Sequence[str],
) -> Summary:
    """What requests say (`tokens`: that tenants got; `without`: classes with targets and no request), and what `results` says
    beside them."""
    engine = _engine(results.instances, results.end)
    engines = {str(index): _engine([totals], results.end) for index, totals in enumerate(results.instances)}
    return Summary(
        duration=int(results.end),
        slo=slo,
        total=msgspec.structs.replace(total, itl=engine.itl),
        by={each: dict(_with_gaps(results, each, groups, engine, engines)) for each, groups in by.items()},
        engine=engine,
        engines=engines,
        fairness=_fairness(tokens),
        warnings=(*_thrashing(total), *(f"there is an SLO for the class {name!r}, and no request of it" for name in without)),
    )


def _with_gaps(
    results: Results, by: By, groups: Mapping[str, Group], engine: Engine, engines: Mapping[str, Engine]
) -> Iterator[tuple[str, Group]]:
    """Instances know their gaps, and a group that is alone has all of them."""
    if by is By.INSTANCE:
        known = {label: engines[label].itl for label in groups if label in engines}
    elif len(groups) == 1:
        known = dict.fromkeys(groups, engine.itl)
    else:
        sketches = itl_by_group(results, codes_of(results, by))
        known = {label_of(results, by, code): sketched(sketch) for code, sketch in sketches.items()}
    for label, members in groups.items():
        yield label, msgspec.structs.replace(members, itl=known.get(label))


def wanted(by: Iterable[By]) -> list[By]:
    """These breakdowns, in our order, and that of classes."""
    asked = {By.CLASS, *by}
    return [each for each in By if each in asked]


def group(results: Results, slo: Slo) -> Group:
    """The figures of all rows of `results`."""
    return grouped(count(results, slo), {name: spread(values) for name, values in latencies(results).items()})


def grouped(counts: Counts, spreads: Mapping[str, Spread | None]) -> Group:
    figures: dict[str, Any] = {**msgspec.structs.asdict(counts), **spreads}
    return Group(**figures)


def _engine(instances: Sequence[InstanceTotals], duration: Micros) -> Engine:
    gaps = Sketch()
    for totals in instances:
        gaps.merge(totals.gaps)
    available = duration * len(instances)
    busy = sum(min(totals.busy, duration) for totals in instances)  # a step may outlast the run, if its last client leaves
    return Engine(
        steps=sum(totals.steps for totals in instances),
        fetched_blocks=sum(totals.fetched_blocks for totals in instances),
        utilisation=busy / available if available else None,
        itl=sketched(gaps),
    )


def _fairness(tokens: Sequence[float]) -> float | None:
    squares = sum(got * got for got in tokens)
    return sum(tokens) ** 2 / (len(tokens) * squares) if len(tokens) > 1 and squares else None


def _thrashing(total: Group) -> list[str]:
    if total.waste is None or total.waste <= THRASHING:
        return []
    what = f"KV thrashing: {total.preemptions:,} preemptions, {total.waste:.0%} of the tokens computed were computed again"
    return [f"{what} (more total_kv_blocks, fewer max_num_seqs, or admission with a capacity)"]
