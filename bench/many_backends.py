"""What a fleet of hundreds of backends costs a gateway: the start, the polls, and memory.

    python bench/many_backends.py [--backends 500] [--models 200] [--seconds 20] [--admission priority] [--workers N]

A process listens on a port for each backend, all of which list the same models, and `maitred serve` watches them; there are no
requests. CPU is as the scheduler of the system counts it (/proc/PID/schedstat, hence Linux only).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import sys
import time
from pathlib import Path

import msgspec

from gateway import process, tree_of
from measuring import cpu_of
from processes import MAITRED

FIRST_PORT, PORT = 21_000, 20_990


async def serve_backends(first_port: int, backends: int, models: int) -> None:
    """Answer `/v1/models` on so many ports, and 404 to anything else, until the process ends."""
    listed = msgspec.json.encode({"data": [{"id": f"model-{number}", "object": "model"} for number in range(models)]})
    found, missing = _response("200 OK", listed), _response("404 Not Found", b"{}")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(found if head.startswith(b"GET /v1/models ") else missing)
        writer.close()

    servers = [await asyncio.start_server(answer, "127.0.0.1", first_port + n) for n in range(backends)]
    await asyncio.gather(*(server.serve_forever() for server in servers))


def _response(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


def backends_up(port: int) -> int:
    """Return how many backends are up, as the gateway says; 0 while it does not say."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", "/maitred/state")
        return sum(backend["healthy"] for backend in json.load(connection.getresponse()).get("backends", ()))
    except OSError:
        return 0
    finally:
        connection.close()


def resident(pid: int) -> float:
    """Return the memory of a process, MiB."""
    row = next(row for row in Path(f"/proc/{pid}/status").read_text().splitlines() if row.startswith("VmRSS"))
    return int(row.split()[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", type=int, default=500)
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--admission", default="priority")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        asyncio.run(serve_backends(FIRST_PORT, args.backends, args.models))
    own = [sys.executable, __file__, "--serve", "--backends", str(args.backends), "--models", str(args.models)]
    urls = [word for n in range(args.backends) for word in ("--backend", f"http://127.0.0.1:{FIRST_PORT + n}")]
    flags = ["--admission", args.admission, "--workers", str(args.workers)]
    with process(own, None), contextlib.ExitStack() as stack:
        time.sleep(2.0)
        began = time.monotonic()
        pid = stack.enter_context(process([*MAITRED, "serve", "--port", str(PORT), "--settle-secs", "0", *flags, *urls], None))
        while backends_up(PORT) < args.backends:
            time.sleep(0.2)
        took, tree = time.monotonic() - began, tree_of(pid)
        before = [cpu_of(each) for each in tree]
        print(
            f"all up after {took:.1f} s, with",
            *(f"{cpu:.2f} s of CPU, {resident(each):.0f} MiB" for cpu, each in zip(before, tree, strict=True)),
        )
        since = time.monotonic()
        time.sleep(args.seconds)
        shares = [(cpu_of(each) - cpu) / (time.monotonic() - since) for each, cpu in zip(tree, before, strict=True)]
        print("polls:", *(f"{share:.1%} of a core, {resident(each):.0f} MiB" for share, each in zip(shares, tree, strict=True)))


if __name__ == "__main__":
    main()
