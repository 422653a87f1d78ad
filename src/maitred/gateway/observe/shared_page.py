"""Pages that take long to make: made in steps, and once for all who ask at the same time.

The metrics of 256 models take 100 ms to write, the state 50, and a list of 5,000 programs 40. Nothing else would run meanwhile,
and whoever asks for a page over and over would stop the gateway. So each is made in steps (`core.steps`), from looking at the
models (`state_snapshots`) or programs (`program_views`) to the last row, and the event loop runs between two. Only one page of
all kinds is made at a time.
Who asks while it is made gets the next one, together with all others who do: a page is never older than the request for it.

    asked at 0 ms                     made from 0 to 60 ms
    asked at 10, 20 and 50 ms         made from 60 to 120 ms, once
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping
from typing import Final, TypeVar

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric, Sample
from prometheus_client.registry import Collector

from maitred.core.steps import Steps

T = TypeVar("T")
_SAMPLES_IN_STEP: Final = 250
"""Rows of the metrics that are written in a step: about 2 ms."""


class SharedPages:
    """Makes pages for those who ask for them."""

    def __init__(self) -> None:
        self._waiting: dict[Hashable, asyncio.Task[bytes]] = {}
        """The pages that are going to be made, by what they are."""
        self._making: asyncio.Task[bytes] | None = None
        """The page that is made now; a loop keeps no task alive."""
        self._lock = asyncio.Lock()

    async def page(self, key: Hashable, make: Callable[[], Iterable[bytes]]) -> bytes:
        """Return the page `key`, of which `make` returns the parts; it does a step of the work for each of them."""
        task = self._waiting.get(key)
        if task is None:
            task = self._waiting[key] = asyncio.create_task(self._make(key, make))
        return await asyncio.shield(task)  # Others wait for it, too.

    async def _make(self, key: Hashable, make: Callable[[], Iterable[bytes]]) -> bytes:
        async with self._lock:
            self._making = self._waiting.pop(key)
            parts = []
            for part in make():
                parts.append(part)
                await asyncio.sleep(0)
            self._making = None
            return b"".join(parts)


def without_text(steps: Steps[T]) -> Generator[bytes, None, T]:
    """Do steps as parts of a page that have no text yet, and return what they return."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        yield b""


def write_json(steps: Steps[object]) -> Iterator[bytes]:
    """Yield the parts of a page: what `steps` return, in JSON. For a page that is quickly written once its content is there."""
    content = yield from without_text(steps)
    yield msgspec.json.encode(content)


def write_json_object(members: Iterable[Mapping[str, object]]) -> Iterator[bytes]:
    """Yield the parts of a page that is one JSON object. `members` yields some of its members, or none, in each step."""
    before = b"{"
    for some in members:
        text = msgspec.json.encode(some)[1:-1]
        yield before + text if text else b""
        before = b"," if text else before
    yield b"{}" if before == b"{" else b"}"


class _OneFamily(Collector):
    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return (self._family,)


def write_metrics(
    families: Iterable[Metric],
    shown: Callable[[Metric], Metric | None],
    text_of: Callable[[CollectorRegistry], bytes] = generate_latest,
) -> Generator[bytes, None, None]:
    """Yield metrics in Prometheus' text format, or that of `text_of`, in parts of which each is a step. A metric of many rows
    may come as several, one after the other. `shown` returns what is shown of a metric, or None for nothing."""
    last_name = ""
    for made in families:
        family = shown(made)
        if family is None:
            yield b""
            continue
        samples = family.samples
        for begin in range(0, max(1, len(samples)), _SAMPLES_IN_STEP):
            text = text_of(_registry(family, samples[begin : begin + _SAMPLES_IN_STEP]))
            is_further = begin > 0 or family.name == last_name
            yield text.split(b"\n", 2)[2] if is_further else text  # without the lines of help and type
        last_name = family.name


def _registry(family: Metric, samples: list[Sample]) -> CollectorRegistry:
    family.samples = samples
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_OneFamily(family))
    return registry
