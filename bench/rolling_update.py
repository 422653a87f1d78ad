"""A rolling update and a scale-down of three gateways behind a balancer, under load: how many requests fail.

    python bench/rolling_update.py [--balancer haproxy] [--balancer nginx] [--secs-between 4]

Three `maitred serve` before one mock engine, and nginx or haproxy before them, as an operator sets them up: haproxy asks
`/ready` each half a second; nginx has no checks of its own and repeats what it could not send. Clients send chats all the
while, streamed and not. Then each gateway gets SIGTERM, ends, and is started anew on its port; at last one is ended for good
by `/admin/drain`. A request has failed whose answer is no 200, or does not come whole. Exit code 1 if one has.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from processes import MAITRED, free_ports, run_mock_engines

SETTLE_SECS, DRAIN_SECS, START_SECS = 3.0, 20.0, 30.0
NUM_GATEWAYS, NUM_CLIENTS = 3, 16
NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log stderr crit;
events {{ worker_connections 1024; }}
http {{
  access_log off; proxy_temp_path {folder}; client_body_temp_path {folder};
  fastcgi_temp_path {folder}; uwsgi_temp_path {folder}; scgi_temp_path {folder};
  upstream gateways {{ {servers} keepalive 32; }}
  server {{ listen 127.0.0.1:{port}; location / {{
    proxy_pass http://gateways; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    proxy_next_upstream error timeout non_idempotent; }} }}
}}
"""
HAPROXY = """
defaults
  mode http
  timeout connect 2s
  timeout client 60s
  timeout server 60s
  retries 3
  option redispatch
  http-reuse safe
frontend f
  bind 127.0.0.1:{port}
  default_backend b
backend b
  option httpchk GET /ready
  default-server check inter 500ms fall 2 rise 1
  {servers}
"""


@dataclass
class Outcomes:
    """What clients have got."""

    counts: Counter[str] = field(default_factory=Counter)

    async def keep_asking(self, port: int, until: asyncio.Event) -> None:
        """Send one chat after the other, every other one as a stream."""
        streams = False
        while not until.is_set():
            streams = not streams
            self.counts[await _ask(port, streams=streams)] += 1


async def _ask(port: int, *, streams: bool) -> str:
    """Send a chat, and return `answered` or what went wrong."""
    body = json.dumps({"model": "m", "stream": streams, "max_tokens": 20, "messages": []}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: b\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    got = b""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode() + body)
        got = await reader.read(-1)
        writer.close()
    except OSError as error:
        return f"failed: {type(error).__name__}"
    if not got.startswith(b"HTTP/1.1 200"):
        return f"failed: {got[:12].decode('latin-1') or 'no answer'}"
    is_whole = b"[DONE]" in got if streams else b'"}}]}' in got
    return "answered" if is_whole else "failed: cut"


class Gateway:
    """One gateway, over its lives."""

    def __init__(self, engine: str, port: int, log: Path) -> None:
        self.port, self._log = port, log
        flags = ("--settle-secs", str(SETTLE_SECS), "--drain-secs", str(DRAIN_SECS), "--backend", engine)
        self._command = [*MAITRED, "serve", "--port", str(port), *flags]
        self.process: subprocess.Popen[bytes]

    async def start(self) -> None:
        """Start it, and return when it is ready."""
        with self._log.open("ab") as output:
            self.process = subprocess.Popen(self._command, stdout=output, stderr=output)
        until = time.monotonic() + START_SECS
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/ready", timeout=2).close()
                return
            await asyncio.sleep(0.1)
        sys.exit(f"a gateway did not start:\n{self._log.read_text()}")

    async def wait(self) -> None:
        """Return when it has ended."""
        while self.process.poll() is None:
            await asyncio.sleep(0.05)

    def drain(self) -> None:
        """End it by `/admin/drain`."""
        url = f"http://127.0.0.1:{self.port}/admin/drain"
        urllib.request.urlopen(urllib.request.Request(url, b"", method="POST"), timeout=5).close()


@contextlib.contextmanager
def _balancer(name: str, ports: Sequence[int], folder: Path) -> Iterator[int]:
    """Run a balancer before gateways. Yields its port."""
    port = free_ports(1)[0]
    if name == "nginx":
        servers, config, flag = " ".join(f"server 127.0.0.1:{each};" for each in ports), NGINX, "-c"
    else:
        servers = "\n  ".join(f"server g{each} 127.0.0.1:{each}" for each in ports)
        config, flag = HAPROXY, "-f"
    path = folder / f"{name}.conf"
    path.write_text(config.format(port=port, servers=servers, folder=folder))
    program = shutil.which(name, path="/usr/sbin:/usr/local/sbin:/usr/bin")
    if program is None:
        sys.exit(f"{name} is not installed")
    with subprocess.Popen([program, flag, str(path)]) as process:
        try:
            time.sleep(1.5)
            yield port
        finally:
            process.terminate()


async def play(name: str, secs_between: float) -> Counter[str]:
    """Update three gateways behind a balancer, and end one of them. Return what clients have got."""
    outcomes, over = Outcomes(), asyncio.Event()
    with run_mock_engines(0.02, [("m", 64)]) as engines, tempfile.TemporaryDirectory() as folder:
        gateways = [Gateway(engines[0], free_ports(1)[0], Path(folder) / f"{number}.log") for number in range(NUM_GATEWAYS)]
        try:
            for gateway in gateways:
                await gateway.start()
            with _balancer(name, [gateway.port for gateway in gateways], Path(folder)) as port:
                clients = [asyncio.create_task(outcomes.keep_asking(port, over)) for _ in range(NUM_CLIENTS)]
                await asyncio.sleep(secs_between)
                for gateway in gateways:
                    gateway.process.send_signal(signal.SIGTERM)
                    await gateway.wait()
                    await gateway.start()
                    await asyncio.sleep(secs_between)
                print(f"{name}: updated, {dict(outcomes.counts)}", flush=True)
                gateways[-1].drain()
                await gateways[-1].wait()
                await asyncio.sleep(secs_between)
                over.set()
                await asyncio.gather(*clients)
        finally:
            for gateway in gateways:
                with contextlib.suppress(AttributeError):
                    gateway.process.kill()
                    gateway.process.wait()
    return outcomes.counts


def main() -> None:
    """Play with each balancer, and print what clients have got."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--balancer", action="append", choices=("haproxy", "nginx"))
    parser.add_argument("--secs-between", type=float, default=4.0, help="seconds between two updates")
    options = parser.parse_args()
    failed = 0
    for name in options.balancer or ("haproxy", "nginx"):
        counts = asyncio.run(play(name, options.secs_between))
        failures = sum(number for outcome, number in counts.items() if outcome != "answered")
        print(f"{name}: {counts['answered']} answered, {failures} failed, {dict(counts)}", flush=True)
        failed += failures
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
