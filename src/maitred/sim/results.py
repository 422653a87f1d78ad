"""Results: one row per request, in the order of arrival, in columns (numpy), and what is known beside the rows."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from enum import IntEnum
from itertools import accumulate, repeat
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from maitred.core.histogram import QuantileSketch
from maitred.core.units import Micros
from maitred.instance.step_meter import ItlLog

Ints: TypeAlias = NDArray[np.int64]

NEVER = -1
"""Stands for the instant of an event that did not happen, and for the index of no instance. It is no number to reckon with:
`report.latencies` makes times of instants."""


class Outcome(IntEnum):
    """How a request ended."""

    COMPLETED = 0
    REJECTED = 1
    """Admission rejected it, at once or after it had waited, or the queue of its instance was full."""
    PREEMPTED = 6
    """Admission took its slot back for a request of a higher class; its output is lost."""
    REFUSED = 2
    """It can never run, because it is longer than the model length."""
    TIMED_OUT = 3
    """Its deadline passed."""
    ABORTED = 4
    """Its instance stopped it."""
    FAILED = 7
    """Its instance failed and it could not be tried elsewhere, or no instance served."""
    UNFINISHED = 5
    """It was still in the cluster at the horizon."""


class InstanceTotals(msgspec.Struct, frozen=True, kw_only=True):
    """The totals of one instance.

    Counts of requests and tokens cover the requests with the instance in their row (`Results.instance`), finished or not. With
    separate prefill instances a prompt counts in the instance that decoded its answer.
    """

    steps: int
    busy: Micros
    """Total time of its steps."""
    preemptions: int
    """How often it preempted a sequence, that is, freed its KV."""
    requests: int
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens that were in the prefix cache when the prompt first ran."""
    output_tokens: int
    fetched_blocks: int = 0
    """KV blocks fetched from main memory."""
    serving: Micros = 0
    """Time in which requests were routed to it."""
    held: Micros | None = None
    """Time in which its GPUs were held; None: for the whole run."""
    down: Micros = 0
    """Time between its failures and its returns."""
    itl: QuantileSketch
    """Gaps between consecutive tokens of a request, as the client sees them, in µs."""


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the cluster at regular instants. Two-dimensional arrays are by instant and instance."""

    at: Ints
    """The instants, in µs."""
    waiting: NDArray[np.int32]
    running: NDArray[np.int32]
    blocks_used: NDArray[np.int32]
    """KV blocks in use; of an instance with fewer than `total_blocks` in proportion to these."""
    total_blocks: int
    """KV blocks of each instance, or of the largest one."""
    outside_instances: NDArray[np.int32]
    """By instant: requests that have arrived and are in no instance yet, for example because they wait for admission."""
    arrived: Ints
    """By instant: requests that have arrived so far."""
    ended: Ints
    """By instant: requests that have ended so far, whatever their outcome."""


class ItlGaps(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The gaps between the tokens of each request (ITL), as clients see them: the logs of all instances one after the other.

    A stretch is a series of steps with about equal gaps, in which the same sequences decode (`instance.step_meter`). A
    sequence that decodes through a stretch has one gap for each of its steps. A gap that spans a preemption or a transfer is
    recorded singly.
    """

    steps: Ints
    """By stretch: the number of its steps."""
    spans: Ints
    """By stretch: the sum of the gaps that one sequence has in it, in µs."""
    request_id: Ints
    """By decoding period: the request. A request that was preempted has several periods."""
    first_stretch: Ints
    """By decoding period: the index of its first stretch."""
    end_stretch: Ints
    """By decoding period: the index after its last stretch."""
    single_gap_request_id: Ints
    """By single gap: the request."""
    single_gaps: Ints
    """By single gap: its length in µs."""


class Timelines(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What happened to single requests beside the instants in their rows (`sim.timeline_log`)."""

    request_id: Ints
    """By stretch for which a request ran until its KV was freed: the request."""
    began: Ints
    """By stretch: when it entered the running batch, in µs."""
    ended: Ints
    """By stretch: when its KV was freed, in µs."""
    reasons: Mapping[int, str]
    """By request that did not enter at once: the decisions of admission on it, with their reasons."""


class ProgramColumns(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The agent programs of a run, in columns of equal length by their arrival, and figures of all of them.

    Instants and times are in µs; an instant is -1 if the event did not happen.
    """

    names: tuple[str, ...]
    tenants: tuple[str, ...]
    first_arrival: Ints
    last_end: Ints
    """When the last of its requests ended. The makespan is this less `first_arrival`."""
    steps: Ints
    """Completed requests."""
    pauses: Ints
    """How often it lost its place in memory."""
    paused: Ints
    """Time without a place, that before its first one included."""
    waited: Ints
    """Time for which its requests waited for a place. The rest of `paused` went by while a tool worked."""
    is_over: NDArray[np.bool_]
    """Whether the workload has said that it is complete."""
    num_steps: int
    """Completed requests of all programs, those without an id included."""
    imbalance: float | None
    """Mean difference over time between the largest and the smallest share of its memory that the programs of an instance need;
    None for one instance."""
    max_imbalance: float | None
    """The largest such difference."""


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a run: columns of equal length, and figures beside them.

    Instants are µs since the start of the run, or -1 if the event did not happen. If the rows went to a sink, the columns are
    empty, and the other fields are set all the same.
    """

    request_id: Ints
    arrival: Ints
    admitted: Ints
    """When admission let it pass."""
    queued: Ints
    """When it entered the wait queue of its instance."""
    scheduled: Ints
    """When it last entered a running batch."""
    first_token: Ints
    """When the first token reached the client, including the overhead per output token of the latency model. TTFT is this
    less `arrival`."""
    finished: Ints
    """When it ended, whatever its outcome; -1 for UNFINISHED. For COMPLETED it includes the overheads of the latency model."""
    prompt_tokens: Ints
    output_tokens: Ints
    """Tokens that were generated."""
    cached_tokens: Ints
    """Prompt tokens that were in the prefix cache when the prompt first ran."""
    wasted_tokens: Ints
    """Tokens for which KV was computed again after a preemption."""
    outcome: NDArray[np.int8]
    priority_class: NDArray[np.int8]
    tenant: NDArray[np.int32]
    """An index into `tenants`."""
    model: NDArray[np.int32]
    """An index into `models`."""
    slo_class: NDArray[np.int32]
    """An index into `slo_classes`."""
    instance: NDArray[np.int32]
    """The index of the instance to which it was routed; -1 if it never was."""
    preemptions: NDArray[np.int32]
    """How often its instance freed its KV."""
    retries: NDArray[np.int32]
    """How often it began anew: admission took its slot back and let it wait for another, or its instance failed. The other
    columns describe its last attempt."""
    tenants: tuple[str, ...] = ("",)
    """Names of tenants. The first one stands for requests without a tenant."""
    models: tuple[str, ...] = ("",)
    slo_classes: tuple[str, ...] = ("",)
    end: Micros
    """When the last request ended, or the horizon if some requests are unfinished."""
    instances: tuple[InstanceTotals, ...] = ()
    """The totals of each instance, by index."""
    samples: Samples | None = None
    """The samples, if `sample_every` asked for them."""
    itl_gaps: ItlGaps | None = None
    """The gaps between tokens per request, if `log_itl` asked for them."""
    timelines: Timelines | None = None
    """What happened to single requests besides, if there are samples."""
    programs: ProgramColumns | None = None
    """The agent programs, if `programs` schedules them."""
    last_token: Ints | None = None
    """When the last token came, or -1, where clients have measured it; None: tokens end when the request does."""
    is_measured: bool = False
    """Whether clients measured the rows at a live endpoint. `admitted` and `queued` are then the instants at which requests
    were sent, and what an engine alone knows is missing."""
    num_followers: int = 0
    """How many requests arrived because others had ended (turns of sessions, users of a closed loop), so that the rate of
    arrivals is a result of the run and no property of the workload."""
    rejections: Mapping[str, int] = msgspec.field(default_factory=dict)
    """How many requests admission rejected, by its reason. The other REJECTED ones found the queue of their instance full."""

    def __len__(self) -> int:
        return len(self.request_id)


def itl_gaps_of(logs: Iterable[ItlLog], overhead: Micros) -> ItlGaps:
    """Close the logs of all instances at the end of a run, and join them.

    `overhead` is the time that each token needs to reach the client; it is part of every gap.
    """
    logs = list(logs)
    for log in logs:
        log.close()
    offsets = list(accumulate((len(log.stretch_steps) for log in logs), initial=0))
    steps, ids = _concatenated(log.stretch_steps for log in logs), _concatenated(log.request_ids for log in logs)
    first = _concatenated((log.first_stretches for log in logs), offsets)
    end = _concatenated((log.end_stretches for log in logs), offsets)
    decoded = first < end
    return ItlGaps(
        steps=steps,
        spans=_concatenated(log.stretch_times for log in logs) + steps * overhead,
        request_id=ids[decoded],
        first_stretch=first[decoded],
        end_stretch=end[decoded],
        single_gap_request_id=_concatenated(log.single_gap_request_ids for log in logs),
        single_gaps=_concatenated(log.single_gaps for log in logs) + overhead,
    )


def _concatenated(parts: Iterable[array[int]], offsets: Iterable[int] = repeat(0)) -> Ints:
    """Return the parts one after the other, with its offset added to each."""
    return np.concatenate([np.array(part, dtype=np.int64) + offset for part, offset in zip(parts, offsets, strict=False)])
