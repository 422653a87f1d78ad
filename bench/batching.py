"""How long a batch scheduler takes for one decision: 512 requests generate, one computes its prompt, 10,000 wait.

    python bench/batching.py [--schedulers guaranteed-no-evict max-utilization] [--running 512] [--waiting 10000]

An instance is filled. Then its decision is timed as the instance asks for it: the progress of the active requests is settled,
and the scheduler decides. The steps between completions are skipped, so a run asks once for all of them. `continuous`, vLLM's
way, is `schedule()` as a whole.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from random import Random
from statistics import median
from time import perf_counter_ns

from maitred.batching import SchedulerBatch
from maitred.core.request import Request
from maitred.instance import Instance, InstanceConfig, LinearLatency

_REPEATS = 200
_PROMPT, _ANSWER = 64, 4000


def filled(batching: str | None, running: int, waiting: int) -> Instance:
    """Return an instance in which `running` requests generate and `waiting` ones wait."""
    blocks = running * (_PROMPT + _ANSWER + 16) // 16
    config = InstanceConfig(
        batching=batching,
        max_num_seqs=running + 1,
        max_num_batched_tokens=8192,
        total_kv_blocks=blocks,
        latency=LinearLatency((1000, 0, 0)),
        step_by_step=True,
    )
    instance = Instance(config, Random(0))
    for number in range(running + waiting):
        answer = _ANSWER if number < running else blocks * 16 - _PROMPT
        request = Request(id=number, arrival=0, prompt_tokens=_PROMPT, max_output_tokens=answer)
        instance.enqueue(request, answer, 0)
    while instance.num_steps < 20:
        due = instance.next_event()
        assert due is not None
        instance.advance(due)
    return instance


def decision_micros(instance: Instance) -> float:
    """Return the median time of a decision, in µs."""
    core, times = instance._core, []
    for _ in range(_REPEATS):
        if core.run is not None:
            core.commit_run(core.run)
        began = perf_counter_ns()
        if isinstance(core.batch, SchedulerBatch):
            core.batch._decide()
        else:
            core.batch.schedule(core.waiting, core.next_start, 1)
        times.append((perf_counter_ns() - began) / 1000)
        core.start_run()
    return median(times)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    default = ["guaranteed-no-evict", "static-batch", "max-utilization", "continuous"]
    parser.add_argument("--schedulers", nargs="+", default=default)
    parser.add_argument("--running", type=int, default=512)
    parser.add_argument("--waiting", type=int, default=10_000)
    asked = parser.parse_args(arguments)
    print(f"{asked.running} generate, {asked.waiting:,} wait; median of {_REPEATS} decisions")
    for name in asked.schedulers:
        instance = filled(None if name == "continuous" else name, asked.running, asked.waiting)
        print(f"{name:24} {decision_micros(instance):8.0f} µs   ({instance.running} active)")


if __name__ == "__main__":
    main()
