"""The virtual world: the same cores, driven by one heap of events instead of clocks and sockets.

    config.py    ClusterConfig: how many instances, how many slots in front of them
    entrance.py  the admission in front of the router
    columns.py   Results: one row per request, in columns
    world.py     simulate: the event loop

Time is an integer number of microseconds and events at one instant have a fixed order, so that the same seed gives the same
bytes, with skipping on or off.
"""

from __future__ import annotations

from maitred.sim.columns import Outcome, Results
from maitred.sim.config import ClusterConfig
from maitred.sim.world import simulate

__all__ = ["ClusterConfig", "Outcome", "Results", "simulate"]
