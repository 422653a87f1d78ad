"""A Hugging Face config.json as a `ModelSpec`. Families name the same thing differently; all that is needed is looked for
under every name it goes by, and what is not found is said."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from maitred.errors import ConfigError
from maitred.instance.latency import AttentionRanks, ModelSpec

_HEADS = ("num_attention_heads", "n_head")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "multi_query_group_num")
_INTERMEDIATE = ("intermediate_size", "ffn_hidden_size", "n_inner")
_EXPERTS = ("num_local_experts", "num_routed_experts", "n_routed_experts", "num_experts")
_GATED = ("", "silu", "swiglu", "geglu", "gelu_pytorch_tanh")
_BYTES = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0, "int8": 1.0, "uint8": 1.0, "fp8": 1.0}
_UNSCALED = ("default", "llama3", "longrope", "su", "mrope")
"""Kinds of rope scaling whose max_position_embeddings is the scaled length already (as vLLM reads them)."""


def read_config(path: Path) -> ModelSpec:
    """Raises ConfigError if it cannot be read, or lacks what is needed."""
    try:
        read: Any = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        hint = "give the path of a Hugging Face config.json, or of its folder"
        raise ConfigError(f"cannot read the model's configuration: {error}", where=str(path), hint=hint) from error
    if not isinstance(read, dict):
        raise ConfigError("a model's configuration is a JSON object", where=str(path))
    config = {**read, **read.get("text_config", {})} if isinstance(read.get("text_config"), dict) else read
    try:
        return _spec(path.parent.name or str(path), config)
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error), where=str(path)) from error


def _spec(name: str, config: Mapping[str, Any]) -> ModelSpec:
    activation = str(config.get("hidden_act") or "")
    if activation not in _GATED:
        raise ValueError(
            f"its feed-forward layers are not gated (hidden_act {activation}): no formula here is for such a model"
        )
    heads = _number(config, *_HEADS)
    experts = next((value for key in _EXPERTS if (value := _number(config, key, default=0)) > 1), 0)
    per_expert = _number(config, "moe_intermediate_size", default=0)
    intermediate = _number(config, "intermediate_size_mlp", default=0) or _number(config, *_INTERMEDIATE)
    if experts and not per_expert:
        per_expert = _number(config, *_INTERMEDIATE)
    return ModelSpec(
        name=name,
        num_layers=_number(config, "num_hidden_layers", "num_layers", "n_layer"),
        hidden_size=_number(config, "hidden_size", "n_embd"),
        num_heads=heads,
        num_kv_heads=_number(config, *_KV_HEADS, default=heads),
        intermediate_size=intermediate,
        vocab_size=_number(config, "vocab_size"),
        head_dim=_number(config, "head_dim", default=0),
        max_position_embeddings=_longest(config),
        bytes_per_element=_element_bytes(config),
        weight_bytes=_weight_bytes(config.get("quantization_config")),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        num_experts=experts,
        experts_per_token=_number(config, "num_experts_per_tok", default=0) if experts else 0,
        expert_intermediate_size=per_expert if experts else 0,
        shared_intermediate_size=_shared(config, per_expert) if experts else 0,
        first_dense_layers=_number(config, "first_k_dense_replace", default=0) if experts else 0,
        interleave_moe_layer_step=_number(config, "interleave_moe_layer_step", default=0) if experts else 0,
        latent_attention=_latent(config),
    )


def _number(config: Mapping[str, Any], *keys: str, default: int | None = None) -> int:
    """The first of `keys` that is there and not 0."""
    for key in keys:
        value = config.get(key)
        if value is not None and not isinstance(value, int):
            raise ValueError(f"{key} must be a whole number, not {value!r}")
        if value:
            return int(value)
    if default is None:
        raise ValueError(f"it has no {' or '.join(keys)}")
    return default


def _longest(config: Mapping[str, Any]) -> int:
    """Longest context in tokens, with the scaling of rotary embeddings; 0: not said."""
    length = _number(config, "max_position_embeddings", "n_positions", "seq_length", default=0)
    scaling = config.get("rope_scaling")
    if not isinstance(scaling, dict):
        return length
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    factor = scaling.get("factor")
    if kind in _UNSCALED or not isinstance(factor, int | float):
        return length
    return int(_number(scaling, "original_max_position_embeddings", default=length) * factor)


def _element_bytes(config: Mapping[str, Any]) -> float:
    kind = config.get("torch_dtype", config.get("dtype", "bfloat16"))
    if kind not in _BYTES:
        raise ValueError(f"unknown torch_dtype {kind!r} (known: {', '.join(_BYTES)})")
    return _BYTES[kind]


def _weight_bytes(quantization: Any) -> float:
    """Per parameter; 0: not quantised. Where groups of weights differ, as the first one."""
    if not isinstance(quantization, dict):
        return 0.0
    bits = quantization.get("bits", quantization.get("w_bit"))
    if bits is not None:
        return int(bits) / 8
    if str(quantization.get("quant_method", "")).lower() == "fp8":
        return 1.0
    groups = quantization.get("config_groups")
    if isinstance(groups, dict):
        for name in sorted(groups):
            weights = groups[name].get("weights") if isinstance(groups[name], dict) else None
            if isinstance(weights, dict) and weights.get("num_bits"):
                return float(weights["num_bits"]) / 8
    return 0.0


def _shared(config: Mapping[str, Any], per_expert: int) -> int:
    """Elements of all shared experts together."""
    said = _number(config, "shared_expert_intermediate_size", default=0)
    return said or _number(config, "n_shared_experts", default=0) * per_expert


def _latent(config: Mapping[str, Any]) -> AttentionRanks | None:
    if not config.get("kv_lora_rank"):
        return None
    return AttentionRanks(
        kv_lora_rank=_number(config, "kv_lora_rank"),
        qk_rope_head_dim=_number(config, "qk_rope_head_dim"),
        qk_nope_head_dim=_number(config, "qk_nope_head_dim"),
        v_head_dim=_number(config, "v_head_dim"),
        q_lora_rank=_number(config, "q_lora_rank", default=0),
    )
