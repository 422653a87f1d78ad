"""What `maitred tune` foretells, beside what comes of it: Azure's trace live before emulated engines, as it is and tuned.

    python bench/tune.py --trace AzureLLMInferenceTrace_conv.csv.gz [--requests 600] [--repeats 3] [--json]

1. Clients replay the trace, a fifth of it chats and the rest bulk work, through a gateway with the defaults, which writes a
   decision log and a record.
2. `maitred tune` searches rules for the SLO on the first 70 % of the requests, and foretells the last 30 %.
3. The same clients replay the trace through a gateway with the file that was written, and again with the defaults, so that each
   has come live as often as `--repeats` says.

What is printed is of the last 30 % of the requests: today's figure and the tuned one, foretold with its interval and live, the
middle one of the repeats and between which they are. The engines are two of `maitred engine` that run 24 sequences, with steps
of 0.1 s, so that a processor has little to do for them; the trace comes at two fifths of its speed, which is somewhat more than
they serve.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np

import processes
from maitred.study.tune import Tuned
from maitred.study.tune.goal import Part, parse_limit
from maitred.study.what_if.recorded import read_recorded
from maitred.study.what_if.world import ReplayWorld

LATENCY = "linear:100000,5,500"
MAX_NUM_SEQS = 24
TODAY = {"admission": {"default_max_class": "system"}}
"""The defaults, in which clients may name any class."""
SLO = "interactive.ttft_p90_ms <= 3000"
MIX, RATE_SCALE = "interactive:0.2,bulk:0.8", "0.4"


@contextlib.contextmanager
def engines() -> Iterator[list[str]]:
    """Run two emulated engines. Yields their URLs."""
    flags = ("--latency-model", LATENCY, "--max-num-seqs", str(MAX_NUM_SEQS))
    with contextlib.ExitStack() as stack:
        ports = processes.free_ports(2)
        for port in ports:
            stack.enter_context(processes._running([*processes.MAITRED, "engine", "--port", str(port), *flags]))
        yield [f"http://127.0.0.1:{port}" for port in ports]


def cut(arguments: argparse.Namespace, folder: Path) -> Path:
    """Write the first requests of the trace to a file, and return it."""
    opened = gzip.open if arguments.trace.suffix == ".gz" else open
    with opened(arguments.trace, "rt") as whole:
        lines = list(islice(whole, arguments.requests + 1))
    part = folder / "trace.csv"
    part.write_text("".join(lines))
    return part


def run_live(config: Path, folder: Path, name: str, arguments: argparse.Namespace) -> tuple[Path, Path]:
    """Replay the trace through a gateway of a configuration. Returns its decision log and its record."""
    log, record = folder / f"{name}.jsonl", folder / f"{name}.csv"
    flags = ("--config", str(config), "--decision-log", str(log), "--record", str(record))
    with engines() as urls, processes.run_gateway(urls, *flags) as gateway:
        while not processes.fetch_json(f"{gateway.url}/maitred/live")["state"]["ready"]:
            time.sleep(0.1)
        load = ("--trace", f"azure:{cut(arguments, folder)}", "--rate-scale", RATE_SCALE, "--class-mix", MIX)
        subprocess.run([*processes.MAITRED, "bench", gateway.url, *load, "--quiet"], check=True)
    return log, record


def tune(log: Path, record: Path, today: Path, folder: Path, budget: float) -> Tuned:
    """Run `maitred tune`, and return what it found."""
    engine = folder / "engine.yaml"
    engine.write_text(json.dumps({"instance": {"max_num_seqs": MAX_NUM_SEQS}}))
    known = ("--record", str(record), "--engine", str(engine), "--config", str(today))
    written = ("--write", str(folder / "tuned.yaml"), "--json", str(folder / "tuned.json"))
    search = ("--slo", SLO, "--budget", str(budget), "--seeds", "5")
    done = subprocess.run([*processes.MAITRED, "tune", str(log), *known, *search, *written], check=False)
    if done.returncode > 1:
        sys.exit("maitred tune has failed")
    return msgspec.json.decode((folder / "tuned.json").read_bytes(), type=Tuned)


def live_part(log: Path, record: Path, num_held_out: int) -> tuple[Part, Any]:
    """Return the last requests of a live run, and what came of them."""
    recorded = read_recorded([log], [record])
    run = ReplayWorld.calibrated(recorded).truth
    rows = np.arange(len(recorded.requests)) >= len(recorded.requests) - num_held_out
    return Part(recorded.requests, rows, [parse_limit(SLO)], run), run


def figures(part: Part, run: Any) -> dict[str, float]:
    """Return the figure of the SLO in ms, and the mean time of a request by class in ms."""
    (limit,) = part.limits
    times = part.times(run) / 1000
    return {SLO: part.value(limit, run)} | {name: float(times[rows].mean()) for name, rows in part.classes.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trace", type=Path, required=True, help="a file of Azure's traces of 2023 or 2024")
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--budget", type=float, default=60)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a folder for the logs, records and files")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(exist_ok=True)
        today = folder / "today.yaml"
        today.write_text(json.dumps(TODAY))
        before = [run_live(today, folder, "today", arguments)]
        found = tune(*before[0], today, folder, arguments.budget)
        after = []
        for number in range(arguments.repeats):
            after.append(run_live(folder / "tuned.yaml", folder, f"tuned-{number}", arguments))
            if number:
                before.append(run_live(today, folder, f"today-{number}", arguments))
        sides = [[figures(*live_part(*files, found.num_held_out)) for files in side] for side in (before, after)]
        report(found, *sides, as_json=arguments.json)


def report(found: Tuned, before: list[dict[str, float]], after: list[dict[str, float]], *, as_json: bool) -> None:
    told = found.best.held_out
    (foretold,) = told.limits.values()
    rows: list[tuple[Any, ...]] = [(SLO, foretold.today, foretold.other, foretold.low, foretold.high)]
    rows[0] += (_several([each[SLO] for each in before]), _several([each[SLO] for each in after]))
    for name, each in told.prices.items():
        usual = median(figure[name] for figure in before)
        live = [_several([figure.get(name, float("nan")) / usual for figure in side]) for side in (before, after)]
        rows.append((f"{name}: time of a request", 1.0, each.other, each.low, each.high, *live))
    if as_json:
        print(json.dumps({"probability": told.probability, "settings": found.best.settings, "rows": rows}))
        return
    print(f"changed: {found.best.settings}")
    print(f"better than today, foretold: {told.probability:.0%}")
    for name, today, other, low, high, live_today, live_other in rows:
        said = f"foretold {today:,.2f} -> {other:,.2f} [{low:,.2f}, {high:,.2f}]"
        print(f"{name}: {said}, live {live_today} -> {live_other}")


def _several(values: list[float]) -> str:
    """Return the middle one, and between which the others are."""
    return f"{median(values):,.2f}" + (f" ({min(values):,.2f} to {max(values):,.2f})" if len(values) > 1 else "")


if __name__ == "__main__":
    main()
