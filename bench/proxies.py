"""The proxies that `gateway.py` measures beside ours, as far as they are installed, and a bare one in Python.

nginx and haproxy are Debian's (`apt-get install nginx-light haproxy`), smg is PyPI's (`pip install smg`), found in PATH. Each
gets one worker that keeps connections to the backend and buffers no answer. The bare proxy forwards bytes between two
protocols on httptools and knows of HTTP only where messages end: what any proxy in Python pays at least.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httptools
import uvloop

NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log stderr crit;
events {{ worker_connections 2048; }}
http {{
  access_log off; client_max_body_size 0; client_body_buffer_size 1m; keepalive_requests 100000000;
  client_body_temp_path {folder}; proxy_temp_path {folder};
  fastcgi_temp_path {folder}; uwsgi_temp_path {folder}; scgi_temp_path {folder};
  upstream engine {{ server 127.0.0.1:{backend}; keepalive 256; keepalive_requests 100000000; }}
  server {{ listen 127.0.0.1:{port}; location / {{
    proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; }} }}
}}
"""
HAPROXY = """
global
  nbthread 1
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  http-reuse always
frontend f
  bind 127.0.0.1:{port}
  default_backend b
backend b
  server s 127.0.0.1:{backend}
"""


INSTALLABLE = ("nginx", "haproxy", "smg")
"""The proxies that may be installed."""


@dataclass(frozen=True)
class OtherProxy:
    """A proxy other than ours: how it is started, and where it listens."""

    name: str
    command: tuple[str, ...]
    port: int


def others(backend: int, first_port: int, folder: Path) -> Iterator[OtherProxy]:
    """Yield the bare proxy and those that are installed; their configurations are written into `folder`."""
    port = first_port
    yield OtherProxy("bare proxy", (sys.executable, __file__, str(port), str(backend)), port)
    for name, config, flags in (("nginx", NGINX, ["-c"]), ("haproxy", HAPROXY, ["-f"])):
        port += 1
        program = shutil.which(name, path="/usr/sbin:/usr/local/sbin:" + os.environ.get("PATH", ""))
        if program is not None:
            path = folder / f"{name}.conf"
            path.write_text(config.format(port=port, backend=backend, folder=folder))
            yield OtherProxy(name, (program, *flags, str(path)), port)
    program = shutil.which("smg")
    if program is not None:
        where = ["--port", str(port + 1), "--worker-urls", f"http://127.0.0.1:{backend}", "--prometheus-port", str(port + 2)]
        command = [program, "launch", "--host", "127.0.0.1", *where, "--policy", "round_robin", "--log-level", "error"]
        yield OtherProxy("smg", (*command, "--max-concurrent-requests", "4096"), port + 1)


class BareUpstream(asyncio.Protocol):
    """A connection to the backend."""

    def __init__(self, idle: deque[BareUpstream]) -> None:
        self.idle = idle
        self.parser = httptools.HttpResponseParser(self)
        self.client: BareClient | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        client = self.client
        self.parser.feed_data(data)
        if client is not None:
            client.transport.write(data)

    def on_message_complete(self) -> None:
        self.idle.append(self)


class BareClient(asyncio.Protocol):
    """A connection from a client."""

    def __init__(self, backend: int, idle: deque[BareUpstream]) -> None:
        self.backend, self.idle = backend, idle
        self.parser = httptools.HttpRequestParser(self)
        self.pieces: list[bytes] = []
        self.is_complete = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)
        self.parser.feed_data(data)
        if self.is_complete:
            self.is_complete = False
            request = b"".join(self.pieces)
            self.pieces.clear()
            if self.idle:
                self.forward(self.idle.pop(), request)
            else:
                self.task = asyncio.get_running_loop().create_task(self.connect(request))

    def on_message_complete(self) -> None:
        self.is_complete = True

    async def connect(self, request: bytes) -> None:
        make = lambda: BareUpstream(self.idle)  # noqa: E731
        _, upstream = await asyncio.get_running_loop().create_connection(make, "127.0.0.1", self.backend)
        self.forward(upstream, request)

    def forward(self, upstream: BareUpstream, request: bytes) -> None:
        upstream.client = self
        upstream.transport.write(request)


async def run_bare(port: int, backend: int) -> None:
    idle: deque[BareUpstream] = deque()
    server = await asyncio.get_running_loop().create_server(lambda: BareClient(backend, idle), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(run_bare(int(sys.argv[1]), int(sys.argv[2])))
