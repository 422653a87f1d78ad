"""Events: what an instance tells its driver."""

from __future__ import annotations

from enum import IntEnum

import msgspec

from maitred.core.sequence import SequenceState
from maitred.core.units import Micros


class EventKind(IntEnum):
    """What happened to a request in an instance. With all but the first two the request leaves it."""

    FIRST_TOKEN = 0
    KV_PREEMPTED = 1
    """The request lost its KV and waits again. The tokens that it has emitted stand."""
    FINISHED = 2
    TIMED_OUT = 3
    ABORTED = 4
    REFUSED = 5
    """The request can never run here: see `LengthLimits.rejection_reason`."""
    REJECTED = 6
    """The queue is full: see `Instance.overload_reason`."""


class InstanceEvent(msgspec.Struct, frozen=True, gc=False):
    """An event of one sequence. With all kinds but FIRST_TOKEN the sequence is settled: `seq.num_output_tokens` counts the
    tokens that came out."""

    at: Micros
    kind: EventKind
    seq: SequenceState
