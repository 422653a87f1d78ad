"""Results: one row per request, in the order of arrival, in columns."""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from maitred.sim.gaps import Gaps
from maitred.sketch import Sketch
from maitred.units import Micros

Ints: TypeAlias = NDArray[np.int64]

NEVER = -1
"""The instant of what did not happen, and the index of no instance."""


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


class InstanceTotals(msgspec.Struct, frozen=True, kw_only=True):
    """What one instance did. Counts of requests and tokens are of those whose row names it (`Results.instance`), finished or
    not: a prompt that was computed elsewhere (P/D) counts where its answer was."""

    steps: int
    busy: Micros
    """The time that its steps took."""
    preemptions: int
    """How often it took the KV of a sequence."""
    requests: int
    prompt_tokens: int
    cached_tokens: int
    """Of the prompts, those that were in the prefix cache when they first ran."""
    output_tokens: int
    fetched_blocks: int = 0
    """KV blocks that came back from main memory."""
    gaps: Sketch
    """Between one token and the next of the same request (ITL), as the client sees them."""


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster at regular instants. Arrays are by instant and instance; a run's end has none."""

    at: Ints
    """By instant, µs."""
    waiting: NDArray[np.int32]
    running: NDArray[np.int32]
    blocks_used: NDArray[np.int32]
    """KV blocks that are held."""
    total_blocks: int
    """Of each instance."""
    in_front: NDArray[np.int32]
    """By instant: requests that have arrived and are in no instance yet, such as those that wait for admission."""


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Columns of equal length. Instants are µs since the start of the run, -1 where there was none.

    If the rows went to a sink, the columns here are empty; the rest is said all the same.
    """

    request_id: Ints
    arrival: Ints
    admitted: Ints
    """When admission let it pass, to be routed."""
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
    instances: tuple[InstanceTotals, ...] = ()
    """What each instance did, by index."""
    samples: Samples | None = None
    """What instances were like in between, if it was asked for."""
    gaps: Gaps | None = None
    """Whose the gaps between tokens were, if it was asked for."""

    def __len__(self) -> int:
        return len(self.request_id)
