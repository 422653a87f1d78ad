"""Samples: what the cluster is like at regular instants.

A sample is taken when all has happened at its instant, before steps begin. It changes nothing: runs that it looks into are
counted as far as they have come, and go on.

Nobody knows beforehand how long a run will be. So samples are close at first, and whenever there are too many, every other one
is dropped and those to come are twice as far apart: there are always between half of `_MOST` and all of it, evenly spread, from
a run of a second or of a week.
"""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from maitred.core.errors import ConfigError
from maitred.core.units import Micros
from maitred.sim.event_queue import ArrivalFeed, EventQueue, SimEventKind
from maitred.sim.fleet import SimulatedFleet
from maitred.sim.pipeline import Pipeline
from maitred.sim.results import Samples

_MAX_SAMPLES = 256
"""More than a chart can show."""


class Sampler:
    """Takes a sample every so often, from 0 on, while anybody is here or expected; less often as the run goes on."""

    def __init__(
        self, every: Micros, agenda: EventQueue, arrivals: ArrivalFeed, pipeline: Pipeline, fleet: SimulatedFleet
    ) -> None:
        """`every` is the distance at first. Raises ConfigError unless it is at least 1."""
        if every < 1:
            raise ConfigError(f"samples cannot be taken every {every} µs", hint="1 or more")
        self._every = every
        self._event_queue = agenda
        self._arrivals = arrivals
        self._pipeline = pipeline
        self._fleet = fleet
        self._at = array("q")
        self._waiting, self._running, self._blocks, self._outside_instances = array("i"), array("i"), array("i"), array("i")
        agenda.push(0, SimEventKind.SAMPLE)

    def on_sample_due(self, _: int, now: Micros) -> None:
        """The next one is due then."""
        in_flight = 0
        for replica in self._fleet.replicas:
            instance = replica.instance
            instance.commit_ended_steps(now)
            self._waiting.append(instance.waiting)
            self._running.append(instance.running)
            self._blocks.append(instance.total_blocks - instance.free_blocks)
            in_flight += replica.in_flight
        self._at.append(now)
        self._outside_instances.append(len(self._pipeline.live) - in_flight)
        if len(self._at) > _MAX_SAMPLES:
            self._decimate()
        if self._arrivals or self._pipeline.live:
            self._event_queue.push(self._at[-1] + self._every, SimEventKind.SAMPLE)

    def _decimate(self) -> None:
        """Keep the first, the third and so on: the last is kept, as their number is odd."""
        self._every *= 2
        self._at, self._outside_instances = self._at[::2], self._outside_instances[::2]
        for column in (self._waiting, self._running, self._blocks):
            _keep_every_other(column, len(self._fleet.replicas))

    def samples(self) -> Samples:
        return Samples(
            at=np.array(self._at, dtype=np.int64),
            waiting=self._by_instance(self._waiting),
            running=self._by_instance(self._running),
            blocks_used=self._by_instance(self._blocks),
            total_blocks=self._fleet.replicas[0].instance.total_blocks,
            outside_instances=np.array(self._outside_instances, dtype=np.int32),
        )

    def _by_instance(self, values: array[int]) -> NDArray[np.int32]:
        return np.array(values, dtype=np.int32).reshape(len(self._at), -1)


def _keep_every_other(column: array[int], width: int) -> None:
    """Rows of `width` values."""
    kept = array(column.typecode)
    for start in range(0, len(column), 2 * width):
        kept += column[start : start + width]
    column[:] = kept
