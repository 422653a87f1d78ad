"""Holdings: what has held the slots of pools over time, for the stories of requests that waited meanwhile.

A sample is what a pool looks like behind an input that concerned it. Two samples of a pool are `interval` apart at least; where
the samples are of one wait only (`begin`), also a hundredth of its age, so that a wait of any length has some hundred of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from typing import Any, Final

import msgspec

from maitred.core.units import Micros
from maitred.replay.state import pool_state
from maitred.replay.story import Holding

LIVE_INTERVAL: Final[Micros] = 100_000
_MAX_SAMPLES: Final = 5_000
_MAX_TENANTS: Final = 5
_MAX_TOLD: Final = 10


class _Sample(msgspec.Struct, frozen=True, gc=False):
    at: Micros
    pool: str
    state: dict[str, Any]
    tenants: dict[str, int]


class Holdings:
    """Samples of pools, the last `_MAX_SAMPLES`."""

    def __init__(self, interval: Micros) -> None:
        self._interval = interval
        self._samples: deque[_Sample] = deque(maxlen=_MAX_SAMPLES)
        self._tenants: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """Requests that hold a slot, by pool and tenant."""
        self._sampled_at: dict[str, Micros] = {}
        self._began: Micros | None = None

    def begin(self, at: Micros) -> None:
        """Forget all samples: those that come are of a wait that has begun."""
        self._samples.clear()
        self._sampled_at.clear()
        self._began = at

    def count(self, pool: str, tenant: str, change: int) -> None:
        """Count a request of a tenant that got a slot (1), or has one no more (-1)."""
        held = self._tenants[pool]
        held[tenant] += change
        if not held[tenant]:
            del held[tenant]

    def sample(self, core: Any, pool: str, at: Micros) -> None:
        """Note what a pool of an admission core looks like, if that was not done just now."""
        age = 0 if self._began is None else (at - self._began) // 100
        last = self._sampled_at.get(pool)
        if last is not None and at - last < max(self._interval, age):
            return
        state = state_of_pool(core, pool)
        if state is not None:
            self._sampled_at[pool] = at
            self._samples.append(_Sample(at, pool, state, dict(self._tenants[pool].most_common(_MAX_TENANTS))))

    def during(self, pool: str, tenant: str, began: Micros, ended: Micros | None) -> list[Holding]:
        """Return the holders of the slots during a wait, thinned evenly to at most `_MAX_TOLD` changes."""
        seen = [
            _holding(each, tenant, began)
            for each in self._samples
            if each.pool == pool and each.at >= began and (ended is None or each.at < ended)
        ]
        told = _changes(seen)
        return _changes(told[:: -(-len(told) // _MAX_TOLD) or 1])


def state_of_pool(core: Any, pool: str) -> dict[str, Any] | None:
    """Return the state of the pool of a model; None without a core, or without pools."""
    names = () if core is None else core.pool_names
    return pool_state(core.view(pool if pool in names else names[0])) if names else None


def _holding(sample: _Sample, tenant: str, began: Micros) -> Holding:
    classes = sample.state["classes"]
    held = {name: each["in_flight"] for name, each in classes.items() if each["in_flight"]}
    back = {name: each["held_back"] for name, each in classes.items() if each["held_back"]}
    return Holding((sample.at - began) / 1000, sample.state["slots"], held, back, sample.tenants.get(tenant, 0))


def _changes(seen: list[Holding]) -> list[Holding]:
    """Return those that differ from the one before in more than their instant."""
    return [
        each
        for before, each in zip([None, *seen], seen, strict=False)
        if before is None or msgspec.structs.replace(each, ms=before.ms) != before
    ]
