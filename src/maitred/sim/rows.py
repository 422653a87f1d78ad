"""Rows: the results of a run under way. A row is reserved when its request arrives, and written as a whole when it ends.

Rows lie one after the other in blocks of memory and become columns at the end of the run. A row takes 114 bytes, however many
tokens its request has. A new row is all zeros, and most rows are *plain*: their request has waited for nothing before its
instance, was not preempted, and names no tenant. The fields of such a row are the first ones, and no others are written.

This module is compiled (`[tool.maitred]` in pyproject.toml).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from maitred.core.contracts import Overheads
from maitred.core.errors import ConfigError
from maitred.core.request import Request
from maitred.core.sequence import SequenceState
from maitred.core.units import Micros
from maitred.sim.replica import Replica
from maitred.sim.request_state import RequestState
from maitred.sim.results import NEVER, Ints, Outcome, Results

_PLAIN_FIELDS = {
    "request_id": "q",
    "arrival": "q",
    "scheduled": "q",
    "first_token": "q",
    "finished": "q",
    "prompt_tokens": "q",
    "output_tokens": "q",
    "cached_tokens": "q",
    "instance": "i",
    "priority_class": "b",
}
_FIELDS = _PLAIN_FIELDS | {
    "outcome": "b",
    "admitted": "q",  # in rows as the time since the arrival, which is 0 in plain ones; so is the next one
    "queued": "q",
    "wasted_tokens": "q",
    "tenant": "i",
    "model": "i",
    "slo_class": "i",
    "preemptions": "i",
    "retries": "i",
}
_PLAIN_ROW: Final = struct.Struct("=" + "".join(_PLAIN_FIELDS.values()))
_ROW: Final = struct.Struct("=" + "".join(_FIELDS.values()))
_SIZE: Final = _ROW.size
_TYPE = np.dtype(list(_FIELDS.items()))
_COMPLETED: Final = Outcome.COMPLETED  # a constant, because looking up a member of an enum is slow, and a name of a module, too
_NEVER: Final = NEVER
_LARGEST: Final = (1 << 63) - 1
_BLOCK: Final = 4096
"""Rows in a block of memory."""

ResultSink: TypeAlias = Callable[[Results], object]
"""Receives rows in blocks, in the order in which requests ended. `Results.end` is the end of the last request in the block."""


class NameIndex(dict[str, int]):
    """The indices of names, in the order of their first use. The empty name has index 0."""

    def __init__(self) -> None:
        super().__init__({"": 0})

    def __missing__(self, name: str) -> int:
        number = self[name] = len(self)
        return number


class ResultRows:
    """The rows of a run, all of which are kept."""

    def __init__(self, overheads: Overheads, num_instances: int) -> None:
        """`overheads` are delays that reach the client without holding up the engine."""
        self._num_instances = num_instances
        self._overhead_per_token, self._overhead_at_end = overheads.per_output_token, overheads.after_last_token
        self._blocks: list[bytearray] = []
        self._count = 0
        self._tenants, self._models, self._slo_classes = NameIndex(), NameIndex(), NameIndex()

    def __len__(self) -> int:
        return self._count

    def reserve(self) -> int:
        """Return the index of a new row."""
        row = self._count
        self._count += 1
        if row == len(self._blocks) * _BLOCK:
            self._blocks.append(bytearray(_BLOCK * _SIZE))
        return row

    def write(
        self, state: RequestState, outcome: Outcome, at: Micros, seq: SequenceState | None, replica: Replica | None
    ) -> Micros:
        """Write the row of a request that ended at `at`, and return the instant at which its client knows that. `seq` is the
        final state of its sequence, or None if the request was in no instance."""
        request = state.request
        arrival, queued, scheduled, first_token = request.arrival, state.queued_at, _NEVER, _NEVER
        emitted = cached = wasted = preemptions = 0
        if seq is not None:
            emitted, cached = seq.num_output_tokens, seq.num_cached_tokens
            wasted, preemptions = seq.recomputed_tokens, seq.num_preemptions
            if seq.queued_at is not None:
                queued = seq.queued_at
            if seq.scheduled_at is not None:
                scheduled = seq.scheduled_at
            if seq.first_token_at is not None:  # the column from which reports compute TTFT
                first_token = seq.first_token_at + self._overhead_per_token
            if outcome is _COMPLETED:
                # The overhead lengthens every gap between tokens. (BLIS does not count stalls as latency.)
                at += self._overhead_per_token * emitted + self._overhead_at_end - seq.stall_time
        row = state.row
        # One call in C writes the whole row, which is cheaper than setting its columns one by one as the request proceeds.
        try:
            _ROW.pack_into(
                self._blocks[row // _BLOCK],
                row % _BLOCK * _SIZE,
                request.id,
                arrival,
                scheduled,
                first_token,
                at,
                request.prompt_tokens,
                emitted,
                cached,
                _NEVER if replica is None else replica.index,
                request.priority_class,
                outcome,
                state.admitted_at - arrival,
                queued - arrival,
                wasted,
                self._tenants[request.tenant] if request.tenant else 0,
                self._models[request.model] if request.model else 0,
                self._slo_classes[request.slo_class] if request.slo_class else 0,
                preemptions,
                state.retries,
            )
        except struct.error as error:
            raise _unwritable_row(request, error) from error
        return at

    def write_completed(self, state: RequestState, at: Micros, seq: SequenceState, replica: Replica) -> Micros:
        """Write the row of a request that was in its instance from its arrival to its completion at `at`, as `write` does."""
        request, row, overhead = state.request, state.row, self._overhead_per_token
        first_token, emitted, queued = seq.first_token_at, seq.num_output_tokens, seq.queued_at
        has_names = request.tenant or request.model or request.slo_class
        # An engine that schedules one step ahead takes requests into its wait queue at the end of a step.
        has_waited = queued is not None and queued != state.queued_at
        if has_names or has_waited or seq.num_preemptions or seq.recomputed_tokens or seq.stall_time or first_token is None:
            return self.write(state, _COMPLETED, at, seq, replica)
        at += overhead * emitted + self._overhead_at_end
        try:
            _PLAIN_ROW.pack_into(
                self._blocks[row // _BLOCK],
                row % _BLOCK * _SIZE,
                seq.request_id,
                state.queued_at,  # its arrival
                seq.scheduled_at,
                first_token + overhead,
                at,
                seq.prompt_tokens,
                emitted,
                seq.num_cached_tokens,
                replica.index,
                request.priority_class,
            )
        except struct.error as error:
            raise _unwritable_row(request, error) from error
        return at

    def totals_by_instance(self) -> Ints:
        """Return the number of requests, and of their prompt, cached and output tokens, by instance."""
        columns, count = self._columns(["instance", "prompt_tokens", "cached_tokens", "output_tokens"]), self._num_instances
        routed = columns["instance"] >= 0
        instance, *tokens = (column[routed] for column in columns.values())
        sums = [np.bincount(instance, column, count) for column in tokens]
        return np.column_stack([np.bincount(instance, minlength=count), *sums]).astype(np.int64)

    def results(self, end: Micros) -> Results:
        """Return all rows as the results of a run that ended at `end`."""
        columns = self._columns(list(_FIELDS))
        for name in ("admitted", "queued"):
            columns[name] += columns["arrival"]
        return Results(
            end=end,
            tenants=tuple(self._tenants),
            models=tuple(self._models),
            slo_classes=tuple(self._slo_classes),
            **columns,
        )

    def _columns(self, names: Sequence[str]) -> dict[str, Any]:
        columns = {name: np.empty(self._count, _TYPE[name]) for name in names}
        # Block by block, since the columns of one block are read from the cache.
        for number, block in enumerate(self._blocks):
            rows, start = np.frombuffer(block, _TYPE), number * _BLOCK
            for name, column in columns.items():
                part = column[start : start + _BLOCK]
                part[:] = rows[name][: len(part)]
        return columns


class StreamedRows(ResultRows):
    """Rows that go to a sink block by block, in the order in which requests ended, and are not kept."""

    def __init__(self, overheads: Overheads, num_instances: int, sink: ResultSink) -> None:
        super().__init__(overheads, num_instances)
        self._sink = sink
        self._flushed_totals = super().totals_by_instance()

    def reserve(self) -> int:
        """Return a placeholder, because the index of the row is known only when the request ends."""
        return NEVER

    def write(
        self, state: RequestState, outcome: Outcome, at: Micros, seq: SequenceState | None, replica: Replica | None
    ) -> Micros:
        state.row = super().reserve()
        at = super().write(state, outcome, at, seq, replica)
        # Unfinished rows go to the sink together at the end of the run, because they have no end of their own.
        if self._count >= _BLOCK and outcome is not Outcome.UNFINISHED:
            self._flush(at)
        return at

    def write_completed(self, state: RequestState, at: Micros, seq: SequenceState, replica: Replica) -> Micros:
        return self.write(state, _COMPLETED, at, seq, replica)

    def totals_by_instance(self) -> Ints:
        return self._flushed_totals + super().totals_by_instance()

    def results(self, end: Micros) -> Results:
        """Send the last rows to the sink, and return results without rows."""
        if self._count:
            self._flush(end)
        return super().results(end)

    def _flush(self, end: Micros) -> None:
        self._flushed_totals += super().totals_by_instance()
        self._sink(super().results(end))
        self._blocks, self._count = [], 0


def make_rows(overheads: Overheads, num_instances: int, sink: ResultSink | None) -> ResultRows:
    """Return the rows of a run: they go to `sink`, or are kept if it is None."""
    return ResultRows(overheads, num_instances) if sink is None else StreamedRows(overheads, num_instances, sink)


def _unwritable_row(request: Request, error: struct.error) -> ConfigError:
    """Return the error for a number that does not fit into its column, with its name if the workload gave it."""
    for name in ("id", "prompt_tokens", "deadline", "priority_class"):
        number = getattr(request, name)
        if number is not None and not (isinstance(number, int) and abs(number) <= _LARGEST):
            hint = "a whole number of 64 bits at most"
            return ConfigError(f"request {request.id}: {name} cannot be {number}", hint=hint)
    return ConfigError(f"request {request.id}: its row cannot be written: {error}", hint="numbers of 64 bits at most")
