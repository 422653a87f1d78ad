"""The simulator against closed formulas of queueing theory: each scene of `theory_scenes` is run with several seeds, and the
mean over the seeds is held against the formula with an interval of 95 %.

    python bench/theory.py [--requests 20000] [--seeds 10] [--only WORD]
    python bench/theory.py --statistics

Of n checks 0.95 · n are expected inside their intervals, as 5 % of correct ones lie outside. Exit status 1: so few are inside
that chance has less than 1 in 1,000 for it (by the binomial distribution).

`--statistics` tries the product's own statistics on queues that are known: the interval of `maitred capacity`, how often the
intervals of a single run cover the truth, and how often a queue below its capacity is said to diverge.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from math import comb, inf, log
from random import Random
from typing import Final

import numpy as np

import maitred
from maitred.core.student_t import mean_interval
from maitred.report.latencies import Times
from maitred.report.steady_state import mean_of_batches, percentile_of_batches
from theory_scenes import TOKENS, Check, all_checks, exponential, jobs, server

ODDS: Final = 1e-3


def capacity_of_a_queue() -> tuple[str, float, float, float]:
    """Return the highest rate of an M/M/1 queue that `maitred.capacity` finds, with its interval: name, exact, low, high."""
    engine = server()
    load = maitred.Load(rate=0.5, num_requests=3_000, input_tokens=1, output_tokens=f"exponential:{TOKENS}")
    found = maitred.capacity(
        maitred.Candidate(instance=engine), workload=load, slo=maitred.report.Slo(e2e_ms=10_000), num_instances=1
    ).options[0]
    low, high = found.rates or (0.0, inf)
    return "capacity: M/M/1, 99 % within 10 s", 1 - log(100) / 10, low, high


def coverage(runs: int) -> Iterator[tuple[str, float, float]]:
    """Yield how often intervals of single runs cover the truth: the run, of the mean, of the p99. The times are those of an
    M/M/1 queue that begins empty, by Lindley's recursion: what is tried is the interval, not the simulator."""
    for load in (0.5, 0.8, 0.9):
        for count in (1_000, 5_000, 20_000):
            covered = [0, 0]
            for seed in range(runs):
                values = queue_times(load, count, Random(seed))
                for index, (found, exact) in enumerate(
                    ((mean_of_batches(values), 1 / (1 - load)), (percentile_of_batches(values, 99), log(100) / (1 - load)))
                ):
                    covered[index] += found is not None and found.covers(exact)
            yield f"M/M/1, ρ = {load}, {count:,} requests", covered[0] / runs, covered[1] / runs


def queue_times(load: float, count: int, draw: Random) -> Times:
    """Return the times in the system of an M/M/1 queue with a mean service time of 1."""
    wait, times = 0.0, []
    for _ in range(count):
        size = draw.expovariate(1)
        times.append(wait + size)
        wait = max(0.0, wait + size - draw.expovariate(load))
    return np.array(times)


def divergences(runs: int) -> Iterator[tuple[float, int]]:
    """Yield how many of so many runs are said to diverge, by their load as a share of the capacity."""
    for load in (0.9, 0.95, 0.98, 1.1, 1.2):
        verdicts = (
            maitred.simulate(jobs(load * 16, 3_000, exponential(TOKENS), seed), None, server(16), seed=seed).assess().verdicts
            for seed in range(runs)
        )
        yield load, sum(any(each.kind is maitred.report.VerdictKind.DIVERGES for each in told) for told in verdicts)


def chance_of(inside: int, checks: int) -> float:
    """Return the probability that at most `inside` of so many correct checks are inside intervals of 95 %."""
    return sum(comb(checks, n) * 0.95**n * 0.05 ** (checks - n) for n in range(inside + 1))


def print_checks(checks: Sequence[Check], seeds: int) -> int:
    """Run the checks, print a row for each, and return how many have the exact value inside their interval."""
    inside = 0
    print("| scene | figure | formula | exact | simulated (95 %) | |\n|---|---|---|---|---|---|")
    for check in checks:
        found = mean_interval([check.measure(seed) for seed in check.seeds(seeds)])
        assert found is not None
        covers = found.covers(check.exact)
        inside += covers
        shown = f"{found.value:.4f} ({found.low:.4f} to {found.high:.4f})"
        cells = (check.scene, check.figure, f"`{check.formula}`", f"{check.exact:.4f}", shown, "" if covers else "outside")
        print(f"| {' | '.join(cells)} |", flush=True)
    print(f"\n{inside} of {len(checks)} inside, {0.95 * len(checks):.0f} expected")
    return inside


def print_statistics() -> None:
    """Print how the intervals and verdicts of the product do on a queue that is known."""
    name, exact, low, high = capacity_of_a_queue()
    print(f"{name}: exact {exact:.4f}, found {low:.4f} to {high:.4f}", flush=True)
    print("\n| run | mean | p99 |\n|---|---|---|")
    for name, mean, p99 in coverage(200):
        print(f"| {name} | {mean:.0%} | {p99:.0%} |", flush=True)
    print("\n'the queue diverges', of 100 runs:", flush=True)
    for load, count in divergences(100):
        print(f"    at {load:.0%} of the capacity {count}", flush=True)


def main() -> int:
    """Print the checks, or the statistics. Returns 1 if fewer checks are inside their interval than chance explains."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000, help="requests of a run (default: 20,000)")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", default="", help="scenes with this word")
    parser.add_argument("--statistics", action="store_true", help="the intervals and verdicts of the product instead")
    given = parser.parse_args()
    if given.statistics:
        print_statistics()
        return 0
    checks = all_checks(given.requests, given.only)
    return int(chance_of(print_checks(checks, given.seeds), len(checks)) < ODDS)


if __name__ == "__main__":
    sys.exit(main())
