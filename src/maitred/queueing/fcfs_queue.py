"""FcfsQueue: the wait queue of `fcfs`, which most instances have, in the order of arrival.

A preempted sequence goes back to the front, so victims that are put back in the reverse order of their admission restore it.
For example, with 7 and 8 waiting, sequence 5 is preempted, and then 4, which was admitted before it:

    7 8    add 5 to the front    5 7 8    add 4 to the front    4 5 7 8

Nothing but `add` and `remove` changes the order, and the other callbacks do nothing. (So it is with `BaseQueue`, from which a
compiled class cannot inherit.)

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections import OrderedDict

from maitred.core.contracts import SortKey, StepView
from maitred.core.request import RequestId
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros


class FcfsQueue:
    """The sequences that wait in one instance. See `WaitQueue` for the methods."""

    def __init__(self) -> None:
        self._head: SequenceState | None = None
        """The first of them: it is asked for at every step that has room, and mostly there is no other one."""
        self._behind: OrderedDict[RequestId, SequenceState] = OrderedDict()
        """The others."""

    def add(self, seq: SequenceState, now: Micros, *, front: bool = False) -> None:
        head = self._head
        if head is None:
            self._head = seq
        elif front:
            self._behind[head.request_id] = head
            self._behind.move_to_end(head.request_id, last=False)
            self._head = seq
        else:
            self._behind[seq.request_id] = seq

    def remove(self, request_id: RequestId) -> SequenceState | None:
        head = self._head
        if head is None or head.request_id != request_id:
            return self._behind.pop(request_id, None)
        return self.pop()

    def peek(self) -> SequenceState | None:
        return self._head

    def pop(self) -> SequenceState:
        head = self._head
        if head is None:
            raise IndexError("pop from an empty wait queue")
        self._head = self._behind.popitem(last=False)[1] if self._behind else None
        return head

    def on_step_start(self, step: StepView, now: Micros) -> None:
        pass

    def on_served(self, seq: SequenceState, prefill_tokens: int, decode_tokens: int, now: Micros) -> None:
        pass

    def on_finished(self, seq: SequenceState, now: Micros) -> None:
        pass

    def on_sequence_end(self, seq: SequenceState, now: Micros) -> None:
        pass

    def next_order_change(self, now: Micros) -> Micros | None:
        return None

    def head_key(self) -> SortKey | None:
        return None

    def __len__(self) -> int:
        return len(self._behind) + (self._head is not None)
