"""How long a step takes. A latency model is its own configuration, told apart in a file by `model`."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from maitred.contracts import BatchShape, Overheads
from maitred.errors import ConfigError, nearest
from maitred.units import SECOND, Micros

_HOUR = 3600 * SECOND


class LinearLatency(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="model", tag="linear"):
    """step = β0 + β1 * prefill tokens + β2 * decode tokens, in µs, truncated to a whole µs, at least 1 (BLIS `blackbox`)."""

    beta: tuple[float, float, float] = (5000.0, 17.5, 60.0)

    def __post_init__(self) -> None:
        if not all(0 <= b <= _HOUR for b in self.beta):
            raise ValueError(f"beta must be three numbers from 0 to {_HOUR:g} (µs: an hour), not {self.beta}")

    @property
    def overheads(self) -> Overheads:
        return Overheads()

    def step_time(self, batch: BatchShape) -> Micros:
        b0, b1, b2 = self.beta
        return int(b0 + b1 * batch.prefill + b2 * batch.decodes) or 1

    def run_time(self, batch: BatchShape, steps: int) -> Micros:
        return steps * self.step_time(batch)

    def steps_within(self, batch: BatchShape, span: Micros, limit: int) -> int:
        return min(limit, span // self.step_time(batch))


def parse_latency(text: str) -> LinearLatency:
    """A latency model as flags write it: `linear:β0,β1,β2` (µs). Raises ConfigError."""
    name, _, rest = text.partition(":")
    if name not in _PARSERS:
        raise ConfigError(f"unknown latency model {name!r}", hint=nearest(name, _PARSERS))
    return _PARSERS[name](rest)


def _parse_linear(text: str) -> LinearLatency:
    try:
        b0, b1, b2 = (float(part) for part in text.split(","))
        return LinearLatency((b0, b1, b2))
    except ValueError as error:
        hint = "three numbers from 0 to 3.6e9: linear:β0,β1,β2, as in linear:5000,17.5,60 (µs; per step, prefill token, decode)"
        raise ConfigError(f"cannot read the latency model 'linear:{text}'", hint=hint) from error


_PARSERS: dict[str, Callable[[str], LinearLatency]] = {"linear": _parse_linear}
