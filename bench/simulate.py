"""Benchmark of the simulator: requests per CPU second, and memory per request.

    python bench/simulate.py [--requests 20000] [--rounds 5] [--scheduler fcfs] [--every-policy] [--every-flavour] [--million]
    PYTHONPATH=build/compiled python bench/simulate.py ...      # after `make compile`

Prompts have about 500 tokens and answers about 64, 250 and 1000, at the request rates at which BLIS's figures were taken. Cases
vary the prefix cache, the latency model, and the number of instances up to 256. The busier the instances, the more requests
share a step, and the less each costs; fleets of growing size have the same load per instance. `--every-policy` adds each
queueing policy with the cache off and on, `--every-flavour` each way of batching with answers of all three lengths, and
`--million` one run of a million requests on 64 instances.

Rounds are interleaved: each runs every case once, beside a calibration loop (plain Python) and a baseline (the heap operations
that any event loop would make for the same arrivals and ends). Figures are medians over the rounds, of CPU time, not wall time.
`per calibration` is the cost of a request in units of the calibration loop, which can be compared between machines.
"""

from __future__ import annotations

import argparse
import heapq
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable
from itertools import pairwise
from time import perf_counter, process_time

import msgspec

from maitred import InstanceConfig, Job, is_compiled, synthetic
from maitred.instance.flavours import FLAVOURS
from maitred.queueing import SCHEDULERS
from maitred.sim import ClusterConfig, simulate
from measuring import CALIBRATION_LOOPS, calibrate

OFF, UNIQUE, SHARED = InstanceConfig(), InstanceConfig(enable_prefix_caching=True), InstanceConfig(enable_prefix_caching=True)
TRAINED = InstanceConfig(model="meta-llama/llama-3.1-8b-instruct")
KINDS = {
    id(OFF): "prefix cache off",
    id(UNIQUE): "prefix cache on, nothing known of prompts",
    id(SHARED): "prefix cache on, 3/4 of a prompt shared by 1 in 32",
    id(TRAINED): "Llama 3.1 8B on H100, trained-physics",
}
MILLION = 1_000_000


class Case(msgspec.Struct, frozen=True, eq=False):
    output: int
    """Tokens of an answer, mean."""
    rate: float
    """Requests per second, of all instances."""
    instance: InstanceConfig = OFF
    instances: int = 4

    def jobs(self, requests: int) -> Iterable[Job]:
        return workload(requests, self.output, self.rate, self.instance)


LENGTHS = [Case(64, 15.0), Case(250, 15.0), Case(1000, 15.0)]
"""Cases that differ only in the length of the answers."""
LOADS = [Case(64, 234.0), Case(250, 60.0), Case(250, 240.0)]
OTHERS = [Case(250, 60.0, UNIQUE), Case(250, 60.0, SHARED), Case(250, 60.0, TRAINED)]
FLEETS = [Case(250, 15.0 * count, OFF, count) for count in (8, 16, 32, 64, 128, 256)]
CASES = [*LENGTHS, *LOADS, *OTHERS, *FLEETS]
FAMILIES = 32


class Known(msgspec.Struct, frozen=True):
    """A prompt three quarters of which are its family's."""

    number: int
    tokens: int

    def block_keys(self, block_size: int) -> list[int]:
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
    """Push and pop the arrival and the end of every request through one heap."""
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


def speed(requests: int, rounds: int, scheduler: str) -> None:
    loads = [list(case.jobs(requests)) for case in CASES]
    simulated: list[list[float]] = [[] for _ in CASES]
    loops: list[float] = []
    bare: list[float] = []
    for _ in range(rounds):
        for case, jobs, seconds in zip(CASES, loads, simulated, strict=True):
            loops.append(calibrate())
            kind = msgspec.structs.replace(case.instance, scheduler=scheduler)
            cluster = ClusterConfig(num_instances=case.instances)
            seconds.append(cpu(lambda jobs=jobs, cluster=cluster, kind=kind: simulate(jobs, cluster, kind)))
        bare.append(cpu(lambda: baseline(loads[0])))
    loop = statistics.median(loops)
    print(f"the hot modules are {'compiled' if is_compiled() else 'pure Python'}")
    print(f"calibration loop ({CALIBRATION_LOOPS:,} turns): {loop * 1e3:.1f} ms CPU, median of {len(loops)}")
    print(f"baseline (heap only): {statistics.median(bare) / requests * 1e6:.2f} µs CPU per request\n")
    print("instances   output tokens   req/s offered   CPU µs/request   requests/CPU s   per calibration turn")
    costs = {case: statistics.median(seconds) / requests for case, seconds in zip(CASES, simulated, strict=True)}
    for case, each in costs.items():
        turns, kind = each / (loop / CALIBRATION_LOOPS), KINDS[id(case.instance)]
        offered = f"{case.instances:9d} {case.output:15d} {case.rate:15g}"
        print(f"{offered} {each * 1e6:16.1f} {1 / each:16,.0f} {turns:22.0f}   {kind}")
    _compare([costs[case] for case in LENGTHS], [costs[case] for case in (LOADS[1], *FLEETS)])


def _compare(lengths: list[float], fleets: list[float]) -> None:
    print(f"\nat 15 req/s, 64, 250 and 1000 output tokens cost within {max(lengths) / min(lengths):.2f}x of each other")
    steps = [f"{after / before:.2f}" for before, after in pairwise(fleets)]
    print(f"each doubling of the instances, from 4 to 256: x {', '.join(steps)}")


def policies(requests: int, rounds: int) -> None:
    """Return the requests per CPU second of each queueing policy on 4 instances at 60 req/s, with the cache off and on."""
    cases = [(name, kind) for name in sorted(SCHEDULERS) for kind in (OFF, SHARED)]
    loads = {id(kind): list(workload(requests, 250, 60.0, kind)) for kind in (OFF, SHARED)}
    seconds: dict[tuple[str, int], list[float]] = {(name, id(kind)): [] for name, kind in cases}
    loops = []
    for _ in range(rounds):
        loops.append(calibrate())
        for name, kind in cases:
            config, cluster, jobs = (
                msgspec.structs.replace(kind, scheduler=name),
                ClusterConfig(num_instances=4),
                loads[id(kind)],
            )
            used = cpu(lambda jobs=jobs, cluster=cluster, config=config: simulate(jobs, cluster, config))
            seconds[name, id(kind)].append(used)
    print(f"\ncalibration loop: {statistics.median(loops) * 1e3:.1f} ms CPU")
    print("policy                      cache off   on, 3/4 of a prompt shared   (requests/CPU s)")
    for name in sorted(SCHEDULERS):
        off, on = (requests / statistics.median(seconds[name, id(kind)]) for kind in (OFF, SHARED))
        print(f"{name:24s} {off:12,.0f} {on:28,.0f}")


def flavours(requests: int, rounds: int) -> None:
    """Print what a request costs under each flavour, by the length of the answer."""
    kinds = {name: InstanceConfig(flavour=name) for name in FLAVOURS}
    kinds["trtllm, max-utilization"] = InstanceConfig(flavour="trtllm", batching="max-utilization")
    loads = [list(case.jobs(requests)) for case in LENGTHS]
    costs: dict[str, list[list[float]]] = {name: [[] for _ in LENGTHS] for name in kinds}
    for _ in range(rounds):
        for name, kind in kinds.items():
            for case, jobs, seconds in zip(LENGTHS, loads, costs[name], strict=True):
                cluster = ClusterConfig(num_instances=case.instances)
                used = cpu(lambda jobs=jobs, cluster=cluster, kind=kind: simulate(jobs, cluster, kind))
                seconds.append(used / requests * 1e6)
    print(f"\n{'flavour':26} CPU µs/request at {', '.join(str(case.output) for case in LENGTHS)} output tokens   within")
    for name, each in costs.items():
        micros = [statistics.median(seconds) for seconds in each]
        print(f"{name:26} {' '.join(f'{one:12.1f}' for one in micros)} {max(micros) / min(micros):25.2f}x")


def million() -> None:
    """Run a million requests once. Jobs are made during the run."""
    began, used = perf_counter(), process_time()
    results = simulate(workload(MILLION, 250, 960.0), ClusterConfig(num_instances=64), OFF)
    assert len(results) == MILLION
    print(f"a million requests on 64 instances: {perf_counter() - began:.1f} s wall, {process_time() - used:.1f} s CPU")


_PEAK = """
import re, sys
sys.path.insert(0, {bench!r})
from simulate import workload

from maitred import InstanceConfig
from maitred.sim import ClusterConfig, simulate
simulate(workload({requests}, 250, 60.0), ClusterConfig(num_instances=4), InstanceConfig(), sink={sink})
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * 1024)
"""


def memory(requests: int) -> None:
    """Return the peak memory of two runs in processes of their own. Their difference is the cost of the additional requests."""

    def peak(count: int, sink: str) -> int:
        code = _PEAK.format(bench=sys.path[0], requests=count, sink=sink)
        return int(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout)

    few, many = requests // 10, requests * 5
    for sink, said in (("None", "rows kept"), ("lambda rows: None", "rows handed on, as with --summary-only")):
        print(f"memory per request, {said}: {(peak(many, sink) - peak(few, sink)) / (many - few):.0f} bytes")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scheduler", default="fcfs")
    parser.add_argument("--every-policy", action="store_true")
    parser.add_argument("--every-flavour", action="store_true")
    parser.add_argument("--million", action="store_true")
    options = parser.parse_args()
    speed(options.requests, options.rounds, options.scheduler)
    memory(options.requests)
    if options.every_policy:
        policies(options.requests, options.rounds)
    if options.every_flavour:
        flavours(options.requests, options.rounds)
    if options.million:
        million()
