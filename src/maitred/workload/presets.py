"""Kinds of work by name, as BLIS ships them: how long prompts and answers are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec


class Spread(msgspec.Struct, frozen=True):
    """Lengths as BLIS's flags have them: normal, clamped to low..high. In tokens."""

    mean: float
    deviation: float
    low: int
    high: int

    def __str__(self) -> str:
        """As users write it."""
        return f"gaussian:{self.mean:g},{self.deviation:g},{self.low},{self.high}"


class Preset(msgspec.Struct, frozen=True):
    """A kind of work."""

    prompts: Spread
    answers: Spread


USUAL: Final = Preset(Spread(512, 256, 2, 7000), Spread(512, 256, 2, 7000))
"""BLIS's, where nothing is said."""

PRESETS: Final[Mapping[str, Preset]] = {
    "distribution": USUAL,
    "chatbot": Preset(Spread(256, 100, 2, 800), Spread(256, 100, 1, 1024)),
    "contentgen": Preset(Spread(1024, 150, 10, 2048), Spread(1024, 200, 10, 2048)),
    "summarization": Preset(Spread(4096, 500, 100, 8192), Spread(512, 150, 10, 2048)),
    "multidoc": Preset(Spread(10240, 1200, 500, 20480), Spread(1536, 300, 50, 4096)),
}
