"""A stage of child processes: servers of this program, each started as a user would start it, and surely ended.

    start     a child is begun; `listening` waits until it has said its URL, or is an error that repeats what it said
    died      a child that ends before it is told to is to take the whole stage down, with its last words
    leave     all are told to end; those that do not in time are killed

Children have a session of their own, so that Ctrl-C in the terminal reaches the parent alone, which then ends them in order.
Where the parent cannot (SIGKILL), their standard input ends with it, and they with that (`maitred.cli.demo_child`).
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
    """A child process did not come up, or ended before its time."""


class DemoProcess:
    """A child process. What it says on stderr is read to the end, so that it never waits for us; the last line is kept,
    unless it only says the URL."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self._name = name
        self._process = process
        self._url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._last_line = ""
        self.reader = asyncio.create_task(self._read_stderr())
        """Ends with the process."""

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait_until_listening(self) -> str:
        """Wait until it accepts connections, and return its URL. Raises DemoProcessError."""
        awaited: set[asyncio.Future[Any]] = {self._url, self.reader}
        await asyncio.wait(awaited, timeout=START_SECS, return_when=asyncio.FIRST_COMPLETED)
        if self._url.done():
            return self._url.result()
        if self.reader.done():
            raise self.exit_error()
        raise DemoProcessError(f"the {self._name} did not come up within {START_SECS:.0f} s: {self._last_line}")

    def exit_error(self) -> DemoProcessError:
        """What to say of a child that ended by itself."""
        status = self._process.returncode or 0
        how = f"was ended by signal {-status}" if status < 0 else f"ended with exit code {status}"
        return DemoProcessError(f"the {self._name} {how}" + (f": {self._last_line}" if self._last_line else ""))

    async def stop(self) -> None:
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
            said = line.decode(errors="replace").strip()
            found = _URL.search(said)
            if found and not self._url.done():
                self._url.set_result(found[1])
            elif said:
                self._last_line = said
        await self._process.wait()


class DemoProcesses:
    """Use it in an `async with`: whatever happens, no child survives the block."""

    def __init__(self) -> None:
        self._processes: list[DemoProcess] = []

    async def start(self, name: str, *arguments: str) -> DemoProcess:
        """Begin `maitred ARGUMENTS`; errors will call it `name`. It does not see our MAITRED_* variables."""
        spawning = asyncio.create_task(_spawn(arguments))
        try:
            await asyncio.shield(spawning)
        finally:  # if this is cancelled, the process is begun all the same, and has to be ended
            child = DemoProcess(name, await spawning)
            self._processes.append(child)
        return child

    async def wait_for_exit(self) -> DemoProcessError:
        """Wait until a child ends by itself, and say which."""
        await asyncio.wait({child.reader for child in self._processes}, return_when=asyncio.FIRST_COMPLETED)
        return next(child.exit_error() for child in self._processes if child.reader.done())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await asyncio.gather(*(child.stop() for child in self._processes))
        except asyncio.CancelledError:
            for child in self._processes:
                child.kill()
            raise


async def _spawn(arguments: tuple[str, ...]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "maitred.cli.demo_child",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        env={key: value for key, value in os.environ.items() if not key.startswith("MAITRED_")},
    )
