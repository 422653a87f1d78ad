"""A Hugging Face config.json as a model. The files are shortened to the relevant keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from maitred.core.errors import ConfigError
from maitred.instance.catalogue import find_model
from maitred.instance.latency import AttentionRanks, ModelSpec

LLAMA: dict[str, Any] = {
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rope_scaling": {"factor": 8.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
DEEPSEEK = {
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    "rope_scaling": {"factor": 40, "original_max_position_embeddings": 4096, "type": "yarn"},
    "torch_dtype": "bfloat16",
    "v_head_dim": 128,
    "vocab_size": 129280,
}


@pytest.fixture
def read(tmp_path: Path) -> Any:
    folder = tmp_path / "some-model"
    folder.mkdir()

    def write_and_read(config: Any, *, by_folder: bool = False) -> ModelSpec:
        file = folder / "config.json"
        file.write_text(config if isinstance(config, str) else json.dumps(config))
        return find_model(str(folder if by_folder else file))

    return write_and_read


def test_llama_is_the_one_of_the_catalogue(read: Any) -> None:
    found = read(LLAMA)

    assert found.name == "some-model"
    assert {**_fields(found), "name": ""} == {**_fields(find_model("llama-3.1-8b")), "name": ""}


def test_a_folder_will_do(read: Any) -> None:
    assert read(LLAMA, by_folder=True) == read(LLAMA)


def test_deepseek_is_the_one_of_the_catalogue(read: Any) -> None:
    found, known = read(DEEPSEEK), find_model("deepseek-v3")

    assert {**_fields(found), "name": ""} == {**_fields(known), "name": ""}
    assert found.latent_attention == AttentionRanks(
        kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128, q_lora_rank=1536
    )


def test_rope_scaling_lengthens_the_context(read: Any) -> None:
    scaling = {"type": "linear", "factor": 4.0}

    assert read(LLAMA | {"rope_scaling": scaling, "max_position_embeddings": 4096}).max_position_embeddings == 16384


def test_llama_4_is_the_one_of_the_catalogue(read: Any) -> None:
    text = {
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 5120,
        "interleave_moe_layer_step": 1,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "max_position_embeddings": 10485760,
        "num_attention_heads": 40,
        "num_experts_per_tok": 1,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "num_local_experts": 16,
        "vocab_size": 202048,
    }

    assert {**_fields(read({"text_config": text})), "name": ""} == {**_fields(find_model("llama-4-scout")), "name": ""}


def test_a_type_that_is_not_said_is_sixteen_bits(read: Any) -> None:
    assert read(LLAMA | {"torch_dtype": None}).bytes_per_element == 2.0
    assert read({key: value for key, value in LLAMA.items() if key != "torch_dtype"} | {"dtype": "float32"}).weight_width == 4.0


def test_the_text_part_of_a_model_that_also_sees(read: Any) -> None:
    assert read({"vision_config": {}, "text_config": LLAMA}).hidden_size == 4096


@pytest.mark.parametrize(
    ("quantization", "width"),
    [
        ({"bits": 4, "quant_method": "awq"}, 0.5),
        ({"quant_method": "fp8"}, 1.0),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 8}}}}, 1.0),
        ({"quant_method": "compressed-tensors", "config_groups": {"a": 1, "b": {"weights": {"num_bits": 4}}}}, 0.5),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 0.5),
        ({"quant_method": "bitsandbytes", "load_in_4bit": False, "load_in_8bit": True}, 1.0),
        ({"quant_method": "mxfp4"}, 4.25 / 8),
        ({}, 2.0),
    ],
)
def test_quantised_weights(read: Any, quantization: object, width: float) -> None:
    assert read(LLAMA | {"quantization_config": quantization}).weight_width == width


@pytest.mark.parametrize(
    ("config", "wrong"),
    [
        ("{", "cannot read the model's configuration"),
        ("[]", "a model's configuration is a JSON object"),
        ({k: v for k, v in LLAMA.items() if k != "vocab_size"}, "it has no vocab_size"),
        (LLAMA | {"hidden_act": "relu"}, "not gated .hidden_act relu."),
        (LLAMA | {"num_hidden_layers": "32"}, "num_hidden_layers must be a whole number"),
        (LLAMA | {"torch_dtype": "float7"}, "unknown torch_dtype 'float7'"),
        (LLAMA | {"num_local_experts": 8}, "experts_per_token must be from 1"),
        (LLAMA | {"hidden_act": None, "activation": "gelu"}, "not gated .activation gelu."),
        (LLAMA | {"num_hidden_layers": True}, "num_hidden_layers must be a whole number"),
        (LLAMA | {"head_dim": -128}, "head_dim must be from 0"),
        (LLAMA | {"vocab_size": 10**30}, "vocab_size must be from 1"),
        (LLAMA | {"rope_scaling": {"rope_type": "yarn", "factor": 1e308}}, "rope_scaling.factor must be above 0"),
        (LLAMA | {"rope_scaling": {"type": "linear", "factor": -3}}, "rope_scaling.factor must be above 0"),
        (LLAMA | {"quantization_config": {"quant_method": "hqq"}}, "quantization_config .hqq. does not say how wide"),
        (LLAMA | {"quantization_config": {"bits": "auto"}}, "does not say how wide"),
        (DEEPSEEK | {"interleave_moe_layer_step": -1}, "interleave_moe_layer_step must be from 0"),
        (DEEPSEEK | {"first_k_dense_replace": 61}, "with first_dense_layers 61 no layer has experts"),
        (DEEPSEEK | {"decoder_sparse_step": 2}, "only some of its layers have experts"),
        (DEEPSEEK | {"qk_rope_head_dim": -64}, "qk_rope_head_dim must be from 1"),
    ],
)
def test_what_cannot_be_used(read: Any, config: Any, wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong) as raised:
        read(config)

    assert raised.value.where.endswith("config.json")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the model's configuration"):
        find_model(str(tmp_path / "none.json"))


def _fields(spec: ModelSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in spec.__struct_fields__}


def test_a_limit_that_does_not_exist_is_infinity_as_python_writes_it(read: Any) -> None:
    assert read({**LLAMA, "time_step_limit": [0.0, float("inf")]}) == read(LLAMA)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1, True, "4096"])
@pytest.mark.parametrize("name", ["hidden_size", "vocab_size", "max_position_embeddings"])
def test_a_property_that_is_used_must_be_a_number(read: Any, name: str, wrong: object) -> None:
    with pytest.raises(ConfigError, match=name):
        read({**LLAMA, name: wrong})
