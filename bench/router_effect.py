"""What each router does to the time to first token and to the prefix caches, on one trace: the table of
docs/routing.md.

    python bench/router_effect.py --trace mooncake:FILE --max-requests 4000 --speed 6 --num-instances 8 --kv-blocks 100000

All instances are equal and keep prefixes, there is no admission, and each router gets the same requests, which arrive
`--speed` times as fast as they were recorded. `--write docs/routing.md` puts the table there. It says nothing of other
traces and loads; it takes minutes to make it from your own.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np

from maitred import ClusterConfig, InstanceConfig, Job, Results, RoutingConfig
from maitred.sim import simulate
from maitred.workload import open_trace
from policies import write

CASES = (
    ("round-robin", ""),
    ("least-loaded", ""),
    ("least-loaded(load=effective)", ""),
    ("power-of-two", ""),
    ("always-busiest", ""),
    ("weighted", "queue-depth:2, kv-utilization:2, load-balance:1"),
    ("weighted", "prefix-affinity:1, active-requests:1"),
    ("weighted", "prefix-affinity(most=BLOCKS):1, active-requests:1"),
    ("weighted", "precise-prefix-cache:1, active-requests:1"),
    ("weighted", ""),
)


def workload(options: argparse.Namespace) -> list[Job]:
    with open_trace(options.trace) as trace:
        return [_at_speed(job, options.speed) for job in islice(trace, options.max_requests)]


def _at_speed(job: Job, speed: float) -> Job:
    request = msgspec.structs.replace(job.request, arrival=round(job.request.arrival / speed))
    return msgspec.structs.replace(job, request=request)


def row(policy: str, scorers: str, instances: int, results: Results) -> str:
    waits = (results.first_token - results.arrival)[results.first_token >= results.arrival] / 1000
    e2e = (results.finished - results.arrival)[results.first_token >= results.arrival] / 1000
    loads = np.bincount(results.instance[results.instance >= 0], minlength=instances)
    hits = results.cached_tokens.sum() / results.prompt_tokens.sum()
    named = f"`{scorers}`" if scorers else ""
    spans = [np.percentile(waits, 50), np.percentile(waits, 99), np.percentile(e2e, 50)]
    cells = [f"`{policy}`", named, *(f"{ms:,.0f}" for ms in spans), f"{hits:.1%}", f"{loads.max() / loads.mean():.2f}"]
    return f"| {' | '.join(cells)} |"


def table(options: argparse.Namespace, jobs: Sequence[Job]) -> Iterator[str]:
    name = f"{options.trace.partition(':')[0]}:{Path(options.trace.partition(':')[2]).name}"
    span = jobs[-1].request.arrival / 1e6
    fleet = f"{options.num_instances} instances of {options.kv_blocks:,} KV blocks with prefix caches"
    yield f"Times in ms: {len(jobs):,} requests of `{name}` in {span:,.0f} s (speed {options.speed:g}), {fleet}."
    yield ""
    yield "| policy | scorers | TTFT p50 | TTFT p99 | E2E p50 | hit rate | busiest / mean |"
    yield "|---|---|" + "---:|" * 5
    instance = InstanceConfig(enable_prefix_caching=True, total_kv_blocks=options.kv_blocks)
    for policy, mix in CASES:
        scorers = mix.replace("BLOCKS", str(options.kv_blocks))
        routing = RoutingConfig(policy=policy, scorers=scorers)
        results = simulate(jobs, ClusterConfig(num_instances=options.num_instances), instance, routing)
        yield row(policy, scorers, options.num_instances, results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", required=True, metavar="FORMAT:FILE")
    parser.add_argument("--max-requests", type=int)
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--num-instances", type=int, default=8)
    parser.add_argument("--kv-blocks", type=int, default=27_000)
    parser.add_argument("--write", type=Path, help="put the table into this document")
    options = parser.parse_args()
    lines = list(table(options, workload(options)))
    print("\n".join(lines))
    if options.write:
        write(options.write, "router_effect.py", "\n".join(lines))


if __name__ == "__main__":
    main()
