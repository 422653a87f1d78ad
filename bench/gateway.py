"""What the gateway costs: CPU per request and per SSE event, requests/s, and what it adds to latency.

    python bench/gateway.py [--rounds 5] [--seconds 1] [--router tr] [--alone] [--compiled build/compiled] [--logged]

Processes on loopback: a backend that answers fixed bytes, a load client, and `maitred serve` between them, with classes and
metrics on. Beside it nginx, haproxy and smg do the same as far as they are installed, and a bare proxy in Python always
(`proxies.py`); `--alone` leaves them out. Every round measures each scenario directly and through each proxy, one after the
other, so that a busy machine disturbs all alike, and each round begins with another proxy. The medians over the rounds are
printed. The figure to trust is CPU, as the scheduler counts it for the processes of the proxy (/proc/PID/schedstat, hence Linux
only). A calibration loop shows how fast the machine is at the moment. With two cores or more, the proxies have one for
themselves, and the others share the next.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from operator import attrgetter
from pathlib import Path

import uvloop

from measuring import calibrate, cpu_of
from processes import MAITRED
from proxies import INSTALLABLE, OtherProxy, others

MODEL = "bench"
EVENT = b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"token "}}]}\n\n'
STREAM = re.compile(rb'"stream": ?true')
"""Found at one end of a body that asks for a stream, as the client has written it or as a proxy has written it anew: smg puts
the fields in an order of its own."""
EVENTS, GAP_SECS = 100, 0.002


@dataclass(frozen=True)
class Scenario:
    """A number of connections that send one kind of request."""

    name: str
    connections: int
    body_bytes: int
    stream: bool = False

    @property
    def request(self) -> bytes:
        fields = {"model": MODEL, "stream": self.stream, "messages": [{"role": "user", "content": ""}]}
        fields["messages"] = [{"role": "user", "content": "x" * (self.body_bytes - len(json.dumps(fields)))}]
        body = json.dumps(fields).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-length: %d\r\n" % len(body)
        return head + b"content-type: application/json\r\naccept: */*\r\nuser-agent: bench\r\n\r\n" + body


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("1 KB, 1 connection", 1, 1_000),
        Scenario("1 KB, 32 connections", 32, 1_000),
        Scenario("200 KB, 4 connections", 4, 200_000),
        Scenario("SSE, 96 streams", 96, 1_000, stream=True),
    )
}


class Backend(asyncio.Protocol):
    """Answers by the path, and by `stream` in the body; reads no more of HTTP than its client here needs."""

    json_body = b'{"id":"c","object":"chat.completion","choices":[{"message":{"content":"' + b"x" * 900 + b'"}}]}'
    answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(json_body), json_body)
    listed = b'{"object":"list","data":[{"id":"bench","object":"model","created":0,"owned_by":"bench"}]}'
    models = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(listed), listed)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    chunk = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)

    def __init__(self) -> None:
        self.data = bytearray()
        self.missing = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.loop = asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        self.data += data
        if len(self.data) < self.missing:
            return
        end = self.data.find(b"\r\n\r\n")
        if end < 0:
            return
        if self.data.startswith(b"GET"):
            self.transport.write(self.models)
        else:
            at = self.data.lower().find(b"content-length:", 0, end) + 15
            self.missing = end + 4 + int(self.data[at : self.data.find(b"\r", at)])
            if len(self.data) < self.missing:
                return
            if STREAM.search(self.data, end, end + 100) or STREAM.search(self.data, max(end, len(self.data) - 2_000)):
                self.transport.write(self.head)
                self.emit(EVENTS)
            else:
                self.transport.write(self.answer)
        self.data.clear()
        self.missing = 0

    def emit(self, left: int) -> None:
        if left:
            self.transport.write(self.chunk)
            self.loop.call_later(GAP_SECS, self.emit, left - 1)
        else:
            self.transport.write(b"0\r\n\r\n")


async def backend(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Backend, "127.0.0.1", port)
    await server.serve_forever()


@dataclass
class LoadCounts:
    """What all connections of a load client have measured. Times are in seconds."""

    deadline: float
    latencies: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    requests: int = 0
    events: int = 0


class LoadConnection(asyncio.Protocol):
    """Sends one request after the other until the deadline. Finds the end of a response by what the backend sends."""

    def __init__(self, scenario: Scenario, counts: LoadCounts, done: asyncio.Future[None]) -> None:
        self.scenario, self.counts, self.done = scenario, counts, done
        self.request = scenario.request
        self.size = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.send_request()

    def send_request(self) -> None:
        if time.perf_counter() > self.counts.deadline:
            self.transport.close()
            self.done.set_result(None)
            return
        self.got = bytearray()
        self.end = 0
        self.began = time.perf_counter()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if not self.got:
            self.counts.first.append(time.perf_counter() - self.began)
        self.got += data
        if self.scenario.stream:
            whole = self.got.endswith(b"\r\n0\r\n\r\n")
        else:
            if not self.end:
                head = self.got.find(b"\r\n\r\n") + 4
                self.end = head + len(Backend.json_body) if head > 3 else 0
            whole = 0 < self.end <= len(self.got)
        if whole:
            self.counts.latencies.append(time.perf_counter() - self.began)
            self.counts.requests += 1
            self.counts.events += self.got.count(b"data: ") if self.scenario.stream else 0
            assert self.got.startswith(b"HTTP/1.1 200"), bytes(self.got[:300])
            self.send_request()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError("the connection was closed"))


async def client(port: int, scenario: Scenario, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    counts = LoadCounts(time.perf_counter() + seconds)
    dones = [loop.create_future() for _ in range(scenario.connections)]
    for done in dones:
        await loop.create_connection(lambda done=done: LoadConnection(scenario, counts, done), "127.0.0.1", port)
    await asyncio.gather(*dones)
    quantiles = statistics.quantiles(counts.latencies, n=100)
    took = {"p50": quantiles[49], "p99": quantiles[98], "ttfb": statistics.median(counts.first)}
    print(json.dumps({"requests": counts.requests, "events": counts.events, **took}))


@dataclass(frozen=True)
class Window:
    """One scenario measured once. Times are in seconds; `cpu` is the proxy's, 0 for direct access."""

    requests: int
    events: int
    p50: float
    p99: float
    ttfb: float
    cpu: float
    wall: float


@contextlib.contextmanager
def process(arguments: Sequence[str], core: int | None) -> Iterator[int]:
    running = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
    try:
        if core is not None:
            os.sched_setaffinity(running.pid, {core})
        yield running.pid
    finally:
        running.send_signal(signal.SIGTERM)
        running.wait(10)


def tree_of(pid: int) -> list[int]:
    """Return a process and those that it has started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(member for child in children for member in tree_of(int(child)))]


def measure(port: int, scenario: Scenario, seconds: float, proxy: int | None) -> Window:
    tree = tree_of(proxy) if proxy else []
    before, began = sum(map(cpu_of, tree)), time.perf_counter()
    arguments = ["--role", "client", "--port", str(port), "--scenario", scenario.name, "--seconds", str(seconds)]
    arguments += ["--connections", str(scenario.connections)]
    out = subprocess.run([sys.executable, __file__, *arguments], check=True, stdout=subprocess.PIPE).stdout
    spent = sum(map(cpu_of, tree)) - before
    return Window(**json.loads(out), cpu=spent, wall=time.perf_counter() - began)


def can_serve(scenario: Scenario, proxy: OtherProxy) -> bool:
    """Warm a proxy up. Return whether it serves a scenario on connections that stay open, and say so if it does not."""
    try:
        measure(proxy.port, scenario, 0.3, None)
    except subprocess.CalledProcessError:
        print(f"{proxy.name} does not keep its connections in the scenario {scenario.name}: left out there")
        return False
    return True


def wait_until_ready(proxy: OtherProxy, patience: int = 1) -> None:
    """Wait until a proxy answers requests; so many times as long as it takes at most."""
    scenario = next(iter(SCENARIOS.values()))
    url = f"http://127.0.0.1:{proxy.port}/v1/chat/completions"
    for _ in range(400 * patience):
        request = urllib.request.Request(url, scenario.request.partition(b"\r\n\r\n")[2], {"content-type": "application/json"})
        with contextlib.suppress(OSError), urllib.request.urlopen(request, timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.05)
    sys.exit(f"{proxy.name} did not get ready")


COLUMNS = ("CPU µs/req", "CPU µs/event", "req/s", "direct", "added p50 µs", "added p99 µs", "added TTFB µs")


def median(windows: list[Window], what: Callable[[Window], float]) -> float:
    return statistics.median(what(window) for window in windows)


def row(direct: list[Window], through: list[Window], seconds: float) -> list[str]:
    per_request = median(through, lambda window: window.cpu / window.requests) * 1e6
    per_event = median(through, lambda window: window.cpu / window.events if window.events else 0.0) * 1e6
    rates = [median(windows, lambda window: window.requests) / seconds for windows in (through, direct)]
    added = [(median(through, attrgetter(what)) - median(direct, attrgetter(what))) * 1e6 for what in ("p50", "p99", "ttfb")]
    return [f"{per_request:.1f}", f"{per_event:.1f}" if per_event else "–", *(f"{value:.0f}" for value in (*rates, *added))]


Results = dict[str, dict[str, list[Window]]]
"""By scenario and proxy; direct access is `DIRECT`."""
DIRECT = "direct"


def report(results: Results, calibrations: list[float], seconds: float) -> None:
    low, middle, high = min(calibrations), statistics.median(calibrations), max(calibrations)
    print(f"calibration loop: {middle:.1f} ms (min {low:.1f}, max {high:.1f})")
    for scenario, by_proxy in results.items():
        print(f"\n{scenario:<26}" + "".join(f"{title:>14}" for title in COLUMNS))
        for name, windows in by_proxy.items():
            if name != DIRECT:
                print(f"  {name:<24}" + "".join(f"{cell:>14}" for cell in row(by_proxy[DIRECT], windows, seconds)))


def ours(backend: int, port: int, router: str, folder: str = "") -> OtherProxy:
    """Return our gateway; `folder` is that of a compiled package, or empty."""
    name, before = ("maitred, compiled", ["env", f"PYTHONPATH={folder}"]) if folder else ("maitred", [])
    command = [*before, *MAITRED, "serve", "--settle-secs", "0", "--admission", "priority", "--slots-per-backend", "512"]
    command += ["--backend", f"http://127.0.0.1:{backend}", "--port", str(port)]
    return OtherProxy(name, (*command, *(["--router", router, "--state", "none"] if router else [])), port)


def logged(backend: int, port: int, folder: Path) -> list[OtherProxy]:
    """Return our gateway with an access log that nothing keeps, and with a recording."""
    quiet = ["sh", "-c", 'exec "$@" 2>/dev/null', "sh"]
    with_log = [*quiet, *ours(backend, port, "").command, "--access-log"]
    with_record = [*ours(backend, port + 1, "").command, "--record", str(folder / "recording.csv")]
    return [
        OtherProxy("maitred, access log", tuple(with_log), port),
        OtherProxy("maitred, recording", tuple(with_record), port + 1),
    ]


def main(rounds: int, seconds: float, only: str, router: str, alone: bool, compiled: str, with_logs: bool) -> None:
    chosen = [scenario for scenario in SCENARIOS.values() if only in scenario.name]
    cores = sorted(os.sched_getaffinity(0))
    mine, rest = (cores[0], cores[1]) if len(cores) > 1 else (None, None)
    if rest is not None:
        os.sched_setaffinity(0, {rest})  # the clients that this process starts inherit it
    backend, port = 19_301, 19_300
    results: Results = {scenario.name: defaultdict(list) for scenario in chosen}
    calibrations = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o777)  # nginx gives its rights up
        stack.enter_context(process([sys.executable, __file__, "--role", "backend", "--port", str(backend)], rest))
        wait_until_ready(OtherProxy("the backend", (), backend))  # smg looks at it at once, and then not for long
        proxies = [ours(backend, port, router), *([ours(backend, port + 2, router, compiled)] if compiled else [])]
        proxies += logged(backend, port + 10, folder) if with_logs else []
        proxies += [] if alone else others(backend, port + 3, folder)
        running = {proxy: stack.enter_context(process(proxy.command, mine)) for proxy in proxies}
        for proxy in proxies:
            wait_until_ready(proxy)
        print("measured:", ", ".join(proxy.name for proxy in proxies))
        missing = [] if alone else [name for name in INSTALLABLE if name not in {proxy.name for proxy in proxies}]
        if missing:
            print("not installed, and so not measured:", ", ".join(missing))
        pairs = [pair for pair in product(chosen, proxies) if can_serve(*pair)]
        for number in range(rounds):
            # The first one of a round pays for what the machine did before: twice the same gateway differs by 10 % then.
            turn = [*running.items()]
            turn = turn[number % len(turn) :] + turn[: number % len(turn)]
            calibrations.append(calibrate() * 1e3)
            for scenario in chosen:
                of_scenario = results[scenario.name]
                of_scenario[DIRECT].append(measure(backend, scenario, seconds, None))
                for proxy, pid in turn:
                    if (scenario, proxy) not in pairs:
                        continue
                    of_scenario[proxy.name].append(measure(proxy.port, scenario, seconds, pid))
    report(results, calibrations, seconds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each measurement")
    parser.add_argument("--only", default="", help="scenarios with this in their name")
    parser.add_argument("--router", default="", help="that of `maitred serve`: tr or default, for each request is a program")
    parser.add_argument("--alone", action="store_true", help="measure no other proxies")
    parser.add_argument("--compiled", default="", help="folder of the compiled package (`make compile`), measured as well")
    parser.add_argument("--logged", action="store_true", help="measure maitred with an access log and a recording as well")
    parser.add_argument("--role", choices=("main", "backend", "client"), default="main", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--scenario", default="", help=argparse.SUPPRESS)
    parser.add_argument("--connections", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "backend":
        uvloop.run(backend(options.port))
    elif options.role == "client":
        sent = replace(SCENARIOS[options.scenario], connections=options.connections)
        uvloop.run(client(options.port, sent, options.seconds))
    else:
        main(options.rounds, options.seconds, options.only, options.router, options.alone, options.compiled, options.logged)
