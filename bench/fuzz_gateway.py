"""Hostile clients and a hostile backend against the real gateway, beside a healthy client that must not notice.

    python bench/fuzz_gateway.py [--seconds 60] [--seed 1] [--programs]

The gateway stands before a good engine, an engine that is killed, a backend that answers with mutated bytes, and the engine of
a healthy client. That sends 20 requests a second all the while, from a process of its own. What it notices comes from the
gateway, and not from an engine that computes a prompt of 1.5 MB. One phase follows the other:

    idle            nothing else happens, after a short warm-up; this is what the healthy client is compared with
    requests        32 connections send mutated requests: flipped, cut, doubled, glued together, in pieces, abandoned anywhere
    answers         16 clients ask the backend for answers, which are mutated in the same ways
    large bodies    8 connections send bodies of 1.5 MB in the shapes of `body_shapes.py`, whole, cut or slowly
    slow bodies     48 connections send most of a body of 6 MB, and go on a few bytes at a time: more than the budget of bodies
    flood           64 connections send small requests one after the other, as fast as they are answered
    slow readers    64 clients ask for long streams, and read nothing
    kill            the second engine is killed (SIGKILL) and started again, with requests in flight
    reload storm    the configuration is reloaded without a pause, valid and invalid in turn
    no files        the configuration, the record or the decision log leads to a pipe, a directory, /dev/zero, ... on a reload

Before that, gateways of their own are started with such paths, and one reloads such a certificate (`fuzz_files.py`).

At the end the gateway must be as it was: no traceback in its log, no request in flight or waiting, no parked body, and memory
within 20 % of what it had after the idle phase. The healthy client's p99 in each phase must be at most twice that of the idle
phase plus 50 ms, none of its requests may fail, and it must still be answered after the last phase. Exits with 1 otherwise. The
mutations follow from the seed; the pace of everything does not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import logging
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

from fuzz_backends import Engine, serve_hostile
from fuzz_files import reload_certificate, start_with_each
from fuzz_phases import FUZZING, PHASES, WARM_UP, Attack
from measuring import resident_bytes
from processes import fetch_json, run_gateway

PAUSE_SECS = 0.05
"""Between two requests of the healthy client."""
OTHER_SECS = 10.0
"""Length of the phases that are no fuzzing, and at most that of `--seconds`."""
SETTLE_SECS = 20.0
"""Within which the gateway must be as it was."""
MEMORY_SHARE = 1.2
CONFIG = """
admission: {mode: priority}
gateway:
  upstream: {head_secs: 5, idle_secs: 5}
  health_interval_secs: 0.5
  send_timeout_secs: 5
  max_body_bytes: 8388608
  max_parked_body_bytes: 134217728
"""


def run_healthy_client(url: str) -> None:
    """Send requests until killed; for each print when it began, how long it took and its status."""
    host, port = url.removeprefix("http://").split(":")
    body = json.dumps({"model": "healthy", "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]})
    connection = http.client.HTTPConnection(host, int(port), timeout=30)
    while True:
        began, status = time.monotonic(), 0
        try:
            connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
            response = connection.getresponse()
            response.read()
            status = response.status
        except (OSError, http.client.HTTPException):
            connection.close()
        print(began, time.monotonic() - began, status, flush=True)
        time.sleep(PAUSE_SECS)


@contextlib.contextmanager
def healthy_client(url: str, log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, __file__, "--healthy", url], stdout=output)
        try:
            yield
        finally:
            process.kill()
            process.wait()


def p99_of(log: Path, begin: float, end: float) -> tuple[float, int, int]:
    """Return the p99 in ms of the requests that began in a phase, their number, and how many failed."""
    rows = [line.split() for line in log.read_text().splitlines() if line.count(" ") == 2]
    inside = [(float(took), int(status)) for began, took, status in rows if begin <= float(began) < end]
    times = sorted(took for took, _ in inside)
    p99 = times[int(len(times) * 0.99)] * 1e3 if times else float("nan")
    return p99, len(times), sum(status != 200 for _, status in inside)


def leftovers(url: str, pid: int, begin: int, log: Path) -> list[str]:
    """Return what is not as it was, after waiting for it."""
    since = time.monotonic()
    until = since + SETTLE_SECS
    while True:
        state, now = fetch_json(f"{url}/maitred/state"), resident_bytes(pid)
        wrong = [f"{key}: {state[key]}" for key in ("in_flight", "waiting", "parked_body_bytes") if state[key]]
        wrong += [f"{b['url']} has {b['in_flight']}" for b in state["backends"] if b["in_flight"]]
        _, count, failed = p99_of(log, since, math.inf)
        if failed or not count:
            wrong.append(f"after the last phase: {failed} of {count} healthy requests failed")
        if now > begin * MEMORY_SHARE:
            wrong.append(f"memory: {now / 2**20:.0f} MiB, after the idle phase {begin / 2**20:.0f} MiB")
        if not wrong or time.monotonic() > until:
            return wrong
        time.sleep(0.5)


async def attack_gateway(attack: Attack, seconds: float, log: Path) -> tuple[dict[str, tuple[float, float]], int]:
    """Run all phases. Return when each began and ended, and the memory after the first."""
    spans, memory = {}, 0
    for name, phase in PHASES.items():
        secs = seconds if name in FUZZING else min(seconds, OTHER_SECS)
        begin, sent = time.monotonic(), attack.sent
        await phase(attack, secs)
        spans[name] = begin, time.monotonic()
        memory = memory or resident_bytes(attack.pid)
        p99, count, failed = p99_of(log, *spans[name])
        now = resident_bytes(attack.pid) / 2**20
        healthy = f"healthy: {count:4} requests, p99 {p99:6.1f} ms, {failed} failed"
        print(f"{name:13} {attack.sent - sent:7} attacks, {now:4.0f} MiB; {healthy}", flush=True)
    return spans, memory


async def until_served(url: str, models: tuple[str, ...]) -> None:
    """Wait until the gateway serves all `models`."""
    while not all(fetch_json(f"{url}/maitred/state")["models"].get(model, {"slots": 0})["slots"] for model in models):
        await asyncio.sleep(0.2)


def missed(log: Path, spans: Mapping[str, tuple[float, float]], *, is_timed: bool) -> list[str]:
    """Return what the healthy client noticed of the phases. Those of a test are so short that one may see no request begin."""
    wrong, total = [], 0
    allowed = 2 * p99_of(log, *spans["idle"])[0] + 50
    for name, span in spans.items():
        p99, count, failed = p99_of(log, *span)
        total += count
        if failed or (is_timed and (not count or p99 > allowed)):
            wrong.append(f"{name}: {failed} of {count} healthy requests failed, p99 {p99:.1f} ms; allowed are {allowed:.1f} ms")
    return wrong if total else [*wrong, "no healthy request was answered in any phase"]


async def run(options: argparse.Namespace, folder: Path) -> list[str]:
    """Run everything, and return what was wrong."""
    hostile = await serve_hostile(Random(options.seed + 1))
    config, log = folder / "maitred.yaml", folder / "healthy-client"
    config.write_text(CONFIG)
    random, starts = Random(options.seed + 2), folder / "starts"
    starts.mkdir()
    wrong = await asyncio.to_thread(start_with_each, starts, 3 * options.seconds, random)
    wrong += await asyncio.to_thread(reload_certificate, starts, min(options.seconds, OTHER_SECS), random)
    outputs = folder / "decisions", folder / "record.csv"
    files = ("--decision-log", str(outputs[0]), "--record", str(outputs[1]))
    flags = ("--config", str(config), *files, *(("--router", "tr", "--state", str(folder / "s")) if options.programs else ()))
    with contextlib.ExitStack() as stack:
        engines = [Engine(model, folder / model) for model in ("m", "killed", "healthy")]
        for engine in engines:
            stack.callback(engine.kill)
        good, killed, own = engines
        url = f"http://127.0.0.1:{hostile.sockets[0].getsockname()[1]}"
        gateway = stack.enter_context(run_gateway([good.url, url, killed.url, own.url], *flags))
        await until_served(gateway.url, ("m", "killed", "healthy"))
        stack.enter_context(healthy_client(gateway.url, log))
        while not log.stat().st_size:
            await asyncio.sleep(0.05)
        attack = Attack(gateway.url, gateway.pid, config, outputs, killed, options.seed)
        for phase, secs in () if options.no_timing else WARM_UP.items():
            await phase(attack, secs)
        spans, memory = await attack_gateway(attack, options.seconds, log)
        hostile.close()
        most = sys.maxsize if options.no_timing else memory
        wrong += await asyncio.to_thread(leftovers, gateway.url, gateway.pid, most, log)
        logs = [gateway.log_text, good.log.read_text(errors="replace"), own.log.read_text(errors="replace")]
        for who, said in zip(("gateway", "engine", "engine of the healthy client"), logs, strict=True):
            if "Traceback" in said:
                wrong.append(f"a traceback of the {who}:\n" + said[max(0, said.index("Traceback") - 300) :][:4_000])
    return wrong + missed(log, spans, is_timed=not options.no_timing)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each of the two fuzzing phases")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--programs", action="store_true", help="route agent programs by memory")
    parser.add_argument("--no-timing", action="store_true", help="judge neither latency nor memory, as a test does")
    parser.add_argument("--healthy", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.healthy:
        run_healthy_client(options.healthy)
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # It warns of each write to a connection that is gone.
    with tempfile.TemporaryDirectory() as folder:
        wrong = asyncio.run(run(options, Path(folder)))
    for line in wrong:
        print(f"WRONG  {line}")
    if wrong:
        sys.exit(1)
    print("the gateway is as it was")


if __name__ == "__main__":
    main()
