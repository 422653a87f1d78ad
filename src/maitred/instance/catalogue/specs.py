"""Models and GPUs by name: from the data files of the catalogue, or from a file of the user.

A model may come from a Hugging Face config.json. Model families use different keys for the same property, so each needed
property is looked up under all its keys, and a missing one is reported. A kind of GPU may come from a hardware file as BLIS has
it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from maitred.core.errors import JSON_ERRORS, ConfigError, describe_json_error, describe_os_error, nearest_name_hint, quote
from maitred.core.python_json import decode_python_json
from maitred.files import read_input
from maitred.instance.latency import AttentionRanks, HardwareSpec, ModelSpec

Entry = dict[str, Any]


@cache
def load_entries(file: str) -> Mapping[str, Entry]:
    """Return the content of `file` by name. The keys of an entry are `also` (other names) and the fields of its struct."""
    return tomllib.loads(Path(__file__).with_name(file).read_text(encoding="utf-8"))


@cache
def names_in_lower_case(file: str) -> Mapping[str, str]:
    """Return the name of an entry by each of its names in lower case."""
    found = {}
    for name, entry in load_entries(file).items():
        for each in (name, *entry.get("also", ())):
            found[each.lower()] = name
    return found


def read_json(path: Path, what: str, hint: str) -> Any:
    """Return the content of a file of the user. Raises ConfigError, with `hint`, if it cannot be read as `what`."""
    try:
        return decode_python_json(read_input(path))
    except OSError as error:
        raise ConfigError(f"cannot read {what}: {describe_os_error(error)}", where=str(path), hint=hint) from error
    except JSON_ERRORS as error:
        raise ConfigError(f"cannot read {what}: {describe_json_error(str(error))}", where=str(path), hint=hint) from error


_HEADS = ("num_attention_heads", "n_head")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "multi_query_group_num")
_INTERMEDIATE = ("intermediate_size", "ffn_hidden_size", "n_inner")
_EXPERTS = ("num_local_experts", "num_routed_experts", "n_routed_experts", "num_experts")
_GATED = ("", "silu", "swiglu", "geglu", "gelu_pytorch_tanh")
_ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function", "activation")
_BYTES = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0, "int8": 1.0, "uint8": 1.0, "fp8": 1.0}
_MOST_SCALING = 100_000
_WIDEST_BITS = 32
_METHODS = {"fp8": 8, "fbgemm_fp8": 8, "mxfp4": 4.25}
"""Bits of a weight; in mxfp4 a block of 32 weights has a scale of 8 bits."""
_UNSCALED = ("default", "llama3", "longrope", "su", "mrope")
"""Kinds of rope scaling with max_position_embeddings as the scaled length (as vLLM reads them)."""
_MODELS_FILE = "models.toml"
_TUNED = re.compile(r"-(?:instruct|chat|base|it|hf)(?=-|$)")
"""Parts of a name that say how a model was tuned, which does not change its shape."""
_EIGHT_BITS = re.compile(r"-fp8(?:-dynamic|-block)?$")
_BITS = re.compile(r"[-.](?:quantized[-.])?w(\d+)a\d+$")
"""Weights of a number of bits, as in w4a16."""


def config_path(folder: Path) -> Path:
    """Return the path of a model's config.json, by its folder or by itself."""
    return folder if folder.suffix == ".json" else folder / "config.json"


def read_model_config(path: Path) -> ModelSpec:
    """Read a config.json. Raises ConfigError if it cannot be read, or lacks a needed property."""
    hint = "give the path of a Hugging Face config.json, or of its folder"
    read: Any = read_json(path, "the model's configuration", hint)
    if not isinstance(read, dict):
        raise ConfigError("a model's configuration is a JSON object", where=str(path))
    # A multimodal model has its language model one level down, and what both levels say is said there.
    config = {**read, **read.get("text_config", {})} if isinstance(read.get("text_config"), dict) else read
    try:
        return _spec_from_config(path.parent.name or str(path), config)
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error), where=str(path)) from error


def _spec_from_config(name: str, config: Mapping[str, Any]) -> ModelSpec:
    _check_supported(config)
    heads = _integer(config, *_HEADS)
    return ModelSpec(
        name=name,
        num_layers=_integer(config, "num_hidden_layers", "num_layers", "n_layer"),
        hidden_size=_integer(config, "hidden_size", "n_embd"),
        num_heads=heads,
        num_kv_heads=_integer(config, *_KV_HEADS, default=heads),
        intermediate_size=_integer(config, "intermediate_size_mlp", default=0) or _integer(config, *_INTERMEDIATE),
        vocab_size=_integer(config, "vocab_size"),
        head_dim=_integer(config, "head_dim", default=0),
        max_position_embeddings=_max_context(config),
        bytes_per_element=_element_bytes(config),
        weight_bytes=_weight_bytes(config.get("quantization_config")),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        latent_attention=_latent_attention(config),
        **_expert_sizes(config),
    )


def _expert_sizes(config: Mapping[str, Any]) -> dict[str, int]:
    """Return the fields of a mixture of experts; none for a dense model, whatever else its configuration says of them."""
    experts = next((value for key in _EXPERTS if (value := _integer(config, key, default=0)) > 1), 0)
    if not experts:
        return {}
    # Some mixtures (Mixtral) have only experts, and call their size what dense models call theirs.
    per_expert = _integer(config, "moe_intermediate_size", default=0) or _integer(config, *_INTERMEDIATE)
    return {
        "num_experts": experts,
        "experts_per_token": _integer(config, "num_experts_per_tok", default=0),
        "expert_intermediate_size": per_expert,
        "shared_intermediate_size": _shared_expert_size(config, per_expert),
        "first_dense_layers": _integer(config, "first_k_dense_replace", default=0),
        "interleave_moe_layer_step": _integer(config, "interleave_moe_layer_step", default=0),
    }


def _check_supported(config: Mapping[str, Any]) -> None:
    """Raise ValueError for a model that no formula here covers."""
    for key in _ACTIVATIONS:
        if str(config.get(key) or "") not in _GATED:
            raise ValueError(
                f"its feed-forward layers are not gated ({key} {config[key]}): no formula here is for such a model"
            )
    if _integer(config, "decoder_sparse_step", default=1) != 1 or config.get("mlp_only_layers"):
        raise ValueError(
            "only some of its layers have experts (decoder_sparse_step, mlp_only_layers): no formula here is for that"
        )


def _integer(config: Mapping[str, Any], *keys: str, default: int | None = None) -> int:
    """Return the value of the first of `keys` that exists and is not 0."""
    for key in keys:
        value = config.get(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise ValueError(f"{key} must be a whole number, not {quote(value)}")
        if value:
            return int(value)
    if default is None:
        raise ValueError(f"it has no {' or '.join(keys)}")
    return default


def _max_context(config: Mapping[str, Any]) -> int:
    """Return the longest context in tokens, with the scaling of rotary embeddings; 0 if it is not stated."""
    length = _integer(config, "max_position_embeddings", "n_positions", "seq_length", default=0)
    scaling = config.get("rope_scaling")
    if not isinstance(scaling, dict):
        return length
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    factor = scaling.get("factor")
    if kind in _UNSCALED or factor is None:
        return length
    if not isinstance(factor, int | float) or not 0 < factor <= _MOST_SCALING:
        raise ValueError(f"rope_scaling.factor must be above 0 and at most {_MOST_SCALING:,}, not {factor!r}")
    return int(_integer(scaling, "original_max_position_embeddings", default=length) * factor)


def _element_bytes(config: Mapping[str, Any]) -> float:
    kind = config.get("torch_dtype") or config.get("dtype") or "bfloat16"
    if not isinstance(kind, str) or kind not in _BYTES:
        raise ValueError(f"unknown torch_dtype {kind!r} (known: {', '.join(_BYTES)})")
    return _BYTES[kind]


def _weight_bytes(quantization: Any) -> float:
    """Return the bytes per parameter; 0 if the weights are not quantised.

    Where groups of weights differ, the first one counts. Raises ValueError if the width of the weights is not stated.
    """
    if not isinstance(quantization, dict) or not quantization:
        return 0.0
    method = str(quantization.get("quant_method", "")).lower()
    bits = _METHODS.get(method, quantization.get("bits", quantization.get("w_bit")))
    if quantization.get("load_in_4bit") or quantization.get("load_in_8bit"):
        bits = 4 if quantization.get("load_in_4bit") else 8
    groups = quantization.get("config_groups")
    # compressed-tensors puts layers into groups, each with a width of its own.
    if bits is None and isinstance(groups, dict):
        bits = next((found for name in sorted(groups) if (found := _group_bits(groups[name]))), None)
    if not isinstance(bits, int | float) or not 0 < bits <= _WIDEST_BITS:
        raise ValueError(f"quantization_config ({method}) does not say how wide weights are: add bits to it")
    return bits / 8


def _group_bits(group: Any) -> Any:
    weights = group.get("weights") if isinstance(group, dict) else None
    return weights.get("num_bits") if isinstance(weights, dict) else None


def _shared_expert_size(config: Mapping[str, Any], per_expert: int) -> int:
    """Return the elements of all shared experts together. Llama 4 has one that it does not state, as wide as the others."""
    if config.get("intermediate_size_mlp"):
        return per_expert
    stated = _integer(config, "shared_expert_intermediate_size", default=0)
    return stated or _integer(config, "n_shared_experts", default=0) * per_expert


def _latent_attention(config: Mapping[str, Any]) -> AttentionRanks | None:
    if not config.get("kv_lora_rank"):
        return None
    return AttentionRanks(
        kv_lora_rank=_integer(config, "kv_lora_rank"),
        qk_rope_head_dim=_integer(config, "qk_rope_head_dim"),
        qk_nope_head_dim=_integer(config, "qk_nope_head_dim"),
        v_head_dim=_integer(config, "v_head_dim"),
        q_lora_rank=_integer(config, "q_lora_rank", default=0),
    )


def model_names() -> list[str]:
    return list(load_entries(_MODELS_FILE))


def find_model(name: str) -> ModelSpec:
    """Return the model called `name`, or that of the config.json at the path `name` or in that folder. Raises ConfigError.

    A name may have its publisher, any case (`meta-llama/llama-3.1-8b-instruct`), and -fp8 or -w4a16 for quantised weights.
    """
    path = Path(name)
    if name.endswith(".json") or path.joinpath("config.json").is_file():
        return read_model_config(path if name.endswith(".json") else path / "config.json")
    known = names_in_lower_case(_MODELS_FILE)
    plain = name.strip().lower().rsplit("/", 1)[-1]
    weight_bytes = 0.0
    # The suffix says how wide the weights are. What is left must be the name of a model that is known.
    if _EIGHT_BITS.search(plain):
        plain, weight_bytes = _EIGHT_BITS.sub("", plain), 1.0
    elif bits := _BITS.search(plain):
        plain, weight_bytes = _BITS.sub("", plain), int(bits[1]) / 8
    for each in (plain, _TUNED.sub("", plain)):
        if each in known:
            return _spec_from_entry(known[each], weight_bytes)
    hint = f"{nearest_name_hint(plain, known)} or give the path of its config.json"
    raise ConfigError(f"unknown model {name!r}", where="model", hint=hint)


def _spec_from_entry(name: str, weight_bytes: float) -> ModelSpec:
    fields = {key: value for key, value in load_entries(_MODELS_FILE)[name].items() if key not in ("also", "source")}
    if weight_bytes:
        fields["weight_bytes"] = weight_bytes
    return msgspec.convert({"name": name, **fields}, ModelSpec)


_GPUS_FILE = "hardware.toml"
_BLIS_KEYS = {
    "TFlopsPeak": "peak_tflops",
    "TFlopsFP8": "peak_tflops_fp8",
    "BwPeakTBs": "bandwidth_tb_s",
    "MemoryGiB": "memory_gib",
    "mfuPrefill": "mfu_prefill",
    "mfuDecode": "mfu_decode",
}
_RETIRED = frozenset(
    {
        *("BwEffConstant", "TOverheadMicros", "perLayerOverhead", "allReduceLatency", "tpScalingExponent", "prefillBwFactor"),
        *("mfuPrefillMultiplier", "mfuDecodeMultiplier", "decodeBwFactor", "vectorPeakFraction", "prefillOverheadMicros"),
        *("mixedPrefillOverheadMicros", "bwEfficiencyFactor", "perLayerCPUOverhead"),
    }
)
"""Keys of older hardware files that no formula uses any more."""


_OWN_GPU = """or describe it: --hardware-config FILE with {"NAME": {"TFlopsPeak": ..., "BwPeakTBs": ..., "MemoryGiB": ...}}"""
"""The end of the hint for an unknown GPU."""


def hardware_names() -> list[str]:
    return list(load_entries(_GPUS_FILE))


def hardware_name(name: str) -> str:
    """Return the name that the catalogue has for a GPU, which may be written in any case; of an unknown one a plain form."""
    plain = re.sub(r"^nvidia-", "", re.sub(r"[\s_]+", "-", name.strip().lower()))
    return names_in_lower_case(_GPUS_FILE).get(plain, plain)


def find_hardware(name: str, *, file: Path | None = None) -> HardwareSpec:
    """Return the GPU called `name`, in any case, from `file` (JSON as BLIS has it) if it is given. Raises ConfigError."""
    if file is not None:
        return _read_blis_hardware(name, file)
    found = hardware_name(name)
    if found not in load_entries(_GPUS_FILE):
        hint = f"{nearest_name_hint(found, hardware_names())} {_OWN_GPU}"
        raise ConfigError(f"unknown hardware {name!r}", where="hardware", hint=hint)
    fields = {key: value for key, value in load_entries(_GPUS_FILE)[found].items() if key != "also"}
    return msgspec.convert({"name": found, **fields}, HardwareSpec)


def _read_blis_hardware(name: str, file: Path) -> HardwareSpec:
    found, section = _blis_section(name, file)
    unknown = [key for key in section if key not in _BLIS_KEYS and key not in _RETIRED] if isinstance(section, dict) else []
    if unknown:
        raise ConfigError(
            f"{found} has an unknown key {unknown[0]!r}", where=str(file), hint=nearest_name_hint(unknown[0], _BLIS_KEYS)
        )
    try:
        fields = {our_key: section[their_key] for their_key, our_key in _BLIS_KEYS.items() if their_key in section}
        return msgspec.convert({"name": found, "source": str(file), **fields}, HardwareSpec)
    except (TypeError, msgspec.ValidationError) as error:
        raise ConfigError(f"{found}: {_with_blis_keys(str(error))}", where=str(file)) from error


def _blis_section(name: str, file: Path) -> tuple[str, Any]:
    """Return the section for a kind of GPU, in any case, and its name there. Raises ConfigError."""
    read: Any = read_json(file, "kinds of GPU", "JSON with a section per kind of GPU")
    sections = {key.lower(): (key, value) for key, value in read.items()} if isinstance(read, dict) else {}
    if name.lower() not in sections:
        hint = nearest_name_hint(name, [key for key, _ in sections.values()])
        raise ConfigError(f"it has no hardware {name!r}", where=str(file), hint=hint)
    return sections[name.lower()]


def _with_blis_keys(message: str) -> str:
    for their_key, our_key in _BLIS_KEYS.items():
        message = re.sub(rf"\b{our_key}\b", their_key, message)
    return message
