"""How much of the instances a run used, and how much more they could take.

"Busy" says little: an instance with one request is as busy as one with a full batch. So there are four figures:

    with work    the share of the time in which steps ran
    batch        running sequences as a share of the `max_num_seqs` of their instance, while any ran
    KV           used KV blocks as a share of all, while any sequence ran, and the largest share in any sample
    of the limit output tokens per second of the whole run, as the table has them, as a share of what the latency model can make
                 of this traffic with full batches (`instance/throughput_limit.py`)

Batch and KV are means over the samples of a run (some hundred, however long it is), so a short peak may be missed.

The headroom is the limit by the arrival rate. What is said of it depends on how requests arrived:

    at a steady rate   the rate over all, and the headroom
    unevenly           if a tenth of the time had twice its share of the requests or more, and 5 standard deviations of a
                       Poisson count more: the rate and the headroom of the busiest tenth, because a mean over quiet times
                       promises too much
    after answers      closed loops and sessions have no arrival rate: a slower cluster is sent fewer requests. What can be said
                       is how many requests ended per second and how many were in flight, by Little's law their product with
                       the mean time in the system (J. D. C. Little, A proof for the queuing formula L = λW, 1961)

Where the queue diverges (`verdicts`), the rate that the instances were seen to serve replaces the limit if it is lower.

    18.4 requests/s arrived, and the instances could take 26.1/s: headroom 1.42
"""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from maitred.core.units import SECOND
from maitred.instance import InstanceConfig
from maitred.instance.throughput_limit import RequestMix
from maitred.report.request_statistics import RequestCounts
from maitred.report.run_setup import RunSetup, section_of
from maitred.report.summary import Summary
from maitred.report.table import format_number, format_share
from maitred.sim import ClusterConfig, Outcome, Results, Samples
from maitred.sim.instance_groups import fleet_limit

_LEAST_ARRIVALS = 50
"""Requests below which an arrival rate says nothing."""
_MANY_CUT: Final = 0.1
_TWO_DIGITS: Final = 0.1
_TENTHS: Final = 10
_UNEVEN: Final = 2.0
_NO_CHANCE: Final = 5.0
"""Standard deviations above the mean of a Poisson count that chance does not explain."""


class Utilisation(msgspec.Struct, frozen=True, kw_only=True):
    """The use of the instances; each figure is None if it is not known."""

    with_work: float | None
    """Share of the time in which steps ran, 0..1."""
    batch: float | None = None
    """Share of the sequences that a batch may have, 0..1."""
    kv: float | None = None
    kv_peak: float | None = None
    arrival_rate: float | None = None
    """Requests per second while requests arrived; None if they followed answers, or were too few."""
    busiest_rate: float | None = None
    """Requests per second in the busiest tenth of the time in which they arrived, if that is uneven."""
    ended_rate: float | None = None
    """Requests that ended per second of the run."""
    in_flight: float | None = None
    """Mean number of requests in flight, from the beginning of the run to its end, if requests followed answers."""
    limit: float | None = None
    """Requests per second of this traffic that the instances could take."""
    served: float | None = None
    """Requests per second that the instances were seen to serve, if the queue diverges."""
    output_rate: float | None = None
    """Output tokens per second of the run."""
    output_limit: float | None = None
    """Output tokens per second of this traffic that full batches could make."""

    @property
    def headroom(self) -> float | None:
        """By which factor the traffic could grow, or None. Below 1 it is too much already."""
        rate = self.busiest_rate or self.arrival_rate
        return self.attainable / rate if self.attainable and rate else None

    @property
    def attainable(self) -> float | None:
        """The limit, or the rate that was seen to be served if the queue diverges below the limit."""
        known = [rate for rate in (self.limit, self.served) if rate]
        return min(known, default=None)


def mean_request(counts: RequestCounts) -> RequestMix | None:
    """Return the mean request, or None if none completed, or if the end of the run has cut off a tenth of all or more: those
    that completed are short ones then."""
    let_in = counts.arrived - counts.outcomes[Outcome.REJECTED] - counts.outcomes[Outcome.REFUSED]
    if not counts.completed or let_in < 1 or counts.outcomes[Outcome.UNFINISHED] >= _MANY_CUT * let_in:
        return None
    return RequestMix(
        prompt=counts.prompt_tokens / let_in,
        cached=counts.cached_tokens / let_in,
        output=1 + counts.num_gaps / counts.completed,
    )


def measure_utilisation(results: Results, summary: Summary, setup: RunSetup, served: float | None = None) -> Utilisation:
    """Return the use of the instances in a run; of a live endpoint nothing is known. `served` is the rate that they were seen
    to serve, if the queue diverges."""
    samples, instance = results.samples, section_of(setup, InstanceConfig)
    with_work = summary.all_instances.utilisation
    if samples is None or not len(samples.at) or setup.measured:
        return Utilisation(with_work=with_work)
    running = samples.running > 0
    kv = samples.blocks_used / max(samples.total_blocks, 1)
    mix = None if section_of(setup, ClusterConfig).disaggregation else mean_request(summary.total)
    limit = None if mix is None else fleet_limit(section_of(setup, ClusterConfig), instance, mix)
    follows = results.num_followers > 0
    rate = None if follows else arrival_rate(samples)
    return Utilisation(
        with_work=with_work,
        batch=float((samples.running / batch_limits(samples, setup))[running].mean()) if running.any() else None,
        kv=float(kv[running].mean()) if running.any() else None,
        kv_peak=float(kv.max()),
        arrival_rate=rate,
        busiest_rate=None if rate is None else _busiest_rate(samples, rate),
        ended_rate=summary.per_second(int(samples.ended[-1])),
        in_flight=float((samples.arrived - samples.ended).mean()) if follows else None,
        limit=limit,
        served=served,
        output_rate=summary.per_second(summary.total.output_tokens),
        output_limit=None if mix is None or limit is None else limit * mix.output,
    )


def batch_limits(samples: Samples, setup: RunSetup) -> NDArray[np.int64]:
    """Return the sequences that run at most, of each instance (column) at each sample (row)."""
    cluster = section_of(setup, ClusterConfig)
    each = [config.max_num_seqs for config in cluster.instance_configs(section_of(setup, InstanceConfig))]
    limits = np.tile(np.array(each, dtype=np.int64), (len(samples.at), 1))
    for change in sorted(cluster.limit_changes, key=lambda change: change.at_secs):
        limits[samples.at >= change.at_secs * SECOND] = change.max_num_seqs
    return limits


def last_arrival(samples: Samples) -> int:
    """Return the index of the first sample at which all requests had arrived."""
    return int(np.searchsorted(samples.arrived, samples.arrived[-1]))


def arrival_rate(samples: Samples) -> float | None:
    """Return the requests per second while requests arrived, or None if there were too few of them."""
    last = last_arrival(samples)
    if samples.arrived[-1] < _LEAST_ARRIVALS or not samples.at[last]:
        return None
    return float(samples.arrived[-1] / samples.at[last] * SECOND)


def _busiest_rate(samples: Samples, mean: float) -> float | None:
    """Return the requests per second in the busiest tenth of the arrivals' time, or None if it is near their mean."""
    edges = np.linspace(0, samples.at[last_arrival(samples)], _TENTHS + 1)
    arrived = np.interp(edges, samples.at, samples.arrived)
    # The requests that arrive at the very beginning come in the first tenth.
    arrived[0] = 0
    most, share = float(np.diff(arrived).max()), float(arrived[-1]) / _TENTHS
    is_uneven = most >= _UNEVEN * share and most >= share + _NO_CHANCE * sqrt(share)
    return most / share * mean if is_uneven else None


def utilisation_lines(used: Utilisation) -> list[str]:
    """Return the use of the instances in sentences."""
    if used.with_work is None:
        return []
    return [_batch_line(used), *_output_line(used)]


def _batch_line(used: Utilisation) -> str:
    first = f"Instances: with work {used.with_work:.0%} of the time"
    if used.batch is not None:
        first += (
            f", batch {format_share(used.batch)} full, KV {format_share(used.kv)} used ({format_share(used.kv_peak)} at most)"
        )
    return f"{first}."


def _output_line(used: Utilisation) -> Iterator[str]:
    """Yield a sentence about the output beside its limit, and one about arrivals and headroom, as far as they are known."""
    if used.output_rate is not None and used.output_limit:
        share = used.output_rate / used.output_limit
        yield (
            f"Output: {format_number(used.output_rate)} tokens/s, {share:.0%} of what full batches could make of this traffic "
            f"({format_number(used.output_limit)}/s)."
        )
    if used.in_flight is not None:
        yield (
            f"Requests followed answers, so they have no arrival rate and no headroom: {format_number(used.ended_rate)} "
            f"requests/s ended, with {format_number(used.in_flight)} in flight on average."
        )
    elif used.headroom is not None:
        headroom = f"{used.headroom:.2f}" if used.headroom >= _TWO_DIGITS else f"{used.headroom:.2g}"
        yield f"Arrivals: {_arrivals(used)}, {_attainable(used)}: headroom {headroom}."


def _arrivals(used: Utilisation) -> str:
    if used.busiest_rate is None:
        return f"{format_number(used.arrival_rate)} requests/s"
    busiest = format_number(used.busiest_rate)
    return f"{busiest} requests/s in the busiest tenth of the time ({format_number(used.arrival_rate)}/s over all)"


def _attainable(used: Utilisation) -> str:
    if used.served is not None and used.attainable == used.served:
        return f"and the instances served {format_number(used.served)}/s while the queue grew"
    return f"the limit is {format_number(used.limit)}/s"
