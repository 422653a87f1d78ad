"""A source of backends that says what a test wants: a plug-in of a user's own, named by its path."""

from __future__ import annotations

import asyncio

from maitred.scheduler.discovery.base import SourceListener


class Script:
    """What the source says next."""

    def __init__(self) -> None:
        self.queue: list[object] = []
        self.news = asyncio.Event()

    def anew(self) -> Script:
        """Forget what was said."""
        self.queue.clear()
        self.news = asyncio.Event()
        return self

    def say(self, urls: list[str]) -> None:
        self.queue.append(urls)
        self.news.set()

    def know(self, **objectives: int) -> None:
        """Have it know these objectives, by their priorities."""
        self.queue.append(objectives)
        self.news.set()

    def fail(self, error: Exception | None) -> None:
        """Have it raise, or return."""
        self.queue.append(error)
        self.news.set()


SCRIPT = Script()


class Scripted:
    """Says what `SCRIPT` has."""

    async def run(self, told: SourceListener) -> None:
        while True:
            while SCRIPT.queue:
                said = SCRIPT.queue.pop(0)
                if isinstance(said, Exception):
                    raise said
                if said is None:
                    return
                if isinstance(said, dict):
                    assert told.wants_objectives
                    told.objectives(said)
                    continue
                assert isinstance(said, list)
                told.listed(said)
            SCRIPT.news.clear()
            await SCRIPT.news.wait()
