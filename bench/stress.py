"""Ten thousand clients at twice the capacity, against the real gateway; at the end every request is accounted for.

    python bench/stress.py [--clients 10000] [--seconds 60] [--rate 1000]

Three processes: the clients (stress_crowd.py), `maitred serve --admission priority`, and four mock engines with two models
(mock_engine.py). Requests have all four classes and many tenants, some of them limited, and are streamed or not; clients
disconnect while they wait and in the middle of a stream, and the gateway preempts. After a third of the run the engines halve
their slots, after half of it the gateway gets another configuration (SIGHUP), after two thirds the slots come back.

What clients saw must be what the gateway counted (stress_accounts.py). After the last client no request may be in flight or
waiting, in the gateway or at the engines. No response may be cut short or have an unexpected status. Prints one JSON summary;
the exit code is 1 if `problems` is not empty.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

import processes
from measuring import calibrate, peak_memory_of
from stress_accounts import GatewayAccount, ReconciledClass, contradictions, reconcile
from stress_crowd import ClassSeen, CrowdSeen
from stress_run import ENGINES, SLOTS_PER_CLIENT, Run, Scale, settings

SHOWN_LOG_CHARS = 4_000
"""Characters of the end of the gateway's log that are shown if something is wrong."""


class Summary(msgspec.Struct):
    """The results, as they are printed."""

    clients: int
    seconds: float
    capacity_per_s: float
    """Requests per second that all slots can serve."""
    offered_per_s: float
    not_offered: int
    """Requests that were due while all clients waited; more than a few mean that this machine is too slow for the rate."""
    arrivals: int
    answered_whole_per_s: float
    capacity_in_slots: list[int]
    """The capacities in their order."""
    most_in_flight: int
    most_waiting: int
    outcomes: dict[str, dict[str, int]]
    """Outcomes by class, as the gateway counted them."""
    preemptions: int
    promotions: int
    clients_against_gateway: dict[str, ReconciledClass]
    first_byte_ms: dict[str, list[float]]
    """Time to first byte of whole responses by class: p50, p99."""
    engines: dict[str, int]
    gateway_cpu_us_per_request: float
    gateway_cpu_share: float
    """CPU time of the gateway as a share of one core."""
    gateway_peak_mb: float
    calibration_ms: float
    problems: list[str]


def problems(run: Run, seen: CrowdSeen, account: GatewayAccount, engines: dict[str, int]) -> Iterator[str]:
    """Yield everything that should not have happened."""
    yield from contradictions(seen.classes, account)
    yield from (f"{number} clients saw: {what}" for what, number in seen.strange.items())
    if engines["running"]:
        yield f"engines still work on {engines['running']} requests without a client"
    if run.gateway.process.poll() is not None:
        yield "the gateway has ended"
    tracebacks = run.gateway.log_text.count("Traceback")
    if tracebacks:
        yield f"{tracebacks} tracebacks in the gateway's log"
    yield from missing(run, seen, account)


def missing(run: Run, seen: CrowdSeen, account: GatewayAccount) -> Iterator[str]:
    """Yield what a run lacks to show anything."""
    full, half, went = run.scale.slots, run.scale.slots_per_engine // 2 * len(ENGINES), run.capacities
    if min(went) != half or went[0] != full or went[-1] != full:
        yield f"the capacity was to go {full} → {half} → {full} slots, and went {went}"
    if not run.reloaded:
        yield "the configuration was not reloaded"
    if not account.preemptions:
        yield "no request was preempted"
    for name in ("whole", "preempted", "queue_full", "queue_timeout", "left"):
        if not any(getattr(of_class, name) for of_class in seen.classes.values()):
            yield f"no client's request ended as: {name}"


def summarize(run: Run, seen: CrowdSeen, calibration: float) -> Summary:
    account, engines, scale = run.account(), run.engine_accounts(), run.scale

    def per_second(name: str) -> float:
        return round(sum(getattr(of_class, name) for of_class in seen.classes.values()) / seen.seconds)

    def reconciled(name: str, of_class: ClassSeen) -> ReconciledClass:
        return reconcile(of_class, account.outcomes.get(name, {}))[0]

    return Summary(
        clients=seen.clients,
        seconds=round(seen.seconds, 1),
        capacity_per_s=round(scale.slots / scale.service_secs),
        offered_per_s=per_second("sent"),
        not_offered=seen.not_sent,
        arrivals=account.arrivals,
        answered_whole_per_s=per_second("whole"),
        capacity_in_slots=run.capacities,
        most_in_flight=max(sample.in_flight for sample in run.samples),
        most_waiting=max(sample.waiting for sample in run.samples),
        outcomes=account.outcomes,
        preemptions=account.preemptions,
        promotions=account.promotions,
        clients_against_gateway={name: reconciled(name, of_class) for name, of_class in seen.classes.items()},
        first_byte_ms=seen.first_byte_ms,
        engines=engines,
        gateway_cpu_us_per_request=round(run.cpu_secs / max(1, account.arrivals) * 1e6, 1),
        gateway_cpu_share=round(run.cpu_secs / run.wall_secs, 2),
        gateway_peak_mb=round(peak_memory_of(run.gateway.pid) / 1e6, 1),
        calibration_ms=round(calibration * 1e3, 1),
        problems=list(problems(run, seen, account, engines)),
    )


def stress(scale: Scale) -> Summary:
    calibration = calibrate()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "maitred.yaml"
        config.write_bytes(settings(scale, bulk_queue=0.08, default_patience=1.0))
        engines = processes.run_mock_engines(scale.step_secs, [(model, scale.slots_per_engine) for model in ENGINES])
        with engines as urls, processes.run_gateway(urls, "--config", str(config)) as gateway:
            gateway.wait_for_capacity(scale.slots)
            run = Run(scale, urls, gateway, config)
            seen = run.play()
            run.settle()
            summary = summarize(run, seen, calibration)
            if summary.problems:
                print(gateway.log_text[-SHOWN_LOG_CHARS:], file=sys.stderr)
            return summary


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=1000.0, help="requests per second, twice what the slots can serve")
    options = parser.parse_args()
    have, need = processes.raise_descriptor_limit(), int(options.clients * (1 + SLOTS_PER_CLIENT) * 1.1) + 100
    if have < need:
        sys.exit(f"{options.clients} clients need {need} open files, and {have} are allowed (ulimit -Hn)")
    summary = stress(Scale(options.clients, options.rate, options.seconds))
    print(msgspec.json.format(msgspec.json.encode(summary)).decode())
    sys.exit(1 if summary.problems else 0)
