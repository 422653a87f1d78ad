"""Benchmark of agentic traces: turns of sessions per CPU second, prefix cache on.

    python bench/agentic.py sessions_delta.jsonl.gz [--max-requests 10000] [--rounds 3]
    PYTHONPATH=build/compiled python bench/agentic.py sessions_delta.jsonl.gz      # after `make compile`

Prompts of agents have thousands of blocks, and each repeats nearly all of the one before, so the cost of a turn must not depend
on the length of its prompt. Each scene is a command of `maitred simulate`, printed above its figures, and run in this process:
the trace is read and simulated, and the rows are kept, as there. Rounds are interleaved, beside the calibration loop (plain
Python). Figures are medians of CPU time.
"""

from __future__ import annotations

import argparse
import statistics
from time import process_time

import msgspec

from maitred import ClusterConfig, InstanceConfig, RoutingConfig, is_compiled
from maitred.sim import simulate
from maitred.workload.load import Load
from measuring import CALIBRATION_LOOPS, calibrate

SESSIONS = 20
INSTANCES = 4


class Scene(msgspec.Struct, frozen=True):
    """A cluster, as flags say it."""

    name: str
    flags: str
    instance: InstanceConfig
    routing: RoutingConfig = RoutingConfig()


LARGE = "--routing-policy session-affinity --total-kv-blocks 120000 --max-num-batched-tokens 8192"
SCENES = [
    Scene(
        "large KV memory, sessions stay on their instance",
        LARGE,
        InstanceConfig(enable_prefix_caching=True, total_kv_blocks=120_000, max_num_batched_tokens=8192),
        RoutingConfig(policy="session-affinity"),
    ),
    Scene(
        "the same with a radix tree",
        f"{LARGE} --prefix-cache radix",
        InstanceConfig(enable_prefix_caching=True, total_kv_blocks=120_000, max_num_batched_tokens=8192, prefix_cache="radix"),
        RoutingConfig(policy="session-affinity"),
    ),
    Scene("the defaults: small KV memory, small chunks, least-loaded", "", InstanceConfig(enable_prefix_caching=True)),
]


def run(scene: Scene, trace: str, max_requests: int | None) -> tuple[float, int, float]:
    """Simulate one scene. Return CPU seconds, turns that arrived, and the share of the prompts that was found in the cache."""
    load = Load(
        trace=trace,
        session_mode="closed-loop",
        concurrent_sessions=SESSIONS,
        max_requests=max_requests,
        skip_bad_rows=True,
    )
    began = process_time()
    with load.jobs() as jobs:
        results = simulate(jobs, ClusterConfig(num_instances=INSTANCES), scene.instance, scene.routing, log_itl=True)
    used = process_time() - began
    cached, prompts = (sum(getattr(each, name) for each in results.instances) for name in ("cached_tokens", "prompt_tokens"))
    return used, len(results), cached / prompts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--max-requests", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    loops: list[float] = []
    runs: list[list[tuple[float, int, float]]] = [[] for _ in SCENES]
    for _ in range(options.rounds):
        for scene, measured in zip(SCENES, runs, strict=True):
            loops.append(calibrate())
            measured.append(run(scene, options.trace, options.max_requests))
    loop = statistics.median(loops)
    print(f"the hot modules are {'compiled' if is_compiled() else 'pure Python'}")
    print(f"calibration loop ({CALIBRATION_LOOPS:,} turns): {loop * 1e3:.1f} ms CPU, median of {len(loops)}")
    at_most = f" --max-requests {options.max_requests}" if options.max_requests else ""
    for scene, measured in zip(SCENES, runs, strict=True):
        _, turns, hits = measured[0]
        seconds = statistics.median(used for used, _, _ in measured)
        print(
            f"\n{scene.name}\n    maitred simulate --trace {options.trace} --skip-bad-rows --session-mode closed-loop"
            f" --concurrent-sessions {SESSIONS}{at_most} --num-instances {INSTANCES} --enable-prefix-caching {scene.flags}\n"
            f"    {turns:,} turns, {hits:.1%} of prompt tokens cached: {seconds:.2f} s CPU, {turns / seconds:,.0f} turns per"
            f" CPU second, {seconds / turns / (loop / CALIBRATION_LOOPS):,.0f} calibration turns each"
        )


if __name__ == "__main__":
    main()
