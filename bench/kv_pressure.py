"""What happens when KV memory runs out: the cliff that BLIS found (hypothesis H8), and what lies behind it.

    python bench/kv_pressure.py [--write docs/evidence.md]

BLIS's experiment: 200 requests of about 512 tokens in and 256 out come within 0.1 s to four instances (Llama-3.1-8B on two
H100, BLIS's coefficients of that time), fewer KV blocks from row to row, three seeds. It is run by BLIS's rules (a preempted
answer begins anew, its first token too) and by ours (as vLLM: what came out stays out, its KV is computed again). Beside it
what BLIS printed in February 2026; since then its rules have changed, and ours of the name `blis` are the newer ones, which
`python -m tests.conformance blis` holds request by request.

Below 1,000 blocks BLIS did not end (its issues 297 and 349). Steps are counted here to show that no run livelocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec
import numpy as np

from maitred import ClusterConfig, InstanceConfig, LinearLatency, Results
from maitred.report import summarise
from maitred.sim import simulate
from maitred.workload import Workload
from maitred.workload.spec_clients import Client
from policies import print_or_write

SEEDS = (42, 123, 456)
NUM_REQUESTS = 200
BLOCKS = (5_000, 2_400, 2_300, 2_200, 2_100, 2_000, 1_900, 1_500, 1_000, 500, 100)
"""Of 16 tokens, per instance. The longest request needs 80."""
RECORDED = {5_000: (0, 460.6), 2_200: (0, 460.6), 2_100: (67, 2_174.6), 2_000: (306, 3_048.0)}
"""BLIS, inference-sim/inference-sim, hypotheses/h8-kv-pressure: preemptions of three seeds, mean of their TTFT p99 in ms."""
BLIS_STEP, BLIS_REQUEST = (6910.42, 17.67, 2.84), (1601.35, 3.51, 1805.54)
"""Its β and α in µs."""


class Pressed(msgspec.Struct, frozen=True):
    """Some runs with one number of blocks, their figures added up or averaged."""

    preemptions: int
    ttft_p99: float
    """ms"""
    e2e_p99: float
    """ms"""
    wasted: float
    """Share of all computed tokens that had been computed before."""
    steps: int
    completed: int
    warned: int
    """In how many of them a warning says that KV thrashes."""


def workload(seed: int, num_requests: int) -> Workload:
    client = Client(
        id="kv-stress",
        rate_fraction=1.0,
        input_distribution="gaussian:512,50,256,768",
        output_distribution="gaussian:256,50,128,512",
    )
    return Workload(seed=seed, aggregate_rate=2000, num_requests=num_requests, clients=[client])


def run(blocks: int, seed: int, flavour: Literal["blis"] | None, num_requests: int = NUM_REQUESTS) -> Results:
    latency = LinearLatency(BLIS_STEP, BLIS_REQUEST)
    instance = InstanceConfig(flavour=flavour, total_kv_blocks=blocks, latency=latency)
    return simulate(workload(seed, num_requests).jobs(), ClusterConfig(num_instances=4), instance)


def pressed(runs: Sequence[Results]) -> Pressed:
    summaries = [summarise(results, by=()) for results in runs]
    return Pressed(
        preemptions=sum(summary.total.preemptions for summary in summaries),
        ttft_p99=_mean_p99([results.first_token - results.arrival for results in runs]),
        e2e_p99=_mean_p99([results.finished - results.arrival for results in runs]),
        wasted=float(np.mean([summary.total.waste for summary in summaries])),
        steps=sum(summary.all_instances.steps for summary in summaries),
        completed=sum(summary.total.completed for summary in summaries),
        warned=sum(any("KV thrashing" in text for text in summary.warnings) for summary in summaries),
    )


def _mean_p99(columns: Sequence[np.ndarray]) -> float:
    return float(np.mean([np.percentile(column, 99) for column in columns])) / 1000


def table(num_requests: int) -> Iterator[str]:
    """In Markdown."""
    yield (
        "| KV blocks | BLIS printed: preemptions | TTFT p99 | `blis`: preemptions | TTFT p99 | E2E p99 "
        "| ours: preemptions | TTFT p99 | E2E p99 | computed twice | steps | completed | thrashing reported |"
    )
    yield "|---:|" + "---:|" * 12
    for blocks in BLOCKS:
        blis, ours = (pressed([run(blocks, seed, flavour, num_requests) for seed in SEEDS]) for flavour in ("blis", None))
        printed = RECORDED.get(blocks)
        cells = [f"{blocks:,}", *(f"{figure:,.0f}" for figure in printed)] if printed else [f"{blocks:,}", "", ""]
        for of in (blis, ours):
            cells += [f"{of.preemptions:,}", f"{of.ttft_p99:,.0f}", f"{of.e2e_p99:,.0f}"]
        reported = "in all" if ours.warned == len(SEEDS) else f"in {ours.warned} of {len(SEEDS)}" if ours.warned else "no"
        cells += [f"{ours.wasted:.0%}", f"{ours.steps:,}", f"{ours.completed:,}", reported]
        yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    print_or_write(__doc__, "kv_pressure.py", table, size=NUM_REQUESTS, meaning="requests of a run")
