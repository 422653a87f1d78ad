"""Flags of `maitred simulate`: the objective, the run, and what is written of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from maitred.cli.flags import NO_VALUE, flag

_SLO = "Service level objective (default: TTFT within 2,000 ms, TPOT within 200 ms)"
_RUN = "The run"
_FILES = "What is shown and written of it"
_OF_CLASSES = "The {} of classes, as critical=100ms,standard=2s."
_TARGETS = "CLASS=TIME,..."


@dataclass(frozen=True, kw_only=True)
class OutputFlags:
    """What is wanted of the run."""

    slo_ttft_ms: Annotated[float | None, flag(_SLO, "--slo-ttft-ms", "First token within so many ms.", "MS")] = None
    slo_tpot_ms: Annotated[float | None, flag(_SLO, "--slo-tpot-ms", "Mean gap between tokens of a request.", "MS")] = None
    slo_e2e_ms: Annotated[float | None, flag(_SLO, "--slo-e2e-ms", "Last token within so many ms.", "MS")] = None
    slo_ttft: Annotated[str | None, flag(_SLO, "--slo-ttft", _OF_CLASSES.format("TTFT"), _TARGETS)] = None
    slo_itl: Annotated[str | None, flag(_SLO, "--slo-itl", _OF_CLASSES.format("mean gap"), _TARGETS)] = None
    slo_e2e: Annotated[str | None, flag(_SLO, "--slo-e2e", _OF_CLASSES.format("E2E"), _TARGETS)] = None

    seed: Annotated[int | None, flag(_RUN, "--seed", "Same seed, same results. Default: 42.", "SEED")] = None
    horizon: Annotated[
        int | None, flag(_RUN, "--horizon", "End after so many simulated µs; what is left is unfinished.", "µs")
    ] = None
    horizon_secs: Annotated[float | None, flag(_RUN, "--horizon-secs", "The same in seconds.", "SECONDS")] = None
    quiet: Annotated[bool | None, flag(_RUN, "--quiet", "No table, no progress bar: files and warnings only.", NO_VALUE)] = None
    summary_only: Annotated[
        bool | None,
        flag(_RUN, "--summary-only", "Keep no requests, in memory that does not grow; percentiles within 0.5 %.", NO_VALUE),
    ] = None

    per: Annotated[
        str | None, flag(_FILES, "--per", "Break the table down by class, slo-class, tenant, model or instance.", "WHAT")
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
