"""Random small workloads for the recorder, with so little memory and so small budgets that every rule matters."""

from __future__ import annotations

from random import Random
from typing import Any

from .workload import SHORTEST_FIRST


def random_workload(rng: Random, seed: int) -> tuple[str, dict[str, Any], bool]:
    """Return a name, a workload, and whether its wait queue puts short prompts first."""
    block_size = rng.choice([4, 8, 16, 32])
    max_model_len = rng.choice([200, 400, 600])
    longest = rng.choice([60, 150, max_model_len - 41])
    least_blocks = -(-max_model_len // block_size) + 2
    chunked = rng.random() < 0.8
    budget = rng.choice([32, 64, 128, 256, 512]) if chunked else rng.choice([max_model_len, 2 * max_model_len])
    config: dict[str, Any] = {
        "block_size": block_size,
        # With few blocks some prompts never fit, so that nothing behind them is served.
        "num_blocks": least_blocks // 2 + 1 if rng.random() < 0.08 else least_blocks + rng.choice([0, 3, 10, 30, 200]),
        "max_num_seqs": rng.choice([3, 6, 12, 24]),
        "max_num_batched_tokens": budget,
        "max_model_len": max_model_len,
        "policy": rng.choice(["fcfs", "priority"]),
        "enable_prefix_caching": rng.random() < 0.5,
        "enable_chunked_prefill": chunked,
        "long_prefill_token_threshold": rng.choice([0, 0, 10, 40, 100]),
        "long_prefill_token_threshold_adaptive": rng.random() < 0.3,
        "scheduler_reserve_full_isl": rng.random() < 0.7,
        "watermark": rng.choice([0.0, 0.0, 0.05, 0.2]),
        "async_scheduling": rng.random() < 0.5,
        "step_time_base": rng.choice([1.0, 1.0, 2.0, 0.5]),
        "step_time_per_token": rng.choice([0.0, 0.0, 0.25, 0.0625]),
    }
    shortest_first = config["policy"] == "fcfs" and rng.random() < 0.2
    requests, now, gap = [], 0, rng.choice([1, 3, 8])
    for number in range(rng.randint(8, 40)):
        now += rng.choice([0, 0, gap, gap, 2 * gap, 40 * gap if rng.random() < 0.1 else gap])
        length = rng.randint(1, longest)
        request: dict[str, Any] = {
            "id": f"q{number}",
            "arrival": now,
            "prompt_len": length,
            "max_tokens": rng.choice([1, 2, 5, 20, 40, 40]),
            "priority": rng.randint(0, 2),
            "prefix_group": rng.randint(0, 2),
            "prefix_len": rng.choice([0, length // 2, max(0, length - 1), length]),
        }
        if rng.random() < 0.3:
            request["output_len"] = rng.randint(1, request["max_tokens"])
        if rng.random() < 0.15:
            request["abort_at"] = now + rng.choice([0, 1, 5, 20, 60])
        requests.append(request)
    # Drawn last, so that a seed means the same workload as in the records that were made without it.
    config["prefill_schedule_interval"] = rng.choice([1, 1, 2, 3, 6])
    mode = "-".join(
        [
            SHORTEST_FIRST if shortest_first else str(config["policy"]),
            *(["async"] if config["async_scheduling"] else []),
            *(["cache"] if config["enable_prefix_caching"] else []),
        ]
    )
    return f"{mode}-{seed}", {"config": config, "requests": requests}, shortest_first
