"""What was simulated, in one line, and the settings that were in force."""

from __future__ import annotations

import pytest

from maitred.admission import AdmissionConfig
from maitred.instance import InstanceConfig, LinearLatency
from maitred.instance.catalogue import resolve_instance
from maitred.report import RunSetup, derived_keys
from maitred.routing import RoutingConfig
from maitred.sim import ClusterConfig

OFF = AdmissionConfig(mode="off")


def setup_of(stated: InstanceConfig, cluster: ClusterConfig | None = None, admission: AdmissionConfig = OFF) -> RunSetup:
    resolved = resolve_instance(stated)
    sections = {
        "cluster": cluster or ClusterConfig(),
        "instance": resolved,
        "routing": RoutingConfig(policy="round-robin"),
        "admission": admission,
    }
    return RunSetup(seed=7, sections=sections, derived=derived_keys(stated, resolved))


def line(stated: InstanceConfig, cluster: ClusterConfig | None = None, admission: AdmissionConfig = OFF) -> str:
    return setup_of(stated, cluster, admission).in_one_line()


def test_a_run_without_a_model_names_no_gpu() -> None:
    said = line(InstanceConfig())
    assert said == (
        "generic linear model, no particular GPU; 1 instance; a step takes 5,000 µs + 17.5 per prefill token + 60 per decode, "
        "error unknown; 27,000 KV blocks of 16 tokens each, the default; order fcfs, no admission; seed 7; maitred 0.1.0"
    )


def test_a_model_is_named_with_its_gpus_the_error_and_the_memory() -> None:
    said = line(InstanceConfig(model="llama-3.1-8b", tensor_parallel_size=2, scheduler="sjf"), ClusterConfig(num_instances=3))
    assert said.startswith(
        "llama-3.1-8b on 3 instances of 2 × H100 (TP 2); trained-physics latency model, published error 5.5%"
    )
    assert "KV blocks of 16 tokens each, what fits beside the model at 90% of the memory; " in said
    assert "order sjf, router round-robin, no admission" in said


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        (InstanceConfig(model="llama-3.1-8b", hardware="H200"), "no error published for H200"),
        (InstanceConfig(model="llama-3.1-8b", latency="roofline"), "roofline latency model, error unknown"),
        (InstanceConfig(latency_error=0.04), "error 4.0% as configured"),
        (InstanceConfig(latency_scale=1.5), "all steps × 1.5"),
        (InstanceConfig(total_kv_blocks=500), "500 KV blocks of 16 tokens each, as given"),
        (InstanceConfig(latency=LinearLatency((1.0, 2.0, 3.0))), "no model, no particular GPU; 1 instance; a step takes 1 µs"),
        (InstanceConfig(enable_prefix_caching=True), "order fcfs, prefix caching, no admission"),
        (InstanceConfig.of_flavour("sglang"), "flavour sglang"),
    ],
)
def test_what_is_particular_to_a_run_is_in_its_line(stated: InstanceConfig, words: str) -> None:
    assert words in line(stated)


def test_admission_is_in_the_line() -> None:
    said = line(InstanceConfig(), ClusterConfig(capacity=8), AdmissionConfig(mode="priority"))
    assert "admission priority of 8 slots" in said


def keys(setup: RunSetup, section: str) -> set[str]:
    return set(setup.settings_in_force()[section])


def test_settings_without_effect_are_left_out() -> None:
    setup = setup_of(InstanceConfig())
    assert keys(setup, "instance").isdisjoint({"hardware", "tensor_parallel_size", "gpu_memory_utilization", "prefix_cache"})
    assert not any(key.startswith("sglang.") for key in keys(setup, "instance"))
    assert keys(setup, "admission") == {"mode", "policy"}
    assert keys(setup, "routing") == {"policy"}  # given, though one instance leaves nothing to choose
    assert not any(key.startswith("disaggregation") for key in keys(setup, "cluster"))


def test_settings_in_force_are_shown() -> None:
    setup = setup_of(
        InstanceConfig(model="llama-3.1-8b", enable_prefix_caching=True),
        ClusterConfig(num_instances=2),
        AdmissionConfig(mode="flow-control"),
    )
    assert keys(setup, "instance") >= {"model", "hardware", "tensor_parallel_size", "prefix_cache", "total_kv_blocks"}
    assert "flow_control.max_concurrency" in keys(setup, "admission")
    assert "legacy.queue_size" not in keys(setup, "admission")


def test_what_was_given_is_shown_even_without_effect() -> None:
    setup = setup_of(InstanceConfig(hardware="A100"))
    assert setup.settings_in_force()["instance"]["hardware"] == ("A100", False)
