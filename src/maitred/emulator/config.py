"""The configuration of an emulated engine, beside its `instance` section."""

from __future__ import annotations

import math

import msgspec

from maitred.core.errors import ConfigError
from maitred.workload.lengths import parse_lengths


class EngineConfig(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The `engine` section. Raises ValueError for values that are out of range."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 9001
    """Port to listen on; 0 takes any free one."""
    model: str = "emulated"
    """Name of the one model it serves; any other is answered with 404."""
    output_tokens: str | int = "lognormal:200,150"
    """Output length where the request sets no limit: a number, `normal:MEAN,SD`, `lognormal:MEAN,SD` or `uniform:LOW,HIGH`, in
    tokens. `max_tokens` caps it; with `ignore_eos` an output has exactly `max_tokens`."""
    seed: int = 42
    """Seed of the output lengths: the n-th prompt has the same length in every run."""
    hide_slots: bool = False
    """Answer 404 to `/server_info`, which says how many sequences it runs at once, as vLLM does: gateways must learn it."""
    speed: float = 1.0
    """How many times faster than the latency model says; with 2 every step takes half as long."""
    max_body_bytes: int = 32 * 1024 * 1024
    """Largest request body, in bytes."""

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise ValueError("port must be from 0 to 65535")
        if not (math.isfinite(self.speed) and self.speed > 0):
            raise ValueError("speed must be a number above 0")
        if self.max_body_bytes < 1:
            raise ValueError("max_body_bytes must be at least 1")
        try:
            parse_lengths(self.output_tokens)
        except ConfigError as error:
            raise ValueError(f"output_tokens: {error}") from error
