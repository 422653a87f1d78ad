"""Export: the results of a run for programs, under BLIS's names where it has them.

    figures    one JSON object (`--metrics-path`)
    requests   JSON as BLIS's `--results-path`: an object per completed request, by request id
    requests   data frame, Parquet, CSV: all requests in the order of arrival, all columns, names instead of indices

JSON is written in slices, so a million requests need no more memory than ten thousand. The first columns of a data frame are
those that BLIS writes. Times are integers in µs: latencies from the arrival, instants (`..._at_us`) from the start of the run,
null if the event did not happen. `tpot_us` is a mean and has a fraction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from maitred.core.errors import ConfigError, missing_library
from maitred.core.request import PriorityClass, RequestId
from maitred.core.student_t import Interval
from maitred.core.units import to_ms, to_seconds
from maitred.report.breakdown import By
from maitred.report.costs import cost_metrics
from maitred.report.fitness import Fitness
from maitred.report.latencies import Times, request_times
from maitred.report.programs import program_metrics
from maitred.report.request_statistics import LatencyStatistics
from maitred.report.slo import Targets
from maitred.report.steady_state import LatencyEstimate, SteadyState
from maitred.report.summary import GroupSummary, InstanceSummary, Summary
from maitred.report.verdicts import Assessment
from maitred.sim import Outcome, Results
from maitred.workload import RequestMeasurement

if TYPE_CHECKING:
    import polars as pl


PARQUET: Final = ".parquet"
CSV: Final = ".csv"
_UNSUPPORTED_SUFFIXES: Final = (".arrow", ".feather", ".gz", ".jsonl", ".ndjson", ".tsv", ".xls", ".xlsx", ".zst")
MeasuredLookup: TypeAlias = Callable[[RequestId], RequestMeasurement | None]
WriteBytes: TypeAlias = Callable[[bytes], object]
_SLICE = 10_000
_BREAKDOWN_KEYS = {
    By.CLASS: "per_class",
    By.SLO_CLASS: "per_slo_class",
    By.TENANT: "per_tenant",
    By.MODEL: "per_model",
    By.INSTANCE: "per_instance",
}


def check_rows_path(path: Path, *, where: str = "") -> None:
    """Check that rows can be written to this file.

    Raises ConfigError for Parquet or CSV without polars, and for other known formats. An unknown suffix means JSON.
    """
    if path.suffix in _UNSUPPORTED_SUFFIXES:
        raise ConfigError(f"{path} has the suffix of a format that is not written", where=where, hint=".json, .parquet or .csv")
    if path.suffix in (PARQUET, CSV):
        require_polars(where)


def require_polars(where: str) -> None:
    try:
        import polars as pl  # noqa: F401
    except ImportError as error:
        raise missing_library("polars", "frames", where) from error


def to_frame(results: Results) -> pl.DataFrame:
    """Return all requests as a data frame. Raises ConfigError without polars."""
    require_polars("a data frame")
    import polars as pl

    times = request_times(results)
    return pl.DataFrame(
        {
            "request_id": results.request_id,
            "ttft_us": _whole(times.ttft),
            "e2e_us": _whole(times.e2e),
            "input_tokens": results.prompt_tokens,
            "output_tokens": results.output_tokens,
            "tpot_us": _null_unless(~np.isnan(times.tpot), times.tpot),
            "outcome": _named([kind.name.lower() for kind in sorted(Outcome)], results.outcome),
            "class": _named([kind.label for kind in sorted(PriorityClass)], results.priority_class),
            "slo_class": _named(results.slo_classes, results.slo_class),
            "tenant": _named(results.tenants, results.tenant),
            "model": _named(results.models, results.model),
            "instance": _null_unless(results.instance >= 0, results.instance),
            "arrived_at_us": results.arrival,
            "queued_at_us": _instant(results.queued),
            "scheduled_at_us": _instant(results.scheduled),
            "first_token_at_us": _instant(results.first_token),
            "finished_at_us": _instant(results.finished),
            "cached_tokens": results.cached_tokens,
            "wasted_tokens": results.wasted_tokens,
            "preemptions": results.preemptions,
            "retries": results.retries,
        }
    )


def write_frame(results: Results, suffix: str, write: Callable[[bytes], object]) -> None:
    """Write all requests as `.parquet` or `.csv`. Raises ConfigError without polars."""
    frame, buffer = to_frame(results), BytesIO()
    if suffix == PARQUET:
        frame.write_parquet(buffer)
    else:
        frame.write_csv(buffer)
    write(buffer.getvalue())


def _null_unless(there: NDArray[np.bool_], values: NDArray[Any]) -> pl.Series:
    """Return the values as a series, null where `there` is false."""
    import polars as pl

    return pl.select(pl.when(pl.lit(pl.Series(there))).then(pl.lit(pl.Series(values)))).to_series()


def _whole(times: Times) -> pl.Series:
    """Return times as whole µs, null where there is none."""
    there = ~np.isnan(times)
    return _null_unless(there, np.where(there, times, 0).astype(np.int64))


def _instant(column: NDArray[np.int64]) -> pl.Series:
    return _null_unless(column >= 0, column)


def _named(names: list[str] | tuple[str, ...], numbers: NDArray[Any]) -> pl.Series:
    import polars as pl

    return pl.Series(list(names), dtype=pl.String).gather(pl.Series(numbers.astype(np.int64))).cast(pl.Categorical)


def measured_lookup(results: Results) -> MeasuredLookup:
    """Return a look-up of measurements by request id. It gives None for a request that did not arrive or has no row."""
    order = np.argsort(results.request_id, kind="stable")
    ids = results.request_id[order]

    def of(request_id: RequestId) -> RequestMeasurement | None:
        place = int(np.searchsorted(ids, request_id))
        if place == len(ids) or ids[place] != request_id:
            return None
        row = int(order[place])
        return RequestMeasurement(
            first_token=int(results.first_token[row]),
            finished=int(results.finished[row]),
            output_tokens=int(results.output_tokens[row]),
            outcome=Outcome(results.outcome[row]).name.lower(),
        )

    return of


class _Completed(msgspec.Struct):
    request_id: int
    ttft_us: int | None
    e2e_us: int
    input_tokens: int
    output_tokens: int


def write_results(results: Results, path: Path, write: WriteBytes) -> None:
    """Write the requests in the format of the suffix: `.parquet`, `.csv`, or otherwise JSON."""
    if path.suffix in (PARQUET, CSV):
        write_frame(results, path.suffix, write)
    else:
        write_requests(results, write)


def _completed_columns(results: Results, rows: NDArray[np.int64]) -> Sequence[Sequence[int | None]]:
    """Return the columns of `_Completed`, for these rows."""
    arrival, first = results.arrival[rows], results.first_token[rows]
    return (
        results.request_id[rows].tolist(),
        [time if there else None for time, there in zip((first - arrival).tolist(), (first >= 0).tolist(), strict=True)],
        (results.finished[rows] - arrival).tolist(),
        results.prompt_tokens[rows].tolist(),
        results.output_tokens[rows].tolist(),
    )


def write_requests(results: Results, write: WriteBytes) -> None:
    """Write a JSON list with one completed request per line, by request id. Times are in µs from the arrival."""
    rows = np.flatnonzero(results.outcome == Outcome.COMPLETED)
    rows = rows[np.argsort(results.request_id[rows], kind="stable")]
    encode = msgspec.json.Encoder().encode
    separator = b"[\n"
    for start in range(0, len(rows), _SLICE):
        part = rows[start : start + _SLICE]
        objects = map(_Completed, *_completed_columns(results, part))
        write(separator + b",\n".join(map(encode, objects)))
        separator = b",\n"
    write(b"\n]\n" if len(rows) else b"[]\n")


def write_metrics(
    summary: Summary, write: WriteBytes, fitness: Fitness | None = None, assessment: Assessment | None = None
) -> None:
    """Write the figures of the run (`metrics`) as a JSON object, with its assessment and fitness score if they are given."""
    figures = metrics(summary)
    if assessment is not None:
        told = msgspec.to_builtins(assessment)
        parts = {"simulated": "simulated", "verdicts": "verdicts", "instances": "utilisation"}
        figures = {**{key: told[part] for key, part in parts.items()}, **figures}
        figures |= {
            "slowdown": told["slowdown"],
            "costs": cost_metrics(assessment.costs),
            "steady_state": steady_metrics(assessment.steady_state),
        }
    if fitness is not None:
        figures["fitness"] = {"score": fitness.score, **fitness.components}
    write(msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n")


def steady_metrics(steady: SteadyState | None) -> dict[str, Any] | None:
    """Return the steady state under the names of figures: times in ms, each as value, low and high; null for an open end."""
    if steady is None:
        return None
    told: dict[str, Any] = {
        "rule": steady.rule,
        "left_out_requests": steady.left_out,
        "warmup_s": to_seconds(steady.warmup),
        "cut_requests": steady.cut,
        "requests": steady.requests,
        "problem": steady.problem,
    }
    for name, estimate in steady.latencies.items():
        unit, scale = ("", 1.0) if name == "slowdown" else ("_ms", to_ms(1))
        for figure in LatencyEstimate.__struct_fields__:
            told[f"{name}_{figure}{unit}"] = _interval(getattr(estimate, figure), scale)
    return {**told, "slo_attainment": _interval(steady.attainment, 1.0)}


def _interval(found: Interval | None, scale: float) -> dict[str, float] | None:
    if found is None:
        return None
    return {name: getattr(found, name) * scale for name in Interval.__struct_fields__}


def metrics(summary: Summary) -> dict[str, Any]:
    """Return the figures of the run and, as in `per_class`, of each breakdown. A figure without any request is None."""
    duration = to_seconds(summary.duration)
    own = {name: _targets(targets) for name, targets in summary.slo.classes.items()}
    return {
        "simulated_duration_s": duration,
        "vllm_estimated_duration_s": duration,
        "slo": {**_targets(summary.slo), **({"classes": own} if own else {})},
        **_figures(summary, summary.total),
        **_instance_figures(summary.all_instances),
        "peak_concurrent_requests": summary.peak_concurrency,
        "fairness_jain_index": summary.fairness,
        **program_metrics(summary.programs),
        "warnings": summary.warnings,
        **{_BREAKDOWN_KEYS[by]: dict(_breakdown(summary, by)) for by in summary.by},
    }


def _breakdown(summary: Summary, by: By) -> Iterator[tuple[str, dict[str, float | None]]]:
    for label, group in summary.by[by].items():
        engine = summary.instances.get(label) if by is By.INSTANCE else None
        yield label, {**_figures(summary, group), **(_instance_figures(engine) if engine else {})}


def _instance_figures(engine: InstanceSummary) -> dict[str, float | None]:
    fetched = {"kv_fetched_blocks": engine.fetched_blocks} if engine.fetched_blocks else {}
    available = {} if engine.availability is None else {"availability": engine.availability}
    return {"steps": engine.steps, **fetched, "utilisation": engine.utilisation, **available, **_spread_ms("itl", engine.itl)}


def _targets(targets: Targets) -> dict[str, float | None]:
    return {"ttft_ms": targets.ttft_ms, "tpot_ms": targets.tpot_ms, "e2e_ms": targets.e2e_ms}


def _figures(summary: Summary, group: GroupSummary) -> dict[str, float | None]:
    count = group.outcomes
    return {
        "injected_requests": group.arrived,
        "completed_requests": group.completed,
        "completed_share": group.completed / group.arrived if group.arrived else None,
        "rejected_requests": count[Outcome.REJECTED],
        "preempted_requests": count[Outcome.PREEMPTED],
        "dropped_unservable": count[Outcome.REFUSED],
        "timed_out_requests": count[Outcome.TIMED_OUT],
        "aborted_requests": count[Outcome.ABORTED],
        "failed_requests": count[Outcome.FAILED],
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
        "total_tokens_per_sec": summary.per_second(group.total_tokens),
        **_spread_ms("ttft", group.ttft),
        **_spread_ms("tpot", group.tpot),
        **_spread_ms("e2e", group.e2e),
        **_spread_ms("itl", group.itl),
        "itl_mean_ms": None if group.itl_mean is None else to_ms(group.itl_mean),
        **_spread_ms("scheduling_delay", group.scheduling_delay),
        "starvation_age_ms": to_ms(group.longest_wait),
        "preemption_count": group.preemptions,
        "retry_count": group.retries,
        "goodput_rps": summary.per_second(group.within_slo),
        "slo_attainment": group.attainment,
    }


def _spread_ms(name: str, spread: LatencyStatistics | None) -> dict[str, float | None]:
    return {
        f"{name}_{figure}_ms": None if spread is None else to_ms(getattr(spread, figure))
        for figure in LatencyStatistics.__struct_fields__
    }
