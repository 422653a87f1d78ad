"""The simulator against a schedule recorded from vLLM 0.32's own scheduler (tests/vectors/README.md)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from maitred.instance import InstanceConfig, LinearLatency
from maitred.request import Request
from maitred.sim import Results, simulate
from maitred.workload import Job

VECTORS = Path(__file__).parent.parent / "vectors"


def recorded(name: str) -> tuple[list[Job], InstanceConfig, dict[str, dict[str, float]]]:
    case = json.loads(gzip.decompress((VECTORS / name).read_bytes()))
    config = case["recorded"]["config"]
    jobs = [
        Job(
            Request(id=i, arrival=r["arrival"], prompt_tokens=r["prompt_len"], max_output_tokens=r["max_tokens"]),
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
        latency=LinearLatency((1.0, 0.0, 0.0)),
    )
    return jobs, instance, case["recorded"]["requests"]


@pytest.mark.parametrize("name", ["vllm_v1.json.gz"])
def test_every_request_gets_its_tokens_in_the_steps_that_vllm_gave_it(name: str) -> None:
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
    assert sum(request["preemptions"] for request in expected.values()) == 8
    assert ours == {name: {key: request[key] for key in next(iter(ours.values()))} for name, request in expected.items()}
