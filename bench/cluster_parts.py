"""The processes of `cluster.py`, what is done to them, and the links between them, which can be cut."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Flag, auto
from pathlib import Path
from typing import Any

from cluster_load import Sent
from processes import MAITRED

HERE = Path(__file__).parent
ADMISSION = ("--admission", "priority", "--default-max-class", "interactive")
"""Without the second, chats of unknown callers would be of the class `default`."""
_LISTENS = "0A"
"""The state of a listening socket in /proc/net/tcp."""


def ports_of(pid: int, *, of_peers: bool) -> set[int]:
    """Return the ports of the TCP sockets of a process, or those of their peers."""
    inodes = set[str]()
    with contextlib.suppress(OSError):
        for each in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                inodes.add(str(each.readlink()).removeprefix("socket:[").removesuffix("]"))
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    listening = {row[1] for row in rows if row[9] in inodes and row[3] == _LISTENS}
    found = [row for row in rows if row[9] in inodes or (row[1] in listening and row[9] == "0")]  # or in its queue
    return {int(row[2 if of_peers else 1].rpartition(":")[2], 16) for row in found} - {0}


class Cut(Flag):
    """What a link does not carry; it comes later, as after a loss of packets."""

    NOTHING = 0
    TO_SCHEDULER = auto()
    TO_GATEWAY = auto()
    BOTH = TO_SCHEDULER | TO_GATEWAY


@dataclass
class LinkProxy:
    """Stands between the gateways and one scheduler."""

    gateways: Sequence[int]
    """Processes."""
    port: int = 0
    scheduler_port: int = 0
    cut: dict[int, Cut] = field(default_factory=dict)
    """By the process of the gateway."""
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    async def start(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = writer.get_extra_info("peername")[1]
        owner = next((pid for pid in self.gateways if number in ports_of(pid, of_peers=False)), 0)
        with contextlib.suppress(OSError, asyncio.CancelledError):  # The latter at the end of all.
            there, back = await asyncio.open_connection("127.0.0.1", self.scheduler_port)
            forth = asyncio.create_task(self._pump(owner, Cut.TO_SCHEDULER, reader, back))
            await asyncio.wait({forth, asyncio.create_task(self._pump(owner, Cut.TO_GATEWAY, there, writer))})
        writer.close()

    async def _pump(self, owner: int, way: Cut, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                await self._wait(owner, way)
                writer.write(data)
        await self._wait(owner, way)
        writer.close()

    async def _wait(self, owner: int, way: Cut) -> None:
        while self.cut.get(owner, Cut.NOTHING) & way:
            await asyncio.sleep(0.01)


@dataclass
class GrantLog:
    """The decision log of a process that schedules, as it is written."""

    path: Path
    slots: int = 0
    """That there are, with the lead and what a probe lends."""
    granted_under: dict[int, int] = field(default_factory=dict)
    """The slots that there were when each request in flight was granted: fewer of them later take none away."""
    _read: int = 0

    def most_slots(self) -> int:
        """Return as `Processes.most_slots`, by this log."""
        most = max((self.slots, *self.granted_under.values()))
        lines = self.path.read_bytes()[self._read :] if self.path.exists() else b""
        lines = lines[: lines.rfind(b"\n") + 1]
        self._read += len(lines)
        for line in lines.splitlines():
            if b'"room":"admission"' in line:
                self._take(json.loads(line))
                most = max(most, self.slots)
        return most

    def _take(self, entry: dict[str, Any]) -> None:
        if entry.get("input") == "resize":
            self.slots = entry["capacity"]
        elif entry.get("input") == "release":
            self.granted_under.pop(entry["id"], None)
        elif entry.get("input") == "adopt":
            holders = [each["submit"]["id"] for each in entry["requests"] if each["state"] != "queued"]
            self.granted_under |= dict.fromkeys(holders, len(self.granted_under) + len(holders))
        elif (decision := entry.get("decision", {})).get("action") == "queue":
            self.granted_under.pop(decision["subject"], None)  # It has lost its slot with its backend.
        elif decision.get("action") == "admit":
            self.granted_under[decision["subject"]] = self.slots
            assert len(self.granted_under) <= self.slots, f"a slot is granted that is not there: {entry}"


class Processes:
    """The processes of one run: an engine, and what is in front of it."""

    def __init__(self, stack: contextlib.ExitStack, *, tells: bool = False) -> None:
        """`tells`: the engine says how many sequences it runs at once."""
        self._stack = stack
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        command = [sys.executable, str(HERE / "cluster_engine.py"), *(["--tells"] if tells else [])]
        engine = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
        stack.callback(engine.kill)
        assert engine.stdout is not None
        self.engine_port = int(engine.stdout.readline())
        self.ports: list[int] = []
        """The ports of the gateways."""
        self.gateways: list[int] = []
        """The processes that serve; not the workers of one."""
        self.schedulers: list[int] = []
        self.proxies: list[LinkProxy] = []
        self.redis = 0
        self._redis_port = 0
        self._logs: dict[int, Path] = {}
        self._decisions: list[GrantLog] = []
        """The decision log of each process that schedules."""
        self._commands: dict[int, Sequence[str]] = {}

    def _spawn(self, command: Sequence[str]) -> tuple[subprocess.Popen[bytes], Path]:
        log = self._folder / f"log {len(self._logs)}"
        with log.open("wb") as output:
            process = self._stack.enter_context(subprocess.Popen(command, stdout=output, stderr=output))
        self._stack.callback(process.kill)
        self._logs[process.pid] = log
        return process, log

    async def _start(self, *command: str) -> tuple[int, str]:
        """Start a command of maitred. Return its process and the port on which it serves."""
        backend = f"http://127.0.0.1:{self.engine_port}"
        process, log = self._spawn([*MAITRED, *command, "--backend", backend, *ADMISSION])
        while not (found := re.search(r"(?:gateway|scheduler) on [^,]*:(\d+),", log.read_text())):
            await asyncio.sleep(0.05)
            assert process.poll() is None, log.read_text()
        self._commands[process.pid] = command
        return process.pid, found[1]

    async def start_workers(self, number: int) -> None:
        """Start a gateway of so many processes."""
        pid, port = await self._start("serve", "--port", "0", "--workers", str(number), *self._decision_log())
        self.gateways.append(pid)
        self.ports.append(int(port))

    def start_redis(self) -> None:
        """Start Redis, at the same port as before."""
        if not self._redis_port:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self._redis_port = free.getsockname()[1]
        flags = ("--port", str(self._redis_port), "--save", "", "--dir", str(self._folder))
        self.redis = self._spawn(["redis-server", *flags])[0].pid

    async def start_cluster(self, *, gateways: int = 3, schedulers: int = 2) -> None:
        """Start schedulers, of which one leads, and gateways, with proxies between."""
        secret = self._folder / "secret"
        secret.write_text("a secret of a benchmark")
        secret.chmod(0o600)
        link = ("--link-secret-file", str(secret))
        election = f"file:{self._folder / 'election'}"
        if shutil.which("redis-server"):
            self.start_redis()
            election = f"redis://127.0.0.1:{self._redis_port}"
        for number in range(schedulers):
            proxy = LinkProxy(self.gateways)
            await proxy.start()
            named = ("--election", election, "--name", f"scheduler-{number}", "--advertise", f"127.0.0.1:{proxy.port}")
            pid, port = await self._start(
                "scheduler", "--listen", "127.0.0.1:0", "--pages-port", "0", *named, *link, *self._decision_log()
            )
            proxy.scheduler_port = int(port)
            self.proxies.append(proxy)
            self.schedulers.append(pid)
        for number in range(gateways):
            named = ("--scheduler", election, "--name", f"gateway-{number}")
            pid, port = await self._start("serve", "--port", "0", *named, *link)
            self.gateways.append(pid)
            self.ports.append(int(port))

    async def restart(self, pid: int) -> None:
        """Start a gateway anew that has been killed, on its port."""
        index, command = self.gateways.index(pid), [*self._commands[pid]]
        command[command.index("--port") + 1] = str(self.ports[index])
        self.gateways[index], _ = await self._start(*command)

    def _decision_log(self) -> tuple[str, str]:
        self._decisions.append(GrantLog(self._folder / f"decisions {len(self._decisions)}"))
        return "--decision-log", str(self._decisions[-1].path)

    def most_slots(self) -> int:
        """Return the most slots that there were when a request was granted that was in flight since this was asked last."""
        return max((each.most_slots() for each in self._decisions), default=0)

    def log_text(self, pid: int) -> str:
        return self._logs[pid].read_text()

    def worker(self) -> int:
        """Return the process of one worker."""
        pid = self.gateways[0]
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def leader(self) -> int:
        """Return the scheduler that leads."""
        return max(
            self.schedulers, key=lambda pid: max(re.findall(r"leads: epoch (\d+)", self.log_text(pid)), default="0", key=int)
        )

    def standby(self) -> int:
        """Return a scheduler that does not lead."""
        leader = self.leader()
        return next(pid for pid in self.schedulers if pid != leader)


@dataclass
class Fault:
    """What was done, and which clients a killed process had."""

    at: float = 0.0
    ports: set[int] = field(default_factory=set)
    """Those of the clients when it was killed."""
    until: dict[int, float] = field(default_factory=dict)
    """Until when the system took connections for a port where nobody listens any more."""

    def had(self, one: Sent) -> bool:
        """Return whether a request was at a process that was killed."""
        return one.port in self.ports or one.connected_at <= self.until.get(one.gateway, -math.inf)

    def begin(self) -> None:
        self.at = self.at or time.monotonic()


async def kill(pid: int, fault: Fault) -> None:
    """Kill a process; it is stopped first, so that what it had is known. Until it has ended, after 0.1 s on a busy machine, the
    system takes connections for it, which it then resets."""
    os.kill(pid, signal.SIGSTOP)
    fault.ports |= ports_of(pid, of_peers=True)
    own = ports_of(pid, of_peers=False)
    fault.begin()
    os.kill(pid, signal.SIGKILL)
    while not has_ended(pid):
        await asyncio.sleep(0.001)
    fault.until |= dict.fromkeys(own - listening(), time.monotonic())


def has_ended(pid: int) -> bool:
    """Return whether nothing of a process is left but its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def listening() -> set[int]:
    """Return the ports of TCP where any process listens."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == _LISTENS}


async def stop(pid: int, fault: Fault, secs: float) -> None:
    """Let a process stand still for a while."""
    fault.begin()
    os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(secs)
    os.kill(pid, signal.SIGCONT)


async def cut(processes: Processes, way: Cut, fault: Fault, secs: float) -> None:
    """Cut the link of the first gateway for a while."""
    fault.begin()
    gateway = processes.gateways[0]
    for proxy in processes.proxies:
        proxy.cut[gateway] = way
    await asyncio.sleep(secs)
    for proxy in processes.proxies:
        proxy.cut.clear()
