"""How much of the instances a run used, and how much more they could take.

"Busy" says little: an instance with one request is as busy as one with a full batch. So there are four figures:

    with work    the share of the time in which steps ran
    batch        running sequences as a share of `max_num_seqs`, while any ran
    KV           used KV blocks as a share of all, while any sequence ran, and the largest share in any sample
    of the limit output tokens per second as a share of what the latency model can make of this traffic with full batches
                 (`instance/throughput_limit.py`), while requests arrived; the headroom is that limit by the arrival rate

Batch and KV are means over the samples of a run (some hundred, however long it is), so a short peak may be missed.

    18.4 requests/s arrived, and the instances could take 26.1/s: headroom 1.42
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from maitred.core.units import SECOND
from maitred.instance import InstanceConfig
from maitred.instance.throughput_limit import RequestMix, find_throughput_limit
from maitred.report.request_statistics import RequestCounts
from maitred.report.run_setup import RunSetup, section_of
from maitred.report.table import format_number, format_share
from maitred.sim import ClusterConfig, Outcome, Results, Samples

_LEAST_ARRIVALS = 50
"""Requests below which an arrival rate says nothing."""


class Utilisation(msgspec.Struct, frozen=True, kw_only=True):
    """The use of the instances; each figure is None if it is not known."""

    with_work: float | None
    """Share of the time in which steps ran, 0..1."""
    batch: float | None = None
    """Share of the sequences that a batch may have, 0..1."""
    kv: float | None = None
    kv_peak: float | None = None
    arrival_rate: float | None = None
    """Requests per second while requests arrived."""
    limit: float | None = None
    """Requests per second of this traffic that the instances could take."""
    output_rate: float | None = None
    """Output tokens per second while requests arrived."""
    output_limit: float | None = None

    @property
    def headroom(self) -> float | None:
        """By which factor the traffic could grow, or None. Below 1 it is too much already."""
        return self.limit / self.arrival_rate if self.limit and self.arrival_rate else None


def mean_request(counts: RequestCounts) -> RequestMix | None:
    """Return the mean request, or None if none completed."""
    let_in = counts.arrived - counts.outcomes[Outcome.REJECTED] - counts.outcomes[Outcome.REFUSED]
    if not counts.completed or let_in < 1:
        return None
    return RequestMix(
        prompt=counts.prompt_tokens / let_in,
        cached=counts.cached_tokens / let_in,
        output=1 + counts.num_gaps / counts.completed,
    )


def measure_utilisation(results: Results, counts: RequestCounts, with_work: float | None, setup: RunSetup) -> Utilisation:
    """Return the use of the instances in a run; of a live endpoint nothing is known. `counts` are those of all its requests."""
    samples, instance = results.samples, section_of(setup, InstanceConfig)
    if samples is None or not len(samples.at) or setup.measured:
        return Utilisation(with_work=with_work)
    running = samples.running > 0
    kv = samples.blocks_used / max(samples.total_blocks, 1)
    rate = arrival_rate(samples)
    mix = None if section_of(setup, ClusterConfig).disaggregation else mean_request(counts)
    limit = None if mix is None else find_throughput_limit(instance, mix).rate * samples.running.shape[1]
    return Utilisation(
        with_work=with_work,
        batch=float(samples.running[running].mean() / instance.max_num_seqs) if running.any() else None,
        kv=float(kv[running].mean()) if running.any() else None,
        kv_peak=float(kv.max()),
        arrival_rate=rate,
        limit=limit,
        output_rate=None if mix is None else _ended_rate(samples) * mix.output,
        output_limit=None if mix is None or limit is None else limit * mix.output,
    )


def last_arrival(samples: Samples) -> int:
    """Return the index of the first sample at which all requests had arrived."""
    return int(np.searchsorted(samples.arrived, samples.arrived[-1]))


def arrival_rate(samples: Samples) -> float | None:
    """Return the requests per second while requests arrived, or None if there were too few of them."""
    last = last_arrival(samples)
    if samples.arrived[-1] < _LEAST_ARRIVALS or not samples.at[last]:
        return None
    return float(samples.arrived[-1] / samples.at[last] * SECOND)


def _ended_rate(samples: Samples) -> float:
    """Return the requests that ended per second in the second half of the arrivals, when batches are as full as they get."""
    last = last_arrival(samples)
    half = int(np.searchsorted(samples.at, samples.at[last] / 2))
    span = samples.at[last] - samples.at[half]
    return float((samples.ended[last] - samples.ended[half]) / span * SECOND) if span else 0.0


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
    """Yield a sentence about the output beside its limit, if there is one."""
    if used.output_rate is not None and used.output_limit and used.arrival_rate and used.limit and used.headroom:
        share = used.output_rate / used.output_limit
        yield (
            f"Output: {format_number(used.output_rate)} tokens/s while requests arrived, {share:.0%} of what full batches "
            f"could make of this traffic ({format_number(used.output_limit)}/s); {format_number(used.arrival_rate)} requests/s "
            f"arrived, the limit is {format_number(used.limit)}/s: headroom {used.headroom:.2f}."
        )
