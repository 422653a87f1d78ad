"""What every source of backends promises, and the kit that holds one to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

from maitred.scheduler.interface import SOURCES, BackendSource, SourceListener, checked_urls
from maitred.testing.samples import factory_of
from maitred.wire.machine import Machine


class _Heard(SourceListener):
    def __init__(self) -> None:
        self.machine, self.wants_objectives = Machine(), False
        self.has_said = asyncio.Event()

    def listed(self, urls: Collection[str]) -> None:
        checked_urls(urls)
        self.has_said.set()

    def failed(self, problem: str) -> None:
        assert problem, "it says that it has failed, and not why"
        assert "\n" not in problem, "it says in several lines why it has failed"
        self.has_said.set()

    def objectives(self, priorities: Mapping[str, int]) -> None:
        pass

    def objectives_failed(self, problem: str) -> None:
        pass


def check_source(source: str | Callable[[], BackendSource], *, secs: float = 10.0) -> None:
    """Raise AssertionError unless it lists URLs of backends or says in one line why it cannot, within `secs`, runs on, and ends
    when it is cancelled."""
    asyncio.run(_check(factory_of(source, SOURCES), secs))


async def _check(make: Callable[[], BackendSource], secs: float) -> None:
    heard = _Heard()
    running = asyncio.create_task(make().run(heard))
    said = asyncio.create_task(heard.has_said.wait())
    await asyncio.wait({running, said}, timeout=secs, return_when=asyncio.FIRST_COMPLETED)
    said.cancel()
    if running.done():
        running.result()
        raise AssertionError("it has ended")
    assert heard.has_said.is_set(), f"it has said nothing within {secs:g} s"
    running.cancel()
    await asyncio.wait({running}, timeout=secs)
    assert running.cancelled(), "it does not end when it is cancelled"
