"""Free slots: no instance gets more than its slots while another one has some left.

Slots are given out per model, so admission keeps a fleet to the sum of its slots, and nothing but routing keeps an instance to
its own number. A router is shown the instances with fewer sequences in flight than slots, whatever it goes by. If none has a
free slot, as when a request was admitted beyond what engines run at once, the router is shown all.

*Example.* Three instances of 4 slots with 4, 1 and 2 in flight: a router is shown the second and the third one, and an affinity
to the first one breaks.

This module is compiled (`[tool.maitred]` in pyproject.toml).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from maitred.core.contracts import InstanceView

T = TypeVar("T", bound=InstanceView)


def with_free_slots(instances: Sequence[T], slots_of: Callable[[T], int]) -> Sequence[T]:
    """Return those of `instances` that have fewer sequences in flight than `slots_of` says, or all of them if none has."""
    free = [instance for instance in instances if instance.in_flight < slots_of(instance)]
    return free if 0 < len(free) < len(instances) else instances
