"""What separate instances for prefill and decode bring, as DistServe has measured it and as it is simulated: docs/accuracy.md.

    python bench/published_disaggregation.py [--latency-model roofline]

The measurement is the first experiment of DistServe's own account (Hao AI Lab, "Throughput is Not All You Need", 17 March 2024,
figure 6; github.com/hao-ai-lab/hao-ai-lab.github.io, content/blogs/distserve, at 821a7fe): a model of 13 billion parameters on
A100 GPUs of 80 GB, prompts of 512 tokens, answers of 64, Poisson arrivals. A rate holds if for 90 % of the requests TTFT is at
most 0.4 s and TPOT at most 0.04 s. It was found for one GPU that does both, one that only prefills and one that only decodes,
and follows for two that prefill with one that decodes.

The engine that does both was a vLLM of that time: prompts whole, and before all else. The simulation has it as SGLang without
chunks, which batches so; beside it stands vLLM as it is today, which cuts prompts into chunks and decodes in the same steps.
The model has the shape of Llama-2-13B. A rate is found by bisection; nothing is fitted. With the extra `silicon` the step times
are those of measured kernels, of vLLM in both cases.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from maitred import ClusterConfig, InstanceConfig, Results, synthetic
from maitred.instance.latency import parse_latency
from maitred.instance.sglang_config import SGLangConfig
from maitred.sim import simulate
from maitred.sim.config import DisaggregationConfig

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 5120,
    "intermediate_size": 13824,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "num_key_value_heads": 40,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "torch_dtype": "float16",
}
PROMPT_TOKENS, OUTPUT_TOKENS = 512, 64
TTFT_SECS, TPOT_SECS, SHARE = 0.4, 0.04, 90
NVLINK_GB_S = 300.0
"""From one A100 SXM to another (NVLink 3, one way)."""
PLENTY = 8
"""GPUs of the other kind, where those of one kind are measured."""
PUBLISHED = {
    "TTFT, one GPU does both": 2.3,
    "TPOT, one GPU does both": 1.6,
    "only prefills": 5.6,
    "only decodes": 10.0,
    "2 prefill, 1 decodes": 10.0,
}
"""Requests per second. Of the first the account says 3 as well."""


class Planner:
    """Finds the rates for one choice of step times."""

    def __init__(self, folder: Path, latency: str, requests: int, seed: int) -> None:
        times = parse_latency(latency)
        self._of_today = InstanceConfig(
            flavour="vllm",
            model="llama-2-13b",
            model_config_folder=str(folder),
            hardware="A100",
            latency=times,
        )
        whole = SGLangConfig(disable_chunked_prefill=True, max_prefill_tokens=2560)
        self._of_that_time = InstanceConfig(
            flavour="sglang",
            sglang=whole,
            **{name: getattr(self._of_today, name) for name in ("model", "model_config_folder", "hardware", "latency")},
        )
        self._requests, self._seed = requests, seed

    def highest_rate(self, prefills: int, decodes: int, holds: Callable[[Results], bool], *, of_that_time: bool) -> float:
        """Return the highest rate at which a run `holds`, to 1 %. Without GPUs that only decode, those that prefill do both."""
        instance = self._of_that_time if of_that_time and not decodes else self._of_today
        network = DisaggregationConfig(
            prefill_instances=prefills if decodes else 0, decode_instances=decodes, transfer_bandwidth_gb_s=NVLINK_GB_S
        )
        cluster = ClusterConfig(num_instances=prefills + decodes, disaggregation=network)

        def does(rate: float) -> bool:
            jobs = synthetic(rate, self._requests, seed=self._seed, input_tokens=PROMPT_TOKENS, output_tokens=OUTPUT_TOKENS)
            return holds(simulate(jobs, cluster, instance, seed=self._seed))

        low, high = 0.0, 1.0
        while does(high):
            low, high = high, 2 * high
        while high - low > 0.01 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if does(middle) else (low, middle)
        return low


def ttft_holds(results: Results) -> bool:
    return float(np.percentile(results.first_token - results.arrival, SHARE)) <= TTFT_SECS * 1e6


def tpot_holds(results: Results) -> bool:
    each = (results.finished - results.first_token) / (OUTPUT_TOKENS - 1)
    return float(np.percentile(each, SHARE)) <= TPOT_SECS * 1e6


def both_hold(results: Results) -> bool:
    return ttft_holds(results) and tpot_holds(results)


def rates(planner: Planner, *, of_that_time: bool) -> list[float]:
    """Return the rates in the order of `PUBLISHED`."""
    cases = [(1, 0, ttft_holds), (1, 0, tpot_holds), (1, PLENTY, ttft_holds), (PLENTY, 1, tpot_holds), (2, 1, both_hold)]
    return [planner.highest_rate(prefills, decodes, holds, of_that_time=of_that_time) for prefills, decodes, holds in cases]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--latency-model", default="aiconfigurator(engine=vllm, step_overhead=0, sequence_overhead=0, alpha=[0, 0, 0])"
    )
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=42)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
        planner = Planner(Path(name), options.latency_model, options.requests, options.seed)
        rows = {
            "measured": list(PUBLISHED.values()),
            "simulated, prompts whole and first": rates(planner, of_that_time=True),
            "simulated, vLLM of today": rates(planner, of_that_time=False),
        }
    print("| requests/s |", " | ".join(PUBLISHED), "| per GPU: does both | 2 prefill, 1 decodes | times |")
    print("|---|" + "---:|" * (len(PUBLISHED) + 3))
    for who, found in rows.items():
        alone, apart = min(found[:2]), found[-1] / 3
        print(f"| {who} |", " | ".join(f"{rate:.1f}" for rate in found), f"| {alone:.1f} | {apart:.1f} | {apart / alone:.1f} |")


if __name__ == "__main__":
    main()
