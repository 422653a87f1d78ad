"""Tasks that run beside requests, and how they end with what has started them."""

from __future__ import annotations

import asyncio
from typing import Any, Final

_CANCEL_SECS: Final = 1.0
"""Seconds after which a task that has not ended is cancelled once more."""


async def end_tasks(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks, and return when all of them have ended. None is a task that was never started."""
    started = [task for task in tasks if task is not None]
    for task in started:
        task.cancel()
    if started:
        await asyncio.wait(started)


async def end_asking(task: asyncio.Task[Any] | None) -> None:
    """As `end_tasks`, of a task that asks a store again and again. `asyncio.wait_for` of Python 3.11, which redis-py uses,
    swallows a cancellation that comes at the instant at which its answer does; so it is cancelled until it has ended."""
    while task is not None and not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_CANCEL_SECS)
