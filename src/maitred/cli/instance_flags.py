"""Flags that say what an instance is made of: the same for `maitred simulate` and `maitred engine`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from maitred.cli.flags import NO_VALUE, flag
from maitred.core.errors import ConfigError

_INSTANCE = "Instance: order, caching, limits"


@dataclass(frozen=True, kw_only=True)
class InstanceFlags:
    """Order, caching and limits."""

    scheduler: Annotated[
        str | None,
        flag(
            _INSTANCE,
            "--scheduler",
            "Order of the wait queue, such as lpm or bounded(lpm, max_wait=5): see maitred policies.",
            "POLICY",
            alias="--schedule-policy",
        ),
    ] = None
    priority_policy: Annotated[
        str | None,
        flag(
            _INSTANCE,
            "--priority-policy",
            "For priority-fcfs: constant, slo-based, inverted-slo, static-slo-class.",
            "POLICY",
        ),
    ] = None
    enable_priority_scheduling: Annotated[
        bool | None, flag(_INSTANCE, "--enable-priority-scheduling", "The client's priority first.", NO_VALUE)
    ] = None
    schedule_low_priority_values_first: Annotated[
        bool | None,
        flag(_INSTANCE, "--schedule-low-priority-values-first", "Then, lower numbers are more urgent.", NO_VALUE),
    ] = None
    enable_prefix_caching: Annotated[
        bool | None, flag(_INSTANCE, "--enable-prefix-caching", "Prompts that begin alike share KV blocks.", NO_VALUE)
    ] = None
    no_enable_prefix_caching: Annotated[
        bool | None,
        flag(
            _INSTANCE,
            "--no-enable-prefix-caching",
            "They do not, whatever the file says.",
            NO_VALUE,
            alias="--no-prefix-caching",
        ),
    ] = None
    prefix_cache: Annotated[
        str | None, flag(_INSTANCE, "--prefix-cache", "How they are kept: blocks (vLLM), radix (SGLang).", "KIND")
    ] = None
    radix_eviction_policy: Annotated[
        str | None, flag(_INSTANCE, "--radix-eviction-policy", "Which leaf of a radix tree goes first.", "NAME")
    ] = None
    preemption_policy: Annotated[
        str | None,
        flag(_INSTANCE, "--preemption-policy", "Who gives way when KV runs out: fcfs (the last admitted), priority.", "NAME"),
    ] = None
    max_num_seqs: Annotated[
        int | None,
        flag(_INSTANCE, "--max-num-seqs", "Most requests in the running batch.", "N", alias="--max-num-running-reqs"),
    ] = None
    max_num_batched_tokens: Annotated[
        int | None,
        flag(
            _INSTANCE,
            "--max-num-batched-tokens",
            "Token budget of a step.",
            "TOKENS",
            alias="--max-num-scheduled-tokens",
        ),
    ] = None
    long_prefill_token_threshold: Annotated[
        int | None,
        flag(_INSTANCE, "--long-prefill-token-threshold", "Largest chunk of one prompt in a step; 0: no limit.", "TOKENS"),
    ] = None
    total_kv_blocks: Annotated[
        int | None, flag(_INSTANCE, "--total-kv-blocks", "KV blocks. Default: what fits beside --model, else 27,000.", "N")
    ] = None
    gpu_memory_utilization: Annotated[
        float | None,
        flag(_INSTANCE, "--gpu-memory-utilization", "Of the GPUs' memory, what is used. Default: 0.9.", "SHARE"),
    ] = None
    block_size_in_tokens: Annotated[
        int | None, flag(_INSTANCE, "--block-size-in-tokens", "Tokens in a KV block.", "TOKENS")
    ] = None
    kv_cpu_blocks: Annotated[
        int | None, flag(_INSTANCE, "--kv-cpu-blocks", "KV blocks in main memory with --flavour blis. Default: none.", "N")
    ] = None
    kv_transfer_bandwidth: Annotated[
        float | None,
        flag(_INSTANCE, "--kv-transfer-bandwidth", "How fast they come back from there, in tokens per µs.", "RATE"),
    ] = None
    kv_transfer_base_latency: Annotated[
        int | None, flag(_INSTANCE, "--kv-transfer-base-latency", "What each of them takes besides, in µs.", "µs")
    ] = None
    max_model_len: Annotated[
        int | None, flag(_INSTANCE, "--max-model-len", "Longest prompt and answer together.", "TOKENS")
    ] = None
    flavour: Annotated[
        str | None,
        flag(_INSTANCE, "--flavour", "maitred (default), or blis: its rules of a step, to compare with its results.", "NAME"),
    ] = None
    async_scheduling: Annotated[
        bool | None,
        flag(_INSTANCE, "--async-scheduling", "Plan the next step while one runs, as vLLM does since 0.14.", NO_VALUE),
    ] = None


_NO_CACHE: Final = "no_enable_prefix_caching"
KEYS: Final = {name: f"instance.{name}" for name in InstanceFlags.__annotations__ if name != _NO_CACHE}
"""The keys of the configuration that flags stand for."""


def said(flags: InstanceFlags) -> dict[str, object]:
    """By key, what the flags say. Raises ConfigError for what contradicts itself."""
    values: dict[str, object] = {key: getattr(flags, name) for name, key in KEYS.items()}
    if flags.no_enable_prefix_caching:
        if flags.enable_prefix_caching:
            raise ConfigError(
                "contradicts --enable-prefix-caching", where="--no-enable-prefix-caching", hint="give one of them"
            )
        values[KEYS["enable_prefix_caching"]] = False
    return values
