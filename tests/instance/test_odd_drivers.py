"""Drivers that come late, look often, or never: what happens, and when, follows from the inputs alone.

The clock of these steps is not linear: a step costs more the longer its context is, so a run of k steps is no multiple of
one, and every shape that the instance hands to its latency model counts.
"""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from maitred.core.contracts import BatchShape, PrefixCacheView, QueuePolicy, StepView, WaitQueue
from maitred.core.request import Request, RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.instance import EventKind, Instance, InstanceConfig, InstanceEvent
from maitred.queueing import SCHEDULERS

Seen = list[tuple[Micros, int, int, int]]


class ContextLatency:
    """Quadratic attention: what is read counts, each step truncated to a microsecond; a run is summed step by step."""

    def compiled(self, _scale: float) -> ContextLatency:
        return self

    def step_time(self, batch: BatchShape) -> Micros:
        attention = sum(chunk.num_tokens * (chunk.num_computed_tokens + chunk.num_tokens) for chunk in batch.chunks)
        return 10 + batch.prefill_tokens + batch.context_tokens * 7 // 10 + batch.num_decodes * 3 + attention // 50

    def run_time(self, batch: BatchShape, steps: int) -> Micros:
        return sum(self.step_time(self._after(batch, step)) for step in range(steps))

    def steps_within(self, batch: BatchShape, span: Micros, limit: int) -> int:
        for step in range(limit):
            span -= self.step_time(self._after(batch, step))
            if span < 0:
                return step
        return limit

    def _after(self, batch: BatchShape, step: int) -> BatchShape:
        return BatchShape(
            batch.num_decodes, batch.context_tokens + step * batch.num_decodes, batch.prefill_tokens, batch.chunks
        )


class RecordingFcfs(QueuePolicy):
    """First come, first served. Its queue keeps what it is told."""

    last: _RecordingQueue

    def make_queue(self, prefix: PrefixCacheView | None, rng: Random) -> WaitQueue:
        RecordingFcfs.last = _RecordingQueue(SCHEDULERS.get("fcfs")().make_queue(prefix, rng))
        return RecordingFcfs.last


class _RecordingQueue(WaitQueue):
    def __init__(self, line: WaitQueue) -> None:
        self._line = line
        self.prefill: dict[RequestId, int] = {}
        self.decode: dict[RequestId, int] = {}
        self.complete: list[RequestId] = []
        self.gone: list[RequestId] = []
        self._told: Micros = 0

    def add(self, seq: SequenceState, now: Micros, *, front: bool = False) -> None:
        self._later(now)
        self._line.add(seq, now, front=front)

    def remove(self, request_id: RequestId) -> SequenceState | None:
        return self._line.remove(request_id)

    def on_step_start(self, step: StepView, now: Micros) -> None:
        self._later(now)

    def peek(self) -> SequenceState | None:
        return self._line.peek()

    def pop(self) -> SequenceState:
        return self._line.pop()

    def on_served(self, seq: SequenceState, prefill_tokens: int, decode_tokens: int, now: Micros) -> None:
        self._later(now)
        number = seq.request.id
        self.prefill[number] = self.prefill.get(number, 0) + prefill_tokens
        self.decode[number] = self.decode.get(number, 0) + decode_tokens

    def on_finished(self, seq: SequenceState, now: Micros) -> None:
        self._later(now)
        self.complete.append(seq.request.id)

    def on_sequence_end(self, seq: SequenceState, now: Micros) -> None:
        self._later(now)
        self.gone.append(seq.request.id)

    def next_order_change(self, now: Micros) -> Micros | None:
        return None

    def __len__(self) -> int:
        return len(self._line)

    def _later(self, now: Micros) -> None:
        """Time never runs backwards for a policy, however late the instance is driven."""
        assert now >= self._told
        self._told = now


@st.composite
def days(draw: st.DrawFn) -> tuple[dict[str, Any], list[tuple[Request, int]], list[tuple[int, int]]]:
    """Draw the configuration of an instance, requests with their answers, and aborts (instant, request).

    Times are multiples of 5, so that inputs, deadlines and steps often meet at one instant.
    """
    size, blocks = draw(st.sampled_from([1, 4, 16])), draw(st.sampled_from([8, 20, 60, 400]))
    held = min(120, size * blocks)
    config = {
        "scheduler": f"{__name__}:RecordingFcfs",
        "max_num_seqs": draw(st.sampled_from([1, 3, 256])),
        "max_num_batched_tokens": draw(st.sampled_from([8, 64, 2048])),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 5, 30])),
        "total_kv_blocks": blocks,
        "block_size_in_tokens": size,
        "latency": ContextLatency(),
    }
    jobs, now = [], 0
    for number in range(draw(st.integers(1, 12))):
        now += 5 * draw(st.sampled_from([0, 0, 1, 4, 40]))
        patience = draw(st.one_of(st.none(), st.integers(0, 200)))
        request = Request(
            id=number,
            arrival=now,
            prompt_tokens=draw(st.integers(1, max(1, held // 2))),
            deadline=None if patience is None else now + 5 * patience,
        )
        jobs.append((request, draw(st.integers(1, held))))
    aborts = draw(st.lists(st.tuples(st.integers(0, now // 5 + 200), st.integers(0, len(jobs) - 1)), max_size=6))
    return config, jobs, [(5 * at, number) for at, number in aborts]


def drive(config: InstanceConfig, jobs: list[tuple[Request, int]], aborts: list[tuple[int, int]], odd: Random | None) -> Seen:
    """Return all events as (at, request, kind, tokens emitted in the end). `odd`: its driver calls at random times."""
    engine = Instance(config, Random(0))
    inputs = sorted([(request.arrival, 0, n) for n, (request, _) in enumerate(jobs)] + [(at, 1, n) for at, n in aborts])
    heard: list[InstanceEvent] = []
    now: Micros = 0
    while inputs:
        before, now = now, inputs[0][0]
        while odd is None and (due := engine.next_event()) is not None and due < now:
            heard += engine.advance(due)
        if odd is not None and odd.random() < 0.5:
            heard += engine.advance(odd.randint(max(before, now - 60), now))
        while inputs and inputs[0][0] == now:
            _, verb, number = inputs.pop(0)
            if verb == 0:
                engine.enqueue(*jobs[number], now)
            else:
                engine.abort(number, now)
            if odd is not None and odd.random() < 0.3:
                heard += engine.advance(now)
        if odd is None or odd.random() < 0.5:
            heard += engine.advance(now)
        if odd is not None and odd.random() < 0.5:
            engine.next_event()
        engine.check()
    while (due := engine.next_event()) is not None:
        now = due if odd is None else due + odd.choice([0, 0, 3, 700])
        heard += engine.advance(now)
        engine.check()
    heard += engine.advance(now)
    assert [e.at for e in heard] == sorted(e.at for e in heard)
    return sorted((e.at, e.seq.request.id, int(e.kind), e.seq.num_output_tokens) for e in heard)


@settings(max_examples=40, deadline=None)
@given(days(), st.integers(0, 1000))
def test_how_an_instance_is_driven_changes_nothing(
    day: tuple[dict[str, Any], list[tuple[Request, int]], list[tuple[int, int]]], seed: int
) -> None:
    config, jobs, aborts = day
    expected = drive(InstanceConfig(**config, step_by_step=True), jobs, aborts, None)
    told = RecordingFcfs.last.prefill, RecordingFcfs.last.decode, sorted(RecordingFcfs.last.complete)
    kinds = {number: kind for _, number, kind, _ in expected if kind != EventKind.REFUSED and kind > EventKind.KV_PREEMPTED}
    assert set(RecordingFcfs.last.gone) >= {number for number, kind in kinds.items() if kind != EventKind.TIMED_OUT}
    for odd in (None, Random(seed), Random(seed + 1)):
        assert drive(InstanceConfig(**config), jobs, aborts, odd) == expected
        assert (RecordingFcfs.last.prefill, RecordingFcfs.last.decode, sorted(RecordingFcfs.last.complete)) == told
    assert drive(InstanceConfig(**config, step_by_step=True), jobs, aborts, Random(seed)) == expected


@settings(max_examples=50, deadline=None)
@given(days())
def test_every_token_is_charged_once(day: tuple[dict[str, Any], list[tuple[Request, int]], list[tuple[int, int]]]) -> None:
    config, jobs, _ = day
    jobs = [(Request(id=r.id, arrival=r.arrival, prompt_tokens=r.prompt_tokens), output) for r, output in jobs]
    seen = drive(InstanceConfig(**config), jobs, [], None)
    assert sorted(RecordingFcfs.last.complete) == sorted(RecordingFcfs.last.gone) == [request.id for request, _ in jobs]
    for request, _ in jobs:
        mine = [(kind, emitted) for _, number, kind, emitted in seen if number == request.id]
        assert RecordingFcfs.last.decode[request.id] == mine[-1][1]
        if EventKind.KV_PREEMPTED not in [kind for kind, _ in mine]:
            assert RecordingFcfs.last.prefill[request.id] == request.prompt_tokens
        else:
            assert RecordingFcfs.last.prefill[request.id] > request.prompt_tokens


def test_a_preempted_sequence_is_charged_when_it_loses_its_place_and_for_its_recomputation() -> None:
    # 4 blocks of 10 tokens; both prompts fill two, so the first decode of each needs a third
    config = InstanceConfig(scheduler=f"{__name__}:RecordingFcfs", total_kv_blocks=4, block_size_in_tokens=10)
    engine = Instance(config, Random(0))
    for number in (0, 1):
        engine.enqueue(Request(id=number, arrival=0, prompt_tokens=20), output_tokens=3, now=0)
    engine.advance(engine.next_event() or 0)
    engine.next_event()
    assert engine.num_preemptions == 1
    assert (RecordingFcfs.last.prefill, RecordingFcfs.last.decode) == ({0: 20, 1: 20}, {0: 0, 1: 1})
    while (now := engine.next_event()) is not None:
        engine.advance(now)
    assert (RecordingFcfs.last.prefill, RecordingFcfs.last.decode) == ({0: 20, 1: 20 + 21}, {0: 3, 1: 3})
