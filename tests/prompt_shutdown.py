"""A server of a test stops at once: uvicorn looks whether its connections have ended only every 0.1 s, and pauses 0.1 s first.

Import the fixture in the `conftest.py` of a folder whose tests serve inside the test process.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvicorn.server

STEP_SECS = 0.002


class _ShortSleeps:
    """The module `asyncio` as uvicorn sees it, with sleeps of `STEP_SECS` at most."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, secs: float) -> None:
        await asyncio.sleep(min(secs, STEP_SECS))


@pytest.fixture(autouse=True)
def prompt_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uvicorn.server, "asyncio", _ShortSleeps())
