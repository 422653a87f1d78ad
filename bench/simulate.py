"""How many requests the simulator makes per CPU second, and what one costs in memory.

    python bench/simulate.py [--requests 20000] [--rounds 5]

Four instances, prompts of about 500 tokens, answers of about 64, 250 and 1000 tokens, at the request rates at which BLIS's
figures were taken, prefix cache off; and at 60 req/s with it. The busier the instances, the more requests share a step, and
the less each costs.

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

import msgspec

from maitred import InstanceConfig, Job, synthetic
from maitred.sim import ClusterConfig, simulate
from measuring import CALIBRATION_LOOPS, calibrate

OFF, UNIQUE, SHARED = InstanceConfig(), InstanceConfig(enable_prefix_caching=True), InstanceConfig(enable_prefix_caching=True)
CASES = [
    (64, 15.0, OFF),
    (250, 15.0, OFF),
    (1000, 15.0, OFF),
    (64, 234.0, OFF),
    (250, 60.0, OFF),
    (250, 240.0, OFF),
    (250, 60.0, UNIQUE),
    (250, 60.0, SHARED),
]
"""Output tokens (mean), requests per second, instances. The first three differ in nothing but the length of the answers."""
CACHES = {id(OFF): "off", id(UNIQUE): "on, nothing known of prompts", id(SHARED): "on, 3/4 of a prompt shared by 1 in 32"}
FAMILIES = 32


class Known(msgspec.Struct, frozen=True):
    """A prompt three quarters of which are its family's."""

    number: int
    tokens: int

    def keys(self, block_size: int) -> list[int]:
        blocks = self.tokens // block_size
        shared = blocks * 3 // 4
        family, own = self.number % FAMILIES, FAMILIES + self.number
        return [family << 32 | b for b in range(shared)] + [own << 32 | b for b in range(shared, blocks)]


def workload(requests: int, output: int, rate: float, instance: InstanceConfig = OFF) -> Iterable[Job]:
    lengths = f"normal:{output},{output * 0.3:g}"
    jobs = synthetic(rate, requests, seed=1, input_tokens="normal:500,150", output_tokens=lengths)
    return map(_known, jobs) if instance is SHARED else jobs


def _known(job: Job) -> Job:
    content = Known(job.request.id, job.request.prompt_tokens)
    return Job(msgspec.structs.replace(job.request, prefix=content), job.output_tokens)


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
    loads = [list(workload(requests, *case)) for case in CASES]
    simulated: list[list[float]] = [[] for _ in CASES]
    loops: list[float] = []
    bare: list[float] = []
    for _ in range(rounds):
        for (_, _, instance), jobs, seconds in zip(CASES, loads, simulated, strict=True):
            loops.append(calibrate())
            seconds.append(cpu(lambda jobs=jobs, kind=instance: simulate(jobs, ClusterConfig(num_instances=4), kind)))
            bare.append(cpu(lambda jobs=jobs: baseline(jobs)))
    loop = statistics.median(loops)
    print(f"calibration loop ({CALIBRATION_LOOPS:,} turns): {loop * 1e3:.1f} ms CPU, median of {len(loops)}")
    print(f"baseline (heap only): {statistics.median(bare) / requests * 1e6:.2f} µs CPU per request\n")
    print("output tokens   req/s offered   CPU µs/request   requests/CPU s   per calibration turn   prefix cache")
    for (output, rate, instance), seconds in zip(CASES, simulated, strict=True):
        each = statistics.median(seconds) / requests
        turns, cache = each / (loop / CALIBRATION_LOOPS), CACHES[id(instance)]
        print(f"{output:13d} {rate:15g} {each * 1e6:16.1f} {1 / each:16,.0f} {turns:22.0f}   {cache}")
    costs = [statistics.median(seconds) for seconds in simulated[:3]]
    print(f"\nat 15 req/s, 64, 250 and 1000 output tokens cost within {max(costs) / min(costs):.2f}x of each other")


_PEAK = """
import json, re, sys
sys.path.insert(0, {bench!r})
from simulate import workload
import msgspec

from maitred import InstanceConfig
from maitred.sim import ClusterConfig, simulate
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
