"""What an emulated engine is told beside its `instance` section."""

from __future__ import annotations

import math

import msgspec

from maitred.core.errors import ConfigError
from maitred.workload.lengths import parse_lengths


class EngineConfig(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The `engine` section. Raises ValueError for values that make no sense."""

    host: str = "127.0.0.1"
    port: int = 9001
    """0: any free port; the line that says it is listening names it."""
    model: str = "emulated"
    """The one model it serves; any other is answered with 404."""
    output_tokens: str | int = "lognormal:200,150"
    """How long answers are when nobody cuts them: a length distribution, in tokens. `max_tokens` caps it; with `ignore_eos`
    an answer has exactly `max_tokens`."""
    seed: int = 42
    """Of the stream of answer lengths: the n-th prompt has the same length in every run."""
    speed: float = 1.0
    """How many times faster than the latency model says; 2 makes every step take half as long."""
    max_body_bytes: int = 32 * 1024 * 1024

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
