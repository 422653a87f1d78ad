"""`maitred capacity` against a brute-force grid: the same answer, and how many runs each takes.

    python bench/capacity.py --trace azure:AzureLLMInferenceTrace_conv.csv [--max-requests 3000] [--hardware H100 L40S]

The grid has every size up to `--sizes` at every rate of the search's own steps, from today's rate up to `--most` times today's,
as far as the limit of the latency model allows. Its answer is read off when all is done: the smallest size that holds today's
rate, and the highest rate that this size holds. `at least` counts only the runs of the grid that an answer known beforehand
would need: the sizes up to the answer at today's rate, and the rates at the answer. Exit status 1: the answers
differ. Where the highest rate of the grid holds as well, it cannot tell: raise `--most`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from math import ceil
from time import process_time

from msgspec.structs import replace

from maitred import Load, capacity
from maitred.instance import InstanceConfig
from maitred.instance.catalogue import resolve_instance
from maitred.instance.throughput_limit import find_throughput_limit
from maitred.report import Slo
from maitred.study.candidate import Candidate
from maitred.study.capacity import CapacityOption
from maitred.study.capacity.options import measure_traffic
from maitred.study.metrics import DIVERGES
from maitred.study.runs import RunSettings, decode_figures, run_task
from maitred.workload.load import as_key, make_self_contained

SLO = Slo(ttft_ms=1_000, tpot_ms=100)
SEED = 42
ATTAINMENT = 0.99


def main() -> int:
    """Print a row for each kind of GPU: both answers, and the runs of both. Returns 1 if they differ anywhere."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", required=True, help="FORMAT:FILE")
    parser.add_argument("--max-requests", type=int, default=3_000)
    parser.add_argument("--rate-scale", type=float, default=4.0, help="factor on the trace's rate (default: 4)")
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--hardware", nargs="+", default=["H100", "L40S"])
    parser.add_argument("--tolerance", type=float, default=0.02)
    parser.add_argument("--sizes", type=int, default=6, help="largest size of the grid (default: 6)")
    parser.add_argument("--most", type=float, default=2.0, help="largest factor on today's rate in the grid (default: 2)")
    given = parser.parse_args()
    load = make_self_contained(Load(trace=given.trace, max_requests=given.max_requests, rate_scale=given.rate_scale), as_key)
    differing = 0
    for hardware in given.hardware:
        began = process_time()
        result = capacity(model=given.model, hardware=[hardware], workload=load, slo=SLO, seeds=1, tolerance=given.tolerance)
        searched, option = process_time() - began, result.options[0]
        began = process_time()
        size, rate, runs, fewest, is_open = grid(given, hardware, load)
        print(f"{hardware}: searched {described(option)}, {result.runs} runs, {searched:.1f} s CPU")
        print(f"{'':{len(hardware)}}  grid     {size} instances, {rate:.2f}/s, {runs} runs, {process_time() - began:.1f} s CPU")
        same = size == option.instances and abs(rate - (option.highest_rate or 0)) < 1e-6 * rate
        differing += not same and not is_open
        shares = f"{result.runs / runs:.2f} of the runs of the grid, {result.runs / fewest:.2f} of the least ({fewest})"
        verdict = "the same answer" if same else "no answer of the grid" if is_open else "NOT the same"
        print(f"{'':{len(hardware)}}  {verdict}; {shares}")
    return min(differing, 1)


def described(option: CapacityOption) -> str:
    """Return the answer of a search."""
    return option.problem or f"{option.instances} instances, {option.highest_rate:.2f}/s"


def grid(given: argparse.Namespace, hardware: str, load: Load) -> tuple[int, float, int, int, bool]:
    """Return the smallest size that holds, the highest rate that it holds, the runs, the fewest that would have done, and
    whether `--most` is too low to tell, because the highest rate of the grid holds. Raises SystemExit if no size holds."""
    traffic = measure_traffic(load, (SEED,))
    instance = InstanceConfig(model=given.model, hardware=hardware)
    limit = find_throughput_limit(resolve_instance(instance), traffic.mix).rate
    held: dict[tuple[int, float], bool] = {}
    for size in range(ceil(traffic.rate / limit), given.sizes + 1):
        for factor in factors(min(given.most, limit * size / traffic.rate), given.tolerance):
            held[size, factor] = holds(instance, load, size, factor)
    sizes_held = [size for (size, factor), is_held in held.items() if factor == 1 and is_held]
    if not sizes_held:
        raise SystemExit(f"{hardware}: no size up to {given.sizes} holds today's rate: raise --sizes")
    size = min(sizes_held)
    best = max(factor for (of, factor), is_held in held.items() if of == size and is_held)
    sizes = sum(of <= size for of, factor in held if factor == 1)
    is_open = best * (1 + given.tolerance) > given.most
    return size, traffic.rate * best, len(held), sizes + sum(of == size for of, factor in held if factor > 1), is_open


def factors(most: float, tolerance: float) -> Iterator[float]:
    """Yield the factors on today's rate, in the search's own steps, from 1 on."""
    step = 0
    while (factor := (1 + tolerance) ** step) <= most:
        yield factor
        step += 1


def holds(instance: InstanceConfig, load: Load, size: int, factor: float) -> bool:
    """Return whether this size holds the SLO at this rate."""
    candidate = Candidate(instance=instance)
    candidate = replace(candidate, cluster=replace(candidate.cluster, num_instances=size))
    settings = RunSettings(seeds=(SEED,), slo=SLO, horizon=None, metrics=("slo_attainment", DIVERGES))
    (run,) = settings.make_runs(candidate, replace(load, rate_scale=(load.rate_scale or 1.0) * factor))
    figures = decode_figures(run_task(run.task))
    return (figures["slo_attainment"] or 0.0) >= ATTAINMENT and not figures[DIVERGES]


if __name__ == "__main__":
    sys.exit(main())
