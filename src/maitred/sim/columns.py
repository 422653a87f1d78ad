"""Results: one row per request, in the order of arrival, in columns: 75 bytes each, however many tokens it had."""

from __future__ import annotations

from array import array
from enum import IntEnum
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from maitred.contracts import Seq
from maitred.request import Request
from maitred.units import Micros

Ints = NDArray[np.int64]

NEVER = -1


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


class Results(msgspec.Struct, frozen=True):
    """Columns of equal length. Instants are µs since the start of the run, -1 where there was none."""

    request_id: Ints
    arrival: Ints
    scheduled: Ints
    """When it last entered a running batch."""
    first_token: Ints
    finished: Ints
    """When it ended, whatever its outcome; -1 for UNFINISHED."""
    prompt_tokens: Ints
    output_tokens: Ints
    """Tokens that came out."""
    cached_tokens: Ints
    """Of the prompt, those that were in the prefix cache when it first ran."""
    outcome: NDArray[np.int8]
    priority_class: NDArray[np.int8]
    instance: NDArray[np.int32]
    """Where it ran; -1: it never came that far."""
    preemptions: NDArray[np.int32]
    """How often it lost its KV in its instance."""
    retries: NDArray[np.int8]
    """How often admission took its slot back and let it wait for another. The other columns are of its last attempt."""
    end: Micros
    """When the last request ended; the horizon, if some had not."""

    def __len__(self) -> int:
        return len(self.request_id)


_BLOCK = 4096
"""Rows are made so many at a time."""


class Columns:
    """Results in the making. A row is reserved when its request arrives and filled when it ends."""

    def __init__(self) -> None:
        self.request_id, self.arrival, self.scheduled, self.first_token, self.finished = (array("q") for _ in range(5))
        self.prompt_tokens, self.output_tokens, self.cached_tokens = array("q"), array("q"), array("q")
        self.outcome, self.priority_class, self.retries = array("b"), array("b"), array("b")
        self.instance, self.preemptions = array("i"), array("i")
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def row(self) -> int:
        """The number of a new row."""
        row = self._count
        self._count += 1
        if row == len(self.request_id):
            self._grow()
        return row

    def ended(self, row: int, request: Request, outcome: Outcome, now: Micros) -> None:
        self.request_id[row] = request.id
        self.arrival[row] = request.arrival
        self.prompt_tokens[row] = request.prompt_tokens
        self.priority_class[row] = request.priority_class
        self.outcome[row] = outcome
        self.finished[row] = now

    def ran(self, row: int, seq: Seq, instance: int) -> None:
        """What became of it in its instance."""
        self.instance[row] = instance
        self.output_tokens[row] = seq.emitted
        self.cached_tokens[row] = seq.cached
        self.preemptions[row] = seq.preemptions
        if seq.scheduled_at is not None:
            self.scheduled[row] = seq.scheduled_at
        if seq.first_token_at is not None:
            self.first_token[row] = seq.first_token_at

    def _grow(self) -> None:
        for column in (self.request_id, self.arrival, self.prompt_tokens, self.output_tokens, self.cached_tokens):
            column.frombytes(bytes(column.itemsize * _BLOCK))
        for column in (self.outcome, self.priority_class, self.retries, self.preemptions):
            column.frombytes(bytes(column.itemsize * _BLOCK))
        for column in (self.scheduled, self.first_token, self.finished, self.instance):
            column.frombytes(b"\xff" * (column.itemsize * _BLOCK))  # NEVER

    def results(self, end: Micros) -> Results:
        def column(name: str) -> NDArray[Any]:
            values: array[int] = getattr(self, name)
            return np.array(values, dtype=values.typecode)[: self._count]

        return Results(end=end, **{name: column(name) for name in Results.__struct_fields__ if name != "end"})
