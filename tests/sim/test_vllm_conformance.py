"""The simulator against schedules recorded from vLLM 0.32's own scheduler (tests/vectors/README.md)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from maitred.core.request import Request
from maitred.instance import EventKind, Instance, InstanceConfig, LinearLatency
from maitred.kv import PromptTokenIds
from maitred.sim import Results, simulate
from maitred.workload import Job

VECTORS = Path(__file__).parent.parent / "vectors"
GROUPS = (1679489467, 3152218661, 4000068333)
"""The first tokens of the shared prefixes."""


def prompt(n: int, request: dict[str, Any]) -> PromptTokenIds:
    """Return the tokens of the n-th request."""
    shared = request.get("prefix_len") or 0
    group = GROUPS[request["prefix_group"]] if shared else 0
    own = request["prompt_len"] - shared
    return PromptTokenIds(
        (*(10 + (group + 31 * i) % 985 for i in range(shared)), *(10 + (6151 * n + 53 * i + 7) % 985 for i in range(own)))
    )


def recorded(name: str) -> tuple[list[Job], InstanceConfig, dict[str, dict[str, float]]]:
    case = json.loads(gzip.decompress((VECTORS / name).read_bytes()))
    config = case["recorded"]["config"]
    jobs = [
        Job(
            Request(
                id=i,
                arrival=r["arrival"],
                prompt_tokens=r["prompt_len"],
                max_output_tokens=r["max_tokens"],
                prefix=prompt(i, r),
            ),
            r["max_tokens"],
        )
        for i, r in enumerate(case["workload"]["requests"])
    ]
    instance = InstanceConfig(
        max_num_seqs=config["max_num_seqs"],
        max_num_batched_tokens=config["max_num_batched_tokens"],
        long_prefill_token_threshold=config["long_prefill_token_threshold"],
        total_kv_blocks=case["recorded"]["usable_blocks"],
        block_size_in_tokens=config["block_size"],
        enable_prefix_caching=config["enable_prefix_caching"],
        latency=LinearLatency((1.0, 0.0, 0.0)),
    )
    return jobs, instance, case["recorded"]["requests"]


@pytest.mark.parametrize(("name", "preemptions"), [("vllm_v1.json.gz", 8), ("vllm_v3.json.gz", 14)])
def test_every_request_gets_its_tokens_in_the_steps_that_vllm_gave_it(name: str, preemptions: int) -> None:
    jobs, instance, expected = recorded(name)
    results: Results = simulate(jobs, instance=instance)

    ours = {
        f"q{row.item()}": {
            "first_token": results.first_token[i],
            "finish": results.finished[i],
            "preemptions": results.preemptions[i],
            "output_tokens": results.output_tokens[i],
        }
        for i, row in enumerate(results.request_id)
    }
    assert sum(request["preemptions"] for request in expected.values()) == preemptions
    assert ours == {name: {key: request[key] for key in next(iter(ours.values()))} for name, request in expected.items()}


def test_every_request_finds_in_the_cache_what_it_found_in_vllms() -> None:
    jobs, config, expected = recorded("vllm_v3.json.gz")
    instance, found, now = Instance(config, Random(0)), {}, 0
    pending = list(jobs)
    while pending or instance.waiting or instance.running:
        while pending and pending[0].request.arrival <= now:
            job = pending.pop(0)
            instance.enqueue(job.request, job.output_tokens, now)
        for event in instance.advance(now):
            if event.kind is EventKind.FINISHED:
                found[f"q{event.seq.request.id}"] = event.seq.num_cached_tokens
        instance.check()
        due = instance.next_event()
        arrival = pending[0].request.arrival if pending else None
        now = min(t for t in (due, arrival) if t is not None) if due or arrival is not None else now

    assert found == {name: request["cached_tokens"] for name, request in expected.items()}
    assert sum(map(bool, found.values())) == 22
