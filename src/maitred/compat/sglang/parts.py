"""The parts of an instance of `flavour: sglang`, by its configuration."""

from __future__ import annotations

from maitred.compat.sglang.batch import SGLangBatch
from maitred.compat.sglang.orders import PrioritySign, SGLangPolicy
from maitred.compat.sglang.prefill_delayer import DelayRules
from maitred.compat.sglang.rules import PassRules, PrefillLimits, SGLangRules
from maitred.compat.sglang.wait_queue import SGLang
from maitred.core.contracts import QueuePolicy
from maitred.core.errors import ConfigError
from maitred.core.units import from_ms
from maitred.instance import InstanceConfig
from maitred.instance.batch_former import EngineParts, new_memory
from maitred.instance.sglang_config import SGLangConfig


def sglang_parts(config: InstanceConfig) -> EngineParts:
    """Return the batch former and the KV memory. Raises ConfigError for what does not go together, or is unknown."""
    rules = sglang_rules(config)
    cache, blocks = new_memory(config)
    return EngineParts(cache, blocks, SGLangBatch(config.batch_limits, blocks, rules))


def sglang_rules(config: InstanceConfig) -> SGLangRules:
    """Return the rules of `config`. Raises ConfigError for what does not go together."""
    options, policy = config.sglang, _innermost(config.policy())
    sign = _priority_sign(config, policy)
    if options.retraction_policy == "priority" and sign is None:
        raise ConfigError(
            "retraction_policy priority needs priorities",
            where="instance.sglang.retraction_policy",
            hint="write scheduler: sglang(fcfs, priority=high-first), or enable_priority_scheduling: true",
        )
    return SGLangRules(
        passes=_pass_rules(config, policy, preempts=sign is not None and not options.disable_priority_preemption),
        max_model_len=config.model_len,
        options=options,
        sign=sign or PrioritySign.HIGH_FIRST,
        delay=_delay_rules(options),
    )


def _pass_rules(config: InstanceConfig, policy: QueuePolicy, *, preempts: bool) -> PassRules:
    """Return the rules of a prefill pass."""
    options = config.sglang
    limits = PrefillLimits(
        page_size=config.block_size_in_tokens,
        max_prefill_tokens=options.max_prefill_tokens,
        chunked_prefill_size=config.max_num_batched_tokens if not options.disable_chunked_prefill else None,
        prefill_max_requests=options.prefill_max_requests,
        clip_max_new_tokens=options.clip_max_new_tokens,
    )
    min_free_slots = min(options.min_free_slots_delay or 0, config.max_num_seqs)
    return PassRules(
        limits,
        config.max_num_seqs,
        preempts=preempts,
        preemption_threshold=options.priority_scheduling_preemption_threshold,
        mixes=options.enable_mixed_chunk,
        caps_chunks=isinstance(policy, SGLang) and policy.policy is SGLangPolicy.SHORTEST_PREFILL_FIRST,
        min_free_slots=min_free_slots if min_free_slots > 1 else 0,  # with 1, prefill would wait for nothing
    )


def _innermost(policy: QueuePolicy) -> QueuePolicy:
    """Return the policy that `policy` stands around, at the bottom."""
    while (inner := getattr(policy, "inner", None)) is not None:
        policy = inner
    return policy


def _priority_sign(config: InstanceConfig, policy: QueuePolicy) -> PrioritySign | None:
    """Return which priorities are urgent, or None if priorities do not count."""
    if config.enable_priority_scheduling:
        return PrioritySign.LOW_FIRST if config.schedule_low_priority_values_first else PrioritySign.HIGH_FIRST
    return policy.sign if isinstance(policy, SGLang) else None


def _delay_rules(options: SGLangConfig) -> DelayRules | None:
    if not options.enable_prefill_delayer:
        return None
    return DelayRules(
        max_delay_passes=options.prefill_delayer_max_delay_passes,
        low_watermark=options.prefill_delayer_token_usage_low_watermark,
        queue_min_ratio=options.prefill_delayer_queue_min_ratio,
        max_delay=from_ms(options.prefill_delayer_max_delay_ms),
        prefill_max_requests=options.prefill_max_requests,
    )
