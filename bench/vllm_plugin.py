"""What our waiting queue costs vLLM's scheduler: CPU time beside that of vLLM's own queue.

    PYTHONPATH=src .venv-vllm/bin/python bench/vllm_plugin.py

Needs the environment and the tiny model of `make vllm-test`. Two loads, without a model:

    full      256 requests decode, 1,000 wait, and no slot is free, the usual step of a busy engine: `schedule()` alone
    turnover  1,000 requests wait; 16 run at a time, with prompts of 64 tokens and answers of 4: arrival, all steps, end

Rounds of vLLM's own queue and of each policy take turns. Printed is the median over the rounds, in µs. The collector does not
look at what was there before, as in vLLM's engine process.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from pathlib import Path
from statistics import median
from time import process_time_ns
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "plugins" / "real_vllm"))
os.environ.setdefault("MAITRED_VLLM_MODEL", str(Path(sys.prefix) / "tiny-model"))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from vllm_engines import StandaloneScheduler, prompt  # noqa: E402

POLICIES = ("vllm's own", "fcfs", "sjf", "lpm", "vtc")
FULL_STEPS = 100


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for policy in POLICIES:
            times.setdefault((policy, "full"), []).append(full(policy))
            times.setdefault((policy, "turnover"), []).append(turnover(policy))
    print(f"{'':12}{'full: µs per schedule()':>26}{'turnover: µs per request':>28}")
    for policy in POLICIES:
        print(f"{policy:12}{median(times[policy, 'full']):26.0f}{median(times[policy, 'turnover']):28.0f}")


def made_engine(policy: str, **settings: Any) -> StandaloneScheduler:
    """Return vLLM's scheduler with a policy, or with its own queue."""
    own = policy == POLICIES[0]
    engine = StandaloneScheduler(
        None if own else {"scheduler": policy}, num_blocks=20_000, **settings | ({"scheduler_cls": None} if own else {})
    )
    gc.collect()
    gc.freeze()
    return engine


def add_requests(engine: StandaloneScheduler, first: int, count: int, max_tokens: int) -> None:
    for number in range(first, first + count):
        engine.add(f"r{number}", prompt(64, number, shared=32, group=number % 8), max_tokens, tenant=f"t{number % 10}")


def full(policy: str) -> float:
    """Return the CPU time of `schedule()` in µs, while 256 requests decode and 1,000 wait."""
    engine = made_engine(policy, max_num_seqs=256, max_num_batched_tokens=20_000)
    add_requests(engine, 0, 256, 400)
    engine.step()
    add_requests(engine, 256, 1000, 1)
    schedule, spent = engine.scheduler.schedule, 0

    def timed() -> Any:
        nonlocal spent
        before = process_time_ns()
        output = schedule()
        spent += process_time_ns() - before
        return output

    engine.scheduler.schedule = timed
    for _ in range(FULL_STEPS):
        engine.step()
    return spent / 1000 / FULL_STEPS


def turnover(policy: str) -> float:
    """Return the CPU time of a request in µs, its arrival included."""
    engine = made_engine(policy, max_num_seqs=16)
    before = process_time_ns()
    add_requests(engine, 0, 1000, 4)
    engine.run()
    return (process_time_ns() - before) / 1000 / 1000


if __name__ == "__main__":
    main()
