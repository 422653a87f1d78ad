"""What plug-ins are tried on: requests that have a bit of everything, steps, and instances as routers see them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Any, TypeVar

import msgspec

from maitred.core.contracts import WaitQueue
from maitred.core.registry import Registry
from maitred.core.request import PriorityClass, Request
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.kv.block_hashes import PromptTokenIds

T = TypeVar("T")


def sample_request(rng: Random, number: int, now: Micros, **fields: Any) -> Request:
    """Return request `number`, which arrives at `now`, with a bit of everything that policies look at."""
    family, length = rng.randrange(3), rng.randint(1, 200)
    tokens = (*range(family * 1000, family * 1000 + 64), *range(10_000 + number * 500, 10_000 + number * 500 + 200))
    said = {
        "prompt_tokens": length,
        "max_output_tokens": rng.choice([None, 5, 40, 300]),
        "priority_class": rng.choice(list(PriorityClass)),
        "priority": float(rng.choice([0, 0, 1, 5])),
        "model": rng.choice(["", "a"]),
        "tenant": rng.choice(["", "a", "b", "c"]),
        "program": rng.choice(["", "p", "q"]),
        "routing_key": rng.choice(["", "k", "l"]),
        "slo_class": rng.choice(["", "critical", "batch", "sheddable"]),
        "deadline": rng.choice([None, now + 500, now + 5000]),
        "prefix": PromptTokenIds(tokens[:length]),
    }
    return Request(id=number, arrival=now, **(said | fields))


def sample_sequence(rng: Random, number: int, now: Micros, **fields: Any) -> SequenceState:
    """Return request `number`, which arrives at `now`, as it stands in a wait queue."""
    request = sample_request(rng, number, now, **fields)
    return SequenceState(request, number, request.prompt_tokens)


class StepSample(msgspec.Struct):
    """A step about to be formed (`StepView`)."""

    step_index: int = 0
    running: int = 0
    free_blocks: int = 0
    routing_keys: dict[str, int] = {}

    def running_routing_keys(self) -> Mapping[str, int]:
        return Counter(self.routing_keys)


class InstanceSample:
    """An instance as a router sees it (`InstanceView`). What it does not report is None. `looked_at` tells which of its
    properties were read."""

    def __init__(
        self,
        index: int,
        in_flight: int = 0,
        waiting: int | None = 0,
        running: int | None = 0,
        kv_usage: float | None = 0.0,
        cached: int = 0,
        kv_tokens: int | None = None,
    ) -> None:
        self.index = index
        self.in_flight = in_flight
        self._kv_tokens = kv_tokens
        self._waiting, self._running, self._kv_usage, self._cached = waiting, running, kv_usage, cached
        self.looked_at: set[str] = set()

    @property
    def waiting(self) -> int | None:
        self.looked_at.add("waiting")
        return self._waiting

    @property
    def running(self) -> int | None:
        self.looked_at.add("running")
        return self._running

    @property
    def kv_usage(self) -> float | None:
        self.looked_at.add("kv_usage")
        return self._kv_usage

    @property
    def kv_tokens(self) -> int | None:
        self.looked_at.add("kv_tokens")
        return self._kv_tokens

    def cached_blocks(self, request: Request) -> int:
        self.looked_at.add("cached_blocks")
        return self._cached


def drain(queue: WaitQueue) -> list[int]:
    """Pop all that waits, and return their numbers in order."""
    return [queue.pop().arrival_index for _ in range(len(queue))]


def factory_of(plugin: str | Callable[..., T], registry: Registry[T]) -> Callable[[], T]:
    """Return the maker of the plug-in, which is a spec as users write it or a class without parameters."""
    return registry.get(plugin) if isinstance(plugin, str) else plugin


@contextmanager
def blaming(plugin: object, seed: int) -> Iterator[None]:
    """Say in each AssertionError which plug-in and which seed it is about."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{plugin!r}, seed {seed}: {error}") from error
