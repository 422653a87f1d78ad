"""An instance whose times are easy to work out by hand: a step takes 100 µs + 1 µs per prefill token + 10 µs per decode."""

from __future__ import annotations

from random import Random
from typing import Any

from maitred.core.request import Request
from maitred.instance import EventKind, Instance, InstanceConfig, LinearLatency

FIRST, PREEMPTED, FINISHED = EventKind.FIRST_TOKEN, EventKind.KV_PREEMPTED, EventKind.FINISHED
TIMED_OUT, ABORTED = EventKind.TIMED_OUT, EventKind.ABORTED


def instance(**config: Any) -> Instance:
    return Instance(InstanceConfig(latency=LinearLatency((100, 1, 10)), **config), Random(0))


def request(number: int, prompt: int = 50, **fields: Any) -> Request:
    return Request(id=number, arrival=0, prompt_tokens=prompt, **fields)


def run(engine: Instance) -> list[tuple[int, EventKind, int]]:
    """Return all events until nothing happens any more, as (at, kind, request)."""
    events = []
    while (now := engine.next_event()) is not None:
        events += [(e.at, e.kind, e.seq.request.id) for e in engine.advance(now)]
        engine.check()
    return events
