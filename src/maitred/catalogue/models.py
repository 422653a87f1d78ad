"""Models by the names that users type, from the catalogue or from a config.json of Hugging Face."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from maitred.catalogue.entries import entries, names
from maitred.catalogue.hugging_face import read_config
from maitred.errors import ConfigError, nearest
from maitred.instance.latency import ModelSpec

_FILE = "models.toml"
_TUNED = re.compile(r"-(?:instruct|chat|base|it|hf)(?=-|$)")
"""What says how a model was tuned, and nothing of its shape."""
_EIGHT_BITS = re.compile(r"-fp8(?:-dynamic|-block)?$")
_BITS = re.compile(r"[-.](?:quantized[-.])?w(\d+)a\d+$")
"""Weights of so many bits, as in w4a16."""


def model_names() -> list[str]:
    return list(entries(_FILE))


def find_model(name: str) -> ModelSpec:
    """The model called `name`: with or without its publisher, any case (`meta-llama/llama-3.1-8b-instruct`), with -fp8 or
    -w4a16 behind it if its weights are quantised; or the config.json at the path `name`, or in that folder. Raises
    ConfigError."""
    path = Path(name)
    if name.endswith(".json") or path.joinpath("config.json").is_file():
        return read_config(path if name.endswith(".json") else path / "config.json")
    known = names(_FILE)
    plain = name.strip().lower().rsplit("/", 1)[-1]
    weight_bytes = 0.0
    if _EIGHT_BITS.search(plain):
        plain, weight_bytes = _EIGHT_BITS.sub("", plain), 1.0
    elif bits := _BITS.search(plain):
        plain, weight_bytes = _BITS.sub("", plain), int(bits[1]) / 8
    for each in (plain, _TUNED.sub("", plain)):
        if each in known:
            return _spec(known[each], weight_bytes)
    hint = f"{nearest(plain, known)} or give the path of its config.json"
    raise ConfigError(f"unknown model {name!r}", where="model", hint=hint)


def _spec(name: str, weight_bytes: float) -> ModelSpec:
    fields = {key: value for key, value in entries(_FILE)[name].items() if key not in ("also", "source")}
    if weight_bytes:
        fields["weight_bytes"] = weight_bytes
    return msgspec.convert({"name": name, **fields}, ModelSpec)
