"""Routers that see a stale state of the instances.

Steps last 100 µs + 1 µs per prefill token + 10 µs per decode.
"""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from maitred.admission import AdmissionConfig
from maitred.core.contracts import Choice, FleetView, Router
from maitred.core.request import Request
from maitred.core.units import Micros
from maitred.instance import Instance, InstanceConfig, LinearLatency
from maitred.routing import RoutingConfig
from maitred.sim import ClusterConfig, Results, simulate
from maitred.sim.event_queue import EventQueue
from maitred.sim.replica import BlockHashMemo, Replica
from maitred.sim.snapshots import CacheSnapshot, FleetSnapshots, InitialView
from maitred.workload import Job

INSTANCE = InstanceConfig(latency=LinearLatency((100, 1, 10)), total_kv_blocks=100)
CACHED = msgspec.structs.replace(INSTANCE, enable_prefix_caching=True)


class PromptBlocks(msgspec.Struct, frozen=True):
    """The prefix of a prompt of these blocks of 16 tokens."""

    blocks: tuple[int, ...]

    def block_keys(self, block_size: int) -> tuple[int, ...]:
        assert block_size == 16
        return self.blocks


def job(number: int, arrival: int = 0, prompt: int = 50, output: int = 2, **fields: Any) -> Job:
    return Job(Request(id=number, arrival=arrival, prompt_tokens=prompt, **fields), output)


def saying(number: int, arrival: int, *blocks: int) -> Job:
    return job(number, arrival, len(blocks) * 16 + 1, prefix=PromptBlocks(blocks))


class RecordingRouter(Router):
    """Chooses instances in turn, and records what it sees of all."""

    seen: list[tuple[Any, ...]]

    def __init__(self, rng: Random) -> None:
        RecordingRouter.seen = []

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        cached = tuple(view.cached_blocks(request) for view in fleet)
        loads = tuple((view.in_flight, view.waiting, view.running, round(view.kv_usage * 100)) for view in fleet)
        RecordingRouter.seen.append((now, loads, cached))
        return Choice(fleet[request.id % len(fleet)].index, "in_turn")

    def on_request_end(self, request: Request, instance: int, now: Micros) -> None:
        pass


def seen(jobs: list[Job], config: InstanceConfig = INSTANCE, **cluster: Any) -> list[tuple[Any, ...]]:
    simulate(jobs, ClusterConfig(**cluster), config, RoutingConfig(policy=f"{__name__}:RecordingRouter"))
    return RecordingRouter.seen


def loads(jobs: list[Job], config: InstanceConfig = INSTANCE, **cluster: Any) -> list[tuple[Micros, tuple[int, ...]]]:
    return [(now, of[0]) for now, of, _ in seen(jobs, config, **cluster)]


LONG = [job(0, output=100), job(1, 120), job(2, 160), job(3, 500), job(4, 501), job(5, 1100)]


def test_live_by_default() -> None:
    assert loads(LONG)[:4] == [(0, (0, 0, 0, 0)), (120, (1, 0, 1, 4)), (160, (2, 0, 2, 8)), (500, (2, 0, 2, 8))]


@pytest.mark.parametrize("step_by_step", [True, False])
def test_who_decides_when_another_ends_sees_the_steps_that_end_with_it(step_by_step: bool) -> None:
    """Both decode from 150 on, 110 µs a step. 1 ends at 1800, which admits 2; 0 began its fifth block of 16 in that step."""
    config = msgspec.structs.replace(INSTANCE, step_by_step=step_by_step)
    jobs, cluster = [job(0, output=100), job(1, output=16), job(2, 10)], ClusterConfig(num_instances=2, capacity=2)
    simulate(jobs, cluster, config, RoutingConfig(policy=f"{__name__}:RecordingRouter"), AdmissionConfig(mode="legacy"))
    assert [(now, of[0]) for now, of, _ in RecordingRouter.seen][-1] == (1800, (1, 0, 1, 5))


def test_a_copy_is_seen_until_it_is_as_old_as_it_may_be() -> None:
    # at 0 all are idle; the copy of 500 is the first that is due, and serves until 1000
    stale = loads(LONG, snapshot_refresh_interval_ms=0.5)
    idle, two = (0, 0, 0), (0, 2, 8)
    assert stale[:3] == [(0, (0, *idle)), (120, (1, *idle)), (160, (2, *idle))]
    assert stale[3:] == [(500, (2, *two)), (501, (3, *two)), (1100, (1, 0, 1, 4))]


def test_it_is_made_at_a_decision_and_not_before() -> None:
    jobs = [job(0, 50, output=100), job(1, 100), job(2, 549), job(3, 550)]
    assert [load[1:] for _, load in loads(jobs, snapshot_refresh_interval_ms=0.5)] == [(0, 0, 0)] * 3 + [(1, 1, 4)]  # 2 waits


def test_admission_decides_too_so_it_makes_copies() -> None:
    """Routing takes 200 µs. 0 runs from 200 to 460. Admission refreshes for 1 at 350, so routing has nothing newer at 550."""
    jobs, cluster = [job(0), job(1, 350)], {"routing_latency_ms": 0.2}
    assert loads(jobs, **cluster)[1] == (550, (0, 0, 0, 0))
    assert loads(jobs, snapshot_refresh_interval_ms=0.3, **cluster)[1] == (550, (0, 0, 1, 4))


def test_as_in_blis_nothing_is_seen_until_the_first_interval_is_over() -> None:
    jobs = [job(0, 10, output=100), job(1, 400, output=100), job(2, 500), job(3, 510)]
    blis = msgspec.structs.replace(INSTANCE, flavour="blis")

    def running(config: InstanceConfig) -> list[int]:
        return [load[2] for _, load in loads(jobs, config, snapshot_refresh_interval_ms=0.5)]

    assert running(INSTANCE) == [0, 0, 0, 2]  # copies at 10 and at 510
    assert running(blis) == [0, 0, 2, 2]


def test_blank_and_live_differ_in_the_first_interval_alone() -> None:
    agenda = EventQueue()
    replica = Replica(0, Instance(INSTANCE, Random(0)), agenda, BlockHashMemo(), INSTANCE.latency_model())
    replica.instance.enqueue(job(0).request, 5, 0)
    replica.instance.next_event()
    for first, running in ((InitialView.LIVE, [1, 1]), (InitialView.BLANK, [0, 1])):
        snapshots = FleetSnapshots([replica], 500, 0, first)
        counts = []
        for agenda.now in (100, 500):
            snapshots.refresh(agenda.now)
            counts.append(snapshots.views[0].running)
        assert counts == running


def cached(jobs: list[Job], **cluster: Any) -> list[tuple[Micros, tuple[int, ...]]]:
    return [(now, blocks) for now, _, blocks in seen(jobs, CACHED, **cluster)]


ALIKE = [saying(i, at, 1, 2, 3, 10 + i) for i, at in enumerate([0, 300, 600, 900])]


def test_what_is_known_of_caches_has_a_delay_of_its_own() -> None:
    assert cached(ALIKE) == [(0, (0,)), (300, (3,)), (600, (3,)), (900, (3,))]
    assert cached(ALIKE, snapshot_refresh_interval_ms=10) == cached(ALIKE)
    assert cached(ALIKE, cache_signal_delay_ms=0.6) == [(0, (0,)), (300, (0,)), (600, (3,)), (900, (3,))]
    assert loads(ALIKE, CACHED, cache_signal_delay_ms=0.6) == loads(ALIKE, CACHED)


def test_all_caches_are_copied_together() -> None:
    late = [saying(0, 0, 1, 2), saying(1, 10, 1, 2), saying(2, 600, 1, 2), saying(3, 900, 1, 2), saying(4, 1200, 1, 2)]
    assert [blocks for _, blocks in cached(late, num_instances=2, cache_signal_delay_ms=0.6)] == [
        (0, 0),
        (0, 0),
        (2, 2),
        (2, 2),
        (2, 2),
    ]


chains = st.lists(st.integers(0, 3), min_size=1, max_size=5).map(
    lambda steps: tuple(hash(tuple(steps[: i + 1])) for i in range(len(steps)))
)
acts = st.one_of(st.tuples(st.just("insert"), chains), st.tuples(st.just("evict"), st.integers(1, 6)), st.just(("copy", 0)))


@pytest.mark.parametrize("kind", ["blocks", "radix"])
@given(done=st.lists(acts, max_size=40), asked=chains)
def test_a_past_cache_is_what_a_copy_of_all_its_keys_would_be(
    kind: Any, done: list[tuple[str, Any]], asked: tuple[int, ...]
) -> None:
    config = msgspec.structs.replace(CACHED, total_kv_blocks=8, prefix_cache=kind)
    replica = Replica(0, Instance(config, Random(0)), EventQueue(), BlockHashMemo(), config.latency_model())
    cache = replica.instance.prefix_cache
    assert cache is not None
    past, copied = CacheSnapshot(replica, cache), set[int]()
    known: set[int] = set(asked)
    for act, what in done:
        if act == "insert":
            cache.insert(what)
            known.update(what)
        elif act == "evict":
            cache.evict(what)
        else:
            past.refresh()
            copied = {key for key in known if cache.contains(key)}
        expected = next((i for i, key in enumerate(asked) if key not in copied), len(asked))
        assert past.cached_blocks(Request(id=0, arrival=0, prompt_tokens=81, prefix=PromptBlocks(asked))) == expected


class ByEverything(Router):
    """Orders by everything that may be stale, so that a difference in the view changes the results."""

    def __init__(self, rng: Random) -> None:
        pass

    def choose(self, request: Request, fleet: FleetView, now: Micros) -> Choice:
        best = min(
            fleet, key=lambda view: (-view.cached_blocks(request), view.waiting, view.kv_usage, view.running, view.index)
        )
        return Choice(best.index, "by_all")

    def on_request_end(self, request: Request, instance: int, now: Micros) -> None:
        pass


@given(seed=st.integers(0, 99), refresh=st.sampled_from([0, 0.3, 5.0]), delay=st.sampled_from([0, 0.2, 3.0]))
def test_skipping_shows_the_same(seed: int, refresh: float, delay: float) -> None:
    def run(step_by_step: bool) -> Results:
        rng = Random(seed)
        jobs = []
        for i in range(40):
            family = int(rng.random() * 3)
            jobs.append(saying(i, i * 97 // 2, *(hash((family, block)) for block in range(int(1 + rng.random() * 4)))))
        jobs = [msgspec.structs.replace(j, output_tokens=1 + (j.request.id * 7) % 60) for j in jobs]
        config = msgspec.structs.replace(CACHED, total_kv_blocks=30, max_num_seqs=4, step_by_step=step_by_step)
        cluster = ClusterConfig(num_instances=3, snapshot_refresh_interval_ms=refresh, cache_signal_delay_ms=delay)
        return simulate(jobs, cluster, config, RoutingConfig(policy=f"{__name__}:ByEverything"))

    skipping, stepping = run(False), run(True)
    for name in Results.__struct_fields__:
        np.testing.assert_array_equal(getattr(skipping, name), getattr(stepping, name), err_msg=name)


def test_flow_control_gives_a_place_away_between_two_looks() -> None:
    """The queue is looked at every second. What has left since is known, and its place is not idle until the next look."""
    flow = msgspec.convert(
        {"mode": "flow-control", "flow_control": {"saturation_detector": "utilization", "queue_depth_threshold": 1}},
        AdmissionConfig,
    )
    at = [(0, 1), (995_000, 100), (995_000, 100), (1_001_000, 1)]
    jobs = [Job(Request(id=i, arrival=arrival, prompt_tokens=16), tokens) for i, (arrival, tokens) in enumerate(at)]
    instance = msgspec.structs.replace(INSTANCE, max_num_seqs=1)
    results = simulate(jobs, ClusterConfig(snapshot_refresh_interval_ms=1000), instance, admission=flow)
    assert results.scheduled[3] == results.finished[2], "one ran and one waited at the look"
