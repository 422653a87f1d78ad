"""BLIS's rules, where they are not ours: by hand, and skipping under them."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st
from test_skipping_prefixes import Job, workload

from maitred.compat.instance_rules import new_instance
from maitred.core.request import Request
from maitred.instance import EventKind, Instance, InstanceConfig, LinearLatency
from maitred.kv import PromptTokenIds

FIRST, PREEMPTED, FINISHED = EventKind.FIRST_TOKEN, EventKind.KV_PREEMPTED, EventKind.FINISHED
TIMED_OUT, ABORTED = EventKind.TIMED_OUT, EventKind.ABORTED


def blis(**config: Any) -> Instance:
    """A step lasts 100 µs + 1 µs per prefill token + 10 µs per decode; a block has 4 tokens."""
    said = {"block_size_in_tokens": 4, "latency": LinearLatency((100, 1, 10)), "flavour": "blis", **config}
    return new_instance(InstanceConfig(**said), Random(0))


def request(number: int, tokens: range | tuple[int, ...], arrival: int = 0, **fields: Any) -> Request:
    return Request(id=number, arrival=arrival, prompt_tokens=len(tokens), prefix=PromptTokenIds(tuple(tokens)), **fields)


def driven(engine: Instance, jobs: list[Job], aborts: Sequence[tuple[int, int]] = ()) -> list[tuple[int, EventKind, int]]:
    """Return all events as (at, kind, request), in the order in which they were told. `aborts`: (instant, request)."""
    coming, going, seen = list(jobs), sorted(aborts), []
    while True:
        due = engine.next_event()
        inputs = [job.arrival for job, _ in coming[:1]] + [at for at, _ in going[:1]]
        if due is None and not inputs:
            return seen
        now = min([*inputs, *([] if due is None else [due])])
        while coming and coming[0][0].arrival == now:
            engine.enqueue(*coming.pop(0), now)
        while going and going[0][0] == now:
            engine.abort(going.pop(0)[1], now)
            due = engine.next_event()
        if due == now:
            seen += [(e.at, e.kind, e.seq.request.id) for e in engine.advance(now)]
        engine.check()


def test_a_prompt_that_is_cached_as_a_whole_takes_a_microsecond() -> None:
    prompt = range(8)  # two whole blocks
    jobs = [(request(0, prompt), 1), (request(1, prompt, arrival=1000), 1), (request(2, range(9), arrival=2000), 1)]
    assert driven(blis(), jobs) == [
        (108, FIRST, 0),
        (108, FINISHED, 0),
        (1001, FIRST, 1),
        (1001, FINISHED, 1),
        (2101, FIRST, 2),  # a token beyond the blocks is computed as everywhere
        (2101, FINISHED, 2),
    ]


def test_who_was_preempted_finds_nothing_of_its_answer_though_others_may() -> None:
    """Two of 5 tokens and 12 more share 7 blocks of 4. At 12 tokens each the second gives way, with a block of prompt and two
    of answer, which its conversation names; it comes back for the first of them and computes a token."""
    engine, tokens = blis(total_kv_blocks=7), [tuple(range(100 * i, 100 * i + 17)) for i in range(2)]
    for number, content in enumerate(tokens):
        engine.enqueue(request(number, content[:5]), 12, 0, PromptTokenIds(content))
    events, wasted = [], None
    while (now := engine.next_event()) is not None:
        for said in engine.advance(now):
            events.append((said.at, said.kind, said.seq.request.id))
            wasted = said.seq.recomputed_tokens
        engine.check()
    # 7 steps of both, one of the first alone, one beside the token that is computed, 2 of both, 9 of the second
    assert events == [
        (110, FIRST, 0),
        (110, FIRST, 1),
        (950, PREEMPTED, 1),
        (950 + 110 + 111, FIRST, 1),
        (1171 + 2 * 120, FINISHED, 0),
        (1411 + 9 * 110, FINISHED, 1),
    ]
    assert wasted == 8


def test_ours_computes_its_last_block() -> None:
    prompt = range(8)
    jobs = [(request(0, prompt), 1), (request(1, prompt, arrival=1000), 1)]
    ours = blis(flavour=None, enable_prefix_caching=True)
    assert [at for at, kind, _ in driven(ours, jobs) if kind is FIRST] == [108, 1104]


def test_what_a_step_brings_about_is_there_when_it_begins() -> None:
    engine = blis()
    engine.enqueue(request(0, range(8), deadline=105), 1, 0)
    assert engine.next_event() == 0  # the step begins, and the request is over at once
    (first, last) = engine.advance(0)
    assert (first.at, last.at, last.kind) == (108, 108, FINISHED)  # though a deadline lies within the step
    assert (engine.running, engine.kv_usage, engine.next_event()) == (0, 0.0, None)


def test_no_request_waits_for_the_end_of_a_step_after_which_nothing_is_left() -> None:
    jobs = [(request(0, range(8)), 1), (request(1, range(50, 58), arrival=50), 1)]
    assert [(at, number) for at, kind, number in driven(blis(), jobs) if kind is FIRST] == [(108, 0), (158, 1)]


def test_but_for_one_that_was_emptied_by_a_deadline() -> None:
    jobs = [(request(0, range(8), deadline=50), 9), (request(1, range(50, 58), arrival=60), 1)]
    assert driven(blis(), jobs) == [(108, FIRST, 0), (50, TIMED_OUT, 0), (216, FIRST, 1), (216, FINISHED, 1)]


def both(jobs: list[Job], aborts: list[tuple[int, int]]) -> list[tuple[int, EventKind, int]]:
    """Return the events, on which skipping and stepping must agree."""
    seen = driven(blis(), jobs, aborts)
    assert seen == driven(blis(step_by_step=True), jobs, aborts)
    return seen


def test_who_is_aborted_when_a_step_begins_is_not_in_it() -> None:
    """Both prompts take 116 µs; then both decode, 120 µs a step, from 116 and 236 on."""
    jobs = [(request(0, range(8)), 9), (request(1, range(50, 58)), 5)]
    assert both(jobs, [(236, 0)]) == [
        (116, FIRST, 0),
        (116, FIRST, 1),
        (236, ABORTED, 0),
        (236 + 3 * 110, FINISHED, 1),  # alone from then on
    ]


def test_who_is_aborted_during_a_step_has_made_it_longer() -> None:
    jobs = [(request(0, range(8)), 9), (request(1, range(50, 58)), 5)]
    assert both(jobs, [(237, 0)])[-1] == (356 + 2 * 110, FINISHED, 1)


def test_who_comes_when_the_step_of_this_instant_is_made_waits_for_the_next() -> None:
    """Its driver says that the turn of this instance is over at 108, though nothing was told then."""
    ends = []
    for step_by_step in (True, False):
        engine = blis(step_by_step=step_by_step)
        engine.enqueue(request(0, range(8)), 9, 0)
        while (due := engine.next_event()) is not None and due <= 108:
            engine.advance(due)
        engine.commit_ended_steps(108)
        engine.enqueue(request(1, range(50, 58)), 1, 108)
        ends.append(driven(engine, [])[0])
    assert ends == [(108 + 110 + 118, FIRST, 1)] * 2


def test_a_victim_starts_anew_and_finds_its_prompt() -> None:
    """Four blocks. Both hold two when the next token of the first opens a third: the other goes, and comes back to one of its
    own that is still cached."""
    jobs = [(request(0, range(8)), 3), (request(1, range(50, 57)), 3)]
    assert driven(blis(total_kv_blocks=4), jobs) == [
        (115, FIRST, 0),
        (115, FIRST, 1),
        (115, PREEMPTED, 1),
        (335, FINISHED, 0),  # alone, at 110 µs a token
        (438, FIRST, 1),  # 3 tokens are to be computed
        (658, FINISHED, 1),
    ]


def test_who_is_its_own_victim_makes_those_behind_stand_still() -> None:
    """Five blocks. The last is the most urgent. The first to need a block is the least urgent: it goes, and in this step the
    one behind it gets nothing, though there is room now."""
    jobs = [
        (request(0, range(8), slo_class="background"), 9),
        (request(1, range(50, 62), slo_class="critical"), 3),
    ]
    engine = blis(total_kv_blocks=5, preemption_policy="priority", priority_policy="static-slo-class")
    assert driven(engine, jobs)[:4] == [
        (120, FIRST, 0),
        (120, FIRST, 1),
        (120, PREEMPTED, 0),
        (121 + 110 + 110, FINISHED, 1),  # a step without work takes 1 µs
    ]
    ours = blis(total_kv_blocks=5, preemption_policy="priority", priority_policy="static-slo-class", flavour=None)
    assert (120 + 110 + 110, FINISHED, 1) in driven(ours, jobs)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 100_000),
    scheduler=st.sampled_from(["fcfs", "sjf", "priority-fcfs", "reverse-priority", "hrrn", "lpm"]),
    victims=st.sampled_from(["fcfs", "priority"]),
    seqs=st.sampled_from([2, 4, 64]),
    blocks=st.sampled_from([45, 50, 60, 90]),
    threshold=st.sampled_from([0, 10]),
)
def test_skipping_changes_nothing(scheduler: str, victims: str, seed: int, seqs: int, blocks: int, threshold: int) -> None:
    config = {
        "scheduler": scheduler,
        "priority_policy": "static-slo-class",
        "preemption_policy": victims,
        "max_num_seqs": seqs,
        "max_num_batched_tokens": 64,
        "long_prefill_token_threshold": threshold,
        "total_kv_blocks": blocks,
        "latency": LinearLatency((40, 1, 2)),
    }
    rng = Random(seed)
    jobs = workload(rng)
    aborts = [(rng.randint(0, jobs[-1][0].arrival + 500), rng.randrange(len(jobs))) for _ in range(rng.randint(0, 4))]
    skipping = driven(blis(**config), jobs, aborts)
    assert skipping == driven(blis(**config, step_by_step=True), jobs, aborts)
    event(f"preempted {any(kind == PREEMPTED for _, kind, _ in skipping)}")
