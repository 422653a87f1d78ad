"""Flags of `maitred simulate`: what arrives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from maitred.cli.flags import NO_VALUE, flag

_TRACE = "Workload: a recorded trace"
_SYNTHETIC = "Workload: synthetic"
_LENGTHS = (
    "TOKENS, normal:MEAN,SD, lognormal:MEAN,SD (both of the lengths), uniform:LOW,HIGH or others. Default: normal:512,256."
)


@dataclass(frozen=True, kw_only=True)
class WorkloadFlags:
    """A trace, or a synthetic workload."""

    trace: Annotated[
        str | None,
        flag(
            _TRACE,
            "--trace",
            "FILE, FORMAT:FILE (see maitred formats) or sample:mixed; plain or gzipped.",
            "FORMAT:FILE",
            alias="--trace-data",
        ),
    ] = None
    trace_header: Annotated[
        str | None, flag(_TRACE, "--trace-header", "The header of a blis trace. Default: NAME.yaml beside it.", "FILE")
    ] = None
    max_requests: Annotated[int | None, flag(_TRACE, "--max-requests", "Read no more than so many requests.", "N")] = None
    skip_bad_rows: Annotated[
        bool | None, flag(_TRACE, "--skip-bad-rows", "Leave out rows that cannot be used, and count them.", NO_VALUE)
    ] = None
    session_mode: Annotated[
        str | None,
        flag(
            _TRACE,
            "--session-mode",
            "open (or fixed): as recorded, default. closed-loop: a turn waits for the answer before.",
            "MODE",
        ),
    ] = None
    think_time_ms: Annotated[
        float | None,
        flag(_TRACE, "--think-time-ms", "Closed loop: from an answer to the next turn. Default: as the trace says.", "MS"),
    ] = None
    concurrent_sessions: Annotated[
        int | None, flag(_TRACE, "--concurrent-sessions", "Closed loop: so many sessions at once, one after another.", "N")
    ] = None

    rate: Annotated[float | None, flag(_SYNTHETIC, "--rate", "Requests per second.", "RATE")] = None
    num_requests: Annotated[int | None, flag(_SYNTHETIC, "--num-requests", "How many requests arrive.", "N")] = None
    input_tokens: Annotated[
        str | None,
        flag(_SYNTHETIC, "--input-tokens", f"Lengths of the prompts: {_LENGTHS}", "LENGTHS", alias="--prompt-tokens"),
    ] = None
    output_tokens: Annotated[
        str | None, flag(_SYNTHETIC, "--output-tokens", "Lengths of the answers, written likewise.", "LENGTHS")
    ] = None
    class_mix: Annotated[
        str | None,
        flag(_SYNTHETIC, "--class-mix", "Classes by share: interactive:0.3,bulk:0.7. Over a trace: instead of its own.", "MIX"),
    ] = None
    tenant_mix: Annotated[
        str | None,
        flag(_SYNTHETIC, "--tenant-mix", "Tenants by share: auth:acme:0.3,auth:globex:0.7. Over a trace likewise.", "MIX"),
    ] = None
