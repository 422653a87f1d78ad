"""The event loop of the virtual world: what is due next, until nothing is, or the horizon has passed.

The order of things at one instant is that of `agenda`; what happens to a request is `pipeline`'s affair, what happens in an
instance its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop
from random import Random
from typing import TypeAlias

from msgspec.structs import replace

from maitred.admission import AdmissionConfig
from maitred.catalogue import resolved
from maitred.decisions import DecisionLog
from maitred.instance import InstanceConfig
from maitred.routing import RoutingConfig
from maitred.sim.agenda import Agenda, Kind
from maitred.sim.arrivals import Arrivals
from maitred.sim.columns import Results
from maitred.sim.config import ClusterConfig
from maitred.sim.delays import delays
from maitred.sim.disaggregation import Pools
from maitred.sim.entrance import entrance
from maitred.sim.fleet import Fleet
from maitred.sim.pipeline import Pipeline
from maitred.sim.rows import PassingRows, Rows, Sink
from maitred.sim.samples import Sampler
from maitred.units import Micros
from maitred.workload import Job

_NO_HORIZON: Micros = 1 << 62
_Act: TypeAlias = Callable[[int, Micros], None]


def simulate(
    jobs: Iterable[Job],
    cluster: ClusterConfig | None = None,
    instance: InstanceConfig | None = None,
    routing: RoutingConfig | None = None,
    admission: AdmissionConfig | None = None,
    *,
    seed: int = 42,
    horizon: Micros | None = None,
    progress: Callable[[int], None] | None = None,
    log: DecisionLog | None = None,
    sink: Sink | None = None,
    sample_every: Micros | None = None,
    log_gaps: bool = False,
) -> Results:
    """Run `jobs`, given in the order of arrival, through a cluster, until all have ended or `horizon` (µs) has passed.

    `admission` stands before the router, in the mode that it says; None: with the usual classes if `cluster.capacity` is
    given, else nothing does. `progress` is told now and then how many have arrived; `log` receives admission's inputs and
    decisions. Jobs are read one at a time; a reactive workload (`workload.Reactive`) is told of every end. `sink` receives the
    rows, block by block as requests end, and none is kept: memory does not grow with their number. `sample_every` (µs): take
    samples of the instances. `log_gaps`: keep whose the gaps between tokens were (`Results.gaps`), which costs 3 to 12 %
    of its time. Raises ConfigError for unknown policies, for limits and reservations that cannot be, and for jobs out of
    order.
    """
    cluster, instance = cluster or ClusterConfig(), resolved(instance or InstanceConfig())
    agenda = Agenda()
    arrivals = Arrivals(jobs, agenda, progress)
    fleet = Fleet(cluster, instance, seed, agenda, log_gaps=log_gaps)
    overheads = instance.latency_model().overheads
    count = cluster.num_instances
    rows = Rows(overheads, count) if sink is None else PassingRows(overheads, count, sink)
    gate = entrance(cluster, instance, admission, log, fleet.load)
    router = (routing or RoutingConfig()).router(Random(f"{seed}/routing"))
    pools = Pools(cluster, instance, fleet, router, seed) if cluster.disaggregation else None
    pipeline = Pipeline(agenda, arrivals, gate, router, fleet, rows, delays(cluster, instance), pools)
    sampler = None if sample_every is None else Sampler(sample_every, agenda, arrivals, pipeline, fleet)
    arrivals.read(0)
    _run(agenda, fleet, _acts(pipeline, sampler), _NO_HORIZON if horizon is None else horizon)
    if arrivals or pipeline.live:
        assert horizon is not None
        pipeline.unfinished(horizon)
    if progress is not None:
        progress(arrivals.count)
    samples = None if sampler is None else sampler.samples()
    results, totals = rows.results(pipeline.ended), fleet.totals(rows.by_instance())
    return replace(results, instances=totals, samples=samples, gaps=fleet.gaps())


def _run(agenda: Agenda, fleet: Fleet, acts: Sequence[_Act], last: Micros) -> None:
    """All that is due by `last`; `acts`: what is then done, by kind."""
    heap, touched = agenda.heap, fleet.touched
    while heap and heap[0][0] <= last:
        now, kind, whom = heappop(heap)
        agenda.now = now
        acts[kind](whom, now)
        if touched and not (heap and heap[0][0] == now):
            fleet.begin_steps()


def _acts(pipeline: Pipeline, sampler: Sampler | None) -> Sequence[_Act]:
    acts: dict[Kind, _Act] = {
        Kind.ARRIVAL: pipeline.arrive,
        Kind.DECISION: pipeline.decide,
        Kind.ROUTING: pipeline.route,
        Kind.DEADLINE: pipeline.deadline,
        Kind.ADMISSION: pipeline.admission,
        Kind.TRANSFER: pipeline.transfer,
        Kind.ENTRY: pipeline.enter,
        Kind.INSTANCE: pipeline.instance,
    }
    if sampler is not None:
        acts[Kind.SAMPLE] = sampler.take
    return [acts[kind] for kind in sorted(acts)]
