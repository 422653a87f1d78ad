"""The figures of a run, of all requests and of each group of them.

    TTFT        first token - arrival, of every request that got a first token, whatever became of it (as BLIS counts)
    TPOT        (finished - first token) / (output tokens - 1), of completed requests with at least 2 output tokens
    E2E         finished - arrival, of completed requests
    starvation  the longest that anybody waited to run for the first time, also of those who never did

What has no requests to be computed from is None, never NaN and never 0.

Goodput is good requests (`slo`) per simulated second; attainment is good requests over all that arrived, so that turning
requests away does not look like serving them well. Fairness is Jain's index of the tokens that tenants got, (Σx)² / (n·Σx²):
1 if all got the same, 1/n if one got everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import numpy as np

from maitred.report.breakdown import By, groups
from maitred.report.slo import Slo, absent, good
from maitred.report.spread import Spread, spread
from maitred.request import PriorityClass
from maitred.sim import Outcome, Results
from maitred.units import Micros, to_seconds

THRASHING = 0.1
"""If more than this share of the tokens that were computed had been computed before, KV is too small for the load."""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of some requests, or of all."""

    arrived: int
    outcomes: dict[Outcome, int]
    """A count for every outcome; they add up to `arrived`."""
    still_running: int
    """Of those unfinished, how many had been scheduled."""
    prompt_tokens: int
    """Of the requests that were let in: neither rejected nor refused."""
    cached_tokens: int
    """Of their prompts, what was in the prefix cache when they first ran."""
    output_tokens: int
    """All that came out, also of requests that did not complete."""
    wasted_tokens: int
    """Computed again, because a preemption had lost their KV."""
    preemptions: int
    """How often their instances took the KV of one of them."""
    retries: int
    """How often admission took the slot of one of them back and let it wait for another."""
    ttft: Spread | None
    tpot: Spread | None
    e2e: Spread | None
    scheduling_delay: Spread | None
    starvation: Micros
    good: int | None
    """Requests within the SLO; None when there is none."""

    @property
    def completed(self) -> int:
        return self.outcomes[Outcome.COMPLETED]

    @property
    def hit_rate(self) -> float | None:
        """Share of the prompt tokens that were cached, 0..1."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def waste(self) -> float | None:
        """Share of the tokens that were computed which had been computed before, 0..1."""
        computed = self.prompt_tokens - self.cached_tokens + self.output_tokens + self.wasted_tokens
        return self.wasted_tokens / computed if computed > 0 else None

    @property
    def attainment(self) -> float | None:
        """0..1."""
        return None if self.good is None or not self.arrived else self.good / self.arrived


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of a run."""

    duration: Micros
    """Simulated, from 0 to the end of the run."""
    slo: Slo
    total: Group
    by: Mapping[By, dict[str, Group]]
    """Breakdowns, as far as they were asked for; those of classes always."""
    fairness: float | None
    """Among tenants, 0..1; None if there are not several."""
    warnings: tuple[str, ...] = ()

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
    total = group(results, targets)
    wanted = [each for each in By if each in {By.CLASS, *by}]
    return Summary(
        duration=int(results.end),
        slo=targets,
        total=total,
        by={each: {label: group(part, targets) for label, part in groups(results, each)} for each in wanted},
        fairness=_fairness(results),
        warnings=(*_thrashing(total), *_nobody(results, targets)),
    )


def group(results: Results, slo: Slo) -> Group:
    """The figures of all rows of `results`."""
    outcome, arrival, first, finished = results.outcome, results.arrival, results.first_token, results.finished
    tokens, scheduled = results.output_tokens, results.scheduled
    let_in = (outcome != Outcome.REJECTED) & (outcome != Outcome.REFUSED)
    completed = outcome == Outcome.COMPLETED
    several = completed & (tokens > 1)
    return Group(
        arrived=len(results),
        outcomes={kind: int(np.count_nonzero(outcome == kind)) for kind in Outcome},
        still_running=int(np.count_nonzero((outcome == Outcome.UNFINISHED) & (scheduled >= 0))),
        prompt_tokens=int(results.prompt_tokens[let_in].sum()),
        cached_tokens=int(results.cached_tokens.sum()),
        output_tokens=int(tokens.sum()),
        wasted_tokens=int(results.wasted_tokens.sum()),
        preemptions=int(results.preemptions.sum()),
        retries=int(results.retries.sum()),
        ttft=spread((first - arrival)[first >= 0]),
        tpot=spread((finished - first)[several] / (tokens - 1)[several]),
        e2e=spread((finished - arrival)[completed]),
        scheduling_delay=spread((scheduled - arrival)[scheduled >= 0]),
        starvation=_starvation(results),
        good=int(np.count_nonzero(good(results, slo))) if slo else None,
    )


def _starvation(results: Results) -> Micros:
    """Who was preempted has run by its first token at the latest, whenever it was scheduled again."""
    if not len(results):
        return 0
    ended = np.where(results.finished >= 0, results.finished, results.end)
    ran = np.where(results.scheduled >= 0, results.scheduled, ended)
    ran = np.where(results.first_token >= 0, np.minimum(ran, results.first_token), ran)
    return int((ran - results.arrival).max())


def _fairness(results: Results) -> float | None:
    """R. Jain et al., A quantitative measure of fairness (1984)."""
    got = np.bincount(results.tenant, weights=results.output_tokens) if len(results) else np.zeros(0)
    got = got[np.unique(results.tenant)]
    squares = float((got * got).sum())
    return float(got.sum()) ** 2 / (len(got) * squares) if len(got) > 1 and squares else None


def _thrashing(total: Group) -> list[str]:
    if total.waste is None or total.waste <= THRASHING:
        return []
    what = f"KV thrashing: {total.preemptions:,} preemptions, {total.waste:.0%} of the tokens computed were computed again"
    return [f"{what} (more total_kv_blocks, fewer max_num_seqs, or admission with a capacity)"]


def _nobody(results: Results, slo: Slo) -> list[str]:
    return [f"there is an SLO for the class {name!r}, and no request of it" for name in absent(results, slo)]
