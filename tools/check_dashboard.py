"""Evaluate every query of the Grafana dashboard in a real Prometheus that scrapes a gateway under load.

    python tools/check_dashboard.py [--prometheus PATH] [--seconds 30]

A gateway with classes stands before two emulated engines on loopback, with a load of all classes that is more than they can do.
In the middle one engine is killed, and the gateway reloads. Prometheus (Debian's package `prometheus` has it) scrapes every
second. Then each query of examples/grafana/maitred.json is evaluated over the whole time, with the variables as Grafana sets
them for "All". The exit status is 1 if a query is wrong, or if a panel shows nothing at all.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DASHBOARD = ROOT / "examples" / "grafana" / "maitred.json"
GATEWAY, ENGINES, PROMETHEUS = 19_600, (19_601, 19_602), 19_603
VARIABLES = {"$__rate_interval": "10s", "$instance": ".*", "$model": ".*"}
CONFIG = """
gateway:
  slots_per_backend: 8
  slots: auto
admission:
  mode: priority
  default_max_class: interactive
  classes:
    interactive: {can_preempt: true}
    bulk: {queue_size: 20, queue_timeout_secs: 2}
routing: {policy: least-loaded(load=effective)}
"""
MAITRED = (sys.executable, "-c", "from maitred.cli import main; main()")


def queries() -> Iterator[tuple[str, str]]:
    """Yield the panel and the query of each target, with the variables filled in."""
    for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]:
        for target in panel.get("targets", ()):
            query = target["expr"]
            for name, value in VARIABLES.items():
                query = query.replace(name, value)
            yield panel["title"], query


@contextlib.contextmanager
def running(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process, and end it."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        process.wait(15)


def wait_for(url: str) -> None:
    """Wait until a page answers with 200."""
    for _ in range(200):
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2) as answered:
            if answered.status == 200:
                return
        time.sleep(0.1)
    sys.exit(f"{url} does not answer")


async def ask(rng: random.Random) -> None:
    """Send one request, of any class; now and then for a model that there is not."""
    model = "emulated" if rng.random() < 0.95 else "nobody"
    stream = rng.random() < 0.7
    fields = {"model": model, "stream": stream, "max_tokens": rng.randrange(5, 60), "prompt": "word " * rng.randrange(1, 400)}
    if stream and rng.random() < 0.5:
        fields["stream_options"] = {"include_usage": True}
    body, name = json.dumps(fields).encode(), rng.choice(("interactive", "default", "bulk", "bulk"))
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-smg-priority: {name}\r\n"
    with contextlib.suppress(OSError):
        reader, writer = await asyncio.open_connection("127.0.0.1", GATEWAY)
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        await reader.read()
        writer.close()


async def load(seconds: float, rate: float) -> None:
    """Send requests for `seconds`, `rate` of them per second."""
    rng, tasks, end = random.Random(1), [], time.monotonic() + seconds
    while time.monotonic() < end:
        tasks.append(asyncio.create_task(ask(rng)))
        await asyncio.sleep(rng.expovariate(rate))
    await asyncio.gather(*tasks)


def evaluate(query: str, began: float) -> list[dict[str, Any]]:
    """Return the series of a query. Raises ValueError for one that Prometheus refuses."""
    asked = urllib.parse.urlencode({"query": query, "start": began, "end": time.time(), "step": "1"})  # noqa: TID251  (as Prometheus has it)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{PROMETHEUS}/api/v1/query_range?{asked}") as answered:
            found: list[dict[str, Any]] = json.load(answered)["data"]["result"]
    except urllib.error.HTTPError as error:
        raise ValueError(json.load(error)["error"]) from None
    return [series for series in found if any(value not in ("NaN", "+Inf", "-Inf") for _, value in series["values"])]


def report(began: float) -> bool:
    """Print what each query shows; return whether each is right, and each panel shows something."""
    shown: dict[str, int] = {}
    is_right = True
    for panel, query in queries():
        try:
            series = evaluate(query, began)
        except ValueError as error:
            print(f"WRONG  {panel}: {query}\n       {error}")
            is_right = False
            continue
        shown[panel] = shown.get(panel, 0) + len(series)
        last = ", ".join(found["values"][-1][1][:8] for found in series[:4])
        print(f"{len(series):3d} series  {panel}: {last}")
    for panel in (panel for panel, number in shown.items() if not number):
        print(f"EMPTY  {panel}")
        is_right = False
    return is_right


def main(prometheus: str, seconds: float) -> int:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "maitred.yaml").write_text(CONFIG)
        scrape = {"job_name": "maitred", "static_configs": [{"targets": [f"127.0.0.1:{GATEWAY}"]}]}
        (folder / "prometheus.yml").write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]}))
        engines = []
        for port in ENGINES:
            command = [*MAITRED, "engine", "--port", str(port), "--max-num-seqs", "8"]
            engines.append(stack.enter_context(running(command, folder / f"engine-{port}.log")))
        backends = [argument for port in ENGINES for argument in ("--backend", f"http://127.0.0.1:{port}")]
        command = [*MAITRED, "serve", "--port", str(GATEWAY), "--config", str(folder / "maitred.yaml"), *backends]
        gateway = stack.enter_context(running(command, folder / "gateway.log"))
        flags = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        flags.append(f"--web.listen-address=127.0.0.1:{PROMETHEUS}")
        stack.enter_context(running([prometheus, *flags], folder / "prometheus.log"))
        wait_for(f"http://127.0.0.1:{GATEWAY}/ready")
        wait_for(f"http://127.0.0.1:{PROMETHEUS}/-/ready")
        began = time.time()  # noqa: TID251
        asyncio.run(load(seconds / 2, 40))
        engines[0].kill()
        gateway.send_signal(signal.SIGHUP)
        asyncio.run(load(seconds / 2, 40))
        return 0 if report(began) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prometheus", default="prometheus", help="the program (default: the one on the path)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of load")
    options = parser.parse_args()
    sys.exit(main(options.prometheus, options.seconds))
