"""Flags of `maitred simulate`: what arrives, where it is made and not recorded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from maitred.cli.flags import flag

_SYNTHETIC = "Workload: synthetic"
_SCALE = "Any workload"


@dataclass(frozen=True, kw_only=True)
class SyntheticFlags:
    """A specification, or one stream of requests, or users who wait for their answers."""

    workload_spec: Annotated[
        Path | None, flag(_SYNTHETIC, "--workload-spec", "Clients, cohorts, sessions: a YAML file in BLIS's keys.", "FILE")
    ] = None
    workload: Annotated[
        str | None,
        flag(_SYNTHETIC, "--workload", "Lengths by kind: chatbot, contentgen, summarization, multidoc, distribution.", "KIND"),
    ] = None
    concurrency: Annotated[
        int | None,
        flag(_SYNTHETIC, "--concurrency", "In place of --rate: users who each wait for an answer before they ask again.", "N"),
    ] = None
    arrival: Annotated[
        str | None,
        flag(_SYNTHETIC, "--arrival", "poisson (default), constant, gamma:CV, weibull:CV or normalized.", "PROCESS"),
    ] = None
    prefix_tokens: Annotated[
        int | None,
        flag(_SYNTHETIC, "--prefix-tokens", "All prompts begin with the same so many, beside --prompt-tokens.", "TOKENS"),
    ] = None
    prompt_tokens_stdev: Annotated[
        float | None,
        flag(_SYNTHETIC, "--prompt-tokens-stdev", "As in BLIS: prompts are normal around --prompt-tokens.", "TOKENS"),
    ] = None
    prompt_tokens_min: Annotated[int | None, flag(_SYNTHETIC, "--prompt-tokens-min", "At least.", "TOKENS")] = None
    prompt_tokens_max: Annotated[int | None, flag(_SYNTHETIC, "--prompt-tokens-max", "At most.", "TOKENS")] = None
    output_tokens_stdev: Annotated[
        float | None,
        flag(_SYNTHETIC, "--output-tokens-stdev", "Answers are normal around --output-tokens.", "TOKENS"),
    ] = None
    output_tokens_min: Annotated[int | None, flag(_SYNTHETIC, "--output-tokens-min", "At least.", "TOKENS")] = None
    output_tokens_max: Annotated[int | None, flag(_SYNTHETIC, "--output-tokens-max", "At most.", "TOKENS")] = None

    timeout_secs: Annotated[
        float | None,
        flag(
            _SCALE,
            "--timeout-secs",
            "Clients leave after so many seconds; 0: never. Default: as the workload says, else never.",
            "SECONDS",
            alias="--timeout",
        ),
    ] = None
    rate_scale: Annotated[
        float | None,
        flag(_SCALE, "--rate-scale", "Arrivals so many times as dense; pauses, deadlines and users stay.", "FACTOR"),
    ] = None
    time_scale: Annotated[
        float | None,
        flag(_SCALE, "--time-scale", "All times so many times as long: arrivals, pauses, deadlines, targets.", "FACTOR"),
    ] = None
