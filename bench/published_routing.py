"""What a router that knows prefixes brings, as llm-d has measured it and as it is simulated: a table of docs/accuracy.md.

    python bench/published_routing.py [--latency-model roofline]

The measurement is that of the guide `inference-scheduling` of llm-d (github.com/llm-d/llm-d, guides/inference-scheduling,
Apache-2.0): Qwen3-32B on 8 instances of vLLM with two H100 each, 95 % of the memory. The load is inference-perf's
`shared_prefix`: 150 groups with a system prompt of 6,000 tokens, 5 questions of 1,200 tokens each, answers of 1,000 tokens; so
750 prompts of 7,576 tokens as they were counted, sent again and again. It comes in stages of rising Poisson rates, and a stage
begins when all answers of the one before it have come, with the caches that this has left. The table has the last stage, 1,500
requests at 60 a second: once through a Kubernetes service, which draws an instance, and once through llm-d's router, with its
default scorers (2 for the queue, 2 for the use of the KV memory, 3 for the prefix). A third router is only simulated: the one
that a gateway of maitred has for this, with the KV blocks that it reads of such an engine.

The simulation is given what is said there, and nothing is fitted. With the extra `silicon` the step times are those of measured
kernels.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np

from maitred import ClusterConfig, InstanceConfig, Results, RoutingConfig
from maitred.instance.latency import parse_latency
from maitred.sim import simulate
from maitred.workload import open_trace

STAGES = (
    *((15, 50), (3, 20), (10, 20), (15, 20), (20, 38), (22, 34), (25, 30), (30, 25), (35, 21), (40, 38), (43, 36)),
    *((46, 33), (49, 30), (52, 29), (55, 27), (57, 26), (60, 25)),
)
"""Requests per second, and seconds, in their order."""
GAP_SECS = 1_000
"""From the beginning of a stage to that of the next: all answers have come by then."""
GROUPS, QUESTIONS, BLOCK = 150, 5, 512
PROMPT_TOKENS, SYSTEM_TOKENS, OUTPUT_TOKENS = 7_576, 6_376, 1_000
"""As counted: the text of a prompt makes a few more tokens than were asked for."""
ROUTERS = {
    "a Kubernetes service": RoutingConfig(policy="random"),
    "llm-d": RoutingConfig(policy="weighted", scorers="queue-depth:2, kv-utilization:2, precise-prefix-cache:3"),
    "`cache-aware(most=20911)`": RoutingConfig(policy="cache-aware(most=20911)"),
}
PUBLISHED = {"a Kubernetes service": (5.73, 34.91, 70.4, 105.4), "llm-d": (14.41, 0.12, 67.7, 67.9)}
"""Requests per second, TTFT (s), TPOT (ms) and E2E (s), all means; llm-d's figures of its README at 086f217."""


def write_trace(file: Path, seed: int) -> None:
    """Write the requests of all stages, in Mooncake's format."""
    chance, number = Random(seed), 0
    prompts = [(group, question) for group in range(GROUPS) for question in range(QUESTIONS)]
    chance.shuffle(prompts)
    shared, blocks = SYSTEM_TOKENS // BLOCK, -(-PROMPT_TOKENS // BLOCK)
    with file.open("w", encoding="utf-8") as out:
        for stage, (rate, secs) in enumerate(STAGES):
            for at in sorted(chance.uniform(0, secs) for _ in range(rate * secs)):
                group, question = prompts[number % len(prompts)]
                own = range(1_000_000 + (group * QUESTIONS + question) * blocks, 1_000_000_000)
                hashes = [group * blocks + block if block < shared else own[block] for block in range(blocks)]
                row = {
                    "timestamp": round((stage * GAP_SECS + at) * 1000),
                    "input_length": PROMPT_TOKENS,
                    "output_length": OUTPUT_TOKENS,
                    "hash_ids": hashes,
                }
                out.write(json.dumps(row) + "\n")
                number += 1


def figures(results: Results) -> tuple[float, ...]:
    """Return requests per second, TTFT (s), TPOT (ms) and E2E (s) of the last stage."""
    began = (len(STAGES) - 1) * GAP_SECS * 1_000_000
    last = results.arrival >= began
    arrival, first, finished = results.arrival[last], results.first_token[last], results.finished[last]
    e2e = (finished - arrival) / 1e6
    ttft = (first - arrival) / 1e6
    rate = len(arrival) / ((finished.max() - arrival.min()) / 1e6)
    return rate, float(np.mean(ttft)), float(np.mean((e2e - ttft) / (OUTPUT_TOKENS - 1)) * 1e3), float(np.mean(e2e))


def rows(instance: InstanceConfig, trace: str, seed: int) -> Iterator[str]:
    yield "| router | | requests/s | TTFT mean s | TPOT mean ms | E2E mean s |"
    yield "|---|---|" + "---:|" * 4
    for name, routing in ROUTERS.items():
        with open_trace(trace) as jobs:
            results = simulate(jobs, ClusterConfig(num_instances=8), instance, routing, seed=seed)
        hits = results.cached_tokens.sum() / results.prompt_tokens.sum()
        simulated = {f"simulated ({hits:.0%} of prompts cached)": figures(results)}
        measured = {"measured": PUBLISHED[name]} if name in PUBLISHED else {}
        for who, values in {**measured, **simulated}.items():
            yield "| {} | {} | {:.1f} | {:.2f} | {:.1f} | {:.1f} |".format(name, who, *values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency-model", default=None)
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args()
    instance = InstanceConfig(
        flavour="vllm",
        model="qwen3-32b",
        hardware="H100",
        tensor_parallel_size=2,
        gpu_memory_utilization=0.95,
        max_num_seqs=1024,
        max_num_batched_tokens=8192,
        enable_prefix_caching=True,
        latency=None if options.latency_model is None else parse_latency(options.latency_model),
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "shared_prefix.jsonl"
        write_trace(file, options.seed)
        for row in rows(instance, f"mooncake:{file}", options.seed):
            print(row, flush=True)


if __name__ == "__main__":
    main()
