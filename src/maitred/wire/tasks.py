"""Tasks that run beside requests, and how they end with what has started them."""

from __future__ import annotations

import asyncio
from typing import Any


async def end_tasks(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel tasks, and return when all of them have ended. None is a task that was never started."""
    started = [task for task in tasks if task is not None]
    for task in started:
        task.cancel()
    if started:
        await asyncio.wait(started)
