"""The flags of `maitred simulate`, declared once: as a typed record for the command, and as its signature for typer.

A flag that is left out is None and overrides nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer


def _flag(panel: str, name: str, text: str, metavar: str | None = None, *, alias: str | None = None) -> Any:
    names = (name, alias) if alias else (name,)
    return typer.Option(*names, help=text, metavar=metavar, rich_help_panel=panel, show_default=False)


_NO_VALUE = ""
_TRACE = "Workload: a recorded trace"
_SYNTHETIC = "Workload: synthetic"
_CLUSTER = "Cluster"
_ADMISSION = "Admission, in front of the router (default: none)"
_INSTANCE = "Each instance"
_SLO = "Service level objective (default: TTFT within 2,000 ms, TPOT within 200 ms)"
_RUN = "The run and its output"
_LENGTHS = "TOKENS, normal:MEAN,SD, lognormal:MEAN,SD (both of the lengths) or uniform:LOW,HIGH. Default: normal:512,256."


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What the user said."""

    trace: Annotated[
        str | None,
        _flag(_TRACE, "--trace", "azure:FILE, mooncake:FILE, maitred:FILE or sample:mixed; plain or gzipped.", "FORMAT:FILE"),
    ] = None
    max_requests: Annotated[int | None, _flag(_TRACE, "--max-requests", "Read no more than so many requests.", "N")] = None
    skip_bad_rows: Annotated[
        bool | None, _flag(_TRACE, "--skip-bad-rows", "Leave out rows that cannot be used, and count them.", _NO_VALUE)
    ] = None

    rate: Annotated[float | None, _flag(_SYNTHETIC, "--rate", "Requests per second, Poisson arrivals.", "RATE")] = None
    num_requests: Annotated[int | None, _flag(_SYNTHETIC, "--num-requests", "How many requests arrive.", "N")] = None
    input_tokens: Annotated[
        str | None, _flag(_SYNTHETIC, "--input-tokens", f"Lengths of the prompts: {_LENGTHS}", "LENGTHS")
    ] = None
    output_tokens: Annotated[
        str | None, _flag(_SYNTHETIC, "--output-tokens", "Lengths of the answers, written likewise.", "LENGTHS")
    ] = None
    class_mix: Annotated[
        str | None,
        _flag(
            _SYNTHETIC, "--class-mix", "Classes by share: interactive:0.3,bulk:0.7. Over a trace: instead of its own.", "MIX"
        ),
    ] = None
    tenant_mix: Annotated[
        str | None,
        _flag(_SYNTHETIC, "--tenant-mix", "Tenants by share: auth:acme:0.3,auth:globex:0.7. Over a trace likewise.", "MIX"),
    ] = None

    config: Annotated[
        Path | None,
        _flag(_CLUSTER, "--config", "A file with the sections cluster, instance, routing, admission; flags win.", "FILE"),
    ] = None
    num_instances: Annotated[int | None, _flag(_CLUSTER, "--num-instances", "Instances in the cluster.", "N")] = None
    routing_policy: Annotated[
        str | None, _flag(_CLUSTER, "--routing-policy", "Which instance: least-loaded, round-robin.", "NAME")
    ] = None

    admission_latency: Annotated[
        int | None, _flag(_CLUSTER, "--admission-latency", "From arrival until admission decides, in µs.", "µs")
    ] = None
    routing_latency: Annotated[
        int | None, _flag(_CLUSTER, "--routing-latency", "From admission until an instance is chosen, in µs.", "µs")
    ] = None

    admission: Annotated[
        str | None,
        _flag(_ADMISSION, "--admission", "off: all enter; legacy: one limit, one queue; priority: classes.", "MODE"),
    ] = None
    capacity: Annotated[
        int | None,
        _flag(_ADMISSION, "--capacity", "Slots for each model; alone: priority. Default: what the batches hold.", "SLOTS"),
    ] = None
    admission_config: Annotated[
        Path | None,
        _flag(
            _ADMISSION,
            "--admission-config",
            "The section `admission` as a file of its own, such as SMG's.",
            "FILE",
            alias="--priority-scheduler-config",
        ),
    ] = None

    scheduler: Annotated[
        str | None,
        _flag(
            _INSTANCE,
            "--scheduler",
            "Order of the wait queue, such as lpm or bounded(lpm, max_wait=5): see maitred policies.",
            "POLICY",
            alias="--schedule-policy",
        ),
    ] = None
    priority_policy: Annotated[
        str | None,
        _flag(_INSTANCE, "--priority-policy", "Scores for priority-fcfs: constant, slo-based, inverted-slo.", "POLICY"),
    ] = None
    enable_priority_scheduling: Annotated[
        bool | None, _flag(_INSTANCE, "--enable-priority-scheduling", "The client's priority first.", _NO_VALUE)
    ] = None
    schedule_low_priority_values_first: Annotated[
        bool | None,
        _flag(_INSTANCE, "--schedule-low-priority-values-first", "Then, lower numbers are more urgent.", _NO_VALUE),
    ] = None
    enable_prefix_caching: Annotated[
        bool | None, _flag(_INSTANCE, "--enable-prefix-caching", "Prompts that begin alike share KV blocks.", _NO_VALUE)
    ] = None
    prefix_cache: Annotated[
        str | None, _flag(_INSTANCE, "--prefix-cache", "How they are kept: blocks (vLLM), radix (SGLang).", "KIND")
    ] = None
    radix_eviction_policy: Annotated[
        str | None, _flag(_INSTANCE, "--radix-eviction-policy", "Which leaf of a radix tree goes first.", "NAME")
    ] = None
    latency: Annotated[
        str | None,
        _flag(_INSTANCE, "--latency", "Time of a step in µs: β0 + β1·prefill tokens + β2·decodes.", "linear:β0,β1,β2"),
    ] = None
    beta_coeffs: Annotated[str | None, _flag(_INSTANCE, "--beta-coeffs", "The same, as BLIS names it.", "β0,β1,β2")] = None
    max_num_seqs: Annotated[int | None, _flag(_INSTANCE, "--max-num-seqs", "Most requests in the running batch.", "N")] = None
    max_num_batched_tokens: Annotated[
        int | None, _flag(_INSTANCE, "--max-num-batched-tokens", "Token budget of a step.", "TOKENS")
    ] = None
    long_prefill_token_threshold: Annotated[
        int | None,
        _flag(_INSTANCE, "--long-prefill-token-threshold", "Largest chunk of one prompt in a step; 0: no limit.", "TOKENS"),
    ] = None
    total_kv_blocks: Annotated[int | None, _flag(_INSTANCE, "--total-kv-blocks", "KV blocks.", "N")] = None
    block_size_in_tokens: Annotated[
        int | None, _flag(_INSTANCE, "--block-size-in-tokens", "Tokens in a KV block.", "TOKENS")
    ] = None
    max_model_len: Annotated[
        int | None, _flag(_INSTANCE, "--max-model-len", "Longest prompt and answer together.", "TOKENS")
    ] = None
    step_by_step: Annotated[
        bool | None, _flag(_INSTANCE, "--step-by-step", "Make every step by itself: slower, same results.", _NO_VALUE)
    ] = None

    slo_ttft_ms: Annotated[float | None, _flag(_SLO, "--slo-ttft-ms", "First token within so many ms.", "MS")] = None
    slo_tpot_ms: Annotated[float | None, _flag(_SLO, "--slo-tpot-ms", "Mean gap between tokens of a request.", "MS")] = None
    slo_e2e_ms: Annotated[float | None, _flag(_SLO, "--slo-e2e-ms", "Last token within so many ms.", "MS")] = None

    seed: Annotated[int, _flag(_RUN, "--seed", "Same seed, same results. Default: 42.", "SEED")] = 42
    horizon: Annotated[
        float | None, _flag(_RUN, "--horizon", "End after so many simulated seconds; what is left is unfinished.", "SECONDS")
    ] = None
    results_path: Annotated[
        Path | None, _flag(_RUN, "--results-path", "Write a JSON list with an object per completed request.", "FILE")
    ] = None
    metrics_path: Annotated[Path | None, _flag(_RUN, "--metrics-path", "Write the figures of the run as JSON.", "FILE")] = None
    decision_log: Annotated[
        Path | None, _flag(_RUN, "--decision-log", "Write every decision and its reason as JSON lines.", "FILE")
    ] = None
    quiet: Annotated[bool | None, _flag(_RUN, "--quiet", "No table, no progress bar: files and warnings only.", _NO_VALUE)] = (
        None
    )


def command(act: Callable[[Flags], None]) -> Callable[..., None]:
    """`act` as a function whose signature typer can read."""

    def run(**given: Any) -> None:
        act(Flags(**given))

    hints = get_type_hints(Flags, include_extras=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(f.name, kind, default=f.default, annotation=hints[f.name]) for f in fields(Flags)]
    )
    run.__annotations__ = dict(hints)
    run.__doc__ = act.__doc__
    return run
