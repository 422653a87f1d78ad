"""CPU time of one `schedule()`: 512 requests generate and 10,000 wait, of which none fits.

    python bench/batching.py [--only maitred sglang] [--running 512] [--waiting 10000]
    PYTHONPATH=build/compiled python bench/batching.py ...      # after `make compile`

Two scenes, since policies look at different things:

    long prompts    the prompt of a request that waits needs more blocks than are free
    long answers    the prompt fits, and what its answer may become does not (for policies that look ahead)

Each flavour is driven by its own instance until all that fit generate. Then whole steps are planned and timed, one by one: the
wait queue is asked, the progress of the requests is settled, and the policy decides. In a simulation the steps between two
completions are skipped, so a plan stands for all of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from random import Random
from statistics import median, quantiles
from time import thread_time_ns
from typing import Any

import msgspec

from maitred import is_compiled
from maitred.compat.instance_rules import new_instance
from maitred.core.request import Request
from maitred.instance import Instance, InstanceConfig, LinearLatency

_REPEATS = 300
_PROMPT, _ANSWER, _BLOCK = 64, 4000, 16


class Case(msgspec.Struct, frozen=True):
    keys: Mapping[str, Any]
    looks_ahead: bool = False
    """Whether a request waits for what its answer may become."""


CASES = {
    "vllm": Case({"flavour": "vllm"}),
    "sglang": Case({"flavour": "sglang"}, looks_ahead=True),
    "trtllm": Case({"flavour": "trtllm"}, looks_ahead=True),
    "trtllm, static-batch": Case({"flavour": "trtllm", "batching": "static-batch"}, looks_ahead=True),
    "trtllm, max-utilization": Case({"flavour": "trtllm", "batching": "max-utilization"}),
    "maitred": Case({"flavour": "maitred"}, looks_ahead=True),
}


def filled(case: Case, running: int, waiting: int, *, long_prompts: bool) -> Instance:
    """Return an instance in which `running` requests generate and `waiting` ones wait."""
    blocks = running * (_PROMPT + _ANSWER + _BLOCK) // _BLOCK
    config = InstanceConfig(
        max_num_seqs=running + 64,
        max_num_batched_tokens=8192,
        total_kv_blocks=blocks,
        block_size_in_tokens=_BLOCK,
        latency=LinearLatency((1000, 0, 0)),
        step_by_step=True,
        **case.keys,
    )
    instance = new_instance(config, Random(0))
    prompt = blocks * _BLOCK - 10 * _BLOCK if long_prompts else _PROMPT
    for number in range(running + waiting):
        size = _PROMPT if number < running else prompt
        answer = _ANSWER if number < running else blocks * _BLOCK - prompt
        request = Request(id=number, arrival=0, prompt_tokens=size, max_output_tokens=answer)
        instance.enqueue(request, answer, 0)
    while instance.num_steps < 20:
        due = instance.next_event()
        assert due is not None
        instance.advance(due)
    return instance


def planning_micros(instance: Instance) -> list[float]:
    """Return the CPU time of some plans of a step, in µs."""
    core, times = instance._core, []
    for _ in range(_REPEATS):
        if core.run is not None:
            core.commit_run(core.run)
        began = thread_time_ns()
        core.batch.schedule(core.waiting, core.next_start, 1)  # admits nothing, so the plan below is the same
        times.append((thread_time_ns() - began) / 1000)
        core.start_run()
    return times


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=CASES, default=[*CASES])
    parser.add_argument("--running", type=int, default=512)
    parser.add_argument("--waiting", type=int, default=10_000)
    asked = parser.parse_args(arguments)
    print(f"{asked.running} generate, {asked.waiting:,} wait; {'compiled' if is_compiled() else 'pure Python'}")
    print(f"{'µs per plan':26} {'what is too long':14} {'median':>8} {'p90':>8}")
    for name in asked.only:
        for long_prompts in (True, False) if CASES[name].looks_ahead else (True,):
            instance = filled(CASES[name], asked.running, asked.waiting, long_prompts=long_prompts)
            times = planning_micros(instance)
            scene = "prompts" if long_prompts else "answers"
            print(f"{name:26} {scene:14} {median(times):10.0f} {quantiles(times, n=10)[-1]:8.0f}")


if __name__ == "__main__":
    main()
