"""What is simulated is what runs: the same workload before a gateway in a world and in `simulate` gives the same decisions.

Two things that happen at one instant come in an order of their own in a gateway, as two ends in one step of an engine, of which
either may be told first. Where that can matter, the seeds have no such instants (`ties`).
"""

from __future__ import annotations

import asyncio
from collections import Counter
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
from maitred.scheduler.drivers.deadline_timer import DeadlineTimer
from maitred.sim import ClusterConfig, simulate
from maitred.testing.world import VirtualLoop
from maitred.testing.world.behaviours import MODEL
from maitred.testing.world.clients import ClientConnection, Sent
from maitred.testing.world.cluster.scenario import ClusterScenario
from maitred.testing.world.cluster.stage import ClusterStage
from maitred.testing.world.scenario import GATEWAY, PORT, Scenario
from maitred.testing.world.stage import Scene, Stage, latency_of
from maitred.testing.world.streams import LinkConfig
from maitred.workload import Job

LIMIT = 4
"""Sequences that each engine runs at once."""
NUM_PROGRAMS = 16
ENTRY = 1.0
"""Time from an engine's arrival to its wait queue, µs. A request that is admitted as another one ends comes behind the step
that begins at this instant; in a simulation it would join that."""
WIRE = LinkConfig(delay=0, split_share=0.0, min_kernel_bytes=1 << 20, max_kernel_bytes=1 << 20)
"""A network that takes no time, as that of a simulation."""


@pytest.fixture(autouse=True)
def exact_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have engines end their steps, and cores settle, when that is due: on a real loop timers are a millisecond late."""
    call_later = VirtualLoop.call_later

    def call_at(self: pacer.MachineClock, when: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_at(round(when, 6), callback)

    def ring_in_time(self: VirtualLoop, delay: float, callback: Any, *args: Any, **context: Any) -> asyncio.TimerHandle:
        is_deadline = isinstance(getattr(callback, "__self__", None), DeadlineTimer)
        when = round(self.time() + delay - 0.001, 6)
        return self.call_at(when, callback) if is_deadline else call_later(self, delay, callback, *args, **context)

    monkeypatch.setattr(pacer.MachineClock, "call_at", call_at)
    monkeypatch.setattr(VirtualLoop, "call_later", ring_in_time)


def make_jobs(seed: int, mean_gap: float, count: int = 60) -> list[Job]:
    """Return jobs of all classes, more than the fleet can take at times, each at an instant of its own."""
    random, arrival, jobs = Random(seed), 0, list[Job]()
    for number in range(count):
        arrival += 1 + int(random.expovariate(1 / mean_gap))
        request = Request(
            id=number,
            arrival=arrival,
            model=MODEL,
            prompt_tokens=random.randint(50, 300),
            priority_class=random.choice(list(PriorityClass)),
            tenant="header:" + random.choice(("acme", "beta")),
            max_output_tokens=random.randint(1, 40),
            stream=True,
        )
        assert request.max_output_tokens is not None
        jobs.append(Job(request, request.max_output_tokens))
    return jobs


def as_turns(jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs as turns of programs, each of which has grown to another size."""
    turns = list[Job]()
    for job in jobs:
        number = job.request.id
        program, tokens = f"program-{number % NUM_PROGRAMS}", 150 + number * 97 % 250
        turns.append(Job(msgspec.structs.replace(job.request, program=program, prompt_tokens=tokens), job.output_tokens))
    return turns


def request_bytes(job: Job) -> bytes:
    """Return a request with a prompt of as many tokens, and a body of five characters a token, as gateways guess."""
    request = job.request
    fields = {
        "model": MODEL,
        "stream": request.stream,
        "max_tokens": job.output_tokens,
        "ignore_eos": True,
        "prompt": "word" * request.prompt_tokens,
    }
    body = msgspec.json.encode(fields).ljust(request.prompt_tokens * 5)
    program = f"x-program-id: {request.program}\r\n" if request.program else ""
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        f"x-smg-priority: {request.priority_class.label}\r\nx-smg-tenant-id: {request.tenant.removeprefix('header:')}\r\n"
    )
    return f"{head}{program}\r\n".encode() + body


async def send(stage: Scene, job: Job, began_at: int, gateway: str = GATEWAY) -> None:
    violations: list[str] = []  # What a client makes of a completion is not of interest here.
    _, connection = await stage.loop.create_connection(lambda: ClientConnection(stage.loop, violations.append), gateway, PORT)
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


def decisions_of_a_cluster(scenario: ClusterScenario, jobs: Sequence[Job], folder: Path) -> list[bytes]:
    """Return the log of decisions of the scheduler that leads several gateways, each of which gets some of the jobs."""
    stage, spread = ClusterStage(scenario, folder), Random(scenario.seed)

    async def play() -> None:
        for engine in stage.engines:
            engine.entry_secs = ENTRY / 1e6
            engine.boot()
        stage.settings = scenario.fleet_settings([engine.url for engine in stage.engines])
        for processes in (stage.schedulers, stage.gateways):
            await asyncio.gather(*(process.start() for process in processes))
        began_at = stage.loop.micros + 10_000_000
        await asyncio.gather(*(send(stage, job, began_at, spread.choice(stage.gateways).address) for job in jobs))
        for processes in (stage.gateways, stage.schedulers):
            await asyncio.gather(*(process.stop() for process in processes))
        await asyncio.sleep(5.0)  # for the last answers of the store
        for engine in stage.engines:
            await engine.close()

    stage.loop.run_until_complete(play())
    [leader] = [log for each in stage.schedulers if b"submit" in (log := stage.decision_log(each.name)).read_bytes()]
    return leader.read_bytes().splitlines()


def decisions_of_a_simulation(scenario: Scenario, jobs: Sequence[Job]) -> list[bytes]:
    lines: list[bytes] = []
    settings = scenario.settings(["http://engine"], "")
    has_slots = settings.admission.mode in ("priority", "flow-control")
    capacity = (scenario.slots_per_backend or 0) * scenario.num_engines if has_slots else None
    cluster = ClusterConfig(num_instances=scenario.num_engines, capacity=capacity)
    latency = msgspec.structs.replace(latency_of(scenario), alpha=(ENTRY, 0.0, 0.0))
    instance = InstanceConfig(latency=latency, max_num_seqs=LIMIT)
    log, seed = DecisionLog(lines.append), scenario.seed
    simulate(jobs, cluster, instance, settings.routing, settings.admission, settings.programs, seed=seed, log=log)
    return lines


def told(lines: Sequence[bytes]) -> dict[str, list[tuple[Any, ...]]]:
    """Return for each room what was decided about which job, and when, counted from the first arrival. Each numbers requests in
    its own way, so here they have the order in which decisions name them first."""
    entries = [msgspec.json.decode(line) for line in lines]
    first = next(entry["at"] for entry in entries if entry.get("input") in {"submit", "begin"})
    found: dict[str, list[tuple[Any, ...]]] = {"admission": [], "programs": [], "routing": []}
    numbers: dict[str, dict[int, int]] = {room: {} for room in found}
    for entry in entries:
        decision = entry.get("decision")
        if decision is not None and entry["room"] in found:
            of_room = numbers[entry["room"]]
            for key in decision.keys() & {"subject", "other", "request"}:
                if decision[key] is not None:
                    decision[key] = of_room.setdefault(decision[key], len(of_room))
            found[entry["room"]].append((decision.pop("at") - first, *sorted(decision.items())))
    # Which of two tasks goes on first that get a slot or memory at one instant is not decided by anyone.
    return {room: sorted(decisions, key=repr) for room, decisions in found.items()}


def said(decisions: Sequence[tuple[Any, ...]], key: str) -> set[Any]:
    """Return what was ever said in decisions under a key."""
    return {dict(fields).get(key) for _, *fields in decisions}


def ties(lines: Sequence[bytes]) -> set[int]:
    """Return the instants at which two requests end and another one is admitted, which may see one of them or none."""
    entries = [msgspec.json.decode(line) for line in lines]
    ends = Counter(entry["at"] for entry in entries if entry.get("input") == "release")
    decisions = [entry["decision"] for entry in entries if entry["room"] == "admission" and "decision" in entry]
    return {each["at"] for each in decisions if each["action"] == "admit" and ends[each["at"]] > 1}


def scenario_of(seed: int, **fields: Any) -> Scenario:
    limits = (LIMIT,) * int(fields["num_engines"])
    return Scenario(seed=seed, clients=(), engine_limits=limits, link=WIRE, **fields)


@pytest.mark.parametrize("seed", [2, 5, 11])
def test_admission_decides_in_a_gateway_as_in_a_simulation_instant_by_instant(seed: int, tmp_path: Path) -> None:
    scenario, jobs = scenario_of(seed, num_engines=1, slots_per_backend=3, queue_secs=2.0), make_jobs(seed, 60_000)
    live, simulated = told(decisions_of_a_gateway(scenario, jobs, tmp_path)), told(decisions_of_a_simulation(scenario, jobs))
    assert live["admission"] == simulated["admission"]
    assert said(live["admission"], "action") >= {"admit", "queue", "preempt"}


@pytest.mark.parametrize(
    ("policy", "seed", "slots"),
    [
        *(("round-robin", seed, slots) for seed, slots in ((1, 1), (4, 2), (12, 60))),
        *(("least-loaded", seed, slots) for seed, slots in ((1, 1), (8, 2), (12, 60))),
        *(("power-of-two", seed, slots) for seed, slots in ((7, 2), (11, 2), (13, 2))),
        *(("session-affinity(power-of-two)", seed, slots) for seed, slots in ((7, 2), (9, 2))),
    ],
)
def test_a_router_chooses_in_a_gateway_as_in_a_simulation(policy: str, seed: int, slots: int, tmp_path: Path) -> None:
    """With one or two slots engines are full at times, and the router is not shown them; with 60 never."""
    scenario = scenario_of(seed, num_engines=3, slots_per_backend=slots, queue_secs=2.0, policy=policy)
    jobs = make_jobs(seed, 20_000)
    simulated = decisions_of_a_simulation(scenario, jobs)
    assert not ties(simulated)
    live = told(decisions_of_a_gateway(scenario, jobs, tmp_path))
    assert live == told(simulated)
    assert said(live["routing"], "instance") == {0, 1, 2}
    assert ("queue" in said(live["admission"], "action")) == (slots < 60)


@pytest.mark.parametrize("seed", [2, 8])
def test_programs_are_paused_and_resumed_in_a_gateway_as_in_a_simulation(seed: int, tmp_path: Path) -> None:
    scenario = scenario_of(seed, num_engines=2, slots_per_backend=3, has_programs=True, program_tokens=2_000)
    jobs = as_turns(make_jobs(seed, 150_000))
    live, simulated = told(decisions_of_a_gateway(scenario, jobs, tmp_path)), told(decisions_of_a_simulation(scenario, jobs))
    assert live == simulated
    assert said(live["programs"], "action") >= {"grant", "wait", "pause", "resume"}
    assert said(live["programs"], "backend") >= {0, 1}


WEIGHTS = {"header:acme": {"weight": 3.0, "max_in_flight": 2}, "header:beta": {"weight": 1.0}}
RULES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "rate": (
        {"mode": "legacy", "legacy": {"max_concurrent_requests": 2, "queue_size": 3, "rate_limit_tokens_per_second": 8.0}},
        {"queue_full", "rate_limit"},
    ),
    "flow control": (
        {"mode": "flow-control", "flow_control": {"max_concurrency": 2, "max_gateway_queue_depth": 3, "queue_shedding": True}},
        {"saturated", "displaced"},
    ),
    "weights of tenants": ({"tenant_policies": WEIGHTS}, {"tenant_limit", "behind_queue"}),
    "limits": ({"limits": [{"requests_per_minute": 20}]}, {"requests_per_minute"}),
    "starvation": ({"classes": {c: {"starvation_threshold_secs": 0.3} for c in ("bulk", "default")}}, {"starved"}),
}
"""Rules of admission, each with reasons that come up. Those that count the tokens of prompts are not among them: a gateway has
to estimate these, so what it decides by is another input."""


@pytest.mark.parametrize(
    ("rules", "seed", "slots"),
    [("rate", 6, 3), ("flow control", 1, 3), ("weights of tenants", 2, 3), ("limits", 1, 3), ("starvation", 4, 1)],
)
def test_further_rules_of_admission_hold_in_a_gateway_as_in_a_simulation(
    rules: str, seed: int, slots: int, tmp_path: Path
) -> None:
    admission, reasons = RULES[rules]
    told_rules = {"reserve": "fixed", **admission}
    scenario = scenario_of(seed, num_engines=1, slots_per_backend=slots, queue_secs=2.0, admission=told_rules)
    jobs = make_jobs(seed, 50_000)
    live, simulated = told(decisions_of_a_gateway(scenario, jobs, tmp_path)), told(decisions_of_a_simulation(scenario, jobs))
    assert live["admission"] == simulated["admission"]
    assert said(live["admission"], "reason") >= reasons


def cluster_of(seed: int, **fields: Any) -> ClusterScenario:
    limits = (LIMIT,) * int(fields["num_engines"])
    return ClusterScenario(seed=seed, clients=(), engine_limits=limits, link=WIRE, num_gateways=3, num_schedulers=2, **fields)


@pytest.mark.parametrize(
    ("seed", "mean_gap", "fields"),
    [
        *((seed, 60_000, {"num_engines": 1, "slots_per_backend": 3}) for seed in (2, 5, 11)),
        (12, 20_000, {"num_engines": 3, "slots_per_backend": 60, "policy": "round-robin"}),
        (8, 20_000, {"num_engines": 3, "slots_per_backend": 2, "policy": "least-loaded"}),
        (7, 20_000, {"num_engines": 3, "slots_per_backend": 2, "policy": "power-of-two"}),
    ],
)
def test_three_gateways_with_two_schedulers_decide_as_a_simulation_of_one(
    seed: int, mean_gap: float, fields: dict[str, Any], tmp_path: Path
) -> None:
    """The links take no time. What is not shown here, links and a store that are late, cut or gone, has no other decisions:
    `testing/world/cluster` plays them."""
    cluster, jobs = cluster_of(seed, queue_secs=2.0, **fields), make_jobs(seed, mean_gap)
    live, simulated = told(decisions_of_a_cluster(cluster, jobs, tmp_path)), told(decisions_of_a_simulation(cluster, jobs))
    assert live == simulated
    assert said(live["admission"], "action") >= ({"admit", "queue", "preempt"} if cluster.num_engines == 1 else {"admit"})


@pytest.mark.parametrize("seed", [2, 8])
def test_programs_of_three_gateways_are_paused_and_resumed_as_in_a_simulation(seed: int, tmp_path: Path) -> None:
    cluster = cluster_of(seed, num_engines=2, slots_per_backend=3, has_programs=True, program_tokens=2_000)
    jobs = as_turns(make_jobs(seed, 150_000))
    live, simulated = told(decisions_of_a_cluster(cluster, jobs, tmp_path)), told(decisions_of_a_simulation(cluster, jobs))
    assert live == simulated
    assert said(live["programs"], "action") >= {"grant", "wait", "pause", "resume"}
