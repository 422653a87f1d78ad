"""The flags that stand for keys of the configuration, a row each: key, metavar, and second names.

Those of gateways and schedulers alone are in `gateway_flags`.

A flag is called after its key unless the row names it. Second names are those of SMG, SGLang, vLLM and BLIS. What a flag takes,
its default and its text are those of the key: change them there.
"""

from __future__ import annotations

from typing import Final

from maitred.cli.flags import FlagGroup, KeyFlag

SCORERS: Final = "NAME:WEIGHT,..."

PROGRAMS: Final = FlagGroup(
    "Programs: which agent programs hold KV memory, and where (default: off)",
    KeyFlag("programs.flavour", "NAME", name="--programs-flavour"),
    KeyFlag("programs.backend_capacity_tokens", "TOKENS"),
    KeyFlag("programs.scheduler_interval_secs", "SECS", name="--scheduler-interval"),
    KeyFlag("programs.acting_estimator", "NAME"),
    KeyFlag("programs.max_wait_secs", "SECS", name="--max-wait"),
    KeyFlag("programs.program_ttl_secs", "SECS", name="--program-ttl"),
)
"""Of `maitred serve` and `maitred simulate`, beside the fields of `ProgramFlags`."""
FLOW_CONTROL: Final = FlagGroup(
    "Flow control: requests wait before the router while the instances are saturated",
    KeyFlag("admission.flow_control.saturation_detector", "NAME"),
    KeyFlag("admission.flow_control.max_concurrency", "N"),
    KeyFlag("admission.flow_control.queue_depth_threshold", "N"),
    KeyFlag("admission.flow_control.kv_cache_util_threshold", "SHARE"),
    KeyFlag("admission.flow_control.usage_limit_threshold", "SHARE"),
    KeyFlag("admission.flow_control.dispatch_order", "ORDER"),
    KeyFlag("admission.flow_control.fairness_policy", "NAME"),
    KeyFlag("admission.flow_control.dispatch", "HOW"),
    KeyFlag("admission.flow_control.dispatch_tick_interval_us", "µs", name="--dispatch-tick-interval"),
    KeyFlag("admission.flow_control.max_gateway_queue_depth", "N"),
    KeyFlag("admission.flow_control.per_band_capacity", "N"),
    KeyFlag("admission.flow_control.queue_shedding"),
    KeyFlag("admission.flow_control.request_ttl_us", "µs", name="--request-ttl"),
    KeyFlag("admission.flow_control.in_flight_eviction"),
)

ENGINE: Final = FlagGroup(
    "Server",
    KeyFlag("engine.port", "PORT"),
    KeyFlag("engine.host", "HOST"),
    KeyFlag("engine.model", "NAME", alias="--served-model-name"),
    KeyFlag("engine.output_tokens", "LENGTHS"),
    KeyFlag("engine.seed", "SEED"),
    KeyFlag("engine.speed", "FACTOR"),
    KeyFlag("engine.hide_slots"),
)
"""Flags of `maitred engine`. Its `--model` may also be that of the instance."""

HARDWARE: Final = FlagGroup(
    "Model and hardware (default: none; a step takes what linear says)",
    KeyFlag("instance.model_config_folder", "FOLDER"),
    KeyFlag("instance.hardware", "GPU"),
    KeyFlag("instance.hardware_config", "FILE"),
    KeyFlag("instance.tensor_parallel_size", "N", alias=("--tp", "-tp")),
    KeyFlag("instance.data_parallel_size", "N", alias=("--dp", "-dp")),
)
_SEARCHED: Final = {"instance.hardware", "instance.tensor_parallel_size"}
INSTANCE: Final = FlagGroup(
    "Instance: order, caching, limits",
    KeyFlag("instance.scheduler", "POLICY", alias="--schedule-policy"),
    KeyFlag("instance.priority_policy", "POLICY"),
    KeyFlag("instance.enable_priority_scheduling"),
    KeyFlag("instance.schedule_low_priority_values_first"),
    KeyFlag("instance.enable_prefix_caching"),
    KeyFlag("instance.prefix_cache", "KIND"),
    KeyFlag("instance.radix_eviction_policy", "NAME"),
    KeyFlag("instance.preemption_policy", "NAME"),
    KeyFlag("instance.batching", "SCHEDULER"),
    KeyFlag("instance.context_chunking_policy", "NAME"),
    KeyFlag("instance.max_num_seqs", "N", alias="--max-num-running-reqs"),
    KeyFlag("instance.max_num_batched_tokens", "TOKENS", alias="--max-num-scheduled-tokens"),
    KeyFlag("instance.long_prefill_token_threshold", "TOKENS"),
    KeyFlag("instance.long_prefill_token_threshold_adaptive"),
    KeyFlag("instance.max_chunk_tokens", "TOKENS"),
    KeyFlag("instance.enable_chunked_prefill", turns_off=True),
    KeyFlag("instance.scheduler_reserve_full_isl", turns_off=True),
    KeyFlag("instance.watermark", "SHARE"),
    KeyFlag("instance.prefill_schedule_interval", "STEPS"),
    KeyFlag("instance.vllm_release", "RELEASE"),
    KeyFlag("instance.scheduling_policy", "NAME"),
    KeyFlag("instance.max_num_active_seqs", "N"),
    KeyFlag("instance.max_num_queued_reqs", "N"),
    KeyFlag("instance.max_num_queued_tokens", "TOKENS"),
    KeyFlag("instance.total_kv_blocks", "N", alias="--num-gpu-blocks-override"),
    KeyFlag("instance.gpu_memory_utilization", "SHARE"),
    KeyFlag("instance.block_size_in_tokens", "TOKENS", alias="--block-size"),
    KeyFlag("instance.kv_cpu_blocks", "N"),
    KeyFlag("instance.kv_transfer_bandwidth", "RATE"),
    KeyFlag("instance.kv_transfer_base_latency", "µs"),
    KeyFlag("instance.max_model_len", "TOKENS"),
    KeyFlag("instance.flavour", "NAME"),
    KeyFlag("instance.async_scheduling"),
)
OFFLOAD: Final = FlagGroup(
    "KV offloading: blocks in the memory of the host",
    KeyFlag("instance.kv_offload.host_gib", "GIB", name="--kv-offload-gib"),
    KeyFlag("instance.kv_offload.bandwidth_gb_s", "GB/S", name="--kv-offload-bandwidth"),
    KeyFlag("instance.kv_offload.kv_bytes_per_token", "BYTES", name="--kv-offload-bytes-per-token"),
    KeyFlag("instance.kv_offload.write_policy", "POLICY", name="--kv-offload-write-policy"),
)
SPECULATIVE: Final = FlagGroup(
    "Speculative decoding",
    KeyFlag("instance.speculative.num_speculative_tokens", "TOKENS"),
    KeyFlag("instance.speculative.acceptance_rate", "SHARE"),
    KeyFlag("instance.speculative.draft_cost", "SHARE"),
)
SGLANG: Final = FlagGroup(
    "SGLang's scheduler (--flavour sglang)",
    KeyFlag("instance.sglang.max_prefill_tokens", "TOKENS"),
    KeyFlag("instance.sglang.disable_chunked_prefill"),
    KeyFlag("instance.sglang.prefill_max_requests", "N"),
    KeyFlag("instance.sglang.enable_mixed_chunk"),
    KeyFlag("instance.sglang.schedule_conservativeness", "FACTOR"),
    KeyFlag("instance.sglang.init_new_token_ratio", "SHARE"),
    KeyFlag("instance.sglang.min_new_token_ratio_factor", "FACTOR"),
    KeyFlag("instance.sglang.new_token_ratio_decay_steps", "N"),
    KeyFlag("instance.sglang.clip_max_new_tokens", "TOKENS"),
    KeyFlag("instance.sglang.ignore_eos"),
    KeyFlag("instance.sglang.retraction_policy", "NAME"),
    KeyFlag("instance.sglang.disable_priority_preemption"),
    KeyFlag("instance.sglang.priority_scheduling_preemption_threshold", "N"),
    KeyFlag("instance.sglang.min_free_slots_delay", "N"),
    KeyFlag("instance.sglang.prefill_decode_interval", "N"),
    KeyFlag("instance.sglang.prefill_decode_interval_min_bs", "N"),
    KeyFlag("instance.sglang.scheduler_recv_interval", "N"),
    KeyFlag("instance.sglang.enable_prefill_delayer"),
    KeyFlag("instance.sglang.prefill_delayer_max_delay_passes", "N"),
    KeyFlag("instance.sglang.prefill_delayer_max_delay_ms", "MS"),
    KeyFlag("instance.sglang.prefill_delayer_token_usage_low_watermark", "SHARE"),
    KeyFlag("instance.sglang.prefill_delayer_queue_min_ratio", "RATIO"),
)

SYNTHETIC: Final = "Workload: synthetic"
WORKLOAD: Final = (
    FlagGroup(
        "Workload: a recorded trace",
        KeyFlag("workload.trace", "FORMAT:FILE", alias="--trace-data"),
        KeyFlag("workload.trace_header", "FILE"),
        KeyFlag("workload.max_requests", "N"),
        KeyFlag("workload.skip_bad_rows"),
        KeyFlag("workload.session_mode", "MODE"),
        KeyFlag("workload.think_time_ms", "MS"),
        KeyFlag("workload.concurrent_sessions", "N"),
    ),
    FlagGroup(
        SYNTHETIC,
        KeyFlag("workload.rate", "RATE", alias="--request-rate"),
        KeyFlag("workload.num_requests", "N", alias="--num-prompts"),
        KeyFlag("workload.input_tokens", "LENGTHS", alias="--prompt-tokens"),
        KeyFlag("workload.output_tokens", "LENGTHS"),
        KeyFlag("workload.class_mix", "MIX"),
        KeyFlag("workload.tenant_mix", "MIX"),
        KeyFlag("workload.workload_spec", "FILE"),
        KeyFlag("workload.programs", "N"),
        KeyFlag("workload.num_programs", "N"),
        KeyFlag("workload.turns", "LENGTHS"),
        KeyFlag("workload.start_tokens", "LENGTHS"),
        KeyFlag("workload.tool_time_ms", "LENGTHS"),
        KeyFlag("workload.workload", "KIND"),
        KeyFlag("workload.concurrency", "N"),
        KeyFlag("workload.arrival", "PROCESS"),
        KeyFlag("workload.prefix_tokens", "TOKENS"),
        KeyFlag("workload.prompt_tokens_stdev", "TOKENS"),
        KeyFlag("workload.prompt_tokens_min", "TOKENS"),
        KeyFlag("workload.prompt_tokens_max", "TOKENS"),
        KeyFlag("workload.output_tokens_stdev", "TOKENS"),
        KeyFlag("workload.output_tokens_min", "TOKENS"),
        KeyFlag("workload.output_tokens_max", "TOKENS"),
    ),
    FlagGroup(
        "Any workload",
        KeyFlag("workload.timeout_secs", "SECONDS", alias="--timeout"),
        KeyFlag("workload.rate_scale", "FACTOR"),
        KeyFlag("workload.time_scale", "FACTOR"),
    ),
)
"""Of `maitred simulate` and `maitred compare`: the keys of a `Load`."""

CLUSTER: Final = FlagGroup(
    "Cluster",
    KeyFlag("cluster.num_instances", "N"),
    KeyFlag("routing.policy", "POLICY", name="--routing-policy"),
    KeyFlag("routing.scorers", SCORERS, name="--routing-scorers"),
    KeyFlag("cluster.slots", "SOURCE"),
    KeyFlag("cluster.admission_latency_ms", "µs", name="--admission-latency", in_micros=True),
    KeyFlag("cluster.routing_latency_ms", "µs", name="--routing-latency", in_micros=True),
    KeyFlag("cluster.snapshot_refresh_interval_ms", "µs", name="--snapshot-refresh-interval", in_micros=True),
    KeyFlag("cluster.cache_signal_delay_ms", "µs", name="--cache-signal-delay", in_micros=True),
)
FAILURES: Final = FlagGroup(
    "Failures: instances that stop, and slow ones",
    KeyFlag("cluster.failures.mtbf_secs", "SECS", name="--mtbf"),
    KeyFlag("cluster.failures.mttr_secs", "SECS", name="--mttr"),
    KeyFlag("cluster.failures.max_attempts", "N"),
    KeyFlag("cluster.failures.slow_instances", "N"),
    KeyFlag("cluster.failures.slow_factor", "FACTOR"),
)
AUTOSCALING: Final = FlagGroup(
    "Autoscaling: instances that are started and drained (default: off)",
    KeyFlag("cluster.autoscaling.policy", "POLICY", name="--autoscaling-policy"),
    KeyFlag("cluster.autoscaling.min_instances", "N"),
    KeyFlag("cluster.autoscaling.max_instances", "N"),
    KeyFlag("cluster.autoscaling.interval_secs", "SECS", name="--autoscaling-interval"),
    KeyFlag("cluster.autoscaling.cold_start_secs", "SECS", name="--cold-start"),
    KeyFlag("cluster.autoscaling.scale_down_delay_secs", "SECS", name="--scale-down-delay"),
)
COSTS: Final = FlagGroup(
    "Costs: energy, carbon, money",
    KeyFlag("cluster.costs.gpu_watts", "WATTS"),
    KeyFlag("cluster.costs.idle_share", "SHARE"),
    KeyFlag("cluster.costs.pue", "FACTOR"),
    KeyFlag("cluster.costs.grid_gco2_per_kwh", "GRAMS", name="--grid-intensity"),
    KeyFlag("cluster.costs.price_per_gpu_hour", "DOLLARS"),
)
DISAGGREGATION: Final = FlagGroup(
    "Prefill and decode instances: prompts are computed in some, answers in others",
    KeyFlag("cluster.disaggregation.prefill_instances", "N"),
    KeyFlag("cluster.disaggregation.decode_instances", "N"),
    KeyFlag("cluster.disaggregation.decider", "NAME", name="--pd-decider"),
    KeyFlag("cluster.disaggregation.prefix_threshold", "TOKENS", name="--pd-prefix-threshold"),
    KeyFlag("cluster.disaggregation.transfer_bandwidth_gb_s", "GB/S", name="--pd-transfer-bandwidth"),
    KeyFlag("cluster.disaggregation.transfer_base_ms", "MS", name="--pd-transfer-base-latency"),
    KeyFlag("cluster.disaggregation.transfer_contention", name="--pd-transfer-contention"),
    KeyFlag("cluster.disaggregation.kv_bytes_per_token", "BYTES", name="--pd-kv-bytes-per-token"),
    KeyFlag("cluster.disaggregation.prefill_scorers", SCORERS, name="--prefill-routing-scorers"),
    KeyFlag("cluster.disaggregation.decode_scorers", SCORERS, name="--decode-routing-scorers"),
)
ADMISSION: Final = FlagGroup(
    "Admission, in front of the router (default: none)",
    KeyFlag("admission.mode", "MODE", name="--admission", default="off"),
    KeyFlag("cluster.capacity", "SLOTS"),
    KeyFlag("admission.policy", "POLICY", name="--admission-policy"),
    KeyFlag("admission.token_bucket_capacity", "TOKENS"),
    KeyFlag("admission.token_bucket_refill_rate", "TOKENS"),
)
CAPACITY: Final = (
    *WORKLOAD,
    FlagGroup(CLUSTER.panel, *(row for row in CLUSTER.flags if row.key.startswith("routing."))),
    FlagGroup(DISAGGREGATION.panel, *DISAGGREGATION.flags[2:]),
    FlagGroup(HARDWARE.panel, *(row for row in HARDWARE.flags if row.key not in _SEARCHED)),
    *(INSTANCE, OFFLOAD, SPECULATIVE, SGLANG),
)
"""Of `maitred capacity`: the workload, and what all options have in common."""
SIMULATE: Final = (
    *WORKLOAD,
    CLUSTER,
    FAILURES,
    AUTOSCALING,
    COSTS,
    DISAGGREGATION,
    ADMISSION,
    FLOW_CONTROL,
    PROGRAMS,
    FlagGroup(HARDWARE.panel, KeyFlag("instance.model", "NAME"), *HARDWARE.flags),
    INSTANCE,
    OFFLOAD,
    SPECULATIVE,
    SGLANG,
    FlagGroup("The run", KeyFlag("instance.step_by_step")),
)
"""Of `maitred simulate`."""
