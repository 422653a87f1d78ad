"""Mailbox: what the scheduler of an engine is told, and from which step on it knows.

With async scheduling (vLLM's default since 0.14) step n + 1 is planned while step n runs, so that the GPU never waits for the
scheduler. So whatever happens during step n, or comes of it, is known to the plan of step n + 2 and not before:

    an arrival during n       is in the wait queue when n ends, and is admitted to n + 2 at the earliest
    a completion with n       gives its slot to n + 2, and whatever else the batch has left to it (`batching.vllm.plan_ahead`)

Here a step is planned when the one before it has ended. What the scheduler could not know when it planned the step stands in
one queue of effects, each with the first step whose plan sees it, and those that are due are carried out before a step is
planned. They are posted in the order in which they become visible, so the queue is never searched. An engine that runs nothing
has planned nothing, so it sees all at once.

Example: steps of 100 µs begin at t = 0, 100 and 200; the first one is step 0. A request that arrives at t = 30 is in the wait
queue at t = 100, and visible from step 2. Step 1 begins at t = 100 without it, and its first chunk is in step 2.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import TypeAlias

from maitred.batching import RunningBatch
from maitred.core.contracts import WaitQueue
from maitred.core.request import RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.instance.step_run import StepRun
from maitred.kv import PrefixBlockManager

Effect: TypeAlias = Callable[[SequenceState, StepRun | None], None]
"""What becomes of a sequence, during a run or between two. It is nothing if the sequence has left meanwhile."""


class Mailbox:
    """The messages to the scheduler of one engine that it has not seen yet. `RunningBatch.step_index` numbers the steps."""

    __slots__ = ("_batch", "_messages", "_prefix_blocks", "_sequences", "_waiting", "num_departing")

    def __init__(
        self,
        waiting: WaitQueue,
        batch: RunningBatch,
        prefix_blocks: PrefixBlockManager | None,
        sequences: Mapping[RequestId, SequenceState],
    ) -> None:
        """`sequences` are those of the engine that wait or run."""
        self._waiting = waiting
        self._batch = batch
        self._prefix_blocks = prefix_blocks
        self._sequences = sequences
        self._messages: deque[tuple[int, Effect, SequenceState]] = deque()
        """First step whose plan sees it, effect, sequence."""
        self.num_departing = 0
        """Complete sequences that have a slot, since the scheduler does not know that they are."""

    @property
    def num_unseen(self) -> int:
        """Arrivals that are not in the wait queue. O(n)."""
        return sum([self._sequences.get(seq.request_id) is seq for _, _, seq in self._messages])

    def announce_arrival(self, seq: SequenceState, run: StepRun | None, now: Micros) -> None:
        """Let `seq`, which has come, wait from the end of the step in progress on. `run` is the run with it, or None."""
        steps = 0 if run is None else run.steps_until(now)
        seq.queued_at = now if run is None else run.starts_at + run.time_of(steps)
        self._messages.append((self._batch.step_index + steps + 1, self._let_wait, seq))
        if run is None and not self._batch.running:
            self.deliver_all()

    def announce_completion(self, seq: SequenceState) -> None:
        """Let `seq`, which has completed with the step that has just ended, keep its slot until the next step is planned."""
        self.num_departing += 1
        self._messages.append((self._batch.step_index + 1, self._depart, seq))

    def deliver_before_plan(self) -> None:
        """Carry out what the plan sees that is about to be made."""
        if self._batch.running:
            self._deliver(self._batch.step_index, None)
        else:
            self.deliver_all()  # nothing ran, so nothing was planned ahead

    def deliver_after_plan(self, run: StepRun) -> None:
        """Carry out what the plan of the step after the first one of `run` sees, and end `run` where that plan may differ."""
        has_news = self._deliver(self._batch.step_index + 1, run)
        may_admit = has_news and len(self._waiting) > 0 and not self._batch.is_full
        if run.steps > 1 and (may_admit or run.departed_decodes):
            run.shorten(1)

    def deliver_queued(self, run: StepRun | None) -> None:
        """Put the arrivals that wait by now into the wait queue, which must hold them before it learns from one that leaves."""
        self._deliver(self._batch.step_index if run is None else self._batch.step_index + 1, run)

    def deliver_all(self) -> None:
        """Carry out everything, for a plan that is not made ahead."""
        while self._messages:
            _, effect, seq = self._messages.popleft()
            effect(seq, None)

    def _deliver(self, step: int, run: StepRun | None) -> bool:
        """Carry out what the plan of step `step` sees. Return whether that was anything."""
        messages = self._messages
        if not messages or messages[0][0] > step:
            return False
        while messages and messages[0][0] <= step:
            _, effect, seq = messages.popleft()
            effect(seq, run)
        return True

    def _let_wait(self, seq: SequenceState, run: StepRun | None) -> None:
        if self._sequences.get(seq.request_id) is seq:
            assert seq.queued_at is not None
            self._waiting.add(seq, seq.queued_at)

    def _depart(self, seq: SequenceState, run: StepRun | None) -> None:
        self.num_departing -= 1
        if self._batch.sequences.get(seq.request_id) is not seq:
            return  # it has lost its slot by a preemption
        if run is not None:
            if self._prefix_blocks is not None:
                self._prefix_blocks.reserve_next_step()  # the step takes its blocks before these are free, and evicts for them
            run.departed_decodes += seq.is_decoding
        self._batch.remove(seq)
        if self._prefix_blocks is not None:
            self._prefix_blocks.forget(seq)
