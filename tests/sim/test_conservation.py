"""Invariants of any cluster: every request that arrives ends once, nothing runs before its cause, and the bytes are the same
with skipped steps and without, in another process, with rows kept or streamed, and with samples or without."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.admission import AdmissionConfig
from maitred.core.errors import ConfigError
from maitred.core.request import PriorityClass, Request
from maitred.core.units import Micros
from maitred.instance import InstanceConfig, LinearLatency
from maitred.routing import RoutingConfig
from maitred.sim import ClusterConfig, DisaggregationConfig, Outcome, Results, simulate
from maitred.workload import Job


class SessionTurns(msgspec.Struct, frozen=True):
    """The prefix of a prompt: the history of its session, 2 blocks of 16 tokens for each turn."""

    session: int
    turns: int

    def block_keys(self, block_size: int) -> tuple[int, ...]:
        return tuple(hash((self.session, block)) for block in range(self.turns * 32 // block_size))


class ReactiveSessions:
    """A reactive workload of sessions with some turns. Each session asks again after its answer, a third of them at the same
    instant."""

    def __init__(self, seed: int, sessions: int = 9, turns: int = 3) -> None:
        self._rng = Random(seed)
        self._sessions, self._turns = sessions, turns
        self._ids = sessions
        self._of: dict[int, tuple[int, int]] = {}
        self.told: list[tuple[int, bool, int, Micros]] = []

    def __iter__(self) -> Iterator[Job]:
        for session in range(self._sessions):
            yield self._job(session, session, 1, session * 137)

    def on_request_end(self, request: Request, completed: bool, output_tokens: int, now: Micros) -> Iterable[Job]:
        self.told.append((request.id, completed, output_tokens, now))
        session, turn = self._of[request.id]
        if completed and turn < self._turns:
            self._ids += 1
            yield self._job(self._ids, session, turn + 1, now + max(0, int(self._rng.random() * 1200) - 400))

    def _job(self, number: int, session: int, turn: int, at: Micros) -> Job:
        draw = self._rng.random
        self._of[number] = session, turn
        request = Request(
            id=number,
            arrival=at,
            prompt_tokens=turn * 32 + 1 + int(draw() * 20),
            priority_class=PriorityClass(int(draw() * 4)),
            tenant=("auth:a", "ip:::1", "")[int(draw() * 3)],
            model="xy"[session % 2],
            stream=draw() < 0.5,
            deadline=at + int(draw() * 6000) if draw() < 0.2 else None,
            program=f"s{session}",
            prefix=SessionTurns(session, turn),
        )
        return Job(request, 1 + int(draw() * 40), SessionTurns(session, turn + 1))


clusters = st.builds(
    lambda split, capacity, admission, routing, refresh, delay: ClusterConfig(
        num_instances=sum(split) or 3,
        capacity=capacity,
        admission_latency_ms=admission,
        routing_latency_ms=routing,
        snapshot_refresh_interval_ms=refresh,
        cache_signal_delay_ms=delay,
        disaggregation=DisaggregationConfig(
            prefill_instances=split[0],
            decode_instances=split[1],
            decider="prefix-threshold",
            kv_bytes_per_token=30_000,
            transfer_contention=True,
        ),
    ),
    split=st.sampled_from([(0, 0), (0, 0), (1, 1), (2, 2)]),
    capacity=st.sampled_from([None, 1, 4]),
    admission=st.sampled_from([0, 0.05]),
    routing=st.sampled_from([0, 0.11]),
    refresh=st.sampled_from([0, 0.4]),
    delay=st.sampled_from([0, 0.7]),
)
instances = st.builds(
    lambda blocks, caching, steps, queueing, flavour: InstanceConfig(
        latency=LinearLatency(steps, queueing),
        total_kv_blocks=blocks,
        max_num_seqs=3,
        enable_prefix_caching=caching,
        flavour=flavour,
    ),
    blocks=st.sampled_from([12, 30, 1000]),
    caching=st.booleans(),
    steps=st.sampled_from([(100, 1, 10), (100, 0, 0)]),  # all alike: instances end their steps at the same instants
    queueing=st.sampled_from([(0, 0, 0), (0, 0.3, 7), (60, 0.3, 7)]),
    flavour=st.sampled_from([None, None, "blis"]),
)
routers = st.sampled_from(["round-robin", "least-loaded", "power-of-two", "weighted"])
horizons = st.sampled_from([None, None, 3000])


def possible(cluster: ClusterConfig, instance: InstanceConfig) -> bool:
    """Return whether the cluster can be simulated: BLIS has no separate decode instances here."""
    return instance.flavour != "blis" or not cluster.disaggregation


def equal(one: Results, other: Results, *but: str) -> None:
    for name in Results.__struct_fields__:
        if name not in but:
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


@settings(max_examples=40)
@given(cluster=clusters, instance=instances, router=routers, seed=st.integers(0, 30), horizon=horizons)
def test_every_request_ends_once_and_nothing_comes_before_its_cause(
    cluster: ClusterConfig, instance: InstanceConfig, router: str, seed: int, horizon: Micros | None
) -> None:
    if not possible(cluster, instance):
        return
    admission = msgspec.convert({"mode": "priority", "on_overcommit": "clamp", "on_preempt": "retry"}, AdmissionConfig)

    def run(instance: InstanceConfig, **more: Any) -> tuple[Results, ReactiveSessions]:
        sessions = ReactiveSessions(seed)
        said = admission if cluster.capacity else None
        return simulate(sessions, cluster, instance, RoutingConfig(policy=router), said, horizon=horizon, **more), sessions

    results, sessions = run(instance)
    unfinished = results.outcome == Outcome.UNFINISHED
    assert sorted(number for number, *_ in sessions.told) == sorted(results.request_id[~unfinished].tolist())
    assert len(set(results.request_id.tolist())) == len(results)
    assert horizon is not None or not unfinished.any()
    assert sum(of.requests for of in results.instances) == (results.instance >= 0).sum()
    assert sum(of.output_tokens for of in results.instances) == results.output_tokens.sum()
    for earlier, later in (
        ("arrival", "admitted"),
        ("admitted", "queued"),
        ("queued", "scheduled"),
        ("scheduled" if not cluster.disaggregation else "queued", "first_token"),
        ("first_token", "finished"),
    ):
        first, then = getattr(results, earlier), getattr(results, later)
        both = (first >= 0) & (then >= 0)
        if later == "first_token":
            both &= results.preemptions == 0  # a preempted request runs again after its first token
        if later == "finished":
            both &= results.outcome == Outcome.COMPLETED
        assert (first[both] <= then[both]).all(), (earlier, later)

    stepping, _ = run(msgspec.structs.replace(instance, step_by_step=True))
    equal(results, stepping)
    watched, _ = run(instance, sample_every=333)
    equal(results, watched, "samples", "timelines")


def test_the_same_bytes_in_another_process_whatever_its_hashes() -> None:
    code = "import test_conservation as t; print(t.digest())"
    here = os.path.dirname(__file__)  # noqa: PTH120
    digests = {digest()}
    for hash_seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join([here, *sys.path])}
        done = subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True)
        digests.add(done.stdout.strip())
    assert len(digests) == 1


def digest() -> str:
    """Return a hash of all columns of a run that uses names, prefixes and random draws."""
    cluster = ClusterConfig(num_instances=4, capacity=5, snapshot_refresh_interval_ms=0.4, cache_signal_delay_ms=0.7)
    instance = InstanceConfig(latency=LinearLatency((100, 1, 10), (60, 0.3, 7)), total_kv_blocks=20, enable_prefix_caching=True)
    sections = {"mode": "priority", "on_overcommit": "clamp", "tenant_policies": {"auth:a": {"weight": 3.0}}}
    admission = msgspec.convert(sections, AdmissionConfig)
    results = simulate(ReactiveSessions(5, 40), cluster, instance, RoutingConfig(policy="weighted"), admission)
    columns = (getattr(results, name) for name in Results.__struct_fields__)
    return hashlib.sha256(b"".join(c.tobytes() if isinstance(c, np.ndarray) else repr(c).encode() for c in columns)).hexdigest()


def test_rows_that_go_to_a_sink_are_the_same_and_none_is_kept() -> None:
    jobs = [Job(Request(id=i, arrival=i * 50, prompt_tokens=20, tenant=f"t{i % 3}"), 1 + i % 30) for i in range(10_000)]
    cluster, instance = ClusterConfig(num_instances=2), InstanceConfig(latency=LinearLatency((100, 1, 10)))
    kept = simulate(jobs, cluster, instance)
    parts: list[Results] = []
    passed = simulate(jobs, cluster, instance, sink=parts.append)
    assert len(passed) == 0
    assert (passed.end, passed.tenants, passed.instances) == (kept.end, kept.tenants, kept.instances)
    assert [len(part) for part in parts] == [4096, 4096, 10_000 - 8192]
    order = np.argsort(np.concatenate([part.request_id for part in parts]))
    for name in Results.__struct_fields__:
        column = getattr(kept, name)
        if isinstance(column, np.ndarray):
            np.testing.assert_array_equal(np.concatenate([getattr(part, name) for part in parts])[order], column, err_msg=name)
    assert all((np.diff(part.finished) >= 0).all() for part in parts)


def test_samples_by_hand() -> None:
    """Steps of 100 µs + 1 µs per prefill token + 10 µs per decode, blocks of 16, one slot of admission for three requests."""
    instance = InstanceConfig(latency=LinearLatency((100, 1, 10)), total_kv_blocks=50, max_num_seqs=1)
    jobs = [Job(Request(id=i, arrival=at, prompt_tokens=50), 2) for i, at in enumerate((0, 10, 120, 130))]
    results = simulate(
        jobs, ClusterConfig(num_instances=2, capacity=3), instance, admission=AdmissionConfig(), sample_every=100
    )
    samples = results.samples
    assert samples is not None
    # 0 runs in one from 0 to 260, 1 in the other from 10 to 270; 2 waits behind 0, and 3 for a slot until 260
    assert samples.at.tolist()[:4] == [0, 100, 200, 300]
    assert samples.running.tolist()[:4] == [[0, 0], [1, 1], [1, 1], [1, 1]]
    assert samples.waiting.tolist()[:4] == [[1, 0], [0, 0], [1, 0], [0, 0]]
    assert samples.blocks_used.tolist()[:4] == [[0, 0], [4, 4], [4, 4], [4, 4]]
    assert samples.outside_instances.tolist()[:4] == [0, 0, 1, 0]
    assert samples.total_blocks == 50
    assert samples.at[-1] >= results.end > samples.at[-2]
    with pytest.raises(ConfigError, match="samples cannot be taken every 0 µs"):
        simulate(jobs, sample_every=0)


class LateSessions(ReactiveSessions):
    def on_request_end(self, request: Request, completed: bool, output_tokens: int, now: Micros) -> Iterable[Job]:
        yield Job(Request(id=99, arrival=now - 1, prompt_tokens=5), 1)


def test_a_workload_is_told_of_every_end_and_cannot_answer_in_the_past() -> None:
    sessions = ReactiveSessions(1, sessions=1, turns=3)
    results = simulate(sessions, instance=InstanceConfig(latency=LinearLatency((100, 1, 10), (0, 0, 50))))
    engine_ends = (results.finished - 50 * results.output_tokens).tolist()  # a client reads on while the next one thinks
    assert [(number, now) for number, _, _, now in sessions.told] == list(zip(results.request_id, engine_ends, strict=True))
    assert [tokens for _, _, tokens, _ in sessions.told] == results.output_tokens.tolist()
    assert (results.arrival[1:] >= engine_ends[:-1]).all()
    with pytest.raises(ConfigError, match="request 99 follows at"):
        simulate(LateSessions(1, sessions=1))
