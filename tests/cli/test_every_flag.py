"""`maitred simulate`, flag by flag: each flag changes the outcome of a run, and none is accepted and then ignored.

A case is a command line, and the flags that are under test after it. What came of a run is what it printed, the requests and
the figures that it wrote, and which other files there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from maitred.cli import simulate
from maitred.cli.app import command_named

TIMED: Final = "--beta-coeffs 1000,10,100"
"""A step takes 1000 µs, 10 more per prefill token, 100 more per decode."""
LOAD: Final = f"--rate 20 --num-requests 30 --prompt-tokens 100 --output-tokens 20 {TIMED}"
BUSY: Final = f"--rate 2000 --num-requests 60 --prompt-tokens uniform:20,200 --output-tokens uniform:2,40 {TIMED}"
MIXED: Final = f"{BUSY} --class-mix interactive:1,bulk:2 --tenant-mix auth:a:1,auth:b:3"
TRACE: Final = f"--trace sample:mixed --max-requests 40 {TIMED}"
BLIS: Final = f"--trace sessions.csv {TIMED}"
ALIKE: Final = f"{BUSY} --prefix-tokens 160 --enable-prefix-caching"
MODEL: Final = "--rate 20 --num-requests 10 --prompt-tokens 100 --output-tokens 20 --model meta-llama/llama-3.1-8b-instruct"
MOE: Final = MODEL.replace("meta-llama/llama-3.1-8b-instruct", "mixtral-8x7b --hardware H200 --tp 4")
SPLIT: Final = f"{BUSY} --num-instances 4 --prefill-instances 2 --decode-instances 2 --pd-kv-bytes-per-token 100000"
WAITING: Final = f"{MIXED} --flow-control --max-concurrency 4"
BY_USE: Final = f"{MIXED} --flow-control --saturation-detector utilization --max-num-seqs 4"
BY_QUEUES: Final = f"{BUSY} --num-instances 4 --routing-policy weighted --routing-scorers queue-depth:1"
TIGHT: Final = f"{BLIS} --enable-prefix-caching --total-kv-blocks 16"
FULL: Final = f"{BUSY} --total-kv-blocks 40 --max-model-len 400"
TIERED: Final = f"{FULL} --config blis.yaml --kv-cpu-blocks 100"
FAILING: Final = f"{BUSY} --num-instances 3 --mtbf 0.02 --mttr 0.5"
SCALED: Final = "in-flight(target=4) --autoscaling-interval 0.005 --cold-start 0.004 --scale-down-delay 9"
SCALING: Final = f"{BUSY} --autoscaling-policy {SCALED}"
OFFLOADED: Final = f"{BLIS} --enable-prefix-caching --total-kv-blocks 16 --kv-offload-bytes-per-token 1000"
HICACHE: Final = f"{OFFLOADED} --kv-offload-gib 1 --flavour sglang --max-model-len 200"
AGENTS: Final = (
    f"--programs 6 --turns 5 --start-tokens uniform:200,400 --input-tokens 40 --output-tokens 30 --tool-time-ms 20000 {TIMED}"
)
SGLANG: Final = f"{BUSY} --flavour sglang --total-kv-blocks 60 --max-model-len 400 --max-num-batched-tokens 128"
URGENT: Final = f"{TIMED} --flavour sglang --scheduler sglang(fcfs,priority=low-first)"
PREEMPTING: Final = f"--trace-data urgent.csv {URGENT} --max-num-seqs 2"
RETRACTING: Final = (
    f"--trace-data long.csv {URGENT} --disable-priority-preemption --total-kv-blocks 24 --max-model-len 200 "
    "--schedule-conservativeness 0.1"
)
DELAYED: Final = f"{SGLANG} --total-kv-blocks 400 --max-num-seqs 64 --rate 300 --enable-prefill-delayer"
CROWDED: Final = f"{AGENTS} --router tr --total-kv-blocks 70"

EFFECTS: Final[Mapping[str, tuple[str, str]]] = {
    "trace": (TRACE, "--trace azure.csv"),
    "trace_header": ("--trace-data sessions.csv --enable-prefix-caching", "--trace-header grown.yaml"),
    "max_requests": (TRACE, "--max-requests 30"),
    "skip_bad_rows": ("--trace bad.csv", "--skip-bad-rows"),
    "session_mode": (BLIS, "--session-mode closed-loop"),
    "think_time_ms": (f"{BLIS} --session-mode closed-loop", "--think-time-ms 5"),
    "concurrent_sessions": ("--trace agents.csv --session-mode closed-loop", "--concurrent-sessions 1"),
    "rate": (LOAD, "--rate 40"),
    "num_requests": (LOAD, "--num-requests 31"),
    "input_tokens": (LOAD, "--prompt-tokens 101"),
    "output_tokens": (LOAD, "--output-tokens 21"),
    "class_mix": (LOAD, "--class-mix interactive:1,bulk:1"),
    "tenant_mix": (LOAD, "--tenant-mix auth:a:1,auth:b:1"),
    "workload_spec": (TIMED, "--workload-spec spec.yaml"),
    "workload": (f"--rate 20 --num-requests 30 {TIMED}", "--workload chatbot"),
    "concurrency": (f"--num-requests 30 --prompt-tokens 100 --output-tokens 20 {TIMED}", "--concurrency 3"),
    "programs": (TIMED, AGENTS.removesuffix(TIMED)),
    "num_programs": (AGENTS, "--num-programs 9"),
    "turns": (AGENTS, "--turns uniform:2,9"),
    "start_tokens": (AGENTS, "--start-tokens 99"),
    "tool_time_ms": (AGENTS, "--tool-time-ms quantiles:3,50,90,1000"),
    "router": (AGENTS, "--router default"),
    "acting_token_weight": (CROWDED, "--acting-token-weight 0.5"),
    "use_acting_token_decay": (CROWDED, "--use-acting-token-decay"),
    "programs_flavour": (CROWDED, "--programs-flavour thunderagent"),
    "backend_capacity_tokens": (CROWDED, "--backend-capacity-tokens 900"),
    "scheduler_interval": (f"{CROWDED} --programs-flavour thunderagent", "--scheduler-interval 2"),
    "acting_estimator": (CROWDED, "--acting-estimator decay(half_life_secs=3)"),
    "max_wait": (f"{CROWDED} --programs-flavour thunderagent", "--max-wait 3"),
    "program_ttl": (CROWDED, "--program-ttl 3"),
    "arrival": (LOAD, "--arrival constant"),
    "prefix_tokens": (LOAD, "--prefix-tokens 160"),
    "prompt_tokens_stdev": (LOAD, "--prompt-tokens-stdev 30"),
    "prompt_tokens_min": (f"{LOAD} --prompt-tokens-stdev 30", "--prompt-tokens-min 100"),
    "prompt_tokens_max": (f"{LOAD} --prompt-tokens-stdev 30", "--prompt-tokens-max 100"),
    "output_tokens_stdev": (LOAD, "--output-tokens-stdev 5"),
    "output_tokens_min": (f"{LOAD} --output-tokens-stdev 5", "--output-tokens-min 20"),
    "output_tokens_max": (f"{LOAD} --output-tokens-stdev 5", "--output-tokens-max 20"),
    "timeout_secs": (BUSY, "--timeout 0.02"),
    "rate_scale": (LOAD, "--rate-scale 2"),
    "time_scale": (LOAD, "--time-scale 2"),
    "config": (BUSY, "--config c.yaml"),
    "num_instances": (BUSY, "--num-instances 2"),
    "slots": (BUSY, "--slots learned"),
    "autoscaling_policy": (BUSY, f"--autoscaling-policy {SCALED}"),
    "min_instances": (SCALING, "--min-instances 3 --num-instances 3"),
    "max_instances": (SCALING, "--max-instances 2"),
    "autoscaling_interval": (SCALING, "--autoscaling-interval 0.02"),
    "cold_start": (SCALING, "--cold-start 0.02"),
    "scale_down_delay": (SCALING, "--scale-down-delay 0.001"),
    "gpu_watts": (MODEL, "--gpu-watts 500"),
    "idle_share": (MODEL, "--idle-share 0.3"),
    "pue": (MODEL, "--pue 1.3"),
    "grid_intensity": (MODEL, "--grid-intensity 400"),
    "price_per_gpu_hour": (MODEL, "--price-per-gpu-hour 2.5"),
    "mtbf": (BUSY, "--mtbf 0.02"),
    "mttr": (FAILING, "--mttr 0.001"),
    "max_attempts": (FAILING, "--max-attempts 1"),
    "instance_groups": (MODEL, "--instance-groups H100:1,L40S:1"),
    "slow_instances": (BUSY, "--slow-instances 1"),
    "slow_factor": (f"{BUSY} --slow-instances 1", "--slow-factor 3"),
    "routing_policy": (f"{BUSY} --num-instances 4", "--routing-policy power-of-two"),
    "routing_scorers": (BY_QUEUES, "--routing-scorers load-balance:1"),
    "admission_latency": (LOAD, "--admission-latency 7"),
    "routing_latency": (LOAD, "--routing-latency 7"),
    "snapshot_refresh_interval": (BY_QUEUES, "--snapshot-refresh-interval 20000"),
    "cache_signal_delay": (
        f"{ALIKE} --num-instances 4 --routing-policy weighted --routing-scorers precise-prefix-cache:2,queue-depth:1",
        "--cache-signal-delay 50000",
    ),
    "prefill_instances": (f"{BUSY} --num-instances 4 --pd-kv-bytes-per-token 9", "--prefill-instances 1 --decode-instances 3"),
    "decode_instances": (f"{SPLIT} --decode-instances 1 --num-instances 3", "--decode-instances 2 --num-instances 4"),
    "pd_decider": (SPLIT, "--pd-decider never"),
    "pd_prefix_threshold": (f"{SPLIT} --pd-decider prefix-threshold", "--pd-prefix-threshold 100"),
    "pd_transfer_bandwidth": (SPLIT, "--pd-transfer-bandwidth 0.1"),
    "pd_transfer_base_latency": (SPLIT, "--pd-transfer-base-latency 3"),
    "pd_transfer_contention": (f"{SPLIT} --pd-transfer-bandwidth 0.1", "--pd-transfer-contention"),
    "pd_kv_bytes_per_token": (f"{SPLIT} --pd-transfer-bandwidth 0.1", "--pd-kv-bytes-per-token 9"),
    "prefill_routing_scorers": (SPLIT, "--prefill-routing-scorers load-balance:1"),
    "decode_routing_scorers": (SPLIT, "--decode-routing-scorers load-balance:1"),
    "admission": (f"{MIXED} --capacity 4", "--admission legacy"),
    "capacity": (MIXED, "--capacity 4"),
    "admission_config": (f"{MIXED} --capacity 4", "--admission-config admission.yaml"),
    "admission_policy": (MIXED, "--admission-policy gaie-legacy"),
    "token_bucket_capacity": (f"{BUSY} --admission-policy token-bucket", "--token-bucket-capacity 300"),
    "token_bucket_refill_rate": (
        f"{BUSY} --admission-policy token-bucket --token-bucket-capacity 300",
        "--token-bucket-refill-rate 90000",
    ),
    "policy_config": (MIXED, "--policy-config bundle.yaml"),
    "flow_control": (f"{MIXED} --max-num-seqs 90", "--flow-control --max-concurrency 4"),
    "saturation_detector": (WAITING, "--saturation-detector never"),
    "max_concurrency": (WAITING, "--max-concurrency 5"),
    "queue_depth_threshold": (BY_USE, "--queue-depth-threshold 1"),
    "kv_cache_util_threshold": (f"{BY_USE} --total-kv-blocks 100", "--kv-cache-util-threshold 0.2"),
    "usage_limit_threshold": (WAITING, "--usage-limit-threshold 0.3"),
    "dispatch_order": (WAITING, "--dispatch-order fifo"),
    "slo_targets": (f"{WAITING} --dispatch-order slo-deadline", "--slo-targets critical=1000000,standard=5"),
    "fairness_policy": (WAITING, "--fairness-policy round-robin"),
    "dispatch": (WAITING, "--dispatch one"),
    "dispatch_tick_interval": (f"{BY_USE} --queue-depth-threshold 1", "--dispatch-tick-interval 90000"),
    "max_gateway_queue_depth": (WAITING, "--max-gateway-queue-depth 5"),
    "per_band_capacity": (WAITING, "--per-band-capacity 5"),
    "queue_shedding": (f"{WAITING} --max-gateway-queue-depth 5 --policy-config shed.yaml", "--queue-shedding"),
    "request_ttl": (WAITING, "--request-ttl 9000"),
    "in_flight_eviction": (f"{WAITING} --policy-config shed.yaml", "--in-flight-eviction"),
    "model": (MODEL, "--model qwen3-8b"),
    "model_config_folder": (MODEL, "--model-config-folder ."),
    "hardware": (MODEL, "--hardware A100"),
    "hardware_config": (f"{MODEL} --hardware H100", "--hardware-config gpus.json"),
    "tensor_parallel_size": (MODEL, "--tp 2"),
    "data_parallel_size": (MOE, "--dp 2"),
    "latency_model": (MODEL, "--latency-model roofline"),
    "alpha_coeffs": (LOAD, "--alpha-coeffs 100,1,10"),
    "beta_coeffs": (LOAD, "--beta-coeffs 1000,10,101"),
    "scheduler": (f"{BUSY} --max-num-seqs 2", "--scheduler sjf"),
    "priority_policy": (f"{BUSY} --max-num-seqs 2 --scheduler priority-fcfs", "--priority-policy inverted-slo"),
    "enable_priority_scheduling": ("--trace urgent.csv --max-num-seqs 1", "--enable-priority-scheduling"),
    "schedule_low_priority_values_first": (
        "--trace urgent.csv --max-num-seqs 1 --enable-priority-scheduling",
        "--schedule-low-priority-values-first",
    ),
    "enable_prefix_caching": (f"{BUSY} --prefix-tokens 160", "--enable-prefix-caching"),
    "no_enable_prefix_caching": (f"{BUSY} --prefix-tokens 160 --config cached.yaml", "--no-enable-prefix-caching"),
    "prefix_cache": (TIGHT, "--prefix-cache radix"),
    "radix_eviction_policy": (
        f"{TIGHT} --prefix-cache radix",
        "--radix-eviction-policy filo",
    ),
    "preemption_policy": (f"{FULL} --scheduler priority-fcfs --priority-policy inverted-slo", "--preemption-policy priority"),
    "batching": (FULL, "--batching static-batch"),
    "context_chunking_policy": (
        f"{BUSY} --batching max-utilization --max-num-batched-tokens 64",
        "--context-chunking-policy equal-progress",
    ),
    "kv_offload_gib": (OFFLOADED, "--kv-offload-gib 1"),
    "kv_offload_bandwidth": (f"{OFFLOADED} --kv-offload-gib 1", "--kv-offload-bandwidth 0.1"),
    "kv_offload_bytes_per_token": (f"{OFFLOADED} --kv-offload-gib 1", "--kv-offload-bytes-per-token 900000"),
    "kv_offload_write_policy": (
        f"{HICACHE} --kv-offload-bandwidth 0.01",
        "--kv-offload-write-policy write_back",
    ),
    "num_speculative_tokens": (BUSY, "--num-speculative-tokens 3"),
    "acceptance_rate": (f"{BUSY} --num-speculative-tokens 3", "--acceptance-rate 0.9"),
    "draft_cost": (f"{BUSY} --num-speculative-tokens 3", "--draft-cost 0.2"),
    "max_num_seqs": (BUSY, "--max-num-seqs 2"),
    "max_num_batched_tokens": (BUSY, "--max-num-batched-tokens 64"),
    "long_prefill_token_threshold": (BUSY, "--long-prefill-token-threshold 16"),
    "long_prefill_token_threshold_adaptive": (
        f"{BUSY} --long-prefill-token-threshold 16",
        "--long-prefill-token-threshold-adaptive",
    ),
    "max_chunk_tokens": (BUSY, "--max-chunk-tokens 16"),
    "no_enable_chunked_prefill": (f"{BUSY} --max-num-batched-tokens 300", "--no-enable-chunked-prefill"),
    "no_scheduler_reserve_full_isl": (f"{FULL} --max-num-batched-tokens 40", "--no-scheduler-reserve-full-isl"),
    "watermark": (FULL, "--watermark 0.2"),
    "prefill_schedule_interval": (f"{BUSY} --vllm-release 0.33", "--prefill-schedule-interval 8"),
    "vllm_release": (f"{BUSY} --prefill-schedule-interval 8", "--vllm-release 0.33"),
    "scheduling_policy": ("--trace urgent.csv --max-num-seqs 1", "--scheduling-policy priority"),
    "max_num_active_seqs": (BUSY, "--max-num-active-seqs 2"),
    "max_num_queued_reqs": (BUSY, "--max-num-queued-reqs 2"),
    "max_num_queued_tokens": (BUSY, "--max-num-queued-tokens 300"),
    "total_kv_blocks": (BUSY, "--total-kv-blocks 40"),
    "block_size_in_tokens": (FULL, "--block-size-in-tokens 20"),
    "kv_cpu_blocks": (f"{FULL} --config blis.yaml", "--kv-cpu-blocks 100"),
    "kv_transfer_bandwidth": (TIERED, "--kv-transfer-bandwidth 0.5"),
    "kv_transfer_base_latency": (TIERED, "--kv-transfer-base-latency 40"),
    "gpu_memory_utilization": (MODEL, "--gpu-memory-utilization 0.2585"),
    "flavour": (FULL, "--flavour blis"),
    "max_prefill_tokens": (f"{SGLANG} --disable-chunked-prefill", "--max-prefill-tokens 32"),
    "disable_chunked_prefill": (SGLANG, "--disable-chunked-prefill"),
    "prefill_max_requests": (SGLANG, "--prefill-max-requests 1"),
    "enable_mixed_chunk": (SGLANG, "--enable-mixed-chunk"),
    "schedule_conservativeness": (SGLANG, "--schedule-conservativeness 0.1"),
    "init_new_token_ratio": (SGLANG, "--init-new-token-ratio 0.1"),
    "min_new_token_ratio_factor": (f"{SGLANG} --new-token-ratio-decay-steps 5", "--min-new-token-ratio-factor 0.9"),
    "new_token_ratio_decay_steps": (SGLANG, "--new-token-ratio-decay-steps 5"),
    "clip_max_new_tokens": (SGLANG, "--clip-max-new-tokens 4"),
    "ignore_eos": (SGLANG, "--ignore-eos"),
    "retraction_policy": (RETRACTING, "--retraction-policy priority"),
    "disable_priority_preemption": (
        f"{PREEMPTING} --priority-scheduling-preemption-threshold 0",
        "--disable-priority-preemption",
    ),
    "priority_scheduling_preemption_threshold": (PREEMPTING, "--priority-scheduling-preemption-threshold 0"),
    "min_free_slots_delay": (f"{SGLANG} --total-kv-blocks 400 --max-num-seqs 8", "--min-free-slots-delay 4"),
    "prefill_decode_interval": (SGLANG, "--prefill-decode-interval 3"),
    "scheduler_recv_interval": (f"{BUSY} --flavour sglang --rate 40", "--scheduler-recv-interval 20"),
    "prefill_decode_interval_min_bs": (f"{SGLANG} --prefill-decode-interval 3", "--prefill-decode-interval-min-bs 4"),
    "enable_prefill_delayer": (f"{SGLANG} --total-kv-blocks 400 --max-num-seqs 8", "--enable-prefill-delayer"),
    "prefill_delayer_max_delay_passes": (f"{DELAYED} --max-num-seqs 8", "--prefill-delayer-max-delay-passes 2"),
    "prefill_delayer_max_delay_ms": (f"{DELAYED} --prefill-delayer-queue-min-ratio 1", "--prefill-delayer-max-delay-ms 1"),
    "prefill_delayer_token_usage_low_watermark": (
        f"{DELAYED} --max-num-seqs 8",
        "--prefill-delayer-token-usage-low-watermark 1",
    ),
    "prefill_delayer_queue_min_ratio": (DELAYED, "--prefill-delayer-queue-min-ratio 1"),
    "max_model_len": (BUSY, "--max-model-len 120"),
    "async_scheduling": (BUSY, "--async-scheduling"),
    "slo_ttft_ms": (BUSY, "--slo-ttft-ms 5"),
    "slo_tpot_ms": (BUSY, "--slo-tpot-ms 2"),
    "slo_e2e_ms": (BUSY, "--slo-e2e-ms 30"),
    "slo_ttft": (MIXED, "--slo-ttft bulk=5ms"),
    "slo_itl": (MIXED, "--slo-itl bulk=2ms"),
    "slo_e2e": (MIXED, "--slo-e2e bulk=30ms"),
    "burstiness": (LOAD, "--burstiness 0.1"),
    "json": (LOAD, "--json"),
    "seed": (LOAD, "--seed 43"),
    "horizon": (LOAD, "--horizon 1000000"),
    "horizon_secs": (LOAD, "--horizon-secs 1"),
    "quiet": (LOAD, "--quiet"),
    "summary_only": (LOAD, "--summary-only"),
    "per": (MIXED, "--per tenant"),
    "warmup": (f"{LOAD} --num-requests 300", "--warmup 1"),
    "fitness_weights": (LOAD, "--fitness-weights throughput:0.5,p99_ttft:0.5"),
    "results_path": (LOAD, "--results-path other.json"),
    "metrics_path": (LOAD, "--metrics-path other.json"),
    "report": (LOAD, "--report page.html"),
    "plot": (LOAD, "--plot charts.svg"),
    "trace_output": (LOAD, "--trace-output made"),
    "decision_log": (f"{MIXED} --capacity 4", "--decision-log log.jsonl"),
}
"""By the name of the flag: the command line without it, and the flag with its value."""

ELSEWHERE: Final = {"step_by_step": "its results are those without it, which tests of the instance hold it to"}

NEEDED: Final = {"skip_bad_rows", "workload_spec", "concurrency", "programs"}
"""Flags without which their command line is an error."""

FILES: Final[Mapping[str, str]] = {
    "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2026-01-31 23:59:59.0000000,100,3\n",
    "bad.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2026-01-31 23:59:59.0000000,100,3\nnever,1,1\n",
    "sessions.csv": "request_id,session_id,prefix_group,prefix_length,input_tokens,output_tokens,arrival_time_us\n"
    + "".join(f"{n},s{n % 3},g{n % 2},64,{60 + n},{9 + n},{n * 8_000}\n" for n in range(12)),
    "grown.yaml": "trace_version: 2\nsession_context_growth: accumulate\n",
    "agents.csv": "trace,sub,t,type,model,in,out,api_time,think_time,blocks,shared_prefix_blocks\n"
    + "".join(f"t{n},,0.0,n,m,640,20,1.0,0.0,10,0\n" for n in range(4)),
    "spec.yaml": "aggregate_rate: 10\nnum_requests: 20\nclients: [{id: a, rate_fraction: 1, arrival: {process: poisson}, "
    "input_distribution: {type: constant, params: {value: 90}}, output_distribution: {type: constant, params: {value: 9}}}]\n",
    "urgent.csv": "request_id,vllm_priority,prefix_group,input_tokens,output_tokens,arrival_time_us\n"
    + "".join(f"{n},{n % 3 - 1},,60,9,{n}\n" for n in range(9)),
    "long.csv": "request_id,vllm_priority,prefix_group,input_tokens,output_tokens,arrival_time_us\n"
    + "".join(f"{n},{n % 3 - 1},,20,{100 + n},{n * 9_000}\n" for n in range(12)),
    "blis.yaml": "instance: {flavour: blis}\n",
    "cached.yaml": "instance: {enable_prefix_caching: true}\n",
    "c.yaml": "instance: {max_num_seqs: 2}\n",
    "admission.yaml": "classes: {interactive: {queue_size: 1}, bulk: {queue_size: 1}}\n",
    "bundle.yaml": "admission: {policy: reject-all}\n",
    "shed.yaml": "admission: {slo_priorities: {standard: -1, critical: 4}}\n",
    "config.json": '{"model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8, '
    '"num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 32000, "torch_dtype": "bfloat16", "hidden_act": "silu"}',
    "gpus.json": '{"H100": {"TFlopsPeak": 100, "BwPeakTBs": 1, "mfuPrefill": 0.5, "mfuDecode": 0.3, "MemoryGiB": 80}}',
}

BEFORE: Final[dict[str, dict[str, str]]] = {}
"""The outcomes of command lines without the flag under test; several flags share one."""
RESULTS: Final[tuple[str, ...]] = ("r.json", "m.json")


def outcome(maitred: Any, line: str) -> dict[str, str]:
    """Return what the command printed, and the files that it wrote. The last of two equal options counts."""
    for name in RESULTS:
        Path(name).unlink(missing_ok=True)
    wanted = [] if "--summary-only" in line else ["--results-path", "r.json"]
    figures = [] if "--json" in line else ["--metrics-path", "m.json"]
    result = maitred("simulate", *wanted, *figures, *line.split())
    files = {path.name: "" for path in Path().iterdir()}
    written = {name: Path(name).read_text(encoding="utf-8") for name in RESULTS if name in files}
    return files | written | {"out": result.out, "error": result.err if result.code else ""}


def test_every_flag_is_here() -> None:
    assert {*EFFECTS, *ELSEWHERE} == {*simulate.run.parameters}


@pytest.mark.parametrize("command", ["serve", "engine", "simulate", "compare", "sweep"])
def test_every_flag_has_a_help_text(command: str) -> None:
    assert not [option.name for option in command_named(command).params if not option.help]


def test_a_help_text_names_a_flag_only_for_the_key_that_it_quotes() -> None:
    texts = {option.name: option.help for option in command_named("simulate").params}
    assert "--hardware beside --model" in texts["total_kv_blocks"]
    # Here `concurrency` is a detector, not the users of a workload.
    assert "--concurrency" not in texts["saturation_detector"] + texts["max_concurrency"]


@pytest.mark.parametrize("name", EFFECTS)
def test_a_flag_has_an_effect(maitred: Any, name: str) -> None:
    for path, text in FILES.items():
        Path(path).write_text(text, encoding="utf-8")
    line, flags = EFFECTS[name]
    with_it = outcome(maitred, f"{line} {flags}")
    assert not with_it["error"]
    for path in {path.name for path in Path().iterdir()} - {*FILES}:
        Path(path).unlink()
    without = BEFORE[line] = BEFORE.get(line) or outcome(maitred, line)
    assert bool(without["error"]) == (name in NEEDED)
    assert with_it != without
