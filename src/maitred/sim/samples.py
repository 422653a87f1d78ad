"""Samples: what the cluster is like at regular instants.

A sample is taken when all has happened at its instant, before steps begin. It changes nothing: runs that it looks into are
counted as far as they have come, and go on.
"""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from maitred.errors import ConfigError
from maitred.sim.agenda import Agenda, Kind
from maitred.sim.arrivals import Arrivals
from maitred.sim.columns import Samples
from maitred.sim.fleet import Fleet
from maitred.sim.pipeline import Pipeline
from maitred.units import Micros


class Sampler:
    """Takes a sample every so often, from 0 on, while anybody is here or expected."""

    def __init__(self, every: Micros, agenda: Agenda, arrivals: Arrivals, pipeline: Pipeline, fleet: Fleet) -> None:
        """Raises ConfigError unless `every` is at least 1."""
        if every < 1:
            raise ConfigError(f"samples cannot be taken every {every} µs", hint="1 or more")
        self._every = every
        self._agenda = agenda
        self._arrivals = arrivals
        self._pipeline = pipeline
        self._fleet = fleet
        self._at = array("q")
        self._waiting, self._running, self._blocks, self._in_front = array("i"), array("i"), array("i"), array("i")
        agenda.push(0, Kind.SAMPLE)

    def take(self, _: int, now: Micros) -> None:
        """The next one is due then."""
        in_flight = 0
        for replica in self._fleet.replicas:
            instance = replica.instance
            instance.settle(now)
            self._waiting.append(instance.waiting)
            self._running.append(instance.running)
            self._blocks.append(instance.total_blocks - instance.free_blocks)
            in_flight += replica.in_flight
        self._at.append(now)
        self._in_front.append(len(self._pipeline.live) - in_flight)
        if self._arrivals or self._pipeline.live:
            self._agenda.push(now + self._every, Kind.SAMPLE)

    def samples(self) -> Samples:
        return Samples(
            at=np.array(self._at, dtype=np.int64),
            waiting=self._by_instance(self._waiting),
            running=self._by_instance(self._running),
            blocks_used=self._by_instance(self._blocks),
            total_blocks=self._fleet.replicas[0].instance.total_blocks,
            in_front=np.array(self._in_front, dtype=np.int32),
        )

    def _by_instance(self, values: array[int]) -> NDArray[np.int32]:
        return np.array(values, dtype=np.int32).reshape(len(self._at), -1)
