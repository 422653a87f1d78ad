"""How long a fresh connection waits at a busy gateway, and what a refusal and a TLS handshake cost.

    python bench/accept.py [--scenes health,flood,cost,tls] [--streams 600] [--fresh 300] [--step-secs 0.05] [--rounds 3]

It measures the `maitred` that Python imports: set PYTHONPATH to compare two of them. Each scene runs `maitred serve`, a mock
engine behind it, and clients, in processes of their own.

    health   `--fresh` connections that each ask for /health once: opened at once, or one after the other; alone, and beside
             `--streams` streams with an event every `--step-secs`
    flood    a tenant at its limit retries on `--retriers` connections as soon as it is refused: the requests of another tenant
             on a connection that is kept, and its fresh connections, without the flood and with it
    cost     CPU of the gateway per request: answered by the engine (200), refused by admission (429), /health
    tls      CPU of the gateway per fresh connection with one request: plain, and over TLS with a full handshake and a resumed
             one, by kind of key

Times are those of a client on the same machine, which has to share its cores: the figures to trust are CPU (/proc, hence Linux
only) and ratios of two codes that were measured in turns. The calibration loop says how fast the machine is at the moment.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import select
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import uvloop

from maitred.gateway.config import GatewayConfig
from measuring import calibrate, cpu_of
from processes import GatewayProcess, raise_descriptor_limit, run_clients, run_gateway, run_mock_engines

MODEL = "bench"
HEALTH = b"GET /health HTTP/1.1\r\nhost: bench\r\n\r\n"
TENANTS = "x-smg-tenant-id"
CONFIG = """
gateway: {trust_tenant_header: true}
admission:
  mode: priority
  tenant_policies:
    "header:greedy": {max_in_flight: 1, max_queued: 0}
"""
UNPACED = "refusals_per_sec: 0, " if "refusals_per_sec" in GatewayConfig.__struct_fields__ else ""
"""To measure what a refusal costs, none may wait; older code has no pace."""
COST_REQUESTS = 4_000
COST_CONNECTIONS = 16


def chat(tenant: str, tokens: int, *, stream: bool = False, chars: int = 800) -> bytes:
    """Return a request for `tokens` tokens."""
    messages = [{"role": "user", "content": "x" * chars}]
    body = json.dumps({"model": MODEL, "max_tokens": tokens, "stream": stream, "messages": messages}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\n{TENANTS}: {tenant}\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"content-type: application/json\r\n\r\n" + body


def is_whole(answer: bytes) -> bool:
    """Return whether a whole answer with a Content-Length has come."""
    end = answer.find(b"\r\n\r\n")
    at = answer.find(b"content-length: ", 0, end)
    return end > 0 and at > 0 and len(answer) >= end + 4 + int(answer[at + 16 : answer.index(b"\r", at)])


def exchange(connection: socket.socket, request: bytes) -> bytes:
    """Return the answer to a request on a blocking socket."""
    connection.sendall(request)
    answer = b""
    while not is_whole(answer):
        piece = connection.recv(65_536)
        if not piece:
            raise ConnectionError("the connection was closed")
        answer += piece
    return answer


def fresh_at_once(port: int, count: int) -> list[float]:
    """Return how long each of `count` connections takes from `connect` to its answer, in seconds; all are opened at once."""
    poll = select.epoll()
    began: dict[int, float] = {}
    open_ones: dict[int, socket.socket] = {}
    answers: dict[int, bytes] = {}
    took: list[float] = []
    for _ in range(count):
        one = socket.socket()
        one.setblocking(False)
        began[one.fileno()] = time.perf_counter()
        one.connect_ex(("127.0.0.1", port))
        open_ones[one.fileno()] = one
        poll.register(one.fileno(), select.EPOLLOUT)
    while open_ones:
        for number, events in poll.poll():
            one = open_ones[number]
            if events & select.EPOLLOUT:
                one.sendall(HEALTH)
                poll.modify(number, select.EPOLLIN)
            else:
                answers[number] = answers.get(number, b"") + one.recv(65_536)
                if is_whole(answers[number]):
                    took.append(time.perf_counter() - began[number])
                    open_ones.pop(number).close()
    return took


def fresh_in_turn(port: int, count: int) -> list[float]:
    """Return the same for connections that are opened one after the other."""
    took = []
    for _ in range(count):
        began = time.perf_counter()
        with socket.create_connection(("127.0.0.1", port)) as one:
            exchange(one, HEALTH)
        took.append(time.perf_counter() - began)
    return took


def kept_requests(port: int, tenant: str, count: int) -> list[float]:
    """Return how long each request of one step takes, on one connection."""
    took = []
    with socket.create_connection(("127.0.0.1", port)) as one:
        for _ in range(count):
            began = time.perf_counter()
            exchange(one, chat(tenant, 1))
            took.append(time.perf_counter() - began)
    return took


def told(name: str, took: Sequence[float]) -> None:
    at = sorted(took)
    figures = " ".join(f"{label} {at[int(len(at) * share)] * 1e3:7.1f}" for label, share in (("p50", 0.5), ("p99", 0.99)))
    print(f"  {name:<44} {figures}  worst {at[-1] * 1e3:7.1f} ms", flush=True)


class Client(asyncio.Protocol):
    """Sends one request over and over, or reads one stream for as long as it lasts."""

    def __init__(self, request: bytes, counts: dict[bytes, int], limit: int = sys.maxsize, *, streams: bool = False) -> None:
        self.request, self.counts, self.limit, self.streams = request, counts, limit, streams
        self.answer = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if self.streams:
            if not self.done.done():
                self.done.set_result(None)
            return
        self.answer += data
        if is_whole(self.answer):
            status = self.answer[9:12]
            self.counts[status] = self.counts.get(status, 0) + 1
            self.answer = b""
            self.limit -= 1
            if self.limit > 0:
                self.transport.write(self.request)
            elif not self.done.done():
                self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError("the connection was closed"))


async def clients(port: int, kind: str, count: int) -> None:
    """Run `count` clients of one kind until this process is stopped. Prints a line when all of them are served."""
    loop, counts = asyncio.get_running_loop(), dict[bytes, int]()
    streams = kind == "streams"
    request = chat("streaming", 1_000_000, stream=True) if streams else chat("greedy", 1)
    made = [
        (await loop.create_connection(lambda: Client(request, counts, streams=streams), "127.0.0.1", port))[1]
        for _ in range(count)
    ]
    if streams:
        await asyncio.gather(*(client.done for client in made))
    print("served", flush=True)
    await asyncio.Event().wait()


@contextlib.contextmanager
def running_clients(port: int, kind: str, count: int) -> Iterator[None]:
    with run_clients("accept.py", "--role", kind, "--port", str(port), "--count", str(count)) as process:
        assert process.stdout is not None
        assert process.stdout.readline(), "the clients failed"
        yield


@contextlib.contextmanager
def gateway(step_secs: float, *flags: str, config: str = CONFIG) -> Iterator[tuple[GatewayProcess, int]]:
    """Run a gateway in front of one mock engine. Yields the process and its port."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(config)
        with (
            run_mock_engines(step_secs, [(MODEL, 2_000)]) as engines,
            run_gateway(engines, "--config", str(path), "--slots-per-backend", "2000", *flags) as running,
        ):
            if not flags:
                running.wait_for_capacity(2_000)
            yield running, urlsplit(running.url).port or 0


def scene_health(options: argparse.Namespace) -> None:
    with gateway(options.step_secs) as (running, port):
        for number in (0, options.streams):
            beside = f"beside {number} streams" if number else "alone"
            with running_clients(port, "streams", number) if number else contextlib.nullcontext():
                time.sleep(1.0)
                before, began = cpu_of(running.pid), time.perf_counter()
                time.sleep(1.0)
                busy = (cpu_of(running.pid) - before) / (time.perf_counter() - began)
                print(f"  the gateway is busy for {busy:.0%} of the time {beside}")
                at_once, spent = list[float](), list[float]()
                for _ in range(options.rounds):
                    before = cpu_of(running.pid)
                    at_once += fresh_at_once(port, options.fresh)
                    spent.append(cpu_of(running.pid) - before)
                told(f"{options.fresh} connections at once, {beside}", at_once)
                print(f"  CPU of the gateway until the last has its answer: {statistics.median(spent) * 1e3:.1f} ms")
                told(f"{options.fresh} connections in turn, {beside}", fresh_in_turn(port, options.fresh))


def scene_flood(options: argparse.Namespace) -> None:
    with gateway(0.05) as (running, port), socket.create_connection(("127.0.0.1", port)) as holder:
        holder.sendall(chat("greedy", 1_000_000, stream=True))
        assert holder.recv(1_000).startswith(b"HTTP/1.1 200")
        for number in (0, options.retriers):
            beside = f"beside {number} that retry" if number else "alone"
            with running_clients(port, "retries", number) if number else contextlib.nullcontext():
                time.sleep(1.0)
                told(f"requests of another tenant, {beside}", kept_requests(port, "polite", 40))
                told(f"50 fresh connections at once, {beside}", fresh_at_once(port, 50))
                before, began = cpu_of(running.pid), time.perf_counter()
                time.sleep(1.0)
                busy = (cpu_of(running.pid) - before) / (time.perf_counter() - began)
                print(f"  the gateway is busy for {busy:.0%} of the time {beside}")


async def send_all(port: int, request: bytes, number: int, connections: int) -> dict[bytes, int]:
    loop, counts = asyncio.get_running_loop(), dict[bytes, int]()
    each = number // connections
    made = [
        (await loop.create_connection(lambda: Client(request, counts, each), "127.0.0.1", port))[1] for _ in range(connections)
    ]
    await asyncio.gather(*(client.done for client in made))
    return counts


def scene_cost(options: argparse.Namespace) -> None:
    requests = {"answered by the engine": chat("polite", 1), "refused by admission": chat("greedy", 1), "/health": HEALTH}
    requests["refused, with 200 KB"] = chat("greedy", 1, chars=200_000)
    spent: dict[str, list[float]] = {name: [] for name in requests}
    with (
        gateway(0.0001, config=CONFIG.replace("{trust", f"{{{UNPACED}trust")) as (running, port),
        socket.create_connection(("127.0.0.1", port)) as holder,
    ):
        holder.sendall(chat("greedy", 100_000_000, stream=True).replace(b'"stream": true', b'"stream":false'))
        time.sleep(0.5)
        for _ in range(options.rounds + 1):  # the first round warms up
            for name, request in requests.items():
                number = COST_REQUESTS // (10 if "KB" in name else 1)
                before = cpu_of(running.pid)
                counts = uvloop.run(send_all(port, request, number, COST_CONNECTIONS))
                spent[name].append((cpu_of(running.pid) - before) / number)
                assert len(counts) == 1, counts
    for name, secs in spent.items():
        print(f"  {name:<44} {statistics.median(secs[1:]) * 1e6:7.1f} µs CPU per request")


def new_certificate(folder: Path, kind: str) -> str:
    """Write a key of this kind and a certificate of it into one file. Return its path."""
    path = folder / f"{kind}.pem"
    algorithm = ["ec", "-pkeyopt", "ec_paramgen_curve:P-256"] if kind == "ecdsa" else ["rsa:2048"]
    command = ["openssl", "req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-newkey", *algorithm]
    subprocess.run([*command, "-keyout", f"{path}.key", "-out", f"{path}.crt"], check=True, capture_output=True)
    path.write_bytes(Path(f"{path}.key").read_bytes() + Path(f"{path}.crt").read_bytes())
    return str(path)


def tls_connections(port: int, context: ssl.SSLContext | None, count: int, *, resume: bool) -> int:
    """Send one request on each of `count` fresh connections, in turn. Return how many handshakes were resumed."""
    session, resumed = None, 0
    for _ in range(count):
        with socket.create_connection(("127.0.0.1", port)) as plain:
            if context is None:
                exchange(plain, HEALTH)
                continue
            with context.wrap_socket(plain, server_hostname="localhost", session=session) as one:
                exchange(one, HEALTH)
                resumed += bool(one.session_reused)
                session = one.session if resume else None  # tickets come behind the handshake, in TLS 1.3
    return resumed


def cpu_per_connection(options: argparse.Namespace, context: ssl.SSLContext | None, *flags: str, resume: bool) -> None:
    with gateway(0.01, *flags) as (running, port):
        tls_connections(port, context, 50, resume=resume)
        before = cpu_of(running.pid)
        resumed = tls_connections(port, context, options.fresh, resume=resume)
        spent = (cpu_of(running.pid) - before) / options.fresh
    name = "plain" if context is None else f"{Path(flags[1]).stem}, {context.maximum_version.name[:7]}"
    print(f"  {name:<44} {spent * 1e6:7.1f} µs CPU per connection, {resumed} of {options.fresh} resumed")


def scene_tls(options: argparse.Namespace) -> None:
    cpu_per_connection(options, None, resume=False)
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("rsa", "ecdsa"):
            path = new_certificate(Path(folder), kind)
            for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
                context = ssl.create_default_context(cafile=path)
                context.maximum_version = version
                for resume in (False, True):
                    cpu_per_connection(options, context, "--tls-cert", path, resume=resume)


SCENES = {"health": scene_health, "flood": scene_flood, "cost": scene_cost, "tls": scene_tls}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", default=",".join(SCENES))
    parser.add_argument("--streams", type=int, default=600)
    parser.add_argument("--fresh", type=int, default=300)
    parser.add_argument("--retriers", type=int, default=300)
    parser.add_argument("--step-secs", type=float, default=0.05)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--role", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    raise_descriptor_limit()
    if options.role:
        with contextlib.suppress(KeyboardInterrupt):
            uvloop.run(clients(options.port, options.role, options.count))
        return
    for name in options.scenes.split(","):
        print(f"{name} (calibration loop: {calibrate() * 1e3:.1f} ms)", flush=True)
        SCENES[name](options)


if __name__ == "__main__":
    main()
