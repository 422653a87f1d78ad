"""What large bodies cost the gateway, by their shape: CPU for a byte, the longest hold of the event loop, and memory.

    python bench/body_shapes.py [--mib 31] [--only WORD ...] [--router cache-aware]

The gateway runs in this process, a client and a backend in another one. Each shape is sent twice: once to measure the CPU time
of the whole request, and once with a task that runs in every turn of the loop and measures the CPU time of the thread between
two of its runs. So neither a busy machine nor the client counts, but interrupts do: what holds the loop for too long is sent
again, and the least of five counts, since code takes its time each time. Everything in the gateway that reads bodies is on:
programs, usage, hints of the prompt and the engine's priority. The shapes under "answers" are what the backend answers to a
small
request.

The time for a byte is also given as a share of what a byte costs in a loop of plain Python on the same machine just then. Exits
with 1 if the loop was held for more than 10 ms, or if a byte of any shape costs more than `MAX_SHARE` of that loop.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import gzip
import multiprocessing
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from time import process_time, thread_time

import msgspec
import uvloop

from maitred.admission import AdmissionConfig
from maitred.gateway import GatewayConfig
from maitred.gateway.app import Gateway
from maitred.programs import ProgramsConfig
from maitred.routing import RoutingConfig
from maitred.wire.server import running_server, tune_process
from measuring import CALIBRATION_LOOPS, calibrate

MIB = 1024 * 1024
MAX_HOLD_SECS = 0.010
HOLD_TRIES = 5
MAX_SHARE = 5.0
"""Of a round of `calibrate`, which is four operations of Python's."""
CHAT, FORM = "/v1/chat/completions", "/v1/audio/transcriptions"
FORM_TYPE = "multipart/form-data; boundary=a"


class Shape(msgspec.Struct, frozen=True):
    """A body: `unit` again and again between `head` and `tail`."""

    head: bytes
    unit: bytes
    tail: bytes
    path: str = CHAT
    content_type: str = "application/json"
    coding: str = ""
    is_answer: bool = False

    def body(self, size: int) -> bytes:
        """Return a body of about `size` bytes, before it is compressed."""
        body = self.head + self.unit * ((size - len(self.head) - len(self.tail)) // len(self.unit)) + self.tail
        return gzip.compress(body, 1) if self.coding else body


def in_member(name: str, unit: bytes, opening: bytes = b"[", closing: bytes = b"1]", path: str = CHAT) -> Shape:
    """Return a body with many `unit` in one of its members."""
    return Shape(b'{"model":"m","%b":%b' % (name.encode(), opening), unit, closing + b"}", path)


def in_prompts(unit: bytes) -> Shape:
    """Return a body with many `unit` in each member in which a prompt may be, the last of which is the largest."""
    names = (b"tools", b"system", b"prompt", b"input")
    members = b",".join(b'"%b":[%b1]' % (name, unit * (2 * MIB // len(unit))) for name in names)
    return Shape(b'{"model":"m",%b,"messages":[' % members, unit, b"1]}")


def in_text(unit: bytes) -> Shape:
    """Return a body with a prompt of many `unit`."""
    return in_member("messages", unit, b'[{"role":"user","content":"', b'"}]')


def answer(head: bytes, unit: bytes, tail: bytes) -> Shape:
    return Shape(head, unit, tail, is_answer=True)


MESSAGE = b'{"role":"user","content":"hello world, how are you today? I am fine.\\n ok"},'
USAGE = b'"usage":{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8}}'
SHAPES = {
    "text": in_text(b"x" * 100),
    "an escape per 100 bytes": in_text(b"x" * 98 + b"\\n"),
    "an escape per 8,000 bytes": in_text(b"x" * 7998 + b"\\n"),
    "escapes": in_text(b"\\\\"),
    "surrogate pairs": in_text(b"\\ud83d\\ude00"),
    "escaped quotes": in_text(b'\\"'),
    "UTF-8": in_text("é".encode()),
    "messages": in_member("messages", MESSAGE),
    "empty objects": in_member("messages", b"{},"),
    "empty objects in stream": in_member("stream", b"{},"),
    "empty lists in max_tokens": in_member("max_tokens", b"[],"),
    "empty lists in model": Shape(b'{"model":[', b"[],", b"1]}"),
    "a long name of a model": Shape(b'{"model":"', b"m", b'"}'),
    "digits in n": in_member("n", b"9", b"", b""),
    "digits of a program": in_member("program_id", b"9", b"", b""),
    "numbers in service_tier": in_member("service_tier", b"1.5,"),
    "digits": in_member("max_tokens", b"9", b"", b""),
    "empty strings": in_member("messages", b'"",'),
    "strings of a character": in_member("messages", b'"a",'),
    "empty roles": in_member("messages", b'{"role":""},'),
    "short texts in all prompts": in_prompts(b'{"text":"a"},'),
    "marks in all prompts": in_prompts(b'{"cache_control":{}},'),
    "half marks in all prompts": in_prompts(b'{"cache_control":1},'),
    "white space before a batch": in_member("messages", b" ", path="/v1/chat/completions/batch"),
    "white space": in_member("messages", b" "),
    "white space behind a name": in_member("messages", b" ", b"", b"1"),
    "token ids": in_member("prompt", b"12345,", path="/v1/completions"),
    "token ids on lines": in_member("prompt", b"1,\n", path="/v1/completions"),
    "prompts": in_member("prompt", b'"hello world",', path="/v1/completions"),
    "lists nested twice": in_member("messages", b"[[]],"),
    "lists nested 5 times": in_member("messages", b"[" * 5 + b"]" * 5 + b","),
    "lists nested 16 times": in_member("messages", b"[" * 16 + b"]" * 16 + b","),
    "lists nested 400 times": in_member("messages", b"[" * 400 + b"]" * 400 + b","),
    "objects nested 16 times": in_member("messages", b'{"":' * 16 + b"1" + b"}" * 16 + b","),
    "lists in objects": in_member("messages", b'[{"":[{"":[]}]}],'),
    "trees": in_member("messages", b"[[[],[[],[[],[]]]]],"),
    "nested too deeply": in_member("x", b"[", b"", b""),
    "members": Shape(b'{"model":"m",', b'"a":0,', b'"b":1}'),
    "the same member": Shape(b'{"model":"m",', b'"n":1,', b'"b":1}'),
    "priorities": Shape(b'{"model":"m",', b'"priority":1,', b'"b":1}'),
    "members of extra_body": in_member("extra_body", b'"a":0,', b"{", b'"b":1}'),
    "members with escaped names": Shape(b'{"model":"m",', b'"\\u0061":0,', b'"b":1}'),
    "a long name": Shape(b'{"model":"m","', b"x", b'":1}'),
    "quotes": Shape(b"", b'"', b""),
    "no JSON": Shape(b"", b"x", b""),
    "a form of boundaries": Shape(b"", b"--a", b"", FORM, FORM_TYPE),
    "a form of line ends": Shape(b"--a\r\n", b"\r\n--", b"", FORM, FORM_TYPE),
    "a form with a file": Shape(b"--a\r\n\r\n", b"x" * 64, b"\r\n--a--", FORM, FORM_TYPE),
    "a form without a boundary": Shape(b"", b"--", b"", FORM, "multipart/form-data; boundary=" + "-" * 60),
    "text in gzip": msgspec.structs.replace(in_text(b"x" * 100), coding="gzip"),
    "empty objects in gzip": msgspec.structs.replace(in_member("messages", b"{},"), coding="gzip"),
    "answers: embeddings": answer(b'{"data":[', b'{"embedding":[0.123,0.456,0.789]},', b"1]," + USAGE),
    "answers: empty objects": answer(b'{"data":[', b"{},", b"1]," + USAGE),
    "answers: text": answer(b'{"choices":[{"message":{"content":"', b"hello\\n", b'"}}],' + USAGE),
    "answers: objects nested 16 times": answer(b'{"data":[', b'{"":' * 16 + b"1" + b"}" * 16 + b",", b"1]," + USAGE),
    "answers: one line": answer(b"data: ", b"x", b"\n\n"),
}


class Other:
    """The other process: a backend, and a client that sends what it is told to."""

    def __init__(self, shapes: dict[str, Shape], size: int, pipe: Connection) -> None:
        self._shapes, self._size, self._pipe = shapes, size, pipe
        self._answer = b'{"usage":{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8}}'

    async def serve(self) -> None:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=1 << 26)
        self._pipe.send(server.sockets[0].getsockname()[1])
        port = await asyncio.to_thread(self._pipe.recv)
        while True:
            name = await asyncio.to_thread(self._pipe.recv)
            self._pipe.send(await self._exchange(port, self._shapes[name]))

    async def _exchange(self, port: int, shape: Shape) -> tuple[bytes, int]:
        """Send a request, and return its status, and how many bytes the gateway had to read."""
        body = shape.body(self._size)
        size = self._size if shape.coding else len(body)
        if shape.is_answer:
            self._answer, body = body, b'{"model":"m","messages":[]}'
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        coding = f"content-encoding: {shape.coding}\r\n" if shape.coding else ""
        head = f"POST {shape.path} HTTP/1.1\r\nhost: a\r\ncontent-type: {shape.content_type}\r\n{coding}connection: close\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode())
        writer.write(body)
        status = (await reader.readline())[9:12]
        while await reader.read(MIB):
            pass
        writer.close()
        return status, size

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                left = int((head.lower().partition(b"content-length: ")[2] or b"0").split(b"\r\n")[0])
                while left:
                    left -= len(await reader.read(min(left, MIB)))
                answer = self._answer if head.startswith(b"POST") else b'{"data":[{"id":"m"}]}'
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(answer))
                writer.write(answer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.close()


def run_other(names: list[str], size: int, pipe: Connection) -> None:
    asyncio.run(Other({name: SHAPES[name] for name in names}, size, pipe).serve())


class Holds:
    """How long the loop is held: the most CPU time between two of its turns."""

    def __init__(self) -> None:
        self.longest = 0.0

    @contextmanager
    def measured(self) -> Iterator[None]:
        loop, last, is_over = asyncio.get_running_loop(), thread_time(), False

        def tick() -> None:
            nonlocal last
            now = thread_time()
            self.longest, last = max(self.longest, now - last), now
            if not is_over:
                loop.call_soon(tick)

        self.longest = 0.0
        loop.call_soon(tick)
        try:
            yield
        finally:
            is_over = True


def peak_mib() -> float:
    """Return the most memory that this process has had since `clear_peak`, in MiB (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) / 1024


def clear_peak() -> float:
    Path("/proc/self/clear_refs").write_text("5")
    return peak_mib()


async def measure(names: list[str], pipe: Connection, router: str | None) -> int:
    """Send each shape through a gateway, and print what it costs. Return the exit status. With a `router` there are no
    programs, which would choose the backend in its place."""
    config = GatewayConfig(
        backends=(f"http://127.0.0.1:{pipe.recv()}",), forward_priority="vllm", slots_per_backend=8, health_interval_secs=1
    )
    programs = ProgramsConfig(mode="tr" if router is None else "off", backend_capacity_tokens=100_000_000)
    routing = RoutingConfig(policy=router or "prefix-hash")
    gateway = Gateway(config, AdmissionConfig(mode="priority"), routing, programs)
    worst_name, worst_share, worst_hold = "", 0.0, 0.0
    tune_process()
    async with running_server(gateway) as url:
        pipe.send(int(url.rpartition(":")[2]))
        await asyncio.sleep(2)
        print(f"{'shape':36} {'status':>6} {'ns/byte':>8} {'of a loop':>9} {'held, ms':>8} {'memory, bodies':>14}")
        for name in names:
            loop_nanos = calibrate() / CALIBRATION_LOOPS * 1e9
            gc.collect()
            before, began = clear_peak(), process_time()
            status, size = await exchange(pipe, name)
            nanos, memory = (process_time() - began) / size * 1e9, (peak_mib() - before) * MIB / size
            hold, share = await longest_hold(pipe, name), nanos / loop_nanos
            print(f"{name:36} {status:>6} {nanos:8.1f} {share:9.2f} {hold * 1e3:8.1f} {memory:14.1f}", flush=True)
            worst_hold = max(worst_hold, hold)
            if share > worst_share:
                worst_name, worst_share = name, share
    print(f"worst shape: {worst_name}, {worst_share:.2f} of a loop; the loop was held for {worst_hold * 1e3:.1f} ms at most")
    return int(worst_share > MAX_SHARE or worst_hold > MAX_HOLD_SECS)


async def longest_hold(pipe: Connection, name: str) -> float:
    """Return for how many seconds the loop is held at most, each time that a shape is sent."""
    holds, least = Holds(), float("inf")
    for _ in range(HOLD_TRIES):
        with holds.measured():
            await exchange(pipe, name)
        least = min(least, holds.longest)
        if least <= MAX_HOLD_SECS:
            break
    return least


async def exchange(pipe: Connection, name: str) -> tuple[str, int]:
    loop, answered = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pipe.fileno(), answered.set)
    pipe.send(name)
    await answered.wait()
    loop.remove_reader(pipe.fileno())
    status, size = pipe.recv()
    return status.decode(), size


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=float, default=31, help="size of the bodies, in MiB")
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD", help="only shapes with one of these words")
    parser.add_argument("--router", metavar="POLICY", help="without programs, by this routing policy")
    args = parser.parse_args()
    names = [name for name in SHAPES if not args.only or any(word in name for word in args.only)]
    here, there = multiprocessing.Pipe()
    other = multiprocessing.get_context("spawn").Process(
        target=run_other, args=(names, int(args.mib * MIB), there), daemon=True
    )
    other.start()
    try:
        return uvloop.run(measure(names, here, args.router))
    finally:
        other.kill()
        other.join()


if __name__ == "__main__":
    sys.exit(main())
