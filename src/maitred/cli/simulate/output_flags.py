"""Flags of `maitred simulate`: the objective, the run, and what is written of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from maitred.cli.flags import NO_VALUE, flag

_SLO = "Service level objective (default: TTFT within 2,000 ms, TPOT within 200 ms)"
_RUN = "The run and its output"


@dataclass(frozen=True, kw_only=True)
class OutputFlags:
    """What is wanted of the run."""

    slo_ttft_ms: Annotated[float | None, flag(_SLO, "--slo-ttft-ms", "First token within so many ms.", "MS")] = None
    slo_tpot_ms: Annotated[float | None, flag(_SLO, "--slo-tpot-ms", "Mean gap between tokens of a request.", "MS")] = None
    slo_e2e_ms: Annotated[float | None, flag(_SLO, "--slo-e2e-ms", "Last token within so many ms.", "MS")] = None

    seed: Annotated[int | None, flag(_RUN, "--seed", "Same seed, same results. Default: 42.", "SEED")] = None
    horizon: Annotated[
        float | None, flag(_RUN, "--horizon", "End after so many simulated seconds; what is left is unfinished.", "SECONDS")
    ] = None
    results_path: Annotated[
        Path | None, flag(_RUN, "--results-path", "Write a JSON list with an object per completed request.", "FILE")
    ] = None
    metrics_path: Annotated[Path | None, flag(_RUN, "--metrics-path", "Write the figures of the run as JSON.", "FILE")] = None
    trace_output: Annotated[
        str | None,
        flag(_RUN, "--trace-output", "Write what arrived as a trace: NAME for BLIS's NAME.csv and NAME.yaml.", "FORMAT:FILE"),
    ] = None
    decision_log: Annotated[
        Path | None, flag(_RUN, "--decision-log", "Write every decision and its reason as JSON lines.", "FILE")
    ] = None
    quiet: Annotated[bool | None, flag(_RUN, "--quiet", "No table, no progress bar: files and warnings only.", NO_VALUE)] = None
