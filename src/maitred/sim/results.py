"""Whose the gaps between tokens were (ITL): the logs of all instances as columns.

Results: one row per request, in the order of arrival, in columns.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from enum import IntEnum
from itertools import accumulate, repeat
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from maitred.core.quantile_sketch import QuantileSketch
from maitred.core.units import Micros
from maitred.instance.itl_log import ItlLog

_Ints: TypeAlias = NDArray[np.int64]


class ItlGaps(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """See `instance.itl_log`. Stretches of all instances, one instance after the other; all gaps as clients see them."""

    steps: _Ints
    """By stretch: how many steps it had, ..."""
    spans: _Ints
    """... and the gaps of one sequence in it together, µs."""
    request_id: _Ints
    """By time of decoding: whose it was; one that was preempted has several, ..."""
    first_stretch: _Ints
    """... its first stretch, ..."""
    end_stretch: _Ints
    """... and that after its last one."""
    pause_request_id: _Ints
    """By pause between two tokens: whose it was, ..."""
    pauses: _Ints
    """... and how far apart these were, µs."""


def itl_gaps_of(logs: Iterable[ItlLog], overhead: Micros) -> ItlGaps:
    """At the end of a run; every token takes `overhead` to the client, which is part of each gap."""
    logs = list(logs)
    for log in logs:
        log.close()
    first = list(accumulate((len(log.stretch_steps) for log in logs), initial=0))
    steps, ids = _joined(log.stretch_steps for log in logs), _joined(log.request_ids for log in logs)
    since = _joined((log.first_stretches for log in logs), first)
    until = _joined((log.end_stretches for log in logs), first)
    decoded = since < until
    return ItlGaps(
        steps=steps,
        spans=_joined(log.stretch_times for log in logs) + steps * overhead,
        request_id=ids[decoded],
        first_stretch=since[decoded],
        end_stretch=until[decoded],
        pause_request_id=_joined(log.paused_request_ids for log in logs),
        pauses=_joined(log.pauses for log in logs) + overhead,
    )


def _joined(parts: Iterable[array[int]], more: Iterable[int] = repeat(0)) -> _Ints:
    """One after the other, `more` added to each."""
    return np.concatenate([np.array(part, dtype=np.int64) + add for part, add in zip(parts, more, strict=False)])


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
    """What one instance did. Counts of requests and tokens are of those whose row names it (`Results.on_instance_due`),
    finished or
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
    itl: QuantileSketch
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
    outside_instances: NDArray[np.int32]
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
    """An index into `tenants`; likewise `model` and `slo_class_of`."""
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
    itl_gaps: ItlGaps | None = None
    """Whose the gaps between tokens were, if it was asked for."""

    def __len__(self) -> int:
        return len(self.request_id)
