"""The simulator: the cores of the live system, driven by one heap of events instead of clocks and sockets.

    simulator.py         simulate: the event loop
    event_queue.py       the heap, the order of events at one instant, the arrivals
    direct_pipeline.py   the same path where only a router stands before the instances
    stages.py            what else may stand there
    pipeline.py          the path of a request: admission, routing, entry, end
    request_state.py     a request on this path, and the delays that it spends
    programs_driver.py   the programs core in front of admission, and its choice of an instance
    stream_progress.py   how far streams have come, as a gateway sees it
    shared_tokens.py     the KV tokens that programs at one instance share
    program_statistics.py    makespans, pauses, imbalance
    admission_driver.py  the admission core in front of the router
    slot_learning.py     learned slots in virtual time
    lifecycle.py         what these may do to a request
    fleet.py             the instances, and when each is due next
    instance_groups.py   unequal ones: what follows from their names, their weights
    membership.py        which of them serve, and the time in each state
    failures.py          instances that fail and come back
    fleet_scaler.py      instances that are started and drained
    replica.py           one of them, as routers see it
    snapshots.py         the same when routers see a stale state
    disaggregation.py    prefill and decode in separate instances
    rows.py              the rows of a run under way
    results.py           Results: one row per request, in columns
    timeline_log.py      what happened to single requests beside the instants in their rows
    samples.py           the state of the instances at regular instants
    config.py            ClusterConfig: instances, slots, delays, P/D
    fleet_config.py      the sections of it that are about what happens to instances

Time is an integer number of microseconds, and events at one instant have a fixed order. So one seed gives one result, byte for
byte, with skipped steps or without.

Modules that need numpy are imported on first use, because a gateway reads the same configuration and starts without numpy.
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
    """Import a public name on its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'maitred.sim' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
