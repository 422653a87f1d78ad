"""What a source has told a test, and how files are replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from pathlib import Path

from maitred.scheduler.discovery.base import SourceListener, checked_urls
from maitred.wire.machine import Machine


class Heard(SourceListener):
    """Keeps what a source has told."""

    def __init__(self, machine: Machine | None = None) -> None:
        self.machine = machine or Machine()
        self.wants_objectives = False
        self.known_objectives: asyncio.Queue[object] = asyncio.Queue()
        self._said: asyncio.Queue[object] = asyncio.Queue()
        self._last: object = None

    def listed(self, urls: Collection[str]) -> None:
        self._say(checked_urls(urls))

    def failed(self, problem: str) -> None:
        self._say(problem)

    def objectives(self, priorities: Mapping[str, int]) -> None:
        self.known_objectives.put_nowait(priorities)

    def objectives_failed(self, problem: str) -> None:
        self.known_objectives.put_nowait(problem)

    def _say(self, what: object) -> None:
        if what != self._last:
            self._last = what
            self._said.put_nowait(what)

    async def next(self) -> object:
        """Return what is said next that was not said before."""
        async with asyncio.timeout(20):
            return await self._said.get()


def write(path: Path, text: str) -> None:
    """Replace a file in one step."""
    new = path.with_name("new")
    new.write_text(text)
    new.replace(path)
