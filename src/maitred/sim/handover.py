"""The handover: where a prompt goes that others compute than those who answer it, and how its KV comes from there.

See `disaggregation` for who goes where. A request that is parted counts as in flight in both instances.
"""

from __future__ import annotations

from maitred.request import Request
from maitred.seq import Seq
from maitred.sim.agenda import Kind
from maitred.sim.disaggregation import Pools
from maitred.sim.fleet import Fleet
from maitred.sim.journey import Journey, Place
from maitred.sim.replica import Replica
from maitred.sim.stations import Stations
from maitred.units import Micros


class Handover:
    """See the module."""

    def __init__(self, pools: Pools, stations: Stations, fleet: Fleet) -> None:
        self._pools = pools
        self._stations = stations
        self._fleet = fleet

    def first(self, journey: Journey, now: Micros) -> Replica:
        """Where it goes first."""
        way = self._pools.choose(journey.job.request, now)
        if way.prefill is None:
            return way.decode
        journey.then = way.decode
        way.decode.in_flight += 1
        return way.prefill

    def left(self, request: Request, replica: Replica, now: Micros) -> None:
        """Whoever chose `replica` for it is told that it has left."""
        self._pools.left(request, replica, now)

    def send(self, journey: Journey, then: Replica, seq: Seq, now: Micros) -> None:
        """Its prompt is computed: its KV goes where the rest is."""
        here, request = journey.replica, journey.job.request
        assert here is not None
        here.in_flight -= 1
        self.left(request, here, now)
        journey.replica, journey.then, journey.came = then, None, seq
        journey.place = Place.ENTERING
        self._stations.later(journey, now + self._pools.begin_transfer(request), Kind.TRANSFER)

    def arrived(self, station: int, now: Micros) -> None:
        """KV has come."""
        self._pools.end_transfer()
        journey = self._stations.leave(station)
        if journey is None:
            return
        replica, job = journey.replica, journey.job
        assert replica is not None
        journey.place = Place.INSIDE
        replica.instance.enqueue(job.request, job.output_tokens, now, job.whole, carried=journey.came)
        self._fleet.touched[replica] = None
