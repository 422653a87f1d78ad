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
from maitred.core.decisions import DecisionLog
from maitred.core.units import Micros
from maitred.instance import InstanceConfig
from maitred.instance.catalogue import resolve_instance
from maitred.routing import RoutingConfig
from maitred.sim.admission_driver import make_admission
from maitred.sim.config import ClusterConfig, request_delays
from maitred.sim.disaggregation import PrefillDecodePools
from maitred.sim.event_queue import ArrivalFeed, EventQueue, SimEventKind
from maitred.sim.fleet import SimulatedFleet
from maitred.sim.pipeline import Pipeline
from maitred.sim.results import Results
from maitred.sim.rows import ResultRows, ResultSink, StreamedRows
from maitred.sim.samples import Sampler
from maitred.workload import Job

_NO_HORIZON: Micros = 1 << 62
_Handler: TypeAlias = Callable[[int, Micros], None]


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
    sink: ResultSink | None = None,
    sample_every: Micros | None = None,
    log_itl: bool = False,
) -> Results:
    """Run `jobs`, given in the order of arrival, through a cluster, until all have ended or `horizon` (µs) has passed.

    `admission` stands before the router, in the mode that it says; None: with the usual classes if `cluster.capacity` is
    given, else nothing does. `progress` is told now and then how many have arrived; `log` receives admission's inputs and
    decisions. Jobs are read one at a time; a reactive workload (`workload.ReactiveWorkload`) is told of every end. `sink`
    receives the
    rows, block by block as requests end, and none is kept: memory does not grow with their number. `sample_every` (µs): take
    samples of the instances. `log_gaps`: keep whose the gaps between tokens were (`Results.itl_gaps`), which costs 3 to 12 %
    of its time. Raises ConfigError for unknown policies, for limits and reservations that cannot be, and for jobs out of
    order.
    """
    cluster, instance = cluster or ClusterConfig(), resolve_instance(instance or InstanceConfig())
    agenda = EventQueue()
    arrivals = ArrivalFeed(jobs, agenda, progress)
    fleet = SimulatedFleet(cluster, instance, seed, agenda, log_itl=log_itl)
    overheads = instance.latency_model().overheads
    count = cluster.num_instances
    rows = ResultRows(overheads, count) if sink is None else StreamedRows(overheads, count, sink)
    gate = make_admission(cluster, instance, admission, log, fleet.load)
    router = (routing or RoutingConfig()).router(Random(f"{seed}/routing"))
    pools = PrefillDecodePools(cluster, instance, fleet, router, seed) if cluster.disaggregation else None
    pipeline = Pipeline(agenda, arrivals, gate, router, fleet, rows, request_delays(cluster, instance), pools)
    sampler = None if sample_every is None else Sampler(sample_every, agenda, arrivals, pipeline, fleet)
    arrivals.read_next(0)
    _run(agenda, fleet, _handlers(pipeline, sampler), _NO_HORIZON if horizon is None else horizon)
    if arrivals or pipeline.live:
        assert horizon is not None
        pipeline.record_unfinished(horizon)
    if progress is not None:
        progress(arrivals.num_arrived)
    samples = None if sampler is None else sampler.samples()
    results, totals = rows.results(pipeline.last_end), fleet.totals(rows.totals_by_instance())
    return replace(results, instances=totals, samples=samples, itl_gaps=fleet.itl_gaps())


def _run(agenda: EventQueue, fleet: SimulatedFleet, acts: Sequence[_Handler], last: Micros) -> None:
    """All that is due by `last`; `acts`: what is then done, by kind."""
    heap, touched = agenda.heap, fleet.dirty
    while heap and heap[0][0] <= last:
        now, kind, whom = heappop(heap)
        agenda.now = now
        acts[kind](whom, now)
        if touched and not (heap and heap[0][0] == now):
            fleet.resume_dirty()


def _handlers(pipeline: Pipeline, sampler: Sampler | None) -> Sequence[_Handler]:
    acts: dict[SimEventKind, _Handler] = {
        SimEventKind.ARRIVAL: pipeline.on_arrival,
        SimEventKind.DECISION: pipeline.on_admission_due,
        SimEventKind.ROUTING: pipeline.on_routing_due,
        SimEventKind.DEADLINE: pipeline.on_deadline,
        SimEventKind.ADMISSION: pipeline.on_admission_timer,
        SimEventKind.TRANSFER: pipeline.on_transfer_due,
        SimEventKind.ENTRY: pipeline.on_entry_due,
        SimEventKind.INSTANCE: pipeline.on_instance_due,
    }
    if sampler is not None:
        acts[SimEventKind.SAMPLE] = sampler.on_sample_due
    return [acts[kind] for kind in sorted(acts)]
