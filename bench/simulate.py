"""How many requests the simulator makes per CPU second, and what one costs in memory.

    python bench/simulate.py [--requests 20000] [--rounds 5]

Four instances, prompts of about 500 tokens, answers of about 64, 250 and 1000 tokens, at the request rates at which BLIS's
figures were taken, prefix cache off. The busier the instances, the more requests share a step, and the less each costs.

Rounds are interleaved: each runs every case once, beside a calibration loop (pure
Python, no work of ours) and a baseline (the heap operations that any event loop would make for the same arrivals and ends).
Medians over the rounds; CPU time, not wall time. `per calibration` is the cost of a request in units of the calibration
loop: it is what can be compared between machines.
"""

from __future__ import annotations

import argparse
import heapq
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable
from time import process_time

from maitred import ClusterConfig, InstanceConfig, Job, simulate, synthetic
from measuring import CALIBRATION_LOOPS, calibrate

CASES = [(64, 15.0), (250, 15.0), (1000, 15.0), (64, 234.0), (250, 60.0), (250, 240.0)]
"""Output tokens (mean), requests per second. The first three differ in nothing but the length of the answers."""


def workload(requests: int, output: int, rate: float) -> Iterable[Job]:
    return synthetic(rate, requests, seed=1, input_tokens="normal:500,150", output_tokens=f"normal:{output},{output * 0.3:g}")


def baseline(jobs: list[Job]) -> None:
    """Arrival and end of every request through one heap, and nothing else."""
    heap = [(job.request.arrival, job.request.id) for job in jobs]
    heapq.heapify(heap)
    ends = len(heap)
    while heap:
        at, number = heapq.heappop(heap)
        if number < ends:
            heapq.heappush(heap, (at + 1_000_000, number + ends))


def cpu(work: Callable[[], object]) -> float:
    began = process_time()
    work()
    return process_time() - began


def speed(requests: int, rounds: int) -> None:
    loads = {case: list(workload(requests, *case)) for case in CASES}
    simulated: dict[tuple[int, float], list[float]] = {case: [] for case in CASES}
    loops: list[float] = []
    bare: list[float] = []
    for _ in range(rounds):
        for case, jobs in loads.items():
            loops.append(calibrate())
            simulated[case].append(cpu(lambda jobs=jobs: simulate(jobs, ClusterConfig(num_instances=4), InstanceConfig())))
            bare.append(cpu(lambda jobs=jobs: baseline(jobs)))
    loop = statistics.median(loops)
    print(f"calibration loop ({CALIBRATION_LOOPS:,} turns): {loop * 1e3:.1f} ms CPU, median of {len(loops)}")
    print(f"baseline (heap only): {statistics.median(bare) / requests * 1e6:.2f} µs CPU per request\n")
    print("output tokens   req/s offered   CPU µs/request   requests/CPU s   per calibration turn")
    for (output, rate), seconds in simulated.items():
        each = statistics.median(seconds) / requests
        print(f"{output:13d} {rate:15g} {each * 1e6:16.1f} {1 / each:16,.0f} {each / (loop / CALIBRATION_LOOPS):22.0f}")
    costs = [statistics.median(simulated[case]) for case in CASES[:3]]
    print(f"\nat 15 req/s, 64, 250 and 1000 output tokens cost within {max(costs) / min(costs):.2f}x of each other")


_PEAK = """
import json, re, sys
sys.path.insert(0, {bench!r})
from simulate import workload
from maitred import ClusterConfig, InstanceConfig, simulate
results = simulate(workload({requests}, 250, 60.0), ClusterConfig(num_instances=4), InstanceConfig())
peak = re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())
print(json.dumps([len(results), int(peak[1]) * 1024]))
"""


def memory(requests: int) -> None:
    """Peak memory of two runs in processes of their own; the difference is what requests cost."""

    def peak(count: int) -> int:
        code = _PEAK.format(bench=sys.path[0], requests=count)
        done, size = json.loads(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)
        assert done == count
        return int(size)

    few, many = peak(requests // 10), peak(requests * 5)
    print(f"memory per request: {(many - few) / (requests * 5 - requests // 10):.0f} bytes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    speed(options.requests, options.rounds)
    memory(options.requests)
