"""Length presets: BLIS's kinds of work by name (`chatbot`), and its flags that override parts of them.

The lengths of prompts and of answers come from the first of these that is given:

    input_tokens: lognormal:500,200                    a distribution; it excludes the keys below
    prompt_tokens_stdev, _min, _max, and a mean        BLIS's clamped normal; parts that are missing come from the preset
    workload: chatbot                                  the preset alone
    (nothing)                                          normal:512,256

Example: `workload: chatbot` with `output_tokens: 300` gives prompts of gaussian:256,100,2,800 and answers of
gaussian:300,100,1,1024.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from maitred.core.errors import ConfigError, nearest_name_hint
from maitred.workload.lengths import parse_lengths

_DEFAULT_LENGTHS: Final = "normal:512,256"


class ClampedNormalParams(msgspec.Struct, frozen=True):
    """Lengths in tokens, as BLIS's flags describe them: normal, clamped to `low`..`high`."""

    mean: float
    deviation: float
    low: int
    high: int

    def __str__(self) -> str:
        """Return the distribution as users write it."""
        return f"gaussian:{self.mean:g},{self.deviation:g},{self.low},{self.high}"


class LengthPreset(msgspec.Struct, frozen=True):
    """A kind of work: the lengths of its prompts and of its answers."""

    prompts: ClampedNormalParams
    outputs: ClampedNormalParams


DEFAULT_PRESET: Final = LengthPreset(ClampedNormalParams(512, 256, 2, 7000), ClampedNormalParams(512, 256, 2, 7000))
"""BLIS's default."""

PRESETS: Final[Mapping[str, LengthPreset]] = {
    "distribution": DEFAULT_PRESET,
    "chatbot": LengthPreset(ClampedNormalParams(256, 100, 2, 800), ClampedNormalParams(256, 100, 1, 1024)),
    "contentgen": LengthPreset(ClampedNormalParams(1024, 150, 10, 2048), ClampedNormalParams(1024, 200, 10, 2048)),
    "summarization": LengthPreset(ClampedNormalParams(4096, 500, 100, 8192), ClampedNormalParams(512, 150, 10, 2048)),
    "multidoc": LengthPreset(ClampedNormalParams(10240, 1200, 500, 20480), ClampedNormalParams(1536, 300, 50, 4096)),
}


def length_arguments(values: Mapping[str, Any], spell: Callable[[str], str]) -> dict[str, str]:
    """Return the arguments `input_tokens` and `output_tokens` of a synthetic workload.

    `values` are those of the keys of a load, None where a key is not given; `spell` returns what the user calls a key. Raises
    ConfigError for an unknown preset, for keys that exclude each other, and for a preset that has no effect.
    """
    kind = values["workload"]
    if kind is None:
        return _lengths_by_preset(values, None, spell)
    if kind not in PRESETS:
        raise ConfigError(f"unknown kind of workload {kind!r}", where=spell("workload"), hint=nearest_name_hint(kind, PRESETS))
    lengths = _lengths_by_preset(values, PRESETS[kind], spell)
    if lengths == _lengths_by_preset(values, None, spell) and PRESETS[kind] != DEFAULT_PRESET:
        hint = f"leave it out, or {spell('input_tokens')} or {spell('output_tokens')}"
        raise ConfigError("it has no effect: the lengths are said without it", where=spell("workload"), hint=hint)
    return lengths


def _lengths_by_preset(values: Mapping[str, Any], preset: LengthPreset | None, spell: Callable[[str], str]) -> dict[str, str]:
    prompts, outputs = (None, None) if preset is None else (preset.prompts, preset.outputs)
    return {
        "input_tokens": _length_argument(values, "prompt_tokens", values["input_tokens"], prompts, spell),
        "output_tokens": _length_argument(values, "output_tokens", values["output_tokens"], outputs, spell),
    }


def _length_argument(
    values: Mapping[str, Any],
    prefix: str,
    given: str | int | None,
    preset: ClampedNormalParams | None,
    spell: Callable[[str], str],
) -> str:
    """Return one distribution as users write it. `prefix` begins the names of BLIS's keys for its parts."""
    keys = {"deviation": f"{prefix}_stdev", "low": f"{prefix}_min", "high": f"{prefix}_max"}
    parts = {part: value for part, key in keys.items() if (value := values[key]) is not None}
    mean = None if given is None else _as_number(given)
    if not parts and (preset is None or (given is not None and mean is None)):
        return _DEFAULT_LENGTHS if given is None else str(given)
    if given is not None and mean is None:
        first = spell(keys[next(iter(parts))])
        raise ConfigError(f"{given!r} has a spread of its own", where=first, hint="it goes with a mean, such as 512")
    # Both halves of the default preset are equal, so it does not matter which of them stands in.
    lengths = str(replace(preset or DEFAULT_PRESET.prompts, **parts, **({} if mean is None else {"mean": mean})))
    try:
        parse_lengths(lengths)
    except ConfigError as error:
        where = ", ".join(spell(keys[part]) for part in parts) or spell("workload")
        raise ConfigError(error.problem, where=where, hint=error.hint) from error
    return lengths


def _as_number(text: str | int) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
