"""Results for programs: the requests one by one, and the figures of the run, under BLIS's keys where it has them.

Requests as JSON are what BLIS's `--results-path` is: an object per completed request, by request id. They are written in
slices, so that writing a million needs no more memory than writing ten thousand. As Parquet or CSV they are all requests with
all columns (`frame`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np

from maitred.report.breakdown import By
from maitred.report.fitness import Fitness
from maitred.report.frame import CSV, PARQUET, write_frame
from maitred.report.slo import Slo, Targets
from maitred.report.spread import Spread
from maitred.report.summary import Engine, Group, Summary
from maitred.sim import Outcome, Results
from maitred.units import to_ms, to_seconds

Write: TypeAlias = Callable[[bytes], object]

_SLICE = 10_000
_PER = {
    By.CLASS: "per_class",
    By.SLO_CLASS: "per_slo_class",
    By.TENANT: "per_tenant",
    By.MODEL: "per_model",
    By.INSTANCE: "per_instance",
}


class _Completed(msgspec.Struct):
    request_id: int
    ttft_us: int
    e2e_us: int
    input_tokens: int
    output_tokens: int


def write_results(results: Results, path: Path, write: Write) -> None:
    """In the format that the name of the file says: `.parquet`, `.csv`, or else JSON."""
    if path.suffix in (PARQUET, CSV):
        write_frame(results, path.suffix, write)
    else:
        write_requests(results, write)


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


def write_metrics(summary: Summary, write: Write, fitness: Fitness | None = None) -> None:
    """The figures of the run (`metrics`) as a JSON object, with its score if it has one."""
    figures = metrics(summary)
    if fitness is not None:
        figures["fitness"] = {"score": fitness.score, **fitness.components}
    write(msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n")


def metrics(summary: Summary) -> dict[str, Any]:
    """The run's figures, those of each class under `per_class`, and so on for the breakdowns of the summary. None: nothing to
    compute it from."""
    duration = to_seconds(summary.duration)
    return {
        "simulated_duration_s": duration,
        "vllm_estimated_duration_s": duration,
        "slo": _slo(summary.slo),
        **_figures(summary, summary.total),
        **_engine(summary.engine),
        "fairness_jain_index": summary.fairness,
        "warnings": summary.warnings,
        **{_PER[by]: dict(_breakdown(summary, by)) for by in summary.by},
    }


def _breakdown(summary: Summary, by: By) -> Iterator[tuple[str, dict[str, float | None]]]:
    for label, group in summary.by[by].items():
        engine = summary.engines.get(label) if by is By.INSTANCE else None
        yield label, {**_figures(summary, group), **(_engine(engine) if engine else {})}


def _engine(engine: Engine) -> dict[str, float | None]:
    fetched = {"kv_fetched_blocks": engine.fetched_blocks} if engine.fetched_blocks else {}
    return {"steps": engine.steps, **fetched, "utilisation": engine.utilisation, **_spread_ms("itl", engine.itl)}


def _slo(slo: Slo) -> dict[str, Any]:
    own = {name: _targets(targets) for name, targets in slo.classes.items()}
    return {**_targets(slo), **({"classes": own} if own else {})}


def _targets(targets: Targets) -> dict[str, float | None]:
    given = {"ttft_ms": targets.ttft, "tpot_ms": targets.tpot, "e2e_ms": targets.e2e}
    return {name: None if us is None else to_ms(us) for name, us in given.items()}


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
        "still_queued": count[Outcome.UNFINISHED] - group.still_running,
        "still_running": group.still_running,
        "total_input_tokens": group.prompt_tokens,
        "total_cached_tokens": group.cached_tokens,
        "cache_hit_rate": group.hit_rate,
        "prefix_cache_hit_rate": group.hit_rate,
        "total_output_tokens": group.output_tokens,
        "total_wasted_tokens": group.wasted_tokens,
        "responses_per_sec": summary.per_second(group.completed),
        "tokens_per_sec": summary.per_second(group.output_tokens),
        **_spread_ms("ttft", group.ttft),
        **_spread_ms("tpot", group.tpot),
        **_spread_ms("e2e", group.e2e),
        **_spread_ms("itl", group.itl),
        "itl_mean_ms": None if group.gap_mean is None else to_ms(group.gap_mean),
        **_spread_ms("scheduling_delay", group.scheduling_delay),
        "starvation_age_ms": to_ms(group.starvation),
        "preemption_count": group.preemptions,
        "retry_count": group.retries,
        "goodput_rps": summary.per_second(group.good),
        "slo_attainment": group.attainment,
    }


def _spread_ms(name: str, spread: Spread | None) -> dict[str, float | None]:
    return {
        f"{name}_{figure}_ms": None if spread is None else to_ms(getattr(spread, figure)) for figure in Spread.__struct_fields__
    }
