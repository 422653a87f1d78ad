"""The requests of a run as a table for data tools: a row per request in the order of arrival, names instead of numbers.

The first columns are those that BLIS writes. Times are integers in µs: latencies from the arrival, instants (`..._at_us`) from
the start of the run; null where there was none. `tpot_us` is a mean and so has a fraction.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from maitred.errors import ConfigError
from maitred.request import PriorityClass
from maitred.sim import Outcome, Results

if TYPE_CHECKING:
    import polars as pl

PARQUET: Final = ".parquet"
CSV: Final = ".csv"
_NOT_WRITTEN: Final = (".arrow", ".feather", ".gz", ".jsonl", ".ndjson", ".tsv", ".xls", ".xlsx", ".zst")


def require_frames(path: Path, *, where: str = "") -> None:
    """Raises ConfigError if the name of this file says Parquet or CSV, and polars is not installed, or something else that we
    do not write. A name that says nothing means JSON."""
    if path.suffix in _NOT_WRITTEN:
        raise ConfigError(f"{path} says a kind of file that is not written", where=where, hint=".json, .parquet or .csv")
    if path.suffix in (PARQUET, CSV):
        require_polars(where)


def require_polars(where: str) -> None:
    try:
        import polars as pl  # noqa: F401
    except ImportError as error:
        hint = "pip install 'maitred[frames]'"
        raise ConfigError("needs polars, which is not installed", where=where, hint=hint) from error


def to_frame(results: Results) -> pl.DataFrame:
    """Raises ConfigError without polars."""
    require_polars("a data frame")
    import polars as pl

    completed = results.outcome == Outcome.COMPLETED
    began = results.first_token >= 0
    several = completed & (results.output_tokens > 1)
    gaps = np.maximum(results.output_tokens - 1, 1)
    return pl.DataFrame(
        {
            "request_id": results.request_id,
            "ttft_us": _where(began, results.first_token - results.arrival),
            "e2e_us": _where(completed, results.finished - results.arrival),
            "input_tokens": results.prompt_tokens,
            "output_tokens": results.output_tokens,
            "tpot_us": _where(several, (results.finished - results.first_token) / gaps),
            "outcome": _named([kind.name.lower() for kind in sorted(Outcome)], results.outcome),
            "class": _named([kind.label for kind in sorted(PriorityClass)], results.priority_class),
            "slo_class": _named(results.slo_classes, results.slo_class),
            "tenant": _named(results.tenants, results.tenant),
            "model": _named(results.models, results.model),
            "instance": _where(results.instance >= 0, results.instance),
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
    """As `.parquet` or `.csv`. Raises ConfigError without polars."""
    frame, buffer = to_frame(results), BytesIO()
    if suffix == PARQUET:
        frame.write_parquet(buffer)
    else:
        frame.write_csv(buffer)
    write(buffer.getvalue())


def _where(there: NDArray[np.bool_], values: NDArray[Any]) -> pl.Series:
    """Null where it is not there."""
    import polars as pl

    return pl.select(pl.when(pl.lit(pl.Series(there))).then(pl.lit(pl.Series(values)))).to_series()


def _instant(column: NDArray[np.int64]) -> pl.Series:
    return _where(column >= 0, column)


def _named(names: list[str] | tuple[str, ...], numbers: NDArray[Any]) -> pl.Series:
    import polars as pl

    return pl.Series(list(names), dtype=pl.String).gather(pl.Series(numbers.astype(np.int64))).cast(pl.Categorical)
