"""What is simulated is what runs: the same workload before a gateway in a world and in `simulate` gives the same decisions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from maitred.core.decisions import DecisionLog
from maitred.core.request import PriorityClass, Request
from maitred.emulator import pacer
from maitred.instance import InstanceConfig
from maitred.sim import ClusterConfig, simulate
from maitred.testing.world.behaviours import MODEL
from maitred.testing.world.clients import ClientConnection, Sent
from maitred.testing.world.scenario import GATEWAY, PORT, Scenario
from maitred.testing.world.stage import Stage, latency_of
from maitred.testing.world.streams import LinkConfig
from maitred.workload import Job

LIMIT = 4
"""Sequences that each engine runs at once."""
ENTRY = 1.0
"""Time from an engine's arrival to its wait queue, µs. A request that is admitted as another one ends comes behind the step
that begins at this instant; in a simulation it would join that."""
WIRE = LinkConfig(delay=0, split_share=0.0, min_kernel_bytes=1 << 20, max_kernel_bytes=1 << 20)
"""A network that takes no time, as that of a simulation."""


@pytest.fixture(autouse=True)
def exact_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have engines end their steps when they are due, to the microsecond: on a real loop they end half a grain later."""

    def call_at(self: pacer.MachineClock, when: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_at(round(when, 6), callback)

    monkeypatch.setattr(pacer.MachineClock, "call_at", call_at)


def make_jobs(seed: int, mean_gap: float, count: int = 60) -> list[Job]:
    """Return jobs of all classes, more than the fleet can take at times, each at an instant of its own."""
    random, arrival, jobs = Random(seed), 0, list[Job]()
    for number in range(count):
        arrival += 1 + int(random.expovariate(1 / mean_gap))
        request = Request(
            id=number,
            arrival=arrival,
            model=MODEL,
            prompt_tokens=random.randint(1, 300),
            priority_class=random.choice(list(PriorityClass)),
            tenant="header:" + random.choice(("acme", "beta")),
            max_output_tokens=random.randint(1, 40),
            stream=True,
        )
        assert request.max_output_tokens is not None
        jobs.append(Job(request, request.max_output_tokens))
    return jobs


def request_bytes(job: Job) -> bytes:
    request = job.request
    fields = {
        "model": MODEL,
        "stream": request.stream,
        "max_tokens": job.output_tokens,
        "ignore_eos": True,
        "prompt": [7] * request.prompt_tokens,
    }
    body = msgspec.json.encode(fields)
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        f"x-smg-priority: {request.priority_class.label}\r\nx-smg-tenant-id: {request.tenant.removeprefix('header:')}\r\n"
    )
    return head.encode() + b"\r\n" + body


async def send(stage: Stage, job: Job, began_at: int) -> None:
    violations: list[str] = []  # What a client makes of a completion is not of interest here.
    _, connection = await stage.loop.create_connection(lambda: ClientConnection(stage.loop, violations.append), GATEWAY, PORT)
    assert isinstance(connection, ClientConnection)
    sent = Sent(str(job.request.id), job.output_tokens, True, began_at, stage.loop.create_future())
    at = (began_at + job.request.arrival) / 1e6
    stage.loop.call_at(at, connection.send, sent, request_bytes(job))
    await sent.ended
    connection.leave(abruptly=False)


def decisions_of_a_gateway(scenario: Scenario, jobs: Sequence[Job], folder: Path) -> list[bytes]:
    """Return the log of decisions of a gateway, in which the first job arrives whole seconds after its start."""
    stage = Stage(scenario, folder)

    async def play() -> None:
        for engine in stage.engines:
            engine.entry_secs = ENTRY / 1e6
            engine.boot()
        stage.settings = scenario.settings([engine.url for engine in stage.engines], str(stage.decision_log))
        await stage.process.start()
        began_at = stage.loop.micros + 5_000_000
        await asyncio.gather(*(send(stage, job, began_at) for job in jobs))
        await stage.process.stop()
        for engine in stage.engines:
            await engine.close()

    stage.loop.run_until_complete(play())
    return stage.decision_log.read_bytes().splitlines()


def decisions_of_a_simulation(scenario: Scenario, jobs: Sequence[Job]) -> list[bytes]:
    lines: list[bytes] = []
    settings = scenario.settings(["http://engine"], "")
    cluster = ClusterConfig(
        num_instances=scenario.num_engines, capacity=(scenario.slots_per_backend or 0) * scenario.num_engines
    )
    latency = msgspec.structs.replace(latency_of(scenario), alpha=(ENTRY, 0.0, 0.0))
    instance = InstanceConfig(latency=latency, max_num_seqs=LIMIT)
    simulate(jobs, cluster, instance, settings.routing, settings.admission, seed=scenario.seed, log=DecisionLog(lines.append))
    return lines


def told(lines: Sequence[bytes]) -> dict[str, list[tuple[Any, ...]]]:
    """Return for each room what was decided about which job, and when, counted from the first arrival."""
    entries = [msgspec.json.decode(line) for line in lines]
    submits = [entry for entry in entries if entry.get("input") == "submit"]
    number = {entry["id"]: index for index, entry in enumerate(submits)}
    first = submits[0]["at"]
    found: dict[str, list[tuple[Any, ...]]] = {"admission": [], "routing": []}
    for entry in entries:
        decision = entry.get("decision")
        if decision is not None and entry["room"] == "admission":
            subject, other = number[decision["subject"]], number.get(decision.get("other"))
            found["admission"].append((decision["at"] - first, subject, decision["action"], decision["reason"], other))
        elif decision is not None and entry["room"] == "routing":
            found["routing"].append((decision["at"] - first, number[decision["request"]], decision["instance"]))
    found["routing"].sort()  # Which of two tasks goes on first that get their slots at one instant is not decided by anyone.
    return found


def scenario_of(seed: int, **fields: Any) -> Scenario:
    limits = (LIMIT,) * int(fields["num_engines"])
    return Scenario(seed=seed, clients=(), engine_limits=limits, link=WIRE, **fields)


@pytest.mark.parametrize("seed", range(1, 4))
def test_admission_decides_in_a_gateway_as_in_a_simulation_instant_by_instant(seed: int, tmp_path: Path) -> None:
    scenario, jobs = scenario_of(seed, num_engines=1, slots_per_backend=3, queue_secs=2.0), make_jobs(seed, 60_000)
    live, simulated = told(decisions_of_a_gateway(scenario, jobs, tmp_path)), told(decisions_of_a_simulation(scenario, jobs))
    assert live["admission"] == simulated["admission"]
    assert {decision[2] for decision in live["admission"]} >= {"admit", "queue", "preempt"}


@pytest.mark.parametrize("policy", ["round-robin", "least-loaded"])
@pytest.mark.parametrize("seed", range(1, 4))
def test_a_router_chooses_in_a_gateway_as_in_a_simulation(seed: int, policy: str, tmp_path: Path) -> None:
    # No backend is ever full: a gateway would not show it to the router then, and a simulation would.
    scenario, jobs = scenario_of(seed, num_engines=3, slots_per_backend=60, policy=policy), make_jobs(seed, 20_000)
    live, simulated = told(decisions_of_a_gateway(scenario, jobs, tmp_path)), told(decisions_of_a_simulation(scenario, jobs))
    assert live == simulated
    assert {decision[2] for decision in live["routing"]} == {0, 1, 2}
