"""What may happen at the same time, so that scenarios played side by side do not disturb each other.

Starting a gateway takes a processor for most of a second, and a timeline distinguishes tenths of a second. So gateways start
together, and timelines begin only when the last of them is up. The next gateways start when these timelines have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from enum import Enum, auto

from .gateway import Launcher

STARTS_AT_ONCE = 4


class _Doing(Enum):
    STARTING = auto()
    PLAYING = auto()


class Turns:
    """For scenarios of which `places` may be under way at once, each with a gateway that `launch` starts."""

    def __init__(self, places: int, launch: Launcher) -> None:
        self.launch = launch
        self._places = places
        self._free = asyncio.Semaphore(places)
        self._starts = asyncio.Semaphore(STARTS_AT_ONCE)
        self._alone = asyncio.Lock()
        self._now = dict.fromkeys(_Doing, 0)
        self._changed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Play as one of those under way."""
        async with self._free:
            yield

    @contextlib.asynccontextmanager
    async def all_places(self) -> AsyncIterator[None]:
        """Play alone, after all scenarios that were under way before."""
        async with self._alone, contextlib.AsyncExitStack() as stack:
            for _ in range(self._places):
                await stack.enter_async_context(self._free)
            yield

    @contextlib.asynccontextmanager
    async def starting(self) -> AsyncIterator[None]:
        async with self._while_none_is(_Doing.PLAYING, _Doing.STARTING), self._starts:
            yield

    @contextlib.asynccontextmanager
    async def playing(self) -> AsyncIterator[None]:
        async with self._while_none_is(_Doing.STARTING, _Doing.PLAYING):
            yield

    @contextlib.asynccontextmanager
    async def _while_none_is(self, other: _Doing, own: _Doing) -> AsyncIterator[None]:
        async with self._changed:
            await self._changed.wait_for(lambda: not self._now[other])
            self._now[own] += 1
        try:
            yield
        finally:
            self._now[own] -= 1
            async with self._changed:
                self._changed.notify_all()
