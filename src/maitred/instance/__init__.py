"""One inference instance: queueing, batching and KV blocks, composed, with a latency model for its clock.

The owner of the time steps it: the simulator in virtual time, the emulated engine in real time. It decides nothing itself.

    instance.py            when steps start and end; time skipping
    engine_core.py         the sequences, and what a run of steps does to them
    async_scheduling.py    planning one step ahead
    config.py, events.py   what goes in, what comes out
    step_meter.py          how busy it was, and the gaps between tokens: how often each, and which request had which
    latency/               how long a step takes
    catalogue/             models and GPUs as data
"""

from __future__ import annotations

from maitred.instance.config import InstanceConfig
from maitred.instance.events import EventKind, InstanceEvent
from maitred.instance.instance import Instance
from maitred.instance.latency import LinearLatency, parse_latency

__all__ = ["EventKind", "Instance", "InstanceConfig", "InstanceEvent", "LinearLatency", "parse_latency"]
