"""Flags of a simulated run: what its users are promised, its seed, its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from maitred.cli.flags import flag

_SLO = "Service level objective (default: TTFT within 2,000 ms, TPOT within 200 ms)"
_RUN = "The run"
_OF_CLASSES = "The {} of classes, as critical=100ms,standard=2s."
_TARGETS = "CLASS=TIME,..."


@dataclass(frozen=True, kw_only=True)
class ObjectiveFlags:
    """What the run is judged by, and how long it lasts."""

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
