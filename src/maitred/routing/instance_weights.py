"""The weights of instances for routers that know unequal ones."""

from __future__ import annotations

from math import isfinite
from typing import Final

import msgspec


class InstanceWeights(msgspec.Struct, frozen=True):
    """A weight above 0 for each instance by its index. Instances beyond the last weight have the weight 1."""

    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for weight in self.weights:
            if not (isfinite(weight) and weight > 0):
                raise ValueError(f"a weight must be a number above 0, not {weight:g}")

    def of(self, index: int) -> float:
        """Return the weight of an instance."""
        return self.weights[index] if index < len(self.weights) else 1.0


EQUAL_WEIGHTS: Final = InstanceWeights()
"""All instances are alike."""
