"""A measured run as the JSON object that `vllm bench serve --save-result --save-detailed` writes, for the tools that read it.

Times are in seconds, figures in ms, as there. `start_times` are the planned instants, so that no latency is hidden by a late
sender; a request that failed has an `errors` entry and a `ttfts` of 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from maitred.core.units import SECOND, to_ms, to_seconds
from maitred.report.request_statistics import request_latencies
from maitred.report.summary import Summary
from maitred.sim import Outcome, Results
from maitred.study.live.benchmark import LiveRun

_PERCENTILES = (50, 90, 95, 99)


def vllm_result(live: LiveRun, summary: Summary) -> dict[str, Any]:
    """Return the object."""
    results, total = live.results, summary.total
    completed = results.outcome == Outcome.COMPLETED
    first = np.where(results.first_token >= 0, results.first_token - results.arrival, 0) / SECOND
    last = np.where(completed, results.finished - results.arrival, 0) / SECOND
    prompts = int(results.prompt_tokens[completed].sum())
    return {
        "backend": "openai",
        "model_id": live.model,
        "num_prompts": total.arrived,
        "duration": to_seconds(summary.duration),
        "completed": total.completed,
        "failed": total.arrived - total.completed,
        "total_input_tokens": prompts,
        "total_output_tokens": int(results.output_tokens[completed].sum()),
        "request_throughput": summary.per_second(total.completed),
        "request_goodput": summary.per_second(total.within_slo),
        "output_throughput": summary.per_second(total.output_tokens),
        "total_token_throughput": summary.per_second(prompts + total.output_tokens),
        **_figures(results),
        "input_lens": results.prompt_tokens.tolist(),
        "output_lens": results.output_tokens.tolist(),
        "start_times": (results.arrival / SECOND).tolist(),
        "ttfts": first.tolist(),
        "itls": _itls(results),
        "latencies": last.tolist(),
        "errors": ["" if kind == Outcome.COMPLETED else Outcome(kind).name.lower() for kind in results.outcome.tolist()],
    }


def _figures(results: Results) -> dict[str, float]:
    found, figures = request_latencies(results), {}
    latencies = {"ttft": found["ttft"], "tpot": found["tpot"], "e2el": found["e2e"]}
    if results.itl_gaps is not None:
        latencies["itl"] = results.itl_gaps.single_gaps
    for name, values in latencies.items():
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
