"""One inference instance: queueing, batching and KV blocks, composed, with a latency model for its clock.

Whoever owns the time steps it: the simulator in virtual time, the emulated engine in real time. It decides nothing itself.
"""

from __future__ import annotations

from random import Random

from maitred.instance.async_scheduling import AsyncScheduledInstance
from maitred.instance.blis import BlisInstance
from maitred.instance.config import InstanceConfig
from maitred.instance.engine import Instance
from maitred.instance.events import EventKind, InstanceEvent
from maitred.instance.latency import LinearLatency, parse_latency

__all__ = ["EventKind", "Instance", "InstanceConfig", "InstanceEvent", "LinearLatency", "new_instance", "parse_latency"]


def new_instance(config: InstanceConfig, rng: Random) -> Instance:
    """An instance of the flavour that `config` says. Raises ConfigError for an unknown scheduler."""
    if config.async_scheduling:
        return AsyncScheduledInstance(config, rng)
    return BlisInstance(config, rng) if config.flavour == "blis" else Instance(config, rng)
