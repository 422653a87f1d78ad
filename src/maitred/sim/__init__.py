"""The virtual world: the same cores, driven by one heap of events instead of clocks and sockets.

    config.py          ClusterConfig: how many instances, how many slots in front of them, how long the way to them takes
    world.py           simulate: the event loop
    agenda.py          what is due when, and the order of things at one instant
    arrivals.py        who is expected
    journey.py         a request on its way
    pipeline.py        that way: admission, routing, entry, end
    delays.py          how long it takes
    entrance.py        the admission in front of the router
    fleet.py           the instances, and who is to be asked when
    replica.py         one of them, as it is
    snapshots.py       what routers see of them, when that is not what they are
    disaggregation.py  prompts in some of them, answers in others
    gaps.py            whose the gaps between tokens were
    columns.py         Results: one row per request, in columns
    rows.py            results in the making
    samples.py         what instances are like at regular instants

Time is an integer number of microseconds and events at one instant have a fixed order, so that the same seed gives the same
bytes, with skipping on or off.

What needs numpy is imported when it is asked for: a gateway reads the same configuration, and starts without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from maitred.sim.config import ClusterConfig, DisaggregationConfig

if TYPE_CHECKING:
    from maitred.sim.results import InstanceTotals, Outcome, Results, Samples
    from maitred.sim.simulator import simulate

__all__ = ["ClusterConfig", "DisaggregationConfig", "InstanceTotals", "Outcome", "Results", "Samples", "simulate"]

_HOMES = {
    "InstanceTotals": "maitred.sim.results",
    "Outcome": "maitred.sim.results",
    "Results": "maitred.sim.results",
    "Samples": "maitred.sim.results",
    "simulate": "maitred.sim.simulator",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'maitred.sim' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
