"""Slowdown: by which factor a request took longer than it would have alone on an idle instance.

    slowdown = E2E / time alone,    time alone = α + steps that compute the prompt + one step for each further token

A second is much for a short answer and nothing for a long one, and the slowdown weighs it so (M. Harchol-Balter, Performance
Modeling and Design of Computer Systems, 2013, chapter 28). 1 means that no other request was felt. The time alone is without
prefix cache, so a hit may bring the slowdown below 1. Under processor sharing at a load ρ every size has the mean 1 / (1 - ρ).

The time alone comes from the latency model, at a few hundred lengths with straight lines between them, so that it costs little
beside the run: for the straight lines of `linear` it is exact, for others within 1 %.

Example: 5,000 µs per step, 17.5 per prefill token, 60 per decode. A prompt of 512 tokens and an answer of 101 take 5,000 +
17.5 · 512 + 100 · 5,060 = 519,960 µs alone. In a run in which it took 1.04 s its slowdown is 2.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from maitred.core.contracts import BatchShape, ChunkShape, LatencyModel
from maitred.instance import InstanceConfig
from maitred.report.latencies import Times, request_times
from maitred.sim import Results

_MOST_LENGTHS: Final = 256


def slowdowns(results: Results, instance: InstanceConfig) -> Times:
    """Return the slowdown of each request; NaN where it did not complete. `instance` is resolved."""
    e2e = request_times(results).e2e
    done = ~np.isnan(e2e)
    if not done.any():
        return e2e
    model = instance.latency_model()
    prompts, outputs = results.prompt_tokens[done], np.maximum(results.output_tokens[done], 1)
    alone = _prefill_times(model, prompts, instance.max_num_batched_tokens) + _decode_times(model, prompts, outputs)
    over = model.overheads
    alone += over.queueing + over.queueing_per_token * prompts + over.per_output_token * outputs + over.after_last_token
    found = e2e.copy()
    found[done] = e2e[done] / np.maximum(alone, 1.0)
    return found


def _lengths(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the lengths that occur, or a few hundred from the smallest to the largest one."""
    each = np.unique(values)
    if len(each) <= _MOST_LENGTHS:
        return each
    return np.unique(np.geomspace(max(int(each[0]), 1), int(each[-1]), _MOST_LENGTHS).round().astype(np.int64))


def _prefill_times(model: LatencyModel, prompts: NDArray[np.int64], budget: int) -> Times:
    lengths = _lengths(prompts)
    return np.interp(prompts, lengths, [_prefill_time(model, length, budget) for length in lengths.tolist()])


def _prefill_time(model: LatencyModel, prompt: int, budget: int) -> float:
    """Return the time of the steps that compute a prompt alone, with at most `budget` tokens in each."""
    total = 0
    for done in range(0, prompt, budget):
        size = min(budget, prompt - done)
        total += model.step_time(BatchShape(0, 0, size, (ChunkShape(size, done, prompt),)))
    return float(total)


def _decode_times(model: LatencyModel, prompts: NDArray[np.int64], outputs: NDArray[np.int64]) -> Times:
    """Return the times of all tokens after the first: sums of the steps between two contexts."""
    first, last = prompts + 1, prompts + outputs - 1
    lengths = _lengths(np.concatenate([first, np.maximum(last, first)]))
    steps = np.array([model.step_time(BatchShape(1, length)) for length in lengths.tolist()], dtype=np.float64)
    # The sum of steps up to a length: a trapezium for each stretch, whose two ends count as whole steps.
    sums = np.concatenate([[steps[0]], steps[0] + np.cumsum(np.diff(lengths) * (steps[1:] + steps[:-1]) / 2 + _ends(steps))])
    times: Times = np.interp(last, lengths, sums) - np.interp(first, lengths, sums) + np.interp(first, lengths, steps)
    return np.where(last >= first, times, 0.0)


def _ends(steps: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return by how much a sum of whole steps over a stretch exceeds its trapezium: half the difference of its ends."""
    beyond: NDArray[np.float64] = np.diff(steps) / 2
    return beyond
