"""An instance that is driven from event to event, for tests of batch schedulers."""

from __future__ import annotations

from random import Random
from typing import Any

from maitred.compat.instance_rules import new_instance
from maitred.core.request import Request
from maitred.instance import InstanceConfig, LinearLatency

Event = tuple[int, str, int, int]
STEP = LinearLatency((10, 0, 0))
"""Each step takes 10 µs."""


def drive(config: InstanceConfig, requests: list[tuple[Request, int]], aborts: list[tuple[int, int]] = []) -> list[Event]:  # noqa: B006
    """Return all events as (at, kind, request, tokens emitted). The ledger is checked after each."""
    instance = new_instance(config, Random(0))
    events: list[Event] = []

    def note(now: int) -> None:
        events.extend((e.at, e.kind.name, e.seq.request.id, e.seq.num_output_tokens) for e in instance.advance(now))
        instance.check()

    now, inputs = 0, [(request.arrival, 0, number) for number, (request, _) in enumerate(requests)]
    for at, kind, number in sorted([*inputs, *((at, 1, number) for at, number in aborts)]):
        while at > now and (due := instance.next_event()) is not None and due < at:
            note(due)
        now = at
        note(at)
        if kind:
            instance.abort(number, at)
        else:
            instance.enqueue(*requests[number], at)
    while (due := instance.next_event()) is not None:
        note(due)
    assert instance.free_blocks == instance.total_blocks
    return events


def request(number: int, arrival: int, prompt: int, most: int | None, **fields: Any) -> Request:
    return Request(id=number, arrival=arrival, prompt_tokens=prompt, max_output_tokens=most, **fields)


def config(batching: str, **keys: Any) -> InstanceConfig:
    plain = {"block_size_in_tokens": 10, "max_num_batched_tokens": 100, "max_num_seqs": 4, "latency": STEP}
    return InstanceConfig(batching=batching, **{**plain, **keys})
