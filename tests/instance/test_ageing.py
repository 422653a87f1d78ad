"""A policy whose order time changes: a run must end where the head of the queue may change (`next_order_change`)."""

from __future__ import annotations

from random import Random

from maitred.core.contracts import PrefixCacheView, QueuePolicy, StepView, WaitQueue
from maitred.core.request import Request, RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.instance import EventKind, Instance, InstanceConfig, LinearLatency
from maitred.queueing.base import BaseQueue

PATIENCE: Micros = 500


class OldFirst(QueuePolicy):
    """Newest first, unless the oldest sequence has waited for PATIENCE: then that one."""

    def make_queue(self, prefix: PrefixCacheView | None, rng: Random) -> WaitQueue:
        return _OldFirst()


class _OldFirst(BaseQueue):
    def __init__(self) -> None:
        self._waiting: list[SequenceState] = []
        self._head = -1

    def add(self, seq: SequenceState, now: Micros, *, front: bool = False) -> None:
        self._waiting.append(seq)

    def remove(self, request_id: RequestId) -> SequenceState | None:
        return None

    def on_step_start(self, step: StepView, now: Micros) -> None:
        self._head = 0 if self._waiting and now - self._waiting[0].request.arrival >= PATIENCE else -1

    def peek(self) -> SequenceState | None:
        return self._waiting[self._head] if self._waiting else None

    def pop(self) -> SequenceState:
        return self._waiting.pop(self._head)

    def next_order_change(self, now: Micros) -> Micros | None:
        changes = [seq.request.arrival + PATIENCE for seq in self._waiting if seq.request.arrival + PATIENCE > now]
        return min(changes, default=None)

    def __len__(self) -> int:
        return len(self._waiting)


def admissions(*, step_by_step: bool) -> dict[int, Micros]:
    """Return the instants of first tokens. A long answer runs; a prompt waits that is too long for the free blocks, and so
    does a short one that came before it."""
    config = InstanceConfig(
        scheduler="test_ageing:OldFirst",
        latency=LinearLatency((100, 0, 0)),
        total_kv_blocks=10,
        block_size_in_tokens=100,
        step_by_step=step_by_step,
    )
    engine = Instance(config, Random(0))
    first_tokens: dict[int, Micros] = {}
    arrivals = {0: (100, 300), 1: (50, 5), 2: (900, 5)}  # prompt, answer
    for number, (prompt, answer) in arrivals.items():
        engine.enqueue(
            Request(id=number, arrival=0 if number == 0 else 50, prompt_tokens=prompt), answer, 0 if number == 0 else 50
        )
        engine.next_event()
    while (now := engine.next_event()) is not None:
        first_tokens |= {e.seq.request.id: e.at for e in engine.advance(now) if e.kind is EventKind.FIRST_TOKEN}
    return first_tokens


def test_a_run_ends_where_the_head_may_change() -> None:
    skipping = admissions(step_by_step=False)
    assert skipping == admissions(step_by_step=True)
    # 2 is the newest and blocks the queue; 1 has waited for 500 µs at 550, so it joins the step that begins at 600
    assert skipping[1] == 700
