"""A stage of child processes: servers of this program, each started as a user would start it, and surely ended.

    start   a child has said its URL, or it is an error that repeats what the child said
    died    one that ends before it is told to takes the whole stage down, with its last words
    leave   all are told to end; those that do not in time are killed

Children have a session of their own, so that Ctrl-C in the terminal reaches the parent alone, which then ends them in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
from types import TracebackType
from typing import Self

from maitred.errors import MaitredError

START_SECS = 30.0
STOP_SECS = 5.0

_URL = re.compile(r"^maitred: \w+ on (http://[^\s,]+)")


class StageError(MaitredError):
    """A child process did not come up, or ended before its time."""


class _Child:
    """A child process. What it says on stderr is read to the end, so that it never waits for us, and its last line is kept."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.process = process
        self.url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.last_words = ""
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        """Ends with the child."""
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            said = line.decode(errors="replace").strip()
            self.last_words = said or self.last_words
            found = _URL.search(said)
            if found and not self.url.done():
                self.url.set_result(found[1])
        await self.process.wait()
        if not self.url.done():
            self.url.set_exception(self.obituary())

    def obituary(self) -> StageError:
        status = self.process.returncode
        how = f"was ended by signal {-status}" if status is not None and status < 0 else f"ended with exit code {status}"
        return StageError(f"the {self.name} {how}" + (f": {self.last_words}" if self.last_words else ""))

    async def end(self) -> None:
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.terminate()
        _, late = await asyncio.wait({self.reading}, timeout=STOP_SECS)
        if late:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()
            await self.reading
        self.url.cancel()


class Stage:
    """Use it in an `async with`: whatever happens, no child survives the block."""

    def __init__(self) -> None:
        self._children: list[_Child] = []

    async def start(self, name: str, *arguments: str) -> str:
        """Run `maitred ARGUMENTS` and return the URL on which it listens. Raises StageError."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "maitred",
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            env={key: value for key, value in os.environ.items() if not key.startswith("MAITRED_")},
        )
        child = _Child(name, process)
        self._children.append(child)
        try:
            return await asyncio.wait_for(asyncio.shield(child.url), START_SECS)
        except TimeoutError:
            raise StageError(f"the {name} did not come up within {START_SECS:.0f} s: {child.last_words}") from None

    async def died(self) -> StageError:
        """Wait until a child ends by itself, and say which."""
        await asyncio.wait({child.reading for child in self._children}, return_when=asyncio.FIRST_COMPLETED)
        return next(child for child in self._children if child.reading.done()).obituary()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await asyncio.gather(*(child.end() for child in self._children))
