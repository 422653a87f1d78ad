"""Time skipping must not be seen: the same events, to the microsecond, as of one step after the other."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from maitred.compat.instance_rules import new_instance
from maitred.core.request import Request
from maitred.instance import InstanceConfig, InstanceEvent, LinearLatency

Seen = list[tuple[int, int, int, int]]


@st.composite
def workloads(draw: st.DrawFn) -> tuple[dict[str, Any], list[tuple[Request, int]], list[tuple[int, int]]]:
    """Draw the configuration of an instance, requests with their answers, and aborts (instant, request)."""
    size, blocks = draw(st.sampled_from([1, 4, 16])), draw(st.sampled_from([8, 20, 60, 400]))
    held = min(300, size * blocks)
    config = {
        "scheduler": draw(st.sampled_from(["fcfs", "sjf"])),
        "max_num_seqs": draw(st.sampled_from([1, 3, 8, 256])),
        "max_num_batched_tokens": draw(st.sampled_from([8, 64, 2048])),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 5, 30])),
        "total_kv_blocks": blocks,
        "block_size_in_tokens": size,
        "latency": LinearLatency((draw(st.sampled_from([0, 10, 97])), draw(st.sampled_from([0, 1, 2.5])), 0.7)),
    }
    jobs, now = [], 0
    for number in range(draw(st.integers(1, 25))):
        now += draw(st.sampled_from([0, 0, 1, 10, 100, 1000]))
        deadline = draw(st.one_of(st.none(), st.none(), st.integers(1, 3000)))
        request = Request(
            id=number,
            arrival=now,
            prompt_tokens=draw(st.integers(1, max(1, held // 3))),
            deadline=None if deadline is None else now + deadline,
        )
        jobs.append((request, draw(st.integers(1, held))))
    aborts = draw(st.lists(st.tuples(st.integers(0, now + 2000), st.integers(0, len(jobs) - 1)), max_size=6))
    return config, jobs, aborts


def drive(
    config: InstanceConfig,
    jobs: list[tuple[Request, int]],
    aborts: list[tuple[int, int]],
    looks: set[int],
    *,
    looks_ahead: bool = False,
) -> Seen:
    """Return all events as (at, kind, request, tokens emitted). The instance is observed at the instants `looks`, too. With
    `looks_ahead` it is told when the next input comes."""
    engine = new_instance(config, Random(0))
    inputs = sorted(
        [(request.arrival, 0, number) for number, (request, _) in enumerate(jobs)]
        + [(at, 1, number) for at, number in aborts]
        + [(at, 2, 0) for at in looks]
    )
    seen: Seen = []

    def note(events: Sequence[InstanceEvent]) -> None:
        seen.extend((e.at, int(e.kind), e.seq.request.id, e.seq.num_output_tokens) for e in events)

    while True:
        coming = inputs[0][0] if inputs else None
        due = engine.next_event((1 << 60) if coming is None else coming) if looks_ahead else engine.next_event()
        if due is None and coming is None:
            return seen
        now = min(instant for instant in (due, coming) if instant is not None)
        while inputs and inputs[0][0] == now:
            _, verb, number = inputs.pop(0)
            if verb == 0:
                engine.enqueue(*jobs[number], now)
            elif verb == 1:
                engine.abort(number, now)
        note(engine.advance(now))
        engine.check()


@settings(max_examples=40, deadline=None)
@given(workloads(), st.sets(st.integers(0, 4000), max_size=5), st.booleans())
def test_skipping_changes_nothing(
    workload: tuple[dict[str, Any], list[tuple[Request, int]], list[tuple[int, int]]], looks: set[int], looks_ahead: bool
) -> None:
    config, jobs, aborts = workload
    skipping = drive(InstanceConfig(**config), jobs, aborts, looks, looks_ahead=looks_ahead)
    assert skipping == drive(InstanceConfig(**config, step_by_step=True), jobs, aborts, set())
    ends = [number for _, kind, number, _ in skipping if kind > 1]
    assert sorted(ends) == list(range(len(jobs)))  # every request ends, and once
    event(f"kinds {sorted({kind for _, kind, _, _ in skipping})}")


def test_what_nothing_comes_of_is_passed_over_until_the_next_input() -> None:
    def next_event(quiet_until: int) -> int | None:
        engine = new_instance(InstanceConfig(latency=LinearLatency((100, 1, 0))), Random(0))
        engine.omit_first_tokens()
        engine.enqueue(Request(id=0, arrival=0, prompt_tokens=50), 11, 0)
        return engine.next_event(quiet_until)

    assert next_event(0) == next_event(150) == 150  # the prompt is complete
    assert next_event(151) == 150 + 10 * 100  # and so is the answer
