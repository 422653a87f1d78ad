"""`maitred simulate --admission-policy ...`, `--flow-control ...` and BLIS's policy bundles."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

LOAD = ("--rate", 200, "--num-requests", 300, "--input-tokens", 100, "--output-tokens", 20, "--max-num-seqs", 8)
MIXED = (*LOAD, "--class-mix", "interactive:1,bulk:9")


def figures(maitred: Any, *flags: object) -> Any:
    result = maitred("simulate", *MIXED, *flags, "--metrics-path", "m.json")
    assert (result.code, result.err.count("\n")) == (0, 1), result.err
    return json.loads(Path("m.json").read_text(encoding="utf-8"))


def rejected(of: Any) -> tuple[int, int]:
    return tuple(of["per_class"][cls]["rejected_requests"] for cls in ("interactive", "bulk"))


def test_a_policy_needs_no_mode(maitred: Any) -> None:
    assert figures(maitred, "--admission-policy", "reject-all")["rejected_requests"] == 300
    assert figures(maitred, "--admission-policy", "always-admit") == figures(maitred)


def test_the_token_bucket_has_flags_of_its_own(maitred: Any) -> None:
    """A bucket of 2,000 tokens admits 20 prompts, and is not refilled."""
    bucket = ("--admission-policy", "token-bucket", "--token-bucket-capacity", 2000, "--token-bucket-refill-rate", 0)
    assert figures(maitred, *bucket)["completed_requests"] == 20


def test_a_policy_bundle_of_blis(maitred: Any) -> None:
    Path("bundle.yaml").write_text(
        "admission: {policy: tier-shed, tier_shed_threshold: 10, slo_priorities: {critical: 4, batch: -5}}\n"
        "routing: {policy: weighted, scorers: [{name: queue-depth, weight: 2.0}]}\n"
        "scheduler: sjf\n"
        "priority: {policy: static-slo-class}\n"
        "preemption: {policy: priority}\n"
        "tenant_budgets:\n"
    )
    chats, bulk = rejected(figures(maitred, "--policy-config", "bundle.yaml"))
    assert chats == 0
    assert bulk > 100
    assert figures(maitred, "--policy-config", "bundle.yaml", "--num-requests", 1)["rejected_requests"] == 0
    over = maitred("simulate", *MIXED, "--policy-config", "bundle.yaml", "--admission-policy", "reject-all")
    assert "warning: tier_shed_threshold has no effect: the policy is reject-all" in over.err  # flags win


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "admission: {policy: tear-shed}",
            "b.yaml:1: admission.policy: unknown admission policy 'tear-shed' (did you mean 'tier",
        ),
        (
            "scheduler: fcfs\nadmission:\n  tier_shed_treshold: 1",
            "b.yaml:3: unknown key 'admission.tier_shed_treshold' (did you",
        ),
        ("\nschedular: fcfs", "b.yaml:2: unknown key 'schedular' (did you mean 'scheduler'?)"),
        ("scheduler: fcsf", "b.yaml:1: instance.scheduler: unknown scheduler 'fcsf' (did you mean 'fcfs'?)"),
        ("tenant_budgets: {a: 2}", "b.yaml:1: admission.tenant_budgets: a must be from 0 to 1"),
        ("node_pools: []", "b.yaml:1: node_pools is not simulated"),
        (
            "hw_config_by_gpu: {H100: {}}",
            "b.yaml:1: hw_config_by_gpu is not simulated: all instances have the same",
        ),
        ("instance_lifecycle: {drain_policy: WAIT}", "b.yaml:1: instance_lifecycle is not simulated: instances are there from"),
        ("autoscaler: {interval_us: 5}", "b.yaml:1: autoscaler is not simulated"),
        ("routing: least-loaded", "b.yaml:1: routing should have keys with values"),
        ("- admission", "b.yaml: there should be keys with values"),
    ],
)
def test_a_bundle_that_is_wrong_is_one_line(maitred: Any, text: str, line: str) -> None:
    Path("b.yaml").write_text(text)
    result = maitred("simulate", *LOAD, "--policy-config", "b.yaml")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"maitred: error: {line}")
    assert result.err.count("\n") == 1


def test_flow_control_keeps_requests_before_the_instances(maitred: Any) -> None:
    """With a batch of 8, 8 requests in flight keep the instance as busy as 300, and chats no longer wait behind bulk there."""
    held = figures(maitred, "--flow-control", "--max-concurrency", 8)
    free = figures(maitred)

    assert held["completed_requests"] == free["completed_requests"] == 300
    chat, bulk = (held["per_class"][cls]["ttft_p99_ms"] for cls in ("interactive", "bulk"))
    assert chat < free["per_class"]["interactive"]["ttft_p99_ms"] / 5
    assert bulk > chat * 5


def test_every_flag_of_flow_control_is_known(maitred: Any) -> None:
    flags = (
        *("--saturation-detector", "utilization", "--queue-depth-threshold", 2, "--kv-cache-util-threshold", 0.9),
        *("--usage-limit-threshold", 0.7, "--dispatch-order", "slo-deadline", "--slo-targets", "critical=50000,batch=900000"),
        *("--fairness-policy", "round-robin", "--dispatch", "one", "--dispatch-tick-interval", 500),
        *("--max-gateway-queue-depth", 20, "--per-band-capacity", 15, "--queue-shedding"),
        *("--request-ttl", 200_000, "--in-flight-eviction"),
    )
    chats, bulk = rejected(figures(maitred, "--admission", "flow-control", *flags))
    assert chats < bulk
    assert bulk > 100


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (("--max-concurrency", 3), "--max-concurrency: without flow control it has no effect"),
        (("--slo-targets", "critical=1"), "--slo-targets: without flow control it has no effect"),
        (("--flow-control", "--admission", "priority"), "--flow-control: contradicts --admission priority"),
        (("--flow-control", "--slo-targets", "critical"), "--slo-targets: 'critical' is no CLASS=µs"),
        (
            ("--flow-control", "--slo-targets", "cristal=1"),
            "--slo-targets: admission.slo_targets: there is no SLO class cristal",
        ),
        (("--flow-control", "--dispatch-order", "lifo"), "--dispatch-order: admission.flow_control.dispatch_order: 'lifo'"),
        (("--flow-control", "--request-ttl", -1), "--request-ttl: admission.flow_control.request_ttl_us must be at least 0"),
        (("--admission-policy", "tear-shed"), "--admission-policy: admission.policy: unknown admission policy"),
    ],
)
def test_a_flag_that_is_wrong_is_one_line(maitred: Any, flags: tuple[object, ...], line: str) -> None:
    result = maitred("simulate", *LOAD, *flags)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"maitred: error: {line}"), result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--token-bucket-capacity", 5), "token_bucket_capacity has no effect: the policy is always-admit, not token-bucket"),
        (("--flow-control", "--capacity", 5), "a capacity has no effect: flow control goes by how loaded the instances are"),
        (
            ("--model", "qwen3-8b", "--total-kv-blocks", 5_000, "--gpu-memory-utilization", 0.5),
            "gpu_memory_utilization 0.5 has no effect beside total_kv_blocks, which it is to find",
        ),
        (("--admission", "off", "--capacity", 4), "a capacity has no effect with admission off: every request enters"),
        (("--scheduler", "edf"), "the wait queue goes by deadlines, and no request here has any: all are alike to it"),
        (("--scheduler", "vtc(sjf)"), "the wait queue goes by tenants, and no request here has any: all are alike to it"),
        (
            ("--scheduling-policy", "priority"),
            "the wait queue goes by priorities of clients, and no request here has any: all are alike to it",
        ),
        (("--pd-decider", "never"), "disaggregation.decider has no effect without prefill_instances and decode_instances"),
        (
            ("--snapshot-refresh-interval", 50_000, "--num-instances", 2, "--routing-policy", "least-loaded"),
            "snapshot_refresh_interval_ms has no effect with a router that reads no load: it knows what is in flight",
        ),
        (
            ("--cache-signal-delay", 50_000, "--num-instances", 2, "--routing-policy", "round-robin"),
            "cache_signal_delay_ms has no effect with a router that does not look at prefix caches",
        ),
        (
            ("--latency", "linear:5,0.1,0.2"),
            "a step takes 5 + 0.1 per prefill token + 0.2 per decode µs (not ms?)",
        ),
        (("--enable-prefix-caching",), "a prefix cache finds nothing: no two prompts are alike without --prefix-tokens"),
    ],
)
def test_what_has_no_effect_is_warned_of(maitred: Any, flags: tuple[object, ...], words: str) -> None:
    result = maitred("simulate", *LOAD, *flags)
    assert result.code == 0
    assert f"maitred: warning: {words}\n" in result.err


@pytest.mark.parametrize(("column", "field", "is_warned_of"), [("", "", True), (",program,continues", ",a,true", False)])
def test_a_prefix_cache_is_warned_of_only_if_the_trace_says_nothing_of_prompts(
    maitred: Any, tmp_path: Path, column: str, field: str, is_warned_of: bool
) -> None:
    """The second prompt begins with the first one and its answer, 100 + 20 tokens: 7 blocks of 16."""
    trace = tmp_path / "trace.csv"
    rows = (f"0,default,100,20{field}", f"1,default,150,3{field}")
    trace.write_text("\n".join((f"arrival_secs,class,prompt_tokens,output_tokens{column}", *rows)))
    result = maitred("simulate", "--trace", trace, "--enable-prefix-caching", "--json")
    assert ("a prefix cache finds nothing" in result.err) is is_warned_of
    assert json.loads(result.out)["total_cached_tokens"] == (0 if is_warned_of else 112)


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--flavour", "vllm"),
        ("--scheduler", "vtc", "--tenant-mix", "auth:a:1,auth:b:1"),
        ("--scheduler", "slo", "--class-mix", "bulk:1,interactive:1"),
        ("--enable-prefix-caching", "--prefix-tokens", 100),
        (
            "--snapshot-refresh-interval",
            50_000,
            "--num-instances",
            2,
            "--routing-policy",
            "weighted",
            "--routing-scorers",
            "queue-depth:1",
        ),
    ],
)
def test_what_has_an_effect_is_not_warned_of(maitred: Any, flags: tuple[object, ...]) -> None:
    assert "warning" not in maitred("simulate", *LOAD, *flags).err


def test_a_share_of_memory_has_no_effect_beside_the_blocks_wherever_both_are_given(maitred: Any, tmp_path: Path) -> None:
    path = tmp_path / "maitred.yaml"
    path.write_text("instance: {model: qwen3-8b, gpu_memory_utilization: 0.5, total_kv_blocks: 5000}")
    words = "maitred: warning: gpu_memory_utilization 0.5 has no effect beside total_kv_blocks, which it is to find\n"
    assert words in maitred("simulate", *LOAD, "--config", path).err
    assert words in maitred("check", path).err
    path.write_text("instance: {model: qwen3-8b, gpu_memory_utilization: 0.5}")
    assert "gpu_memory_utilization" not in maitred("simulate", *LOAD, "--config", path).err
    assert words in maitred("simulate", *LOAD, "--config", path, "--total-kv-blocks", 5000).err


SHED = "admission: {policy: tier-shed, slo_priorities: {standard: 2}"
BUNDLES = [
    ("{}", "admission: {policy: reject-all}"),
    ("admission: {policy: token-bucket}", "admission: {policy: token-bucket, token_bucket_capacity: 500}"),
    (
        "admission: {policy: token-bucket, token_bucket_capacity: 500}",
        "admission: {policy: token-bucket, token_bucket_capacity: 500, token_bucket_refill_rate: 9000}",
    ),
    ("admission: {policy: tier-shed}", SHED + "}"),
    (SHED + "}", SHED + ", tier_shed_threshold: 10}"),
    (SHED + "}", SHED + ", tier_shed_min_priority: 2}"),
    ("admission: {policy: gaie-legacy}", "admission: {policy: gaie-legacy, slo_priorities: {batch: 1}}"),
    ("admission: {policy: gaie-legacy}", "admission: {policy: gaie-legacy, gaie_qd_threshold: 1}"),
    ("admission: {policy: gaie-legacy, gaie_qd_threshold: 99}", "admission: {policy: gaie-legacy, gaie_kv_threshold: 0.01}"),
    ("routing: {policy: least-loaded}", "routing: {policy: always-busiest}"),
    ("routing: {policy: weighted}", "routing: {policy: weighted, scorers: [{name: load-balance, weight: 1}]}"),
    ("scheduler: fcfs", "scheduler: sjf"),
    ("scheduler: priority-fcfs", "{scheduler: priority-fcfs, priority: {policy: static-slo-class}}"),
    ("priority: {policy: static-slo-class}", "{priority: {policy: static-slo-class}, preemption: {policy: priority}}"),
    ("tenant_budgets: {'auth:a': 1}", "tenant_budgets: {'auth:a': 0}"),
]


@pytest.mark.parametrize(("before", "after"), BUNDLES, ids=[after for _, after in BUNDLES])
def test_every_key_of_a_bundle_has_an_effect(maitred: Any, before: str, after: str) -> None:
    """Run standard and batch requests of one tenant on two instances with little memory."""
    classes = ("standard", "batch", "batch")
    rows = "".join(f"{n},auth:a,{classes[n % 3]},,{40 + n * 37 % 99},{9 + n % 40},{n * 900}\n" for n in range(80))
    header = "request_id,tenant_id,slo_class,prefix_group,input_tokens,output_tokens,arrival_time_us\n"
    Path("t.csv").write_text(header + rows)

    def outcome(bundle: str) -> Any:
        Path("b.yaml").write_text(bundle)
        limits = ("--num-instances", 2, "--max-num-seqs", 6, "--total-kv-blocks", 30, "--max-model-len", 400)
        run = ("simulate", "--trace", "blis:t.csv", *limits, "--policy-config", "b.yaml", "--quiet", "--results-path", "r.json")
        result = maitred(*run)
        assert result.code == 0, result.err
        return Path("r.json").read_text()

    assert outcome(before) != outcome(after)


@pytest.mark.parametrize("scheduler", ["lpm", "sglang(lpm)", "sglang(shortest-prefill-first)"])
def test_blis_always_has_a_prefix_cache_to_order_by(maitred: Any, scheduler: str) -> None:
    result = maitred("simulate", *LOAD, "--flavour", "blis", "--scheduler", scheduler)
    assert (result.code, "prefix cache" in result.err) == (0, False), result.err


def test_an_order_that_sglang_refuses_is_an_error_before_the_run(maitred: Any) -> None:
    result = maitred("simulate", *LOAD, "--scheduler", "sglang(shortest-prefill-first)")
    refusal = "maitred: error: SGLang refuses shortest-prefill-first without a prefix cache"
    assert (result.code != 0, result.err.startswith(refusal), result.err.count("\n")) == (True, True, 1), result.err
