"""Flags of `maitred simulate`: what is shown and written of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from maitred.cli.flags import NO_VALUE, flag
from maitred.cli.simulate.objective_flags import ObjectiveFlags

_RUN = "The run"
_FILES = "What is shown and written of it"


@dataclass(frozen=True, kw_only=True)
class OutputFlags(ObjectiveFlags):
    """What is wanted of the run."""

    quiet: Annotated[bool | None, flag(_RUN, "--quiet", "No table, no progress bar: files and warnings only.", NO_VALUE)] = None
    summary_only: Annotated[
        bool | None,
        flag(_RUN, "--summary-only", "Keep no requests, in memory that does not grow; percentiles within 0.5 %.", NO_VALUE),
    ] = None
    step_by_step: Annotated[
        bool | None, flag(_RUN, "--step-by-step", "Make every step by itself: slower, same results.", NO_VALUE)
    ] = None

    per: Annotated[
        str | None, flag(_FILES, "--per", "Break the table down by class, slo-class, tenant, model or instance.", "WHAT")
    ] = None
    fitness_weights: Annotated[
        str | None,
        flag(_FILES, "--fitness-weights", "One score, as in BLIS: throughput:0.5,p99_ttft:0.3, ...", "COMPONENT:WEIGHT,..."),
    ] = None
    results_path: Annotated[
        Path | None,
        flag(_FILES, "--results-path", "The requests: completed ones as JSON; all, all columns: .parquet, .csv.", "FILE"),
    ] = None
    metrics_path: Annotated[Path | None, flag(_FILES, "--metrics-path", "The figures of the run as JSON.", "FILE")] = None
    report: Annotated[
        Path | None, flag(_FILES, "--report", "The run as a web page: figures, charts, configuration.", "FILE.html")
    ] = None
    plot: Annotated[Path | None, flag(_FILES, "--plot", "The charts alone: .png, .svg or .pdf.", "FILE")] = None
    trace_output: Annotated[
        str | None,
        flag(_FILES, "--trace-output", "What arrived, as a trace: NAME for BLIS's NAME.csv and NAME.yaml.", "FORMAT:FILE"),
    ] = None
    decision_log: Annotated[
        Path | None, flag(_FILES, "--decision-log", "Every decision and its reason as JSON lines.", "FILE")
    ] = None


KEYS: Final[Mapping[str, str]] = {"step_by_step": "instance.step_by_step"}
"""The keys of the configuration that flags stand for."""
