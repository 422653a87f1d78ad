"""Which instance?

A router decides among the instances that it is shown; its driver leaves out those that cannot serve the request. Routers are
registered under the name that users type (`ROUTERS`), and so are the scorers that `weighted` adds up (`SCORERS`).

    policies.py       routers that look at load, and `weighted`; base.py: their registry, what they look at, ties
    weighted.py       routers for instances of unequal speed; instance_weights.py: their weights
    affinity.py       routers that remember where sessions and prefixes are; sent_prefixes.py: what was sent where
    hashing.py        routers that find the instance by a hash
    load_bound.py     how much busier an instance may be before its prefix or session is left
    scorers.py        the scorers; scorer_weights.py: how they are written with weights
    free_slots.py     which instances a router is shown where slots are a limit
    per_fleet.py      what a router keeps of a fleet
    core.py           a router that writes a log of what it read and chose; inputs.py: its lines as data
    block_sizes.py    which sizes of blocks a router asks prompts for
    config.py         the keys
"""

from __future__ import annotations

from maitred.routing.base import ROUTERS, BaseRouter, RouterInfo, Signals, check_policy, signals_read
from maitred.routing.block_sizes import asked_block_sizes
from maitred.routing.config import RoutingConfig
from maitred.routing.core import open_router
from maitred.routing.free_slots import with_free_slots
from maitred.routing.policies import in_flight_order
from maitred.routing.scorers import SCORERS, BaseScorer, Scorer, ViewScorer

__all__ = [
    "ROUTERS",
    "SCORERS",
    "BaseRouter",
    "BaseScorer",
    "RouterInfo",
    "RoutingConfig",
    "Scorer",
    "Signals",
    "ViewScorer",
    "asked_block_sizes",
    "check_policy",
    "in_flight_order",
    "open_router",
    "signals_read",
    "with_free_slots",
]
