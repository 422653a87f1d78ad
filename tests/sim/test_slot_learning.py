"""Learned slots in the simulator: the live controllers before simulated instances."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest

from maitred.admission import AdmissionConfig
from maitred.core.decisions import DecisionLog
from maitred.core.errors import ConfigError
from maitred.core.request import PriorityClass, Request
from maitred.instance import InstanceConfig, LinearLatency
from maitred.replay import replay
from maitred.sim import ClusterConfig, Results, simulate
from maitred.workload import Job

CHAT, BULK = PriorityClass.INTERACTIVE, PriorityClass.BULK
LEARNED = ClusterConfig(slots="learned")
QUEUES = {"bulk": {"queue_size": 100_000, "queue_timeout_secs": 99_999}}


def admission(**keys: Any) -> AdmissionConfig:
    return msgspec.convert({"mode": "priority", "default_max_class": "system", "classes": QUEUES, **keys}, AdmissionConfig)


def instance(limit: int, **keys: Any) -> InstanceConfig:
    """Return an instance with steps of 10 ms, and 0.1 ms more for each token."""
    return InstanceConfig(max_num_seqs=limit, latency=LinearLatency((10_000, 0, 100)), **keys)


def flood(limit: int, secs: int = 20, seed: int = 1) -> Iterator[Job]:
    """Yield chats, a tenth of what the instance can do, and more bulk than that at once."""
    rng = Random(seed)
    per_sec = limit / (0.6 * (10 + 0.1 * limit) / 10)
    arrivals = [(rng.randrange(secs * 1_000_000), CHAT) for _ in range(round(per_sec * secs / 10))]
    arrivals += [(rng.randrange(1_000_000), BULK) for _ in range(round(per_sec * secs))]
    for number, (at, cls) in enumerate(sorted(arrivals)):
        request = Request(id=number, arrival=at, model="m", prompt_tokens=rng.randint(50, 150), priority_class=cls, stream=True)
        yield Job(request, rng.randint(30, 90))


def run(cluster: ClusterConfig, limit: int, log: DecisionLog | None = None, seed: int = 1, **keys: Any) -> Results:
    return simulate(flood(limit, seed=seed), cluster, instance(limit), admission=admission(), log=log, **keys)


def chat_ttft(results: Results) -> float:
    """Return the median time to first token of chats, ms."""
    chats = (results.priority_class == CHAT) & (results.first_token >= 0)
    return float(np.median((results.first_token - results.arrival)[chats])) / 1000


@pytest.mark.parametrize("limit", [8, 16, 128, 512])
def test_they_are_as_good_as_what_instances_report(limit: int) -> None:
    learned, told = run(LEARNED, limit), run(ClusterConfig(), limit)
    assert learned.end <= told.end / 0.97
    assert chat_ttft(learned) <= 1.3 * chat_ttft(told) + 5


def test_64_before_16_are_not() -> None:
    assert chat_ttft(run(ClusterConfig(capacity=64), 16)) > 5 * chat_ttft(run(LEARNED, 16))


def test_each_instance_has_its_own_and_every_decision_is_in_the_log() -> None:
    lines: list[bytes] = []
    run(msgspec.structs.replace(LEARNED, num_instances=2), 16, DecisionLog(lines.append))
    entries = [msgspec.json.decode(line) for line in lines]
    changes = [entry["decision"] for entry in entries if entry["room"] == "slots" and "decision" in entry]
    first = {change["backend"]: change["change"] for change in reversed(changes) if change["change"]["reason"] == "confirmed"}
    assert {index: change["slots"] for index, change in first.items()} == {0: 16, 1: 16}
    again: list[bytes] = []
    replay(lines, DecisionLog(again.append))
    assert again == lines


def test_looks_change_nothing_and_skipped_steps_neither() -> None:
    logs: list[list[bytes]] = [[], []]
    results = [
        simulate(
            flood(16, 5), LEARNED, instance(16, step_by_step=by_step), admission=admission(), log=DecisionLog(lines.append)
        )
        for by_step, lines in zip((False, True), logs, strict=True)
    ]
    assert logs[0] == logs[1]
    assert results[0].finished.tolist() == results[1].finished.tolist()


def test_no_more_are_in_flight_than_was_believed() -> None:
    lines: list[bytes] = []
    run(LEARNED, 16, DecisionLog(lines.append))
    capacity, in_flight = 0, 0
    for entry in map(msgspec.json.decode, lines):
        if entry["room"] != "admission":
            continue
        if entry.get("input") == "resize":
            capacity = entry["capacity"]
        elif entry.get("input") == "release":
            in_flight -= 1
        elif "decision" in entry and entry["decision"]["action"] == "admit":
            in_flight += 1
            assert in_flight <= capacity


def test_a_backend_with_free_slots_is_preferred() -> None:
    """Whatever the router: with `always-busiest`, one of two instances would get all."""
    from maitred.routing import RoutingConfig

    results = run(msgspec.structs.replace(LEARNED, num_instances=2), 16, routing=RoutingConfig(policy="always-busiest"))
    assert set(np.unique(results.instance[results.instance >= 0]).tolist()) == {0, 1}


def test_without_a_mode_they_mean_classes() -> None:
    lines: list[bytes] = []
    simulate(flood(16, 2), LEARNED, instance(16), log=DecisionLog(lines.append))
    assert b'"mode":"priority"' in lines[1]


@pytest.mark.parametrize(
    ("keys", "message"),
    [({"mode": "off"}, "need admission with classes"), ({"slot_cost": "tokens"}, "slots that count requests")],
)
def test_where_slots_are_no_limit_they_cannot_be_learned(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        simulate(flood(16, 2), LEARNED, instance(16), admission=admission(**keys))


def test_a_capacity_is_another_source() -> None:
    with pytest.raises(ValueError, match="capacity and slots: learned contradict"):
        ClusterConfig(capacity=3, slots="learned")


RESTARTED = msgspec.convert({"slots": "learned", "limit_changes": [{"at_secs": 8, "max_num_seqs": 8}]}, ClusterConfig)


@pytest.mark.parametrize("limit", [16, 128, 512])
def test_a_restart_with_half_the_limit_is_followed(limit: int) -> None:
    lines: list[bytes] = []
    changes = {"limit_changes": [{"at_secs": 8, "max_num_seqs": limit // 2}]}
    run(msgspec.convert({"slots": "learned", **changes}, ClusterConfig), limit, DecisionLog(lines.append))
    slots = [
        (entry["decision"]["change"]["at"], entry["decision"]["change"]["slots"])
        for entry in map(msgspec.json.decode, lines)
        if entry["room"] == "slots" and "decision" in entry
    ]
    before = [number for at, number in slots if at < 8_000_000]
    found = next(at for at, number in slots if at >= 8_000_000 and abs(number - limit // 2) <= limit // 2 * 0.1 + 1)
    assert abs(before[-1] - limit) <= limit * 0.1
    assert found < 18_000_000, "within 10 s"


@pytest.mark.parametrize("keys", [{}, {"async_scheduling": True}])
def test_a_changed_limit_is_the_same_with_and_without_skipped_steps(keys: dict[str, Any]) -> None:
    said = {"limit_changes": [{"at_secs": 1.0001, "max_num_seqs": 4}, {"at_secs": 3.333, "max_num_seqs": 30}]}
    results = [
        simulate(flood(16, 5), cluster, instance(16, step_by_step=by_step, **keys)).finished.tolist()
        for cluster, by_step in (
            (msgspec.convert(said, ClusterConfig), False),
            (msgspec.convert(said, ClusterConfig), True),
            (ClusterConfig(), False),
        )
    ]
    assert results[0] == results[1] != results[2]


@pytest.mark.parametrize("flavour", ["blis", "sglang", "trtllm", "maitred"])
def test_batches_that_keep_their_limit_say_so(flavour: str) -> None:
    with pytest.raises(ConfigError, match="keeps its limit"):
        simulate(flood(16, 1), RESTARTED, InstanceConfig(flavour=flavour))
