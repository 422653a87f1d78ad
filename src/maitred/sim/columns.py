"""Results: one row per request, in the order of arrival, in columns: 66 bytes each, however many tokens it had."""

from __future__ import annotations

from array import array
from enum import IntEnum

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
    outcome: NDArray[np.int8]
    priority_class: NDArray[np.int8]
    instance: NDArray[np.int32]
    """Where it ran; -1: it never came that far."""
    preemptions: NDArray[np.int32]
    end: Micros
    """The instant of the last event."""

    def __len__(self) -> int:
        return len(self.request_id)


class Columns:
    """Results in the making."""

    def __init__(self) -> None:
        self.request_id, self.arrival, self.scheduled, self.first_token, self.finished = (array("q") for _ in range(5))
        self.prompt_tokens, self.output_tokens = array("q"), array("q")
        self.outcome, self.priority_class = array("b"), array("b")
        self.instance, self.preemptions = array("i"), array("i")

    def add(self, request: Request) -> int:
        """A row for a request that has just arrived. Returns its number."""
        row = len(self.request_id)
        self.request_id.append(request.id)
        self.arrival.append(request.arrival)
        self.scheduled.append(NEVER)
        self.first_token.append(NEVER)
        self.finished.append(NEVER)
        self.prompt_tokens.append(request.prompt_tokens)
        self.output_tokens.append(0)
        self.outcome.append(Outcome.UNFINISHED)
        self.priority_class.append(request.priority_class)
        self.instance.append(NEVER)
        self.preemptions.append(0)
        return row

    def end(self, row: int, outcome: Outcome, now: Micros) -> None:
        self.outcome[row] = outcome
        self.finished[row] = now

    def left(self, row: int, seq: Seq) -> None:
        """Copy what became of it in its instance."""
        self.output_tokens[row] = seq.emitted
        self.preemptions[row] = seq.preemptions
        if seq.scheduled_at is not None:
            self.scheduled[row] = seq.scheduled_at
        if seq.first_token_at is not None:
            self.first_token[row] = seq.first_token_at

    def results(self, end: Micros) -> Results:
        def ints(column: array[int]) -> Ints:
            return np.frombuffer(column, dtype=np.int64) if column else np.empty(0, np.int64)

        return Results(
            request_id=ints(self.request_id),
            arrival=ints(self.arrival),
            scheduled=ints(self.scheduled),
            first_token=ints(self.first_token),
            finished=ints(self.finished),
            prompt_tokens=ints(self.prompt_tokens),
            output_tokens=ints(self.output_tokens),
            outcome=np.array(self.outcome, dtype=np.int8),
            priority_class=np.array(self.priority_class, dtype=np.int8),
            instance=np.array(self.instance, dtype=np.int32),
            preemptions=np.array(self.preemptions, dtype=np.int32),
            end=end,
        )
