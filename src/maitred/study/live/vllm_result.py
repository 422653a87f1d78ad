"""A measured run as the JSON object that `vllm bench serve --save-result --save-detailed` writes, for the tools that read it.

Times are in seconds, figures in ms, as there. `start_times` are the instants from which latencies count: those of the plan, so
that no latency is hidden by a late sender, or of sending in a closed loop. A request that failed has an `errors` entry and a
`ttfts` of 0, and so has one of which no token was seen, as in vLLM's file.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from maitred.core.units import SECOND, to_ms, to_seconds
from maitred.report.breakdown import select_rows
from maitred.report.latencies import request_times
from maitred.report.request_statistics import request_latencies
from maitred.report.summary import Summary
from maitred.sim import Outcome, Results
from maitred.study.live.benchmark import LiveRun

_PERCENTILES = (50, 90, 95, 99)


def vllm_result(live: LiveRun, summary: Summary) -> dict[str, Any]:
    """Return the object."""
    results, total = live.results, summary.total
    times, completed = request_times(results), _completed(results)
    num_completed = int(np.count_nonzero(completed))
    prompts, outputs = (int(column[completed].sum()) for column in (results.prompt_tokens, results.output_tokens))
    return {
        "backend": "openai",
        "model_id": live.model,
        "num_prompts": total.arrived,
        "duration": to_seconds(summary.duration),
        "completed": num_completed,
        "failed": total.arrived - num_completed,
        "total_input_tokens": prompts,
        "total_output_tokens": outputs,
        "request_throughput": summary.per_second(num_completed),
        "request_goodput": summary.per_second(total.within_slo),
        "output_throughput": summary.per_second(outputs),
        "total_token_throughput": summary.per_second(prompts + outputs),
        **_figures(results),
        "input_lens": results.prompt_tokens.tolist(),
        "output_lens": results.output_tokens.tolist(),
        "start_times": (results.arrival / SECOND).tolist(),
        "ttfts": (np.nan_to_num(times.ttft) / SECOND).tolist(),
        "itls": _itls(results),
        "latencies": (np.nan_to_num(times.e2e) / SECOND).tolist(),
        "errors": _errors(results, completed),
    }


def vllm_latencies(results: Results) -> dict[str, NDArray[Any]]:
    """Return the latencies in µs under vLLM's names: as there, of requests that completed."""
    completed = select_rows(results, _completed(results))
    found = request_latencies(completed)
    gaps = np.zeros(0, dtype=np.int64)
    if results.itl_gaps is not None:
        gaps = results.itl_gaps.single_gaps[np.isin(results.itl_gaps.single_gap_request_id, completed.request_id)]
    return {"ttft": found["ttft"], "tpot": found["tpot"], "itl": gaps, "e2el": found["e2e"]}


def _completed(results: Results) -> NDArray[np.bool_]:
    """Return which requests completed in vLLM's words: not those of which no token was seen."""
    completed: NDArray[np.bool_] = (results.outcome == Outcome.COMPLETED) & (results.first_token >= 0)
    return completed


def _errors(results: Results, completed: NDArray[np.bool_]) -> list[str]:
    """Return why each request has no whole answer with a first token, or ""."""
    outcomes = (Outcome(kind) for kind in results.outcome.tolist())
    names = ("no token was seen" if outcome is Outcome.COMPLETED else outcome.name.lower() for outcome in outcomes)
    return ["" if whole else name for whole, name in zip(completed.tolist(), names, strict=True)]


def _figures(results: Results) -> dict[str, float]:
    figures: dict[str, float] = {}
    for name, values in vllm_latencies(results).items():
        if len(values):
            figures[f"mean_{name}_ms"] = to_ms(float(values.mean()))
            figures[f"median_{name}_ms"] = to_ms(float(np.median(values)))
            figures[f"std_{name}_ms"] = to_ms(float(values.std()))
            figures |= {f"p{p}_{name}_ms": to_ms(float(np.percentile(values, p))) for p in _PERCENTILES}
    return figures


def _itls(results: Results) -> list[list[float]]:
    """Return the gaps of each request, in seconds."""
    rows = {number: row for row, number in enumerate(results.request_id.tolist())}
    found: list[list[float]] = [[] for _ in rows]
    if results.itl_gaps is not None:
        gaps = results.itl_gaps
        for number, gap in zip(gaps.single_gap_request_id.tolist(), gaps.single_gaps.tolist(), strict=True):
            found[rows[number]].append(gap / SECOND)
    return found
