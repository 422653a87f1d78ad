"""Record schedules from vLLM's own scheduler, with its KV cache manager, without model, worker or HTTP.

    .venv-vllm/bin/python -m tests.conformance.vllm_conformance.record OUT.json.gz --count 200 --seed 1
    .venv-vllm/bin/python -m tests.conformance.vllm_conformance.record OUT.json.gz --again tests/vectors/vllm_modes.json.gz

Needs an environment with vLLM 0.32 (`make vllm-test` makes one) or 0.33, and nothing of maitred. Where a release has no CPU
build, its wheel for another platform will do, unpacked and in front of the CPU build on PYTHONPATH: the scheduler is Python
alone. `Scheduler.schedule()` and `update_from_output()` take turns, with sampled tokens that are made up, as `EngineCore` would
call them:

    sync     schedule N, results of N, schedule N + 1, ...
    async    schedule N, results of N - 1, schedule N + 1, ...     (AsyncScheduler, queue depth 2)

A step takes `step_time_base` and `step_time_per_token` for each scheduled token. Arrivals and aborts come at the start of the
first step whose time has reached them. A schedule without a token in it takes no time and is no step, unless it preempts.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import sys
import tempfile
from collections import deque
from functools import cache
from pathlib import Path
from typing import Any

from .random_workloads import random_workload
from .workload import SHORTEST_FIRST, due, load_cases, output_token, prompt_tokens, resolved_config

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")

import torch
from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.request_queue import FCFSRequestQueue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

import vllm

EOS = 2
MAX_STEPS = 2000
"""Steps after which a workload is given up: in vLLM, by priority and without `scheduler_reserve_full_isl`, long prompts can
preempt each other for ever."""
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 1024,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}


@cache
def make_model(max_model_len: int) -> ModelConfig:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL))
        return ModelConfig(model=folder, skip_tokenizer_init=True, dtype="bfloat16", max_model_len=max_model_len)


def make_scheduler(config: dict[str, Any], *, shortest_first: bool) -> Scheduler:
    """Return vLLM's scheduler for `config`, with an empty KV cache."""
    names = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "policy", "enable_chunked_prefill", "watermark")
    more = (
        "long_prefill_token_threshold",
        "long_prefill_token_threshold_adaptive",
        "scheduler_reserve_full_isl",
        "prefill_schedule_interval",
    )
    scheduling = SchedulerConfig(
        **{name: config[name] for name in (*names, *more)},
        async_scheduling=config["async_scheduling"],
        is_encoder_decoder=False,
    )
    cache = CacheConfig(
        block_size=config["block_size"],
        gpu_memory_utilization=0.9,
        enable_prefix_caching=config["enable_prefix_caching"],
    )
    whole = VllmConfig(
        model_config=make_model(config["max_model_len"]),
        scheduler_config=scheduling,
        cache_config=cache,
        device_config=DeviceConfig("cpu"),
    )
    # The CPU platform changes these on the way.
    whole.scheduler_config.async_scheduling = config["async_scheduling"]
    whole.scheduler_config.enable_chunked_prefill = config["enable_chunked_prefill"]
    whole.cache_config.block_size = config["block_size"]
    whole.cache_config.enable_prefix_caching = config["enable_prefix_caching"]
    whole.cache_config.num_gpu_blocks = config["num_blocks"]
    spec = FullAttentionSpec(block_size=config["block_size"], num_kv_heads=2, head_size=32, dtype=torch.bfloat16)
    blocks = KVCacheConfig(
        num_blocks=config["num_blocks"], kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )
    scheduler = (AsyncScheduler if config["async_scheduling"] else Scheduler)(
        vllm_config=whole,
        kv_cache_config=blocks,
        structured_output_manager=StructuredOutputManager(whole),
        block_size=config["block_size"],
        log_stats=True,
    )
    if shortest_first:
        scheduler.waiting = FCFSRequestQueue()
    return scheduler


def sort_shortest_first(scheduler: Scheduler) -> None:
    """Sort the wait queue by (preempted before others, prompt length, arrival)."""
    waiting = sorted(
        scheduler.waiting,
        key=lambda request: (request.status != RequestStatus.PREEMPTED, request.num_prompt_tokens, request.arrival_time),
    )
    scheduler.waiting.clear()
    scheduler.waiting.extend(waiting)


class Recorder:
    """One workload on vLLM's scheduler, and what came of it."""

    def __init__(self, workload: dict[str, Any], *, shortest_first: bool) -> None:
        self.config = resolved_config(workload)
        self.shortest_first = shortest_first
        self.scheduler = make_scheduler(self.config, shortest_first=shortest_first)
        self.numbers = {request["id"]: number for number, request in enumerate(workload["requests"])}
        self.asked = {request["id"]: request for request in workload["requests"]}
        self.arrivals = sorted(workload["requests"], key=lambda request: request["arrival"])
        aborted = [request for request in workload["requests"] if request.get("abort_at") is not None]
        self.aborts = sorted(aborted, key=lambda request: request["abort_at"])
        self.hasher = (
            get_request_block_hasher(self.config["block_size"], sha256) if self.config["enable_prefix_caching"] else None
        )
        self.emitted = dict.fromkeys(self.asked, 0)
        self.records: dict[str, dict[str, Any]] = {}
        self.steps: list[dict[str, Any]] = []
        self.in_flight: deque[tuple[Any, dict[str, list[int]]]] = deque()
        self.now = 0.0
        self.stuck = False

    def run(self) -> dict[str, Any] | None:
        """Return what vLLM does, or None if that does not end."""
        while self.step():
            if len(self.steps) > MAX_STEPS:
                return None
        return {
            "vllm_version": vllm.__version__,
            "scheduler": f"{SHORTEST_FIRST} plug-in on {type(self.scheduler).__name__}"
            if self.shortest_first
            else f"{type(self.scheduler).__module__}.{type(self.scheduler).__name__}",
            "config": self.config,
            "total_blocks": self.config["num_blocks"],
            "usable_blocks": self.config["num_blocks"] - 1,
            "num_steps": len(self.steps),
            "stuck": self.stuck,
            "steps": self.steps,
            "requests": {name: self.records[name] for name in self.asked if name in self.records},
        }

    def step(self) -> bool:
        """Make one schedule. Return False when there is nothing more to do."""
        scheduler = self.scheduler
        for request in due(self.aborts, "abort_at", self.now):
            self.abort(request["id"])
        for request in due(self.arrivals, "arrival", self.now):
            self.add(request)
        if self.shortest_first:
            sort_shortest_first(scheduler)
        before = [request.request_id for request in scheduler.waiting]
        output = scheduler.schedule()
        preempted = sorted(output.preempted_req_ids or ())
        if not output.total_num_scheduled_tokens and not preempted:
            if self.in_flight:
                self.process()
            else:
                return self.go_to_next_input()
            return True
        self.note_step(output, before, preempted)
        self.in_flight.append((output, self.sample(output)))
        config = self.config
        self.now += config["step_time_base"] + config["step_time_per_token"] * output.total_num_scheduled_tokens
        if len(self.in_flight) > config["async_scheduling"]:
            self.process()
        return True

    def go_to_next_input(self) -> bool:
        due_at = [
            request[key]
            for key, requests in (("arrival", self.arrivals), ("abort_at", self.aborts))
            for request in requests[:1]
        ]
        if not due_at:
            self.stuck = bool(self.scheduler.requests)
            return False
        self.now = max(self.now, float(min(due_at)))
        return True

    def add(self, asked: dict[str, Any]) -> None:
        name = asked["id"]
        params = SamplingParams(max_tokens=asked["max_tokens"], temperature=0.0)
        params.update_from_generation_config({}, EOS)
        request = Request(
            request_id=name,
            prompt_token_ids=prompt_tokens(self.numbers[name], asked),
            sampling_params=params,
            pooling_params=None,
            arrival_time=float(asked["arrival"]),
            priority=asked.get("priority", 0),
            block_hasher=self.hasher,
        )
        self.scheduler.add_request(request)
        self.records[name] = {
            "arrival": float(asked["arrival"]),
            "first_sched": None,
            "first_token": None,
            "finish": None,
            "preemptions": 0,
            "output_tokens": 0,
            "cached_tokens": 0,
            "finish_reason": None,
        }

    def abort(self, name: str) -> None:
        request = self.scheduler.requests.get(name)
        if request is not None:
            self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)
            self.records[name].update(finish=self.now, finish_reason="abort", preemptions=request.num_preemptions)

    def note_step(self, output: Any, before: list[str], preempted: list[str]) -> None:
        scheduler, manager = self.scheduler, self.scheduler.kv_cache_manager
        tokens = dict(output.num_scheduled_tokens)
        new = [request.req_id for request in output.scheduled_new_reqs]
        for name in new:
            request, record = scheduler.requests[name], self.records[name]
            record["first_sched"] = self.now
            record["cached_tokens"] = request.num_computed_tokens - tokens[name]
        for name in preempted:
            self.records[name]["preemptions"] += 1
        self.steps.append(
            {
                "step": len(self.steps),
                "t": self.now,
                "num_scheduled_tokens": tokens,
                "total": output.total_num_scheduled_tokens,
                "new": new,
                "resumed": sorted(
                    output.scheduled_cached_reqs.resumed_req_ids,
                    key=[request.request_id for request in scheduler.running].index,
                ),
                "preempted": preempted,
                "finished_before": sorted(output.finished_req_ids),
                "running": [request.request_id for request in scheduler.running],
                "waiting": [request.request_id for request in scheduler.waiting],
                "waiting_before": before,
                "free_blocks": manager.block_pool.get_num_free_blocks(),
                "kv_usage": round(manager.usage, 6),
                "blocks": {
                    request.request_id: len(manager.get_blocks(request.request_id).blocks[0]) for request in scheduler.running
                },
            }
        )

    def sample(self, output: Any) -> dict[str, list[int]]:
        """Return the tokens that the step would emit, by request."""
        sampled: dict[str, list[int]] = {}
        for name in output.num_scheduled_tokens:
            if self.scheduler.requests[name].is_prefill_chunk:
                sampled[name] = []
                continue
            index, asked = self.emitted[name], self.asked[name]
            self.emitted[name] = index + 1
            sampled[name] = [EOS if index + 1 == asked.get("output_len") else output_token(self.numbers[name], index)]
        return sampled

    def process(self) -> None:
        """Give the oldest results that are in flight to the scheduler."""
        output, sampled = self.in_flight.popleft()
        names = list(output.num_scheduled_tokens)
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[sampled[name] for name in names],
        )
        for outputs in self.scheduler.update_from_output(output, result).values():
            for each in outputs.outputs:
                record = self.records[each.request_id]
                record["output_tokens"] += len(each.new_token_ids)
                if each.new_token_ids and record["first_token"] is None:
                    record["first_token"] = self.now
                if each.finish_reason is not None:
                    record["finish"], record["finish_reason"] = self.now, str(each.finish_reason)


def main() -> None:
    parser = argparse.ArgumentParser(description="Record schedules from vLLM's own scheduler.")
    parser.add_argument("out", type=Path, help="the file to write, gzipped JSON")
    parser.add_argument("--count", type=int, default=100, help="random workloads")
    parser.add_argument("--seed", type=int, default=1, help="of the first one")
    parser.add_argument("--again", type=Path, help="record the workloads of this file instead")
    options = parser.parse_args()
    init_none_hash(sha256)
    if options.again:
        asked = [
            (case["name"], case["workload"], SHORTEST_FIRST in case["recorded"]["scheduler"])
            for case in load_cases(options.again)
        ]
    else:
        asked = [random_workload(random.Random(seed), seed) for seed in range(options.seed, options.seed + options.count)]
    cases = []
    for name, workload, shortest_first in asked:
        recorded = Recorder(workload, shortest_first=shortest_first).run()
        if recorded is None:
            sys.stderr.write(f"{name}: left out after {MAX_STEPS} steps\n")
            continue
        sys.stderr.write(f"{name}: {recorded['num_steps']} steps\n")
        cases.append({"name": name, "workload": workload, "recorded": recorded})
    with gzip.open(options.out, "wt", encoding="utf-8") as file:
        json.dump({"cases": cases}, file)


if __name__ == "__main__":
    main()
