"""Kinds of GPU by name, from the catalogue or from a hardware file as BLIS has it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from maitred.core.errors import ConfigError, nearest_name_hint
from maitred.instance.catalogue.entries import load_entries, names_in_lower_case, read_json
from maitred.instance.latency import HardwareSpec

_FILE = "hardware.toml"
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


def hardware_names() -> list[str]:
    return list(load_entries(_FILE))


def find_hardware(name: str, *, file: Path | None = None) -> HardwareSpec:
    """Return the GPU called `name`, in any case, from `file` (JSON as BLIS has it) if it is given. Raises ConfigError."""
    if file is not None:
        return _read_blis_hardware(name, file)
    known = names_in_lower_case(_FILE)
    plain = re.sub(r"^nvidia-", "", re.sub(r"[\s_]+", "-", name.strip().lower()))
    if plain not in known:
        raise ConfigError(f"unknown hardware {name!r}", where="hardware", hint=nearest_name_hint(plain, hardware_names()))
    found = known[plain]
    fields = {key: value for key, value in load_entries(_FILE)[found].items() if key != "also"}
    return msgspec.convert({"name": found, **fields}, HardwareSpec)


def _read_blis_hardware(name: str, file: Path) -> HardwareSpec:
    read: Any = read_json(file, "kinds of GPU", "JSON with a section per kind of GPU")
    sections = {key.lower(): (key, value) for key, value in read.items()} if isinstance(read, dict) else {}
    if name.lower() not in sections:
        raise ConfigError(
            f"it has no hardware {name!r}", where=str(file), hint=nearest_name_hint(name, [key for key, _ in sections.values()])
        )
    found, section = sections[name.lower()]
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


def _with_blis_keys(message: str) -> str:
    for their_key, our_key in _BLIS_KEYS.items():
        message = re.sub(rf"\b{our_key}\b", their_key, message)
    return message
