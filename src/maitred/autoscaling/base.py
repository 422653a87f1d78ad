"""What autoscaling policies have in common: their registry, what they are shown, and their description."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from maitred.core.registry import Registry
from maitred.core.units import Micros


class FleetState(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet at one look."""

    serving: int
    """Instances to which requests are routed."""
    starting: int
    """Instances that will serve when their cold start is over."""
    in_flight: int
    """Requests that have arrived and not ended, except those at instances that drain."""
    waiting: int
    """Those of them that wait, for admission or in an instance."""
    running: int
    """Those of them that are in a batch."""
    slots: int
    """Sequences that the batches of the serving instances hold."""
    kv_usage: float
    """Used share of the KV blocks, 0..1, the mean of the serving instances."""
    ttfts: Sequence[Micros]
    """TTFT (µs) of each request that has ended since the last look and had a first token."""

    @property
    def size(self) -> int:
        """Instances that serve, or will."""
        return self.serving + self.starting


class Autoscaler(Protocol):
    """A policy that says how many instances there should be."""

    def desired(self, state: FleetState) -> int:
        """Return how many instances should serve. The driver keeps to the minimum and the maximum."""
        ...


class AutoscalerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a user must know to choose a policy; each class carries one as `about`."""

    summary: str
    """How many instances it wants, in one line without a full stop and without its name."""
    reads: str
    """What it looks at, in words."""


AUTOSCALERS: Registry[Autoscaler] = Registry(
    "autoscaling policy",
    Autoscaler,
    group="maitred.autoscalers",
    packages=["maitred.autoscaling"],
    methods=["desired"],
    flag="--autoscaling-policy",
    headings={"summary": "wants", "reads": "looks at"},
)
