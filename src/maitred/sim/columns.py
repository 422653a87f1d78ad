"""Results: one row per request, in the order of arrival, in columns."""

from __future__ import annotations

from enum import IntEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from maitred.sim.journey import NEVER
from maitred.units import Micros

Ints = NDArray[np.int64]

__all__ = ["NEVER", "Ints", "Outcome", "Results"]


class Outcome(IntEnum):
    """What became of a request."""

    COMPLETED = 0
    REJECTED = 1
    """Admission turned it away, at once or after waiting."""
    PREEMPTED = 6
    """Admission took its slot back, for a request of a higher class; what had come out of it was lost."""
    REFUSED = 2
    """It can never run: longer than the model length."""
    TIMED_OUT = 3
    """Its deadline passed."""
    ABORTED = 4
    UNFINISHED = 5
    """The simulation ended before it did."""


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Columns of equal length. Instants are µs since the start of the run, -1 where there was none."""

    request_id: Ints
    arrival: Ints
    queued: Ints
    """When it entered the wait queue of its instance."""
    scheduled: Ints
    """When it last entered a running batch."""
    first_token: Ints
    """When it reached the client, with the latency model's overhead per output token."""
    finished: Ints
    """When it ended, whatever its outcome; if it completed, with the latency model's overheads; -1 for UNFINISHED."""
    prompt_tokens: Ints
    output_tokens: Ints
    """Tokens that came out."""
    cached_tokens: Ints
    """Of the prompt, those that were in the prefix cache when it first ran."""
    wasted_tokens: Ints
    """Tokens whose KV was computed again because a preemption had lost it."""
    outcome: NDArray[np.int8]
    priority_class: NDArray[np.int8]
    tenant: NDArray[np.int32]
    """An index into `tenants`; likewise `model` and `slo_class`."""
    model: NDArray[np.int32]
    slo_class: NDArray[np.int32]
    instance: NDArray[np.int32]
    """Where it was sent; -1: it never came that far."""
    preemptions: NDArray[np.int32]
    """How often it lost its KV in its instance."""
    retries: NDArray[np.int32]
    """How often admission took its slot back and let it wait for another. The other columns are of its last attempt."""
    tenants: tuple[str, ...] = ("",)
    """The names that requests bear; the first is that of those without one."""
    models: tuple[str, ...] = ("",)
    slo_classes: tuple[str, ...] = ("",)
    end: Micros
    """When the last request ended; the horizon, if some had not."""

    def __len__(self) -> int:
        return len(self.request_id)
