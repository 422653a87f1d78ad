"""Results as JSON: one object per completed request, and the figures of the run, under BLIS's keys where it has them.

Requests are written in slices, so that writing a million needs no more memory than writing ten thousand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec
import numpy as np

from maitred.report.summary import Group, Spread, Summary
from maitred.sim import Outcome, Results
from maitred.units import to_ms, to_seconds

Write: TypeAlias = Callable[[bytes], object]

_SLICE = 10_000


class _Completed(msgspec.Struct):
    request_id: int
    ttft_us: int
    e2e_us: int
    input_tokens: int
    output_tokens: int


def write_requests(results: Results, write: Write) -> None:
    """A JSON list, one object per line and completed request, by request id. Times in µs from the arrival."""
    rows = np.flatnonzero(results.outcome == Outcome.COMPLETED)
    rows = rows[np.argsort(results.request_id[rows], kind="stable")]
    encode = msgspec.json.Encoder().encode
    separator = b"[\n"
    for start in range(0, len(rows), _SLICE):
        part = rows[start : start + _SLICE]
        arrival = results.arrival[part]
        columns = (
            results.request_id[part],
            results.first_token[part] - arrival,
            results.finished[part] - arrival,
            results.prompt_tokens[part],
            results.output_tokens[part],
        )
        objects = map(_Completed, *(column.tolist() for column in columns))
        write(separator + b",\n".join(map(encode, objects)))
        separator = b",\n"
    write(b"\n]\n" if len(rows) else b"[]\n")


def write_metrics(summary: Summary, write: Write) -> None:
    """A JSON object of the run's figures, with those of each class under `per_class`. Null: nothing to compute it from."""
    figures = {
        "simulated_duration_s": to_seconds(summary.duration),
        "slo": {f"{name}_ms": None if us is None else to_ms(us) for name, us in msgspec.structs.asdict(summary.slo).items()},
        **_figures(summary, summary.total),
        "per_class": {cls.label: _figures(summary, group) for cls, group in summary.classes.items()},
    }
    write(msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n")


def _figures(summary: Summary, group: Group) -> dict[str, float | None]:
    count = group.outcomes
    return {
        "injected_requests": group.arrived,
        "completed_requests": group.completed,
        "rejected_requests": count[Outcome.REJECTED],
        "preempted_requests": count[Outcome.PREEMPTED],
        "dropped_unservable": count[Outcome.REFUSED],
        "timed_out_requests": count[Outcome.TIMED_OUT],
        "aborted_requests": count[Outcome.ABORTED],
        "unfinished_requests": count[Outcome.UNFINISHED],
        "total_input_tokens": group.prompt_tokens,
        "total_cached_tokens": group.cached_tokens,
        "prefix_cache_hit_rate": group.hit_rate,
        "total_output_tokens": group.output_tokens,
        "responses_per_sec": summary.per_second(group.completed),
        "tokens_per_sec": summary.per_second(group.output_tokens),
        **_spread_ms("ttft", group.ttft),
        **_spread_ms("tpot", group.tpot),
        **_spread_ms("e2e", group.e2e),
        **_spread_ms("scheduling_delay", group.scheduling_delay),
        "preemption_count": group.preemptions,
        "retry_count": group.retries,
        "goodput_rps": summary.per_second(group.good),
        "slo_attainment": group.attainment,
    }


def _spread_ms(name: str, spread: Spread | None) -> dict[str, float | None]:
    return {
        f"{name}_{figure}_ms": None if spread is None else to_ms(getattr(spread, figure)) for figure in Spread.__struct_fields__
    }
