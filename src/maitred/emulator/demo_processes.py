"""Child processes of the demo: servers of this program, each started as a user would start it, and always stopped.

    start                   starts a process; `wait_until_listening` returns its URL, or raises an error that quotes its stderr
    wait_for_exit           returns when a process ends by itself, with its last line
    leaving the `async with` terminates all processes, and kills those that do not end in time

Each process has a session of its own, so that Ctrl-C in the terminal reaches the parent only, which then stops them in order.
If the parent cannot do that (SIGKILL), the standard input of the processes ends with the parent, and the processes end with
their standard input (`run_as_child` in cli/demo.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from maitred.core.errors import MaitredError

START_SECS = 30.0
STOP_SECS = 5.0

_URL = re.compile(r"^maitred: \w+ on (http://[^\s,]+)")


class DemoProcessError(MaitredError):
    """A process did not start listening, or ended by itself."""


class DemoProcess:
    """A child process. Its stderr is read to the end, so that it never blocks; the last line is kept, except the one that names
    the URL."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self._name = name
        self._process = process
        self._url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._last_line = ""
        self.reader = asyncio.create_task(self._read_stderr())
        """The task that reads stderr. It ends with the process."""

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait_until_listening(self) -> str:
        """Wait until the process accepts connections, and return its URL. Raises DemoProcessError."""
        awaited: set[asyncio.Future[Any]] = {self._url, self.reader}
        await asyncio.wait(awaited, timeout=START_SECS, return_when=asyncio.FIRST_COMPLETED)
        if self._url.done():
            return self._url.result()
        if self.reader.done():
            raise self.exit_error()
        raise DemoProcessError(f"the {self._name} did not come up within {START_SECS:.0f} s: {self._last_line}")

    def exit_error(self) -> DemoProcessError:
        """Return the error for a process that ended by itself."""
        status = self._process.returncode or 0
        how = f"was ended by signal {-status}" if status < 0 else f"ended with exit code {status}"
        return DemoProcessError(f"the {self._name} {how}" + (f": {self._last_line}" if self._last_line else ""))

    async def stop(self) -> None:
        """Terminate the process, and kill it after `STOP_SECS`."""
        self._signal(self._process.terminate)
        await asyncio.wait({self.reader}, timeout=STOP_SECS)
        self.kill()
        await self.reader

    def kill(self) -> None:
        self._signal(self._process.kill)

    def _signal(self, signal: Callable[[], None]) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal()

    async def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            text = line.decode(errors="replace").strip()
            found = _URL.search(text)
            if found and not self._url.done():
                self._url.set_result(found[1])
            elif text:
                self._last_line = text
        await self._process.wait()


class DemoProcesses:
    """The processes of a demo. Use it in an `async with` block; no process survives the block."""

    def __init__(self) -> None:
        self._processes: list[DemoProcess] = []

    async def start(self, name: str, *arguments: str) -> DemoProcess:
        """Start `maitred ARGUMENTS` without the MAITRED_* variables of this process. Errors call the process `name`."""
        spawning = asyncio.create_task(_spawn(arguments))
        try:
            await asyncio.shield(spawning)
        finally:
            # A cancellation does not keep the process from starting, so it is registered and stopped all the same.
            process = DemoProcess(name, await spawning)
            self._processes.append(process)
        return process

    async def wait_for_exit(self) -> DemoProcessError:
        """Wait until a process ends by itself, and return its error."""
        await asyncio.wait({process.reader for process in self._processes}, return_when=asyncio.FIRST_COMPLETED)
        return next(process.exit_error() for process in self._processes if process.reader.done())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await asyncio.gather(*(process.stop() for process in self._processes))
        except asyncio.CancelledError:
            for process in self._processes:
                process.kill()
            raise


async def _spawn(arguments: tuple[str, ...]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        "from maitred.cli.demo import run_as_child; run_as_child()",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        env={key: value for key, value in os.environ.items() if not key.startswith("MAITRED_")},
    )
