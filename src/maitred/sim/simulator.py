"""Simulator: the event loop. It takes the next event from the event queue until none is left, or the horizon has passed.

`event_queue` has the order of events at one instant, `pipeline` the path of a request, `instance` what happens in an instance.
Steps begin last at every instant: when the next event lies later, the fleet resumes all dirty instances.

This module is compiled (`[tool.maitred]` in pyproject.toml).
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop
from typing import TypeAlias

from msgspec.structs import replace

from maitred.admission import AdmissionConfig
from maitred.core.decisions import DecisionLog
from maitred.core.units import Micros
from maitred.instance import InstanceConfig
from maitred.programs import ProgramsConfig
from maitred.routing import RoutingConfig, open_router
from maitred.sim.admission_driver import AdmissionDriver, make_admission_driver
from maitred.sim.config import ClusterConfig, request_delays
from maitred.sim.direct_pipeline import make_pipeline
from maitred.sim.disaggregation import Disaggregation
from maitred.sim.event_queue import INDEX_BITS, INDEX_MASK, NO_ARRIVAL, ArrivalFeed, EventQueue, SimEventKind
from maitred.sim.failures import make_failures
from maitred.sim.fleet import SimulatedFleet
from maitred.sim.fleet_scaler import make_autoscaler
from maitred.sim.instance_groups import resolve_fleet, with_weights
from maitred.sim.pipeline import Pipeline
from maitred.sim.programs_driver import ProgramsDriver, make_programs_driver
from maitred.sim.replica import NOT_DUE
from maitred.sim.request_state import DelayLine
from maitred.sim.results import Results
from maitred.sim.rows import ResultRows, ResultSink, make_rows
from maitred.sim.samples import Sampler
from maitred.sim.slot_learning import make_slot_learning
from maitred.sim.stages import Stages
from maitred.sim.timeline_log import TimelineLog
from maitred.workload import Job
from maitred.workload.job import check_whole_numbers

_NO_HORIZON: Micros = NO_ARRIVAL - 1
_Handler: TypeAlias = Callable[[int, Micros], None]
"""Handles an event, given its target and the time."""


def simulate(
    jobs: Iterable[Job],
    cluster: ClusterConfig | None = None,
    instance: InstanceConfig | None = None,
    routing: RoutingConfig | None = None,
    admission: AdmissionConfig | None = None,
    programs: ProgramsConfig | None = None,
    *,
    seed: int = 42,
    horizon: Micros | None = None,
    progress: Callable[[int], None] | None = None,
    log: DecisionLog | None = None,
    sink: ResultSink | None = None,
    sample_every: Micros | None = None,
    log_itl: bool = False,
) -> Results:
    """Run `jobs` through a cluster until all requests have ended or `horizon` (µs) has passed.

    Args:
        jobs: Jobs in the order of arrival, read one at a time. A `ReactiveWorkload` is told of the end of every request.
        admission: What stands in front of the router, or None for the default classes (nothing unless `cluster` limits slots).
        programs: How agent programs share the KV memory of the instances. None: requests are routed one by one.
        progress: Called from time to time with the number of arrived requests.
        log: Receives the inputs and decisions of all that decide.
        sink: Receives the rows block by block as requests end. The rows are not kept then, so memory does not grow with them.
        sample_every: First distance of the samples of the instances, in µs; None: no samples, no timelines (nor with a sink).
        log_itl: Record the gaps between tokens per request (`Results.itl_gaps`). This takes 3 to 12 % more time.
    Raises ConfigError for unknown policies, for impossible limits and reservations, and for jobs out of order.
    """
    cluster, instance = resolve_fleet(cluster or ClusterConfig(), instance or InstanceConfig())
    event_queue = EventQueue()
    arrivals = ArrivalFeed(jobs, progress)
    fleet = SimulatedFleet(cluster, instance, seed, event_queue, log_itl=log_itl)
    # Every part has a random stream of its own, named by the seed: a policy that draws more shifts no other part.
    rows = make_rows(instance.latency_model().overheads, cluster.most_instances, sink)
    driver = make_admission_driver(cluster, instance, admission, log, fleet.load, event_queue)
    agents = make_programs_driver(programs, cluster, instance, arrivals, event_queue, log)
    router = agents or open_router(with_weights(routing or RoutingConfig(), cluster, instance), f"{seed}/routing", log)
    delays, line = request_delays(cluster, instance), DelayLine(event_queue)
    pools = Disaggregation(cluster, instance, fleet, router, line, seed, log) if cluster.disaggregation else None
    fleet.slots = None if driver is None else driver.slots_of_instances(cluster, instance)
    slots = make_slot_learning(cluster, fleet, driver, event_queue, log)
    failures = make_failures(cluster, instance, programs, fleet, driver, arrivals, event_queue, seed)
    scaler = make_autoscaler(cluster, instance, programs, fleet, driver, arrivals, event_queue)
    stages = Stages(delays, driver, agents, pools, slots, failures, scaler)
    pipeline = make_pipeline(event_queue, arrivals, router, fleet, rows, line, stages)
    sampler = None if sample_every is None else Sampler(sample_every, event_queue, arrivals, pipeline, fleet)
    timeline_log = None if sampler is None or sink is not None else _attach_timelines(pipeline, driver)
    fleet.schedule_limit_changes(cluster.limit_changes)
    try:
        _run(event_queue, arrivals, pipeline, fleet, _handlers(pipeline, fleet, sampler), horizon)
    except TypeError:
        # Not looked at before, which would cost every request something.
        for state in pipeline.live.values():
            check_whole_numbers(state.job)
        raise
    if arrivals or pipeline.live:
        assert horizon is not None
        pipeline.record_unfinished(horizon)
    arrivals.report_progress()
    return _collect_results(rows, fleet, pipeline.last_end, driver, agents, sampler, timeline_log, arrivals.num_added)


def _attach_timelines(pipeline: Pipeline, driver: AdmissionDriver | None) -> TimelineLog:
    """Return a log that the pipeline and admission will write."""
    log = pipeline.timeline_log = TimelineLog()
    if driver is not None:
        driver.timeline_log = log
    return log


def _collect_results(
    rows: ResultRows,
    fleet: SimulatedFleet,
    end: Micros,
    driver: AdmissionDriver | None,
    agents: ProgramsDriver | None,
    sampler: Sampler | None,
    timeline_log: TimelineLog | None,
    num_followers: int,
) -> Results:
    """Return the results of a run that ended at `end`."""
    rejections = sum((each.rejections for each in (driver, agents) if each is not None), Counter[str]())
    return replace(
        rows.results(end),
        instances=fleet.totals(rows.totals_by_instance(), end),
        samples=None if sampler is None else sampler.samples(),
        itl_gaps=fleet.itl_gaps(),
        programs=None if agents is None else agents.statistics.columns(end),
        rejections=dict(rejections),
        num_followers=num_followers,
        timelines=None if timeline_log is None else timeline_log.timelines(),
    )


def _run(
    event_queue: EventQueue,
    arrivals: ArrivalFeed,
    pipeline: Pipeline,
    fleet: SimulatedFleet,
    handlers: Sequence[_Handler],
    horizon: Micros | None,
) -> None:
    """Handle all arrivals and events up to and including `horizon`. `handlers` are by event kind."""
    last = _NO_HORIZON if horizon is None else horizon
    heap, turns, dirty, replicas = event_queue.heap, event_queue.turns, fleet.dirty, fleet.replicas
    pop, put_in_order = heappop, insort
    arrivals.read_next(0)
    looks_ahead = pipeline.is_direct and last == _NO_HORIZON and not fleet.limits
    next_at, turn_at = arrivals.next_at, NO_ARRIVAL
    while True:
        if heap and heap[0][0] < next_at and (heap[0][0], heap[0][1]) < (turn_at, SimEventKind.INSTANCE):
            event_queue.now = now = heap[0][0]
            if now > last:
                return
            _, kind, target = pop(heap)
            handlers[kind](target, now)
        elif turn_at < next_at:
            if turn_at > last:
                return
            event_queue.now = now = turn_at
            index = -turns.pop() & INDEX_MASK
            if replicas[index].next_due == now:  # else the entry is obsolete
                pipeline.on_instance_due(index, now)
        else:
            if next_at > last:
                return
            event_queue.now = now = next_at
            pipeline.on_arrival(arrivals.pop_arrival(now), now)
        next_at = arrivals.next_at
        turn_at = -turns[-1] >> INDEX_BITS if turns else NO_ARRIVAL
        # A step that began before the last event of this instant would miss a request that enters its instance with it.
        if dirty and next_at != now and turn_at > now and not (heap and heap[0][0] == now):
            quiet_until = next_at if looks_ahead else 0
            sample_at = event_queue.next_sample_at
            quiet_until = quiet_until if quiet_until < sample_at else sample_at
            for replica in dirty:  # `SimulatedFleet.resume`, without its call
                replica.is_dirty = False
                due = replica.instance.next_event(quiet_until)
                if due is None:
                    replica.next_due = NOT_DUE
                elif due != replica.next_due:
                    replica.next_due = due
                    put_in_order(turns, -(due << INDEX_BITS | replica.index))
            dirty.clear()
            turn_at = -turns[-1] >> INDEX_BITS if turns else NO_ARRIVAL


def _handlers(pipeline: Pipeline, fleet: SimulatedFleet, sampler: Sampler | None) -> Sequence[_Handler]:
    """Return the handlers, by event kind."""
    handlers: dict[SimEventKind, _Handler] = {
        SimEventKind.FLEET: pipeline.on_fleet_due,
        SimEventKind.DECISION: pipeline.on_admission_due,
        SimEventKind.ROUTING: pipeline.on_routing_due,
        SimEventKind.DEADLINE: pipeline.on_deadline,
        SimEventKind.ADMISSION: pipeline.on_admission_timer,
        SimEventKind.PROGRAMS: pipeline.on_programs_timer,
        SimEventKind.TRANSFER: pipeline.on_transfer_due,
        SimEventKind.ENTRY: pipeline.on_entry_due,
        SimEventKind.INSTANCE: pipeline.on_instance_due,
        SimEventKind.LIMIT: fleet.on_limit_change,
        SimEventKind.SLOTS: pipeline.on_slots_due,
        SimEventKind.SCALING: pipeline.on_scaling_due,
    }
    if sampler is not None:
        handlers[SimEventKind.SAMPLE] = sampler.on_sample_due
    # A list indexed by the kind is the cheapest look-up for every event. SAMPLE is the largest kind, so a run without samples
    # leaves no hole in it.
    return [handlers[kind] for kind in sorted(handlers)]
