"""Samples: the state of the cluster at regular instants, for charts.

A sample is taken after everything at its instant has happened, before steps begin. It changes no result: a run of steps into
which it falls is counted up to this instant, and goes on.

The length of a run is not known in advance. So samples are close at first. Whenever there are more than `_MAX_SAMPLES`, every
other one is dropped, and the distance of later samples doubles. So a run of a second and a run of a week both end with between
half of `_MAX_SAMPLES` and all of them, evenly spread (a very short run has fewer).

    _MAX_SAMPLES = 4, every 5 ms:   0 5 10 15 20  ->  0 10 20  ->  30 40 are added at a distance of 10  ->  0 20 40
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
"""More samples than a chart can show."""


class Sampler:
    """Takes samples at a growing distance, from 0 on, until no request is left or still to arrive."""

    def __init__(
        self, every: Micros, event_queue: EventQueue, arrivals: ArrivalFeed, pipeline: Pipeline, fleet: SimulatedFleet
    ) -> None:
        """`every` is the first distance, in µs. Raises ConfigError unless it is at least 1."""
        if every < 1:
            raise ConfigError(f"samples cannot be taken every {every} µs", hint="1 or more")
        self._every = every
        self._event_queue = event_queue
        self._arrivals = arrivals
        self._pipeline = pipeline
        self._fleet = fleet
        self._at, self._arrived, self._ended = array("q"), array("q"), array("q")
        self._waiting, self._running, self._blocks, self._outside_instances = array("i"), array("i"), array("i"), array("i")
        self._schedule(0)

    def on_sample_due(self, _: int, now: Micros) -> None:
        """Take a sample of all instances, and schedule the next one."""
        in_flight = 0
        for replica in self._fleet.replicas:
            instance = replica.instance
            # SAMPLE is the last kind at an instant, so the turns of all instances have gone by and steps that end now count.
            instance.commit_ended_steps(now)
            self._waiting.append(instance.waiting)
            self._running.append(instance.running)
            self._blocks.append(instance.total_blocks - instance.free_blocks)
            in_flight += replica.in_flight
        self._at.append(now)
        self._arrived.append(self._arrivals.num_arrived)
        self._ended.append(self._arrivals.num_arrived - len(self._pipeline.live))
        self._outside_instances.append(len(self._pipeline.live) - in_flight)
        if len(self._at) > _MAX_SAMPLES:
            self._decimate()
        if self._arrivals or self._pipeline.live:
            # Samples alone never keep a run going: without this condition the event queue would never be empty.
            self._schedule(self._at[-1] + self._every)

    def _schedule(self, at: Micros) -> None:
        self._event_queue.next_sample_at = at
        self._event_queue.push(at, SimEventKind.SAMPLE)

    def _decimate(self) -> None:
        """Keep the first sample, the third and so on. Their number is odd, so the last one is kept."""
        self._every *= 2
        self._at, self._outside_instances = self._at[::2], self._outside_instances[::2]
        self._arrived, self._ended = self._arrived[::2], self._ended[::2]
        for column in (self._waiting, self._running, self._blocks):
            _keep_every_other(column, len(self._fleet.replicas))

    def samples(self) -> Samples:
        totals = [replica.instance.total_blocks for replica in self._fleet.replicas]
        return Samples(
            at=np.array(self._at, dtype=np.int64),
            waiting=self._by_instance(self._waiting),
            running=self._by_instance(self._running),
            blocks_used=self._blocks_used(max(totals)),
            total_blocks=max(totals),
            outside_instances=np.array(self._outside_instances, dtype=np.int32),
            arrived=np.array(self._arrived, dtype=np.int64),
            ended=np.array(self._ended, dtype=np.int64),
        )

    def _blocks_used(self, most: int) -> NDArray[np.int32]:
        """Return the blocks in use, of instances with fewer than `most` blocks in proportion."""
        shares = np.array([most / replica.instance.total_blocks for replica in self._fleet.replicas])
        used: NDArray[np.int32] = np.rint(self._by_instance(self._blocks) * shares).astype(np.int32)
        return used

    def _by_instance(self, values: array[int]) -> NDArray[np.int32]:
        return np.array(values, dtype=np.int32).reshape(len(self._at), -1)


def _keep_every_other(column: array[int], width: int) -> None:
    """Keep every other row of `column`, which holds rows of `width` values, in place."""
    kept = array(column.typecode)
    for start in range(0, len(column), 2 * width):
        kept += column[start : start + width]
    column[:] = kept
