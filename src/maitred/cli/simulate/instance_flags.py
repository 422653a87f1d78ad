"""Flags of `maitred simulate`: what each instance is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from maitred.cli.flags import NO_VALUE, flag

_INSTANCE = "Each instance"


@dataclass(frozen=True, kw_only=True)
class InstanceFlags:
    """Order, caching and limits of every instance."""

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
    block_size_in_tokens: Annotated[
        int | None, flag(_INSTANCE, "--block-size-in-tokens", "Tokens in a KV block.", "TOKENS")
    ] = None
    max_model_len: Annotated[
        int | None, flag(_INSTANCE, "--max-model-len", "Longest prompt and answer together.", "TOKENS")
    ] = None
    async_scheduling: Annotated[
        bool | None,
        flag(_INSTANCE, "--async-scheduling", "Plan the next step while one runs, as vLLM does since 0.14.", NO_VALUE),
    ] = None
    step_by_step: Annotated[
        bool | None, flag(_INSTANCE, "--step-by-step", "Make every step by itself: slower, same results.", NO_VALUE)
    ] = None


KEYS: Final[Mapping[str, str]] = {
    "scheduler": "instance.scheduler",
    "priority_policy": "instance.priority_policy",
    "enable_priority_scheduling": "instance.enable_priority_scheduling",
    "schedule_low_priority_values_first": "instance.schedule_low_priority_values_first",
    "enable_prefix_caching": "instance.enable_prefix_caching",
    "prefix_cache": "instance.prefix_cache",
    "radix_eviction_policy": "instance.radix_eviction_policy",
    "preemption_policy": "instance.preemption_policy",
    "max_num_seqs": "instance.max_num_seqs",
    "max_num_batched_tokens": "instance.max_num_batched_tokens",
    "long_prefill_token_threshold": "instance.long_prefill_token_threshold",
    "total_kv_blocks": "instance.total_kv_blocks",
    "block_size_in_tokens": "instance.block_size_in_tokens",
    "max_model_len": "instance.max_model_len",
    "async_scheduling": "instance.async_scheduling",
    "step_by_step": "instance.step_by_step",
}
"""The keys of the configuration that flags stand for."""
