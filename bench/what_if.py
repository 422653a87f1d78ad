"""What `maitred replay` foretells, held against truth: the same clients, live, under the other rules.

    python bench/what_if.py [--seconds 60] [--repeats 3] [--workers 2] [--seed 1]

Two emulated engines of eight sequences stand behind `maitred serve`. Clients of two tenants send requests in classes, and
agents work in turns. The gateway runs under one configuration, with a decision log and a recording; then the same clients come
as often as there are repeats under the other one, each time before fresh engines. For p50 and p90 of TTFT and E2E of each class
the table has what was recorded, what the replay says of the other rules (the median of eleven runs, as `maitred replay`), and
what came live: the median of the repeats, and the spread of both, which no prediction can be better than.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median

import processes
from maitred.config import load
from maitred.study.what_if.figures import Groups, figures, find_figure
from maitred.study.what_if.recorded import Recorded, read_recorded
from maitred.study.what_if.world import CENTRAL, ReplayWorld

SLOTS = 8
STEPS = "linear:20000,60,500"
"""As long as those of large models, so that what a busy machine adds is a small part."""
NOW = """
admission: {mode: priority, default_max_class: system}
"""
OTHER = """
gateway: {slots_per_backend: 6}
admission:
  mode: priority
  default_max_class: system
  classes:
    interactive: {reserved_floor: 3}
    bulk: {queue_size: 1000, queue_timeout_secs: 20}
"""
NAMES = [
    f"{group}.{name}_{which}_ms"
    for group in ("interactive", "default", "bulk")
    for name in ("ttft", "e2e")
    for which in ("p50", "p90")
]
SEEDS = (CENTRAL, *range(42, 52))
COUNTS = ("completed_requests", "rejected_requests", "makespan_s")


def write_clients(path: Path, seconds: float, seed: int) -> None:
    """Write what clients send, as a trace: interactive requests and bulk work of two tenants, and agents that work in turns."""
    draw = random.Random(seed)
    rows: list[tuple[float, str]] = []
    for label, rate, prompt, answer in (("interactive", 2, 200, 60), ("bulk", 2.5, 500, 170)):
        at = draw.expovariate(rate)
        while at < seconds:
            lengths = f"{1 + int(draw.expovariate(1 / prompt))},{1 + int(draw.expovariate(1 / answer))}"
            rows.append((at, f"{label},{lengths},header:{draw.choice(('acme', 'beta'))},,"))
            at += draw.expovariate(rate)
    for agent in range(int(seconds / 5)):
        at, prompt = draw.uniform(0, 0.7 * seconds), 200
        for turn in range(draw.randint(3, 8)):
            answer = draw.randint(20, 120)
            think = "" if turn == 0 else f"{draw.uniform(0.1, 1.5):.3f}"
            rows.append((at, f"default,{prompt},{answer},header:acme,agent-{agent},{think}"))
            at += 1.0 + float(think or 0)
            prompt += answer + 50
    lines = (f"{at:.6f},{row}\n" for at, row in sorted(rows))
    path.write_text("arrival_secs,class,prompt_tokens,output_tokens,tenant,program,think_secs\n" + "".join(lines))


@contextmanager
def running(*arguments: str, log: Path) -> Iterator[None]:
    with log.open("ab") as out, subprocess.Popen([*processes.MAITRED, *arguments], stdout=out, stderr=out) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(processes.STOP_SECS)
            except subprocess.TimeoutExpired:
                process.kill()


def wait_for_slots(url: str, slots: int) -> None:
    until = time.monotonic() + processes.START_SECS
    while time.monotonic() < until:
        with suppress(OSError):
            if processes.fetch_json(f"{url}/maitred/state")["capacity"] == slots:
                return
        time.sleep(0.1)
    raise SystemExit("the gateway never had its slots")


def live(folder: Path, rules: str, clients: Path, workers: int, slots: int) -> tuple[Path, Path]:
    """Serve the clients once under `rules`, before fresh engines. Return the log and the record."""
    folder.mkdir()
    (folder / "rules.yaml").write_text(rules)
    first, second, port = processes.free_ports(3)
    engine = ("engine", "--max-num-seqs", str(SLOTS), "--latency-model", STEPS, "--port")
    backends = [flag for each in (first, second) for flag in ("--backend", f"http://127.0.0.1:{each}")]
    log, record, said = folder / "decisions.jsonl", folder / "record.csv", folder / "said"
    serve = ("serve", "--config", str(folder / "rules.yaml"), "--port", str(port), *backends, "--settle-secs", "0")
    files = ("--decision-log", str(log), "--record", str(record), "--trust-tenant-header", "--workers", str(workers))
    url = f"http://127.0.0.1:{port}"
    with running(*engine, str(first), log=said), running(*engine, str(second), log=said):
        for each in (first, second):
            wait_for_engine(each)
        with running(*serve, *files, log=said):
            wait_for_slots(url, slots)
            bench = ("bench", url, "--trace", f"maitred:{clients}", "--session-mode", "closed-loop", "--quiet")
            env = {**os.environ, "PYTHONWARNINGS": "ignore"}
            subprocess.run([*processes.MAITRED, *bench], env=env, check=True)
    return log, record


def wait_for_engine(port: int) -> None:
    until = time.monotonic() + processes.START_SECS
    while time.monotonic() < until:
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
            return
        time.sleep(0.1)
    raise SystemExit("an engine did not start")


def seen(recorded: Recorded) -> dict[str, float | None]:
    """Return the figures of a run as it was recorded."""
    world = ReplayWorld(recorded, ReplayWorld.calibrated(recorded).engines)
    return figures(world.truth, world, [*names_of(recorded), *COUNTS])


def names_of(recorded: Recorded) -> list[str]:
    classes = Groups(recorded.requests).classes
    return [name for name in NAMES if find_figure(name).group in classes]


Figures = dict[str, float | None]


def report(recorded: Figures, said: Sequence[Figures], lived: Sequence[Figures]) -> None:
    print(f"{'':28}{'recorded':>10}{'replay':>10}{'live':>10}{'error':>9}{'spread of repeats':>20}{'of replays':>12}")
    worst: list[float] = []
    for name in said[0]:
        guesses, values = ([value for each in side if (value := each.get(name)) is not None] for side in (said, lived))
        if not guesses or not values or not median(values):
            continue
        truth = median(values)
        error, spreads = median(guesses) / truth - 1, [(max(side) - min(side)) / truth for side in (values, guesses)]
        worst += [abs(error)] if name in NAMES else []
        told = f"{recorded.get(name) or 0:>10,.1f}{median(guesses):>10,.1f}{truth:>10,.1f}{error:>+9.1%}"
        print(f"{name:28}{told}{spreads[0]:>20.1%}{spreads[1]:>12.1%}")
    print(f"p50 and p90 of TTFT and E2E: off by {sum(worst) / len(worst):.1%} on average, {max(worst):.1%} at worst")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a new folder in which the logs and records stay")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary) / "runs"
        folder.mkdir()
        clients = folder / "clients.csv"
        write_clients(clients, arguments.seconds, arguments.seed)
        log, record = live(folder / "now", NOW, clients, arguments.workers, 2 * SLOTS)
        recorded = read_recorded([log], [record])
        world = ReplayWorld.calibrated(recorded)
        (folder / "other.yaml").write_text(OTHER)
        other = world.candidate(load(folder / "other.yaml"))
        names = [*names_of(recorded), *COUNTS]
        print(f"{len(recorded.requests):,} requests; {world.engines.instance.latency}")
        again, said = (
            [figures(world.replay(rules, seed), world, names) for seed in SEEDS] for rules in (world.in_force, other)
        )
        print("the rules of the recording, replayed:")
        report(seen(recorded), again, [seen(recorded)])
        lived = []
        for number in range(arguments.repeats):
            log, record = live(folder / f"other-{number}", OTHER, clients, arguments.workers, 12)
            lived.append(seen(read_recorded([log], [record])))
        print("the other rules, live:")
        report(seen(recorded), said, lived)


if __name__ == "__main__":
    main()
