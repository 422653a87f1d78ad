"""An hour of clients before engines that fail in every way, and a gateway that is reloaded, stopped and rotated meanwhile.

    python bench/soak.py [--seconds 3600] [--seed 1] [--programs] [--keep FOLDER]

Four engines (soak_engine.py) serve one model, and every few seconds one of them, seldom two, has a fault for a while:

    fail, busy, broken, reset, hang, stall    as soak_engine.py says
    kill      SIGKILL, and a start after the pause
    stop      SIGSTOP, and SIGCONT after the pause

The gateway gets valid and invalid configurations (SIGHUP), its record and its decision log are moved aside (`mv`, then SIGHUP),
and it is stopped for two seconds now and then. The clients (soak_clients.py) are a closed loop that half of the engines can
serve, so a request has no fault of its own. At the end:

    failures   requests that failed although an engine worked, and whose response had not begun: none
    foreign    answers with another request's bytes: none
    books      no request in flight or waiting, in the gateway or at the engines; the gateway counted no more admissions than
               requests were sent
    replay     the decision log, of all its files, run again: the same bytes
    memory     at most 20 % more than after the first tenth of the run
    files      as many open descriptors as after the first tenth, within 16

Prints one JSON summary; exits with 1 if `problems` is not empty. The faults follow from the seed; the pace does not.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import msgspec

import processes
from maitred.files.rotated import in_order, read_lines
from maitred.replay import ROOMS
from maitred.replay.verify import Verifier
from measuring import calibrate, cpu_of, resident_bytes
from soak_clients import SoakSeen
from soak_engine import FAULTS
from stress_accounts import GatewayAccount

ENGINES = 4
SLOTS = 32
"""Slots of an engine: two engines serve all clients."""
STEP_SECS = 0.02
CLIENTS = 48
PAUSES = (2.0, 12.0)
"""Seconds between two faults."""
LASTS = (2.0, 16.0)
"""Seconds for which a fault lasts."""
SETTLE_SECS = 30.0
MEMORY_SHARE = 1.2
SPARE_DESCRIPTORS = 16
MAX_LOG_CHARS = 4_000


class Summary(msgspec.Struct):
    """The results, as they are printed."""

    seconds: float
    faults: dict[str, int]
    gateway_acts: dict[str, int]
    ends: dict[str, int]
    failed_share: float
    """Share of all requests that failed for no fault of their own."""
    failures: list[object]
    memory_mib: list[float]
    """After the first tenth, and at the end."""
    descriptors: list[int]
    replayed_lines: int
    gateway_cpu_share: float
    calibration_ms: float
    problems: list[str]


class EngineProcess:
    """One engine on a port of its own, that can be killed, stopped and made faulty."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        script = str(processes.HERE / "soak_engine.py")
        flags = [f"--port={self.port}", f"--slots={SLOTS}", f"--step-secs={STEP_SECS}"]
        self.process = subprocess.Popen([sys.executable, script, *flags], stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def begin(self, fault: str) -> None:
        if fault == "kill":
            self.process.kill()
            self.process.wait()
        elif fault == "stop":
            self.process.send_signal(signal.SIGSTOP)
        else:
            processes.post(f"{self.url}/fault", fault.encode())

    def end(self, fault: str) -> None:
        if fault == "kill":
            self.start()
        elif fault == "stop":
            self.process.send_signal(signal.SIGCONT)
        else:
            processes.post(f"{self.url}/fault", b"none")

    def close(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()


class Soak:
    """The run: a heap of what happens when would be more than it needs; faults end in the order of a short list."""

    def __init__(
        self, options: argparse.Namespace, folder: Path, gateway: processes.GatewayProcess, engines: list[EngineProcess]
    ) -> None:
        self.folder, self.gateway, self.engines = folder, gateway, engines
        self.random = Random(options.seed)
        self.faults: Counter[str] = Counter()
        self.acts: Counter[str] = Counter()
        self.not_reopened: Counter[str] = Counter()
        """How often a file that had been moved aside was not there again at its next turn."""
        self.active: list[tuple[float, EngineProcess, str]] = []
        """When each fault ends, at which engine, and which one it is."""

    def run(self, seconds: float, during: Callable[[float], None]) -> None:
        """Begin and end faults for `seconds`; `during` is told the time several times a second."""
        began = time.monotonic()
        next_fault, next_act = 0.0, 10.0
        while (elapsed := time.monotonic() - began) < seconds:
            self._end_faults(elapsed)
            if elapsed >= next_fault:
                self._begin_fault(elapsed)
                next_fault = elapsed + self.random.uniform(*PAUSES)
            if elapsed >= next_act:
                self._act_on_gateway()
                next_act = elapsed + self.random.uniform(8, 25)
            during(elapsed)
            time.sleep(0.1)
        self._end_faults(float("inf"))

    def _begin_fault(self, now: float) -> None:
        faulty = {id(engine) for _, engine, _ in self.active}
        if len(faulty) >= ENGINES // 2:
            return
        engine = self.random.choice([engine for engine in self.engines if id(engine) not in faulty])
        fault = self.random.choice([*FAULTS, "kill", "stop"])
        engine.begin(fault)
        self.faults[fault] += 1
        self.active.append((now + self.random.uniform(*LASTS), engine, fault))

    def _end_faults(self, now: float) -> None:
        for entry in [entry for entry in self.active if entry[0] <= now]:
            self.active.remove(entry)
            entry[1].end(entry[2])

    def _act_on_gateway(self) -> None:
        act = self.random.choice(["reload", "reload", "invalid reload", "rotate", "stop"])
        self.acts[act] += 1
        process = self.gateway.process
        if act == "stop":
            process.send_signal(signal.SIGSTOP)
            time.sleep(2)
            process.send_signal(signal.SIGCONT)
            return
        if act == "rotate":
            for name in ("decisions.jsonl", "record.csv"):
                try:
                    (self.folder / name).rename(self.folder / f"{name}-{self.acts[act]:08d}")
                except FileNotFoundError:
                    self.not_reopened[name] += 1
        text = "admission: {mode: nothing of the kind}" if act == "invalid reload" else settings(self.folder, self.random)
        (self.folder / "maitred.yaml").write_text(text)
        process.send_signal(signal.SIGHUP)


def settings(folder: Path, random: Random) -> str:
    """Return a valid configuration with some number that differs from the last one."""
    return json.dumps(
        {
            "admission": {"mode": "priority", "classes": {"bulk": {"queue_size": random.randrange(512, 2048)}}},
            "gateway": {
                "trust_tenant_header": True,
                "decision_log": str(folder / "decisions.jsonl"),
                "record": str(folder / "record.csv"),
            },
        }
    )


def replay_problems(folder: Path) -> tuple[int, list[str]]:
    """Run the decision log of all its files again. Return its number of lines, and what differs."""
    (paths,) = in_order(folder.glob("decisions.jsonl*")).values()
    found = Verifier(ROOMS).run(read_lines(paths))
    return found.num_lines, [] if found.difference is None else [f"replay: {found.difference}"]


def book_problems(gateway: processes.GatewayProcess, engines: list[EngineProcess], seen: SoakSeen) -> Iterator[str]:
    """Yield what is not as it must be after the last client."""
    deadline = time.monotonic() + SETTLE_SECS
    while True:
        account = GatewayAccount.parse(processes.fetch_text(f"{gateway.url}/metrics"))
        running = sum(processes.fetch_json(f"{engine.url}/counts")["running"] for engine in engines)
        if not (account.in_flight or account.waiting or running) or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    if account.in_flight or account.waiting or running:
        yield f"left: {account.in_flight} in flight, {account.waiting} waiting, {running} at the engines"
    if account.arrivals > sum(seen.ends.values()):
        yield f"{account.arrivals} arrivals were counted, and {sum(seen.ends.values())} requests sent"


def descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def soak(options: argparse.Namespace, folder: Path) -> Summary:
    calibration = calibrate()
    engines = [EngineProcess() for _ in range(ENGINES)]
    (folder / "maitred.yaml").write_text(settings(folder, Random(0)))
    flags = ["--config", str(folder / "maitred.yaml"), *(["--router", "tr", "--state", "none"] if options.programs else [])]
    try:
        with processes.run_gateway([engine.url for engine in engines], *flags) as gateway:
            gateway.wait_for_capacity(SLOTS * ENGINES)
            return play(options, folder, gateway, engines, calibration)
    finally:
        for engine in engines:
            engine.close()


def play(
    options: argparse.Namespace,
    folder: Path,
    gateway: processes.GatewayProcess,
    engines: list[EngineProcess],
    calibration: float,
) -> Summary:
    run = Soak(options, folder, gateway, engines)
    early: list[tuple[float, int]] = []

    def look(elapsed: float) -> None:
        if not early and elapsed > options.seconds / 10:
            early.append((resident_bytes(gateway.pid) / 2**20, descriptors(gateway.pid)))

    arguments = [f"--url={gateway.url}", f"--clients={CLIENTS}", f"--seconds={options.seconds}", f"--step-secs={STEP_SECS}"]
    arguments += [f"--seed={options.seed}", *(["--programs"] if options.programs else [])]
    cpu, began = cpu_of(gateway.pid), time.monotonic()
    with processes.run_clients("soak_clients.py", *arguments) as clients:
        run.run(options.seconds, look)
        output, _ = clients.communicate()
    seen = msgspec.json.decode(output, type=SoakSeen)
    share = (cpu_of(gateway.pid) - cpu) / (time.monotonic() - began)
    problems = list(book_problems(gateway, engines, seen))
    problems += [f"{name} was not opened again {times} times" for name, times in run.not_reopened.items()]
    memory, files = resident_bytes(gateway.pid) / 2**20, descriptors(gateway.pid)
    failed = sum(number for end, number in seen.ends.items() if end not in {"whole", "left", "shed", "preempted", "begun"})
    if failed:
        problems.append(f"{failed} requests failed for no fault of their own")
    if seen.foreign:
        problems.append(f"{seen.foreign} answers had bytes of another")
    if memory > early[0][0] * MEMORY_SHARE:
        problems.append(f"memory rose from {early[0][0]:.0f} to {memory:.0f} MiB")
    if files > early[0][1] + SPARE_DESCRIPTORS:
        problems.append(f"open files rose from {early[0][1]} to {files}")
    if gateway.log_text.count("Traceback"):
        problems.append(f"{gateway.log_text.count('Traceback')} tracebacks in the log")
    gateway.process.send_signal(signal.SIGTERM)
    gateway.process.wait(60)
    (folder / "gateway.log").write_text(gateway.log_text)
    lines, different = replay_problems(folder)
    if problems or different:
        print(gateway.log_text[-MAX_LOG_CHARS:], file=sys.stderr)
    return Summary(
        seconds=options.seconds,
        faults=dict(run.faults),
        gateway_acts=dict(run.acts),
        ends=dict(seen.ends),
        failed_share=failed / max(1, sum(seen.ends.values())),
        failures=list(seen.failures),
        memory_mib=[round(early[0][0], 1), round(memory, 1)],
        descriptors=[early[0][1], files],
        replayed_lines=lines,
        gateway_cpu_share=round(share, 3),
        calibration_ms=round(calibration * 1e3, 1),
        problems=problems + different,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--programs", action="store_true", help="the clients are agent programs, routed by memory")
    parser.add_argument("--keep", type=Path, help="folder in which logs and records are kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        summary = soak(options, folder)
    print(msgspec.json.format(msgspec.json.encode(summary)).decode())
    sys.exit(1 if summary.problems else 0)
