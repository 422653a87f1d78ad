"""The assessment of a run, printed around its tables: what it was, how much of the instances it used, and what is wrong with
it.

A verdict says what is wrong, by a rule that looks at the figures of this run alone:

    the queue diverges     In the last tenth of the arrivals a fifth more requests waited than in the tenth after their
                           middle, and 10 or more. It began when fewer than a tenth of these waited for the last time. Since
                           then it has grown by at least 2 % of the arrivals, and by more than chance makes of a queue that only
                           just keeps up: 3 standard deviations of a random walk of n arrivals, √(v n). v is the variance
                           that each arrival adds, measured over 16 parts of this time, and at least 1, which Poisson
                           arrivals alone bring. The rate at which it would not grow is that of the requests that ended in the
                           second half of the time since then, when the batches had filled.
    KV is the bottleneck   In a quarter of the samples of instances with work, requests waited while the batch had room for one
                           more sequence, and the free blocks held no more than 5 % of the memory or the mean prompt. Or the KV
                           preemptions were a tenth of the completed requests.
    prefill starves decode At one kind of instances the mean gap between tokens was twice what a step of the same batch takes
                           without prompts, or more. Not said where preemptions (1 % of the requests) make gaps of their own.
    a class starves        Among the classes (or tenants) of 20 requests or more, its median TTFT was 10 times that of the best
                           one, and beyond its target (2 s without one); or a fifth of its requests did not complete, where the
                           best one lost at most 2 %.
    requests refused       Any were, with the limit that refused them.
    too few for a p99      Fewer than 299 completed. From 299 on the largest one is beyond the true p99 with a probability of
                           95 % (1 - 0.99^299), so below that nothing can be said of it, however often the run is repeated.
    outside the kernels    A prompt was longer, or a decode went over more tokens, than those whose attention was measured.

Waits, batches and blocks are those of the samples. Example: 60 requests/s arrive at instances that complete 41/s. The waiting
requests grow by 19 per second. After a minute these are 1,140 of 3,600 arrivals, of which chance could make 3 √3,600 = 180: the
queue diverges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from math import sqrt
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from maitred.core.contracts import BatchShape
from maitred.core.histogram import QuantileSketch
from maitred.core.units import SECOND, Micros, to_ms
from maitred.instance import InstanceConfig
from maitred.instance.throughput_limit import RequestMix
from maitred.report.breakdown import By
from maitred.report.costs import RunCosts, cost_lines, find_costs
from maitred.report.latencies import Times
from maitred.report.request_statistics import LatencyStatistics, latency_statistics
from maitred.report.run_setup import RunSetup, section_of
from maitred.report.slo import DEFAULT_SLO
from maitred.report.slowdown import slowdowns
from maitred.report.steady_state import MSER, SteadyState, Warmup, find_steady_state
from maitred.report.steady_table import print_steady_state, slowdown_lines
from maitred.report.summary import GroupSummary, Summary
from maitred.report.table import format_number, print_summary
from maitred.report.utilisation import (
    Utilisation,
    batch_limits,
    last_arrival,
    mean_request,
    measure_utilisation,
    utilisation_lines,
)
from maitred.sim import ClusterConfig, Outcome, Results, Samples

ENOUGH_FOR_P99: Final = 299
_LEAST_SAMPLES: Final = 20
_LEAST_WAITING: Final = 10
_LEAST_RISE: Final = 1.2
_LEAST_GROWTH: Final = 0.02
_PARTS: Final = 16
_LEAST_VARIANCE: Final = 1.0
_DEVIATIONS: Final = 3.0
"""Stable runs up to 98 % of the capacity stay below (bench/theory.py); more would miss queues that do diverge."""
_FULL: Final = 0.05
_OFTEN: Final = 0.25
_MANY_PREEMPTIONS: Final = 0.1
_SOME_PREEMPTIONS: Final = 0.01
_SLOWED: Final = 2.0
_STARVED_TIMES: Final = 10
_LEAST_GROUP: Final = 20
_LOST: Final = 0.2
_FEW_LOST: Final = 0.02


class VerdictKind(StrEnum):
    """What is wrong with a run."""

    DIVERGES = "the queue diverges"
    KV = "KV is the bottleneck"
    PREFILL = "prefill starves decode"
    STARVES = "starvation"
    REFUSED = "requests refused"
    FEW = "too few requests for a p99"
    UNMEASURED = "outside the measured kernels"


class Verdict(msgspec.Struct, frozen=True):
    """One thing that is wrong, in words with its figures."""

    kind: VerdictKind
    text: str


class Assessment(msgspec.Struct, frozen=True):
    """What a run was, how much of the instances it used, and what is wrong with it."""

    simulated: str
    utilisation: Utilisation
    verdicts: tuple[Verdict, ...]
    slowdown: LatencyStatistics | None = None
    """Statistics of the slowdown, a factor; None if it is not known."""
    costs: RunCosts | None = None
    """GPU-hours, energy, carbon and money; None if no GPU is known."""
    steady_state: SteadyState | None = None
    """What a longer run would come to; None if the rows were not kept."""


def assess(results: Results, summary: Summary, setup: RunSetup, warmup: Warmup = MSER) -> Assessment:
    """Return a run in one line, with its utilisation, its steady state after `warmup`, and the verdicts on it. Queues and KV
    are judged by the samples of `results`, if it has any."""
    growth = None if results.samples is None else find_growth(results.samples)
    cluster = section_of(setup, ClusterConfig)
    slower = None if setup.measured or cluster.disaggregation or cluster.groups else _slowdowns(results, setup)
    return Assessment(
        simulated=setup.in_one_line(),
        utilisation=measure_utilisation(results, summary, setup, None if growth is None else growth.served),
        verdicts=tuple(find_verdicts(results, summary, setup)),
        costs=find_costs(results, summary, setup),
        slowdown=None if slower is None else latency_statistics(slower[~np.isnan(slower)]),
        steady_state=find_steady_state(results, summary.slo, warmup, diverges=growth is not None, slowdown=slower),
    )


def _slowdowns(results: Results, setup: RunSetup) -> Times | None:
    return slowdowns(results, section_of(setup, InstanceConfig)) if len(results) else None


def print_run(summary: Summary, assessment: Assessment, console: Console, per: By = By.CLASS) -> None:
    """Print what was simulated, the tables (`table.print_summary`), the use of the instances, the steady state, and the
    verdicts."""
    console.print(assessment.simulated, style="dim", highlight=False, markup=False)
    print_summary(summary, console, per)
    for line in (
        *utilisation_lines(assessment.utilisation),
        *slowdown_lines(assessment.slowdown),
        *cost_lines(assessment.costs),
    ):
        console.print(line, style="dim", highlight=False, markup=False)
    if assessment.steady_state is not None:
        print_steady_state(assessment.steady_state, console)
    if assessment.verdicts:
        console.print()
    for verdict in assessment.verdicts:
        console.print(f"! {verdict.text}", style="yellow", highlight=False, markup=False)


def find_verdicts(results: Results, summary: Summary, setup: RunSetup) -> Iterator[Verdict]:
    """Yield what is wrong with a run. Queues and KV are judged by the samples of `results`, if it has any."""
    samples = results.samples
    if samples is not None and len(samples.at) > _LEAST_SAMPLES:
        yield from _diverges(samples)
        if not setup.measured:
            yield from _kv_bound(samples, summary, setup)
            yield from _prefill_bound(results, samples, summary, setup)
    yield from _starves(summary)
    yield from _refused(results, summary.total, setup)
    yield from _too_few(summary)
    if len(results) and (beyond := setup.beyond_kernels(results.prompt_tokens, results.output_tokens)):
        yield Verdict(VerdictKind.UNMEASURED, f"Outside the measured kernels: {beyond}. Their steps are extrapolated.")


class QueueGrowth(msgspec.Struct, frozen=True):
    """A queue that grows without end."""

    since_s: float
    """When it began, in seconds from the beginning of the run."""
    arrived: float
    """Requests per second since then."""
    ended: float
    waiting: int
    """Requests that waited when the last one came."""
    served: float | None
    """Requests per second that the instances serve; None if the run ends before it shows."""


def find_growth(samples: Samples) -> QueueGrowth | None:
    """Return how the queue grows, or None if it does not, by the rule of the divergence."""
    if len(samples.at) <= _LEAST_SAMPLES:
        return None
    last = last_arrival(samples)
    at, waiting = samples.at[: last + 1] / SECOND, (samples.waiting.sum(axis=1) + samples.outside_instances)[: last + 1]
    half = int(np.searchsorted(at, at[-1] / 2))
    if last - half < _LEAST_SAMPLES // 2:
        return None
    fifths = [float(part.mean()) for part in np.array_split(waiting[half:], 5)]
    if fifths[-1] < max(_LEAST_WAITING, _LEAST_RISE * fifths[0]):
        return None
    # The last instant at which few waited: a queue that filled up and was emptied before does not count.
    begun = int(np.flatnonzero(waiting < fifths[-1] / 10).max(initial=0))
    if not _outgrows_chance(waiting[begun:], float(samples.arrived[last] - samples.arrived[begun])):
        return None
    span = float(at[-1] - at[begun])
    arrived, ended = (float(column[last] - column[begun]) / span for column in (samples.arrived, samples.ended))
    # While batches fill up, fewer requests end than could: only the second half shows what the instances complete. A run that
    # is shorter than its answers shows it after the last arrival, while the queue is served.
    middle = int(np.searchsorted(at, (at[begun] + at[-1]) / 2))
    served = float(samples.ended[last] - samples.ended[middle]) / max(float(at[-1] - at[middle]), 1e-6)
    over_all = float(samples.ended[-1] / max(samples.at[-1] / SECOND, 1e-6))
    # A run that is cut off before those that ran halfway have ended says nothing of what the instances serve.
    has_turned = samples.ended[-1] - samples.ended[middle] >= samples.running[middle].sum()
    shows = has_turned or samples.ended[-1] == samples.arrived[-1]
    return QueueGrowth(float(at[begun]), arrived, ended, int(waiting[-1]), max(served, over_all) if shows else None)


def _outgrows_chance(waiting: NDArray[np.int64], arrivals: float) -> bool:
    """Return whether a queue grew by more than a random walk without drift does, over so many arrivals."""
    growth = float(waiting[-1] - waiting[0])
    parts = waiting[np.linspace(0, len(waiting) - 1, _PARTS + 1).round().astype(int)]
    variance = max(_LEAST_VARIANCE * arrivals, _PARTS * float(np.diff(parts).var(ddof=1)))
    return growth > max(_LEAST_GROWTH * arrivals, _DEVIATIONS * sqrt(variance))


def _diverges(samples: Samples) -> Iterator[Verdict]:
    growth = find_growth(samples)
    if growth is None:
        return
    level = "" if growth.served is None else f" At about {format_number(growth.served)}/s it would not grow."
    yield Verdict(
        VerdictKind.DIVERGES,
        f"The queue diverges: since {format_number(growth.since_s)} s {format_number(growth.arrived)} requests/s have arrived "
        f"and {format_number(growth.ended)} have ended, and {growth.waiting:,} waited when the last one came.{level} "
        f"The latencies hold for a run of this length only.",
    )


def _kv_bound(samples: Samples, summary: Summary, setup: RunSetup) -> Iterator[Verdict]:
    total, mix, configs = samples.total_blocks, mean_request(summary.total), _configs(setup)
    # In the unit of the samples, which show the blocks of smaller instances in proportion to those of the largest.
    sizes = np.array([each.kv_blocks * each.block_size_in_tokens for each in configs])
    prompt = (0.0 if mix is None else mix.prompt) * total / sizes
    free, limits = total - samples.blocks_used, batch_limits(samples, setup)
    has_work = (samples.running > 0) | (samples.waiting > 0)
    has_room = samples.running < limits
    stuck = (samples.waiting > 0) & (samples.running > 0) & has_room & (free <= np.maximum(_FULL * total, prompt))
    share = float(stuck.sum() / has_work.sum()) if has_work.any() else 0.0
    preemptions = summary.total.preemptions
    if share < _OFTEN and preemptions < max(_MANY_PREEMPTIONS * summary.total.completed, 1):
        return
    running = (
        f" with {samples.running[stuck].mean():,.0f} of {limits[stuck].mean():,.0f} sequences running" if stuck.any() else ""
    )
    yield Verdict(
        VerdictKind.KV,
        f"KV memory is the bottleneck: in {share:.0%} of the time requests waited for blocks{running}, and {preemptions:,} "
        f"sequences lost their KV. More memory for KV (total_kv_blocks, GPUs, instances) or fewer max_num_seqs would help.",
    )


def _configs(setup: RunSetup) -> list[InstanceConfig]:
    """Return the configuration of each instance by its index; equal ones are one object."""
    return section_of(setup, ClusterConfig).instance_configs(section_of(setup, InstanceConfig))


def _prefill_bound(results: Results, samples: Samples, summary: Summary, setup: RunSetup) -> Iterator[Verdict]:
    mix = mean_request(summary.total)
    many = summary.total.preemptions > _SOME_PREEMPTIONS * summary.total.arrived
    if mix is None or many or section_of(setup, ClusterConfig).disaggregation:
        return
    # Each kind of instances by itself: a mean over all is that of the slow ones, which hold most of the requests.
    kinds: dict[int, list[int]] = {}
    configs = _configs(setup)
    for index, config in enumerate(configs):
        kinds.setdefault(id(config), []).append(index)
    found = [_gap_and_step(results, samples, mix, configs[indices[0]], indices) for indices in kinds.values()]
    slowed = [pair for pair in found if pair is not None and pair[0] >= _SLOWED * pair[1]]
    if not slowed:
        return
    gap, alone = max(slowed, key=lambda pair: pair[0] / pair[1])
    yield Verdict(
        VerdictKind.PREFILL,
        f"Prefill starves decode: a gap between tokens took {format_number(to_ms(gap))} ms on average, and a step of the same "
        f"batch takes {format_number(to_ms(alone))} ms without prompts. Smaller chunks (max_num_batched_tokens, "
        "long_prefill_token_threshold), more instances, or prefill instances of their own would help.",
    )


def _gap_and_step(
    results: Results, samples: Samples, mix: RequestMix, config: InstanceConfig, indices: Sequence[int]
) -> tuple[float, float] | None:
    """Return the mean gap between tokens of these equal instances, and the time of a step of their mean batch without prompts,
    in µs; None if they had no gaps."""
    gaps, running = QuantileSketch(), samples.running[:, indices].astype(np.float64)
    for index in indices:
        gaps.merge(results.instances[index].itl)
    if not gaps.count or not running.any():
        return None
    latency = config.latency_model()
    # A batch counts as often as it has tokens, because every token of it has a gap.
    batch = round(float((running**2).sum() / running.sum()))
    alone = latency.step_time(BatchShape(batch, round(batch * (mix.prompt + mix.output / 2))))
    return gaps.mean - latency.overheads.per_output_token, alone


def _starves(summary: Summary) -> Iterator[Verdict]:
    for by in (By.CLASS, By.TENANT):
        groups = {name: group for name, group in summary.by.get(by, {}).items() if group.arrived >= _LEAST_GROUP}
        medians = {name: group.ttft.p50 for name, group in groups.items() if group.ttft is not None}
        if len(groups) < 2 or not medians:
            continue
        best = min(medians, key=lambda name: medians[name])
        for name, group in groups.items():
            why = " and ".join(filter(None, (_starved(summary, name, medians, best), _lost(group, groups))))
            if why:
                yield Verdict(VerdictKind.STARVES, f"The {by.value} {name} starves: {why}.")


def _starved(summary: Summary, name: str, medians: Mapping[str, float], best: str) -> str:
    if name not in medians or medians[name] < _STARVED_TIMES * medians[best] or medians[name] <= _ttft_target(summary, name):
        return ""
    own, other = format_number(to_ms(medians[name])), format_number(to_ms(medians[best]))
    return f"half of its requests waited {own} ms or more for their first token, those of {best} {other} ms"


def _lost(group: GroupSummary, groups: Mapping[str, GroupSummary]) -> str:
    least = min(_lost_share(other) for other in groups.values())
    if _lost_share(group) < _LOST or least > _FEW_LOST:
        return ""
    return f"{_lost_share(group):.0%} of its requests did not complete, of others at most {least:.0%}"


def _lost_share(group: GroupSummary) -> float:
    return 1 - (group.completed + group.outcomes[Outcome.REFUSED] + group.still_running) / group.arrived


def _ttft_target(summary: Summary, name: str) -> Micros:
    own = summary.slo.classes.get(name)
    target = own.ttft if own is not None and own.ttft is not None else summary.slo.ttft
    return target or DEFAULT_SLO.ttft or 0


_REASONS: Final[Mapping[str, str]] = {
    "queue_full": "the queue of their class was full (queue_size)",
    "queue_timeout": "they waited longer than the queue timeout (queue_timeout_secs)",
    "tenant_queue_full": "too many requests of their tenant waited (max_queued)",
    "rate_limited": "they came faster than rate_limit_tokens_per_second",
    "band_full": "too many requests of their priority waited (per_band_capacity, max_gateway_queue_depth)",
    "displaced": "a more urgent request took their place in a full queue (queue_shedding)",
    "no_capacity": "there was no slot at all (capacity)",
    "policy": "the admission policy refused them",
}


def _refused(results: Results, total: GroupSummary, setup: RunSetup) -> Iterator[Verdict]:
    parts = [*(_by_endpoint(total) if setup.measured else _by_cluster(results, total, section_of(setup, InstanceConfig)))]
    if count := total.outcomes[Outcome.TIMED_OUT]:
        parts.append(f"{count:,} left by their clients at the deadline (timeout)")
    if count := total.outcomes[Outcome.FAILED]:
        parts.append(f"{count:,} lost with an instance that failed, or none served (mtbf_secs, max_attempts)")
    if parts:
        lost = sum(total.outcomes[kind] for kind in (Outcome.REFUSED, Outcome.REJECTED, Outcome.TIMED_OUT, Outcome.FAILED))
        share = lost / max(total.arrived, 1)
        yield Verdict(VerdictKind.REFUSED, f"{share:.1%} of the requests were not served: {'; '.join(parts)}.")


def _by_endpoint(total: GroupSummary) -> Iterator[str]:
    for kind, what in ((Outcome.REFUSED, "refused by the endpoint as wrong or too long"), (Outcome.REJECTED, "rejected by it")):
        if count := total.outcomes[kind]:
            yield f"{count:,} {what}"


def _by_cluster(results: Results, total: GroupSummary, instance: InstanceConfig) -> Iterator[str]:
    if count := total.outcomes[Outcome.REFUSED]:
        held = instance.kv_blocks * instance.block_size_in_tokens
        limit = "max_model_len" if instance.max_model_len is not None and instance.max_model_len <= held else "total_kv_blocks"
        yield (f"{count:,} with prompts and outputs beyond the {instance.model_len:,} tokens that fit ({limit})")
    for reason, count in sorted(results.rejections.items(), key=lambda item: -item[1]):
        yield (f"{count:,} by admission, because {_REASONS.get(reason, f'of the reason {reason}')}")
    if count := total.outcomes[Outcome.REJECTED] - sum(results.rejections.values()):
        yield (f"{count:,} by their instance, with a full queue (max_num_queued_reqs, max_num_queued_tokens)")


def _too_few(summary: Summary) -> Iterator[Verdict]:
    groups = {"all": summary.total, **(summary.by[By.CLASS] if len(summary.by.get(By.CLASS, {})) > 1 else {})}
    few = {name: group.completed for name, group in groups.items() if group.completed < ENOUGH_FOR_P99}
    if few and summary.total.arrived:
        counts = ", ".join(f"{count:,} of {name}" for name, count in few.items())
        yield Verdict(
            VerdictKind.FEW,
            f"Too few requests for a p99 ({counts} completed): it says something from {ENOUGH_FOR_P99} on.",
        )
