"""Models and GPUs by the names that users type."""

from __future__ import annotations

from pathlib import Path

import pytest

from maitred.core.errors import ConfigError
from maitred.instance.catalogue import find_hardware, find_model, hardware_names, model_names
from maitred.instance.latency import HardwareSpec

BILLIONS = {
    "llama-3.1-8b": 8.03,
    "llama-3-8b": 8.03,
    "llama-3.1-70b": 70.55,
    "llama-2-7b": 6.74,
    "llama-4-scout-17b-16e": 107.8,
    "codellama-34b": 33.74,
    "qwen2.5-7b": 7.62,
    "qwen3-8b": 8.19,
    "qwen3-32b": 32.76,
    "qwen3-30b-a3b": 30.53,
    "qwen3-30b-a3b-instruct-2507": 30.53,
    "mistral-nemo-2407": 12.25,
    "mixtral-8x7b": 46.7,
    "yi-34b": 34.39,
    "granite-3.1-8b": 8.17,
    "deepseek-v3": 671.0,
    "deepseek-v2-lite": 15.71,
}
"""Parameters as published (without biases and the like)."""


def test_every_model_has_as_many_parameters_as_its_publisher_says() -> None:
    found = {name: find_model(name).params / 1e9 for name in model_names()}

    assert found == pytest.approx(BILLIONS, rel=1e-3)


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("meta-llama/llama-3.1-8b-instruct", "llama-3.1-8b"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("LLAMA-3.3-70B", "llama-3.1-70b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b-instruct-2507"),
        ("Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b"),
        ("codellama/CodeLlama-34b-Instruct-hf", "codellama-34b"),
        ("meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"),
    ],
)
def test_a_model_is_found_by_the_name_of_its_repository(typed: str, found: str) -> None:
    assert find_model(typed).name == found


@pytest.mark.parametrize(
    ("typed", "width"),
    [
        ("llama-3.1-8b", 2.0),
        ("RedHatAI/Llama-4-Scout-17B-16E-Instruct-FP8-dynamic", 1.0),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", 0.5),
        ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8", 1.0),
        ("deepseek-ai/DeepSeek-V3", 1.0),
    ],
)
def test_quantised_weights_are_said_in_the_name(typed: str, width: float) -> None:
    assert find_model(typed).weight_width == width


def test_an_unknown_model_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"model: unknown model 'qwen/qwen3-9b' \(did you mean 'qwen3-8b'\?"):
        find_model("qwen/qwen3-9b")


@pytest.mark.parametrize("typed", ["h100", "H100", "NVIDIA H100 SXM", "nvidia-h100-sxm5-80gb"])
def test_hardware_is_found_by_any_of_its_names(typed: str) -> None:
    assert find_hardware(typed).name == "H100"


def test_hardware_has_a_source_and_its_memory() -> None:
    for name in hardware_names():
        found = find_hardware(name)

        assert found.source
        assert found.memory_gib >= 24


def test_a_name_that_is_another_models_has_its_context() -> None:
    """Llama 3 has the shape of Llama 3.1, and takes 8,192 tokens."""
    assert find_model("meta-llama/Meta-Llama-3-8B").max_position_embeddings == 8192
    assert find_model("meta-llama/Llama-3.1-8B").max_position_embeddings == 131_072
    with pytest.raises(ConfigError, match="unknown model"):
        find_model("ibm-granite/granite-3.0-8b-instruct")  # of 4,096


def test_eight_bits_are_twice_as_fast_as_sixteen() -> None:
    """So both figures are those without sparsity."""
    for name in hardware_names():
        found = find_hardware(name)

        assert found.peak_tflops_fp8 == 0 or found.peak_tflops_fp8 == pytest.approx(2 * found.peak_tflops, rel=0.02)


def test_unknown_hardware_is_answered_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="hardware: unknown hardware 'H1000'"):
        find_hardware("H1000")


BLIS_FILE = """{"H100": {"TFlopsPeak": 989.5, "TFlopsFP8": 1979, "BwPeakTBs": 3.35, "mfuPrefill": 0.45, "mfuDecode": 0.3,
 "MemoryGiB": 80, "allReduceLatency": 20.0}}"""


def test_hardware_from_a_file_of_blis(tmp_path: Path) -> None:
    file = tmp_path / "hardware_config.json"
    file.write_text(BLIS_FILE)

    found = find_hardware("h100", file=file)

    assert found == HardwareSpec(
        name="H100",
        peak_tflops=989.5,
        peak_tflops_fp8=1979.0,
        bandwidth_tb_s=3.35,
        memory_gib=80.0,
        mfu_prefill=0.45,
        mfu_decode=0.3,
        source=str(file),
    )


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("{", "cannot read kinds of GPU"),
        ("[]", "it has no hardware 'H100'"),
        ('{"B200": {}}', "it has no hardware 'H100' .valid: B200"),
        ('{"H100": {"TFlopPeak": 1}}', "unknown key 'TFlopPeak' .did you mean"),
        ('{"H100": {"TFlopsPeak": 1}}', "H100: .*BwPeakTBs"),
        ('{"H100": {"TFlopsPeak": 1, "BwPeakTBs": 0}}', "BwPeakTBs must be above 0"),
    ],
)
def test_a_hardware_file_that_cannot_be_used(tmp_path: Path, text: str, wrong: str) -> None:
    file = tmp_path / "gpus.json"
    file.write_text(text)

    with pytest.raises(ConfigError, match=wrong) as raised:
        find_hardware("H100", file=file)

    assert raised.value.where == str(file)
