"""Everything that follows from the names of a model and a kind of GPU."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from maitred.core.contracts import BatchShape, ChunkShape
from maitred.core.errors import ConfigError
from maitred.instance import Instance, InstanceConfig
from maitred.instance.catalogue import find_deployment, find_hardware, find_model, num_kv_blocks, resolve_instance
from maitred.instance.latency import Deployment, LinearLatency, RooflineLatency, TrainedPhysicsLatency

LLAMA = "meta-llama/llama-3.1-8b-instruct"
PROMPT = BatchShape(0, 0, 450, (ChunkShape(450, 0, 450),))


def test_a_model_brings_its_latency_its_blocks_and_its_longest_context() -> None:
    found = resolve_instance(InstanceConfig(model=LLAMA, latency="trained-physics"))

    assert found.latency_model().step_time(PROMPT) == 7825  # as BLIS recorded it
    assert (found.total_kv_blocks, found.max_model_len) == (26312, 131072)


def test_the_flavour_of_blis_has_its_step_times() -> None:
    default = resolve_instance(InstanceConfig(flavour="blis", model=LLAMA))
    roofline = resolve_instance(InstanceConfig(flavour="blis", model=LLAMA, latency="roofline"))

    assert isinstance(default.latency, TrainedPhysicsLatency)
    assert default.latency_model().step_time(PROMPT) == 7825
    assert roofline.latency_model().step_time(PROMPT) == 10429  # as BLIS recorded it


def test_without_measured_kernels_a_step_takes_the_floors_of_the_hardware() -> None:
    """8,000 tokens of 8 billion parameters are 130 ms of arithmetic at the peak of an H100, which reaches 67 % of it; weights
    of 15 GB are read at 80 % of 3.35 TB/s."""
    model = resolve_instance(InstanceConfig(model=LLAMA, latency="roofline")).latency_model()

    assert model.step_time(BatchShape(0, 0, 8000, (ChunkShape(8000, 0, 8000),))) == pytest.approx(130_000 / 0.67, rel=0.01)
    assert model.step_time(BatchShape(1, 100)) == pytest.approx(15.01e9 / (0.8 * 3.35e6), rel=0.01)


def test_gpus_that_share_a_layer_pay_for_their_all_reduces() -> None:
    """With TP 2 each of 32 layers sums 4,096 elements of 2 bytes of 100 tokens twice: 819,200 bytes at 450 GB/s, 10 µs."""
    decode = BatchShape(100, 100)
    alone, both = (
        resolve_instance(InstanceConfig(model=LLAMA, latency="roofline", tensor_parallel_size=tp))
        .latency_model()
        .step_time(decode)
        for tp in (1, 2)
    )

    assert both - alone / 2 == pytest.approx(64 * (819_200 / 450e3 + 10), abs=2)


@pytest.mark.parametrize(("hardware", "said"), [("H200", 2), ("H100", 1)])
def test_trained_physics_says_what_it_was_not_fitted_to(hardware: str, said: int) -> None:
    found = resolve_instance(
        InstanceConfig(model=LLAMA, hardware=hardware, latency="trained-physics", max_num_batched_tokens=8192)
    )

    warnings = [*found.step_time_warnings()]

    assert len(warnings) == said
    assert "whose arithmetic takes" in warnings[-1]


def test_what_is_said_stands() -> None:
    said = InstanceConfig(
        model=LLAMA,
        flavour="blis",
        enable_prefix_caching=True,
        latency=RooflineLatency(),
        total_kv_blocks=2100,
        max_model_len=900,
    )

    found = resolve_instance(said)

    assert found.latency_model().step_time(PROMPT) == 10429  # likewise
    assert (found.total_kv_blocks, found.max_model_len) == (2100, 900)
    assert resolve_instance(InstanceConfig(model=LLAMA, latency=LinearLatency())).latency == LinearLatency()


def test_less_of_the_memory_leaves_fewer_blocks() -> None:
    """0.4 less of 80 GiB are 32 GiB: 16,384 blocks of 2 MiB."""
    less = InstanceConfig(model=LLAMA, gpu_memory_utilization=0.5, latency=RooflineLatency())
    assert resolve_instance(less).total_kv_blocks == 26_312 - 16_384
    with pytest.raises(ConfigError, match=r"wants 21 GiB before any KV, and 1 x H100 give it 8 .*larger --gpu-memory-ut"):
        resolve_instance(replace(less, gpu_memory_utilization=0.1))
    assert InstanceConfig(gpu_memory_utilization=0.5).warnings(prefix_cache=False) == [
        "gpu_memory_utilization 0.5 has no effect without model"
    ]


@pytest.mark.parametrize("share", [0.0, 1.1, float("nan")])
def test_a_share_of_the_memory_is_above_0_and_at_most_1(share: float) -> None:
    with pytest.raises(ValueError, match="gpu_memory_utilization must be above 0 and at most 1"):
        InstanceConfig(gpu_memory_utilization=share)


def test_a_latency_model_of_another_deployment_keeps_it() -> None:
    other = RooflineLatency(on("llama-3.1-70b", "H200", 4))

    assert resolve_instance(InstanceConfig(model=LLAMA, latency=other)).latency == other


def test_the_context_is_no_longer_than_the_blocks_hold() -> None:
    assert resolve_instance(InstanceConfig(model=LLAMA, total_kv_blocks=100)).max_model_len == 1600


def test_resolving_again_changes_nothing() -> None:
    once = resolve_instance(InstanceConfig(model=LLAMA, tensor_parallel_size=2, hardware="a100"))

    assert resolve_instance(once) == once


def test_without_a_model_the_usual_holds() -> None:
    found = resolve_instance(InstanceConfig())

    assert (found.latency, found.kv_blocks, found.max_model_len) == (LinearLatency(), 27_000, None)


def test_an_instance_of_a_model_that_was_not_looked_up_says_so() -> None:
    with pytest.raises(ConfigError, match="has not been looked up yet"):
        Instance(InstanceConfig(model=LLAMA), Random(0))


def test_an_analytic_model_needs_a_model() -> None:
    with pytest.raises(ConfigError, match="roofline needs a model"):
        resolve_instance(InstanceConfig(latency=RooflineLatency()))


def test_files_instead_of_the_catalogue(tmp_path: Path) -> None:
    shape = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 1024}
    (tmp_path / "config.json").write_text(json.dumps(shape | {"vocab_size": 100}))
    gpus = tmp_path / "gpus.json"
    gpus.write_text('{"Abacus": {"TFlopsPeak": 1, "BwPeakTBs": 0.1, "MemoryGiB": 8}}')
    config = InstanceConfig(model_config_folder=str(tmp_path), hardware="abacus", hardware_config=str(gpus))

    on = find_deployment(config)

    assert (on.model.hidden_size, on.model.num_kv_heads, on.hardware.name) == (512, 8, "Abacus")
    assert resolve_instance(config).total_kv_blocks == num_kv_blocks(on, 16)
    assert config.warnings(prefix_cache=False) == []


def test_gpus_without_a_model_are_hardly_meant() -> None:
    config = InstanceConfig(hardware="A100", tensor_parallel_size=2)

    assert config.warnings(prefix_cache=False) == [
        "hardware A100 has no effect without model",
        "tensor_parallel_size 2 has no effect without model",
    ]


def test_gpus_that_do_not_divide_the_heads() -> None:
    with pytest.raises(ConfigError, match=r"must divide the 32 heads of llama-3\.1-8b, not 3"):
        resolve_instance(InstanceConfig(model=LLAMA, tensor_parallel_size=3))


def test_gpus_that_do_not_share_the_kv_heads_evenly() -> None:
    with pytest.raises(ConfigError, match=r"divide the 4 KV heads of qwen2\.5-7b, or be a multiple of them, not 7"):
        resolve_instance(InstanceConfig(model="qwen2.5-7b", tensor_parallel_size=7))
    assert resolve_instance(InstanceConfig(model="qwen3-30b-a3b", tensor_parallel_size=8)).total_kv_blocks


def test_a_model_that_leaves_no_room_for_a_prompt(tmp_path: Path) -> None:
    shape = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 1024, "vocab_size": 100}
    (tmp_path / "config.json").write_text(json.dumps(shape | {"max_position_embeddings": 1}))

    with pytest.raises(ConfigError, match="max_model_len must be at least 2"):
        resolve_instance(InstanceConfig(model=str(tmp_path)))


def test_a_scale_beyond_all_reason() -> None:
    config = InstanceConfig(latency_scale=1e6)

    with pytest.raises(ConfigError, match=r"latency_scale 1e\+06 makes .* more than 3.6e\+09 µs"):
        config.latency_model()


@pytest.mark.parametrize(
    ("model", "hardware", "tp", "blocks"),
    [
        # (72 - 14.96 - 5.5 - 0.15) GiB at 512 blocks per GiB
        ("llama-3.1-8b", "H100", 1, 26312),
        # as BLIS's own tests have it, since it divides by what a token takes on all GPUs: (571.2 - 20.46) GiB at 512 per GiB
        ("llama-3.1-8b", "H100", 8, 281980),
        ("llama-3.1-70b", "H200", 8, 178889),
        # each of 8 KV heads is on two GPUs: (1142.4 - 20.46) GiB at 256 per GiB
        ("llama-3.1-8b", "H100", 16, 287217),
    ],
)
def test_kv_blocks(model: str, hardware: str, tp: int, blocks: int) -> None:
    assert num_kv_blocks(on(model, hardware, tp), 16) == blocks


def test_compressed_kv_is_on_every_gpu() -> None:
    """Another 2 H100 add (72 - 0.6) · 2 GiB, of which a token takes its 576 · 61 · 2 bytes on each of 16 (18) GPUs."""
    token = (512 + 64) * 61 * 2
    fewer = num_kv_blocks(on("deepseek-v3", "H100", 16), 1)

    weights = find_model("deepseek-v3").params
    assert fewer == int(((72 - 0.6) * 16 * 2**30 - 8 * 2**30 - weights) / (16 * token))


def test_ranks_of_data_parallelism_share_the_experts() -> None:
    model, gpu = find_model("qwen3-30b-a3b"), find_hardware("RTXPRO6000")
    experts = 48 * 128 * 3 * 2048 * 768

    both = num_kv_blocks(Deployment(model=model, hardware=gpu, data_parallel_size=2), 1)

    weights = 2 * (2 * (model.params - experts) + experts)
    room = 2 * (96 * 0.9 - 0.6 - 8) * 2**30 - weights
    assert both == int(room / (48 * 2 * 4 * 128 * 2))


def test_a_model_that_does_not_fit() -> None:
    with pytest.raises(ConfigError, match=r"llama-3.1-70b wants 137 GiB before any KV, and 1 x H100 give it 72"):
        num_kv_blocks(on("llama-3.1-70b", "H100", 1), 16)


def on(model: str, hardware: str, tp: int) -> Deployment:
    return Deployment(model=find_model(model), hardware=find_hardware(hardware), tensor_parallel_size=tp)
