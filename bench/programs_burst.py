"""A burst of agent programs on two emulated engines with little KV memory, behind the real gateway.

    python bench/programs_burst.py [--programs 64] [--turns 4] [--repeat 3] [--kill] [--flavour thunderagent]

All programs come within two seconds, and need about five times the memory of both engines. ThunderAgent's users reported what
its smallest-first order makes of that: 0.5 s to the first response for the smallest programs, 404 s for the largest. Here the
p99 of the larger half should stay within 4 times that of the smaller half.

The gateway records the traffic, and `maitred simulate` replays the recording as a closed loop: the makespans of the programs
should be those that were measured. Which programs are paused turns on milliseconds and single tokens, and a pause costs a
program seconds: the medians of runs that differ by nothing else differ by 5 %, simulated ones too (arrivals shifted by 10 ms).
So there is `--repeat`: each run has a burst of its own (the next `--seed`), and the means of all are compared.

`--kill` ends an engine (SIGKILL) when a third of the programs have finished, and the gateway when two thirds have, and starts
each again. Agents send failed requests again; every program must finish. A program that was released within the last moments
of the killed gateway, before that was written down, is known to the next one; it is released again.

Exits with 1 if a program did not finish, or if the gateway or an engine has something left at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import TypeAlias

import numpy as np

from agents import RELEASE, Agent, AgentRun, Turn, burst, run_agents
from processes import MAITRED, START_SECS, fetch_json, fetch_text, free_ports, post

NUM_ENGINES = 2
BURST_SECS = 2.0
KV_BLOCKS, BLOCK_TOKENS = 2_500, 16
LONGEST_SECS = 300.0
"""After which programs count as lost."""
SETTLE_SECS = 3.0
PERCENTILES = (50, 99)
Makespans: TypeAlias = tuple[float, float]
"""p50 and p99, in seconds."""
WARM_UP = "warm-up"
"""The program that comes before the burst, and does not count."""
LATENCY = (10_000, 120, 400)
"""Of a step, in µs: of any, for each token of a prompt, and for each sequence that decodes."""


def engine_flags(options: argparse.Namespace) -> list[str]:
    """Return the flags of an engine, which `maitred simulate` has as well."""
    kv = ["--total-kv-blocks", str(KV_BLOCKS), "--block-size-in-tokens", str(BLOCK_TOKENS), "--enable-prefix-caching"]
    return [*kv, "--latency-model", "linear:" + ",".join(f"{time / options.speed:g}" for time in LATENCY)]


class Service:
    """A process of maitred on a port of its own, which may be killed and started again."""

    def __init__(self, port: int, *arguments: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._arguments = [*MAITRED, *arguments, "--port", str(port)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._arguments, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def wait_until(self, path: str) -> None:
        """Wait until `path` is answered with 200."""
        deadline = time.monotonic() + START_SECS
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                fetch_text(self.url + path)
                return
            time.sleep(0.05)
        sys.exit(f"{' '.join(self._arguments)} did not start")


@contextlib.contextmanager
def run_cluster(options: argparse.Namespace, folder: Path) -> Iterator[tuple[Service, list[Service]]]:
    """Run the engines and the gateway. Yield the gateway and the engines."""
    port, *ports = free_ports(1 + NUM_ENGINES)
    engines = [Service(each, "engine", *engine_flags(options), "--seed", str(number)) for number, each in enumerate(ports)]
    flags = ["--router", "tr", *programs_flags(options), "--state", str(folder / "programs.sqlite")]
    record = [] if options.kill else ["--record", str(folder / "recorded.csv")]
    gateway = Service(
        port, "serve", "--settle-secs", "0", "--backends", ",".join(engine.url for engine in engines), *flags, *record
    )
    services = [*engines, gateway]
    try:
        for service in services:
            service.start()
        for engine in engines:
            engine.wait_until("/health")
        gateway.wait_until("/ready")
        while any(not backend["healthy"] for backend in fetch_json(f"{gateway.url}/maitred/state")["backends"]):
            time.sleep(0.05)
        yield gateway, engines
    finally:
        for service in reversed(services):
            service.stop()


def programs_flags(options: argparse.Namespace) -> list[str]:
    """Return the flags that `maitred serve` and `maitred simulate` get alike."""
    return ["--programs-flavour", options.flavour]


async def live(gateway: Service, engines: Sequence[Service], options: argparse.Namespace) -> list[AgentRun]:
    """Return what became of each program."""
    agents = burst(options.programs, options.turns, BURST_SECS, Random(options.seed), options.speed)
    # A gateway in service knows how many characters a token has; a new one would guess wrong for the whole burst.
    await run_agents(gateway.url, [Agent(WARM_UP, 0.0, [Turn(2_000, 20, 0.0)])], [])
    runs: list[AgentRun] = []
    trouble = asyncio.create_task(_kill(gateway, engines, runs, options.programs)) if options.kill else None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LONGEST_SECS):
            await run_agents(gateway.url, agents, runs)
    if trouble is not None:
        await trouble
    return runs


async def _kill(gateway: Service, engines: Sequence[Service], runs: Sequence[AgentRun], num_programs: int) -> None:
    """Kill an engine and later the gateway, and return when both serve again."""
    for name, service, path, share in (("an engine", engines[0], "/health", 1 / 3), ("the gateway", gateway, "/ready", 2 / 3)):
        deadline = time.monotonic() + LONGEST_SECS
        while (finished := sum(run.ended is not None for run in runs)) < share * num_programs and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        await asyncio.to_thread(service.kill)
        print(f"{name} was killed when {finished} of {num_programs} programs had finished")
        await asyncio.sleep(1.0)
        service.start()
        await asyncio.to_thread(service.wait_until, path)


def release_again(gateway: Service) -> None:
    """Release the idle programs that the gateway has adopted from one that was killed after it had released them."""
    for name, said in fetch_json(f"{gateway.url}/programs").items():
        if said["status"] == "acting":
            post(f"{gateway.url}{RELEASE}", json.dumps({"program_id": name}).encode())
            print(f"{name} was known to the gateway again after it had been killed")


def leftovers(gateway: Service, engines: Sequence[Service]) -> list[str]:
    """Return what the gateway and the engines still have, after all programs have ended."""
    deadline = time.monotonic() + SETTLE_SECS
    while True:
        state, programs = fetch_json(f"{gateway.url}/maitred/state"), fetch_json(f"{gateway.url}/programs")
        found = [f"gateway: {state[name]} {name}" for name in ("in_flight", "waiting") if state[name]]
        found += [f"gateway: program {name} {said}" for name, said in programs.items()]
        for engine in engines:
            load = fetch_json(f"{engine.url}/emulator/state")
            found += [f"{engine.url}: {load[name]} {name}" for name in ("running", "waiting") if load[name]]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def makespans(of_programs: Sequence[float]) -> Makespans:
    """Return the percentiles of makespans."""
    p50, p99 = np.percentile(of_programs, PERCENTILES)
    return float(p50), float(p99)


def simulate(recorded: Path, options: argparse.Namespace) -> Makespans:
    """Return the makespans that `maitred simulate` finds for a recording."""
    metrics = recorded.with_suffix(".json")
    rows = [row for row in recorded.read_text().splitlines(keepends=True) if f",{WARM_UP}," not in row]
    recorded.write_text("".join(rows))
    arguments = [*MAITRED, "simulate", "--trace", f"maitred:{recorded}", "--session-mode", "closed-loop"]
    arguments += ["--num-instances", str(NUM_ENGINES), *engine_flags(options), "--router", "tr", *programs_flags(options)]
    subprocess.run(
        [*arguments, "--metrics-path", str(metrics)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    figures = json.loads(metrics.read_text())
    return figures["program_makespan_p50_s"], figures["program_makespan_p99_s"]


def report(runs: Sequence[AgentRun]) -> None:
    """Print the times of small and large programs."""
    by_size = sorted(runs, key=lambda run: run.agent.start_tokens)
    middle = len(by_size) // 2
    print("| programs | start tokens | first response p50 s | p99 s | makespan p50 s | p99 s |")
    print("|---|---|---|---|---|---|")
    slowest = []
    for name, group in (("smaller half", by_size[:middle]), ("larger half", by_size[middle:])):
        first = np.percentile([run.first_response_secs for run in group], PERCENTILES)
        makespan = np.percentile([run.makespan_secs for run in group], PERCENTILES)
        sizes = f"{group[0].agent.start_tokens:,} to {group[-1].agent.start_tokens:,}"
        print(f"| {name} | {sizes} | {first[0]:.2f} | {first[1]:.2f} | {makespan[0]:.2f} | {makespan[1]:.2f} |")
        slowest.append(first[1])
    print(f"\nfirst response p99, larger half to smaller half: {slowest[1] / slowest[0]:.2f}")
    for reason, times in Counter(reason for run in runs for reason in run.retries).most_common():
        print(f"sent again {times} times: {reason}")
    print()


def compare(measured: Sequence[Makespans], simulated: Sequence[Makespans]) -> None:
    """Print the makespans as they were measured and as they are simulated."""
    print("| makespan | p50 s | p99 s |\n|---|---|---|")
    for number, (live_one, simulated_one) in enumerate(zip(measured, simulated, strict=True), 1):
        print(f"| burst {number}, measured | {live_one[0]:.2f} | {live_one[1]:.2f} |")
        print(f"| burst {number}, simulated | {simulated_one[0]:.2f} | {simulated_one[1]:.2f} |")
    mean_measured, mean_simulated = np.mean(measured, axis=0), np.mean(simulated, axis=0)
    print(f"| mean, measured | {mean_measured[0]:.2f} | {mean_measured[1]:.2f} |")
    print(f"| mean, simulated | {mean_simulated[0]:.2f} | {mean_simulated[1]:.2f} |")
    print("| difference of the means | " + " | ".join(f"{share:+.1%}" for share in mean_simulated / mean_measured - 1) + " |")
    if len(measured) > 1:
        spread = np.std(np.array(simulated) / np.array(measured), axis=0, ddof=1)
        print("| standard deviation of the difference of one burst | " + " | ".join(f"{share:.1%}" for share in spread) + " |")
    print()


def run_once(options: argparse.Namespace, folder: Path) -> tuple[list[AgentRun], list[str]]:
    """Return what became of each program, and what is wrong."""
    with run_cluster(options, folder) as (gateway, engines):
        runs = asyncio.run(live(gateway, engines, options))
        problems = [f"{run.agent.name} has not finished: {run.retries[-3:]}" for run in runs if run.ended is None]
        if options.kill:
            release_again(gateway)
        return runs, problems or leftovers(gateway, engines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=64)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--speed", type=float, default=1.0, help="how many times faster everything is")
    parser.add_argument("--repeat", type=int, default=1, help="bursts, one after the other, each of its own seed")
    parser.add_argument("--flavour", default="ours", choices=("ours", "thunderagent"))
    parser.add_argument("--kill", action="store_true", help="end an engine and the gateway meanwhile (SIGKILL)")
    parser.add_argument("--no-simulation", action="store_true")
    options = parser.parse_args()
    measured, simulated = [], []
    for seed in range(options.seed, options.seed + options.repeat):
        options.seed = seed
        with tempfile.TemporaryDirectory() as folder:
            runs, problems = run_once(options, Path(folder))
            if problems:
                print("\n".join(problems))
                sys.exit(1)
            report(runs)
            measured.append(makespans([run.makespan_secs for run in runs]))
            if not options.kill and not options.no_simulation:
                simulated.append(simulate(Path(folder, "recorded.csv"), options))
    if simulated:
        compare(measured, simulated)
    print("every program has finished, and nothing is left")


if __name__ == "__main__":
    main()
