"""Latency models whose decode-only steps are affine in the context, piece by piece: what they have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from maitred.contracts import BatchShape, Overheads
from maitred.instance.latency.affine import Envelope, Line, Part, envelope, floors, part_within, time_of, time_of_run
from maitred.units import Micros


class ByContext(ABC):
    """Says how long any step takes from two things: a decode-only step by its context, and a step with prefill in it.

    The former depends on nothing else but the number of sequences that decode, so it is worked out once for each.
    """

    def __init__(self, overheads: Overheads) -> None:
        self.overheads = overheads
        self._envelopes = _Envelopes(self.stretches)
        self._parted: BatchShape | None = None
        self._part = Part(0, 0)
        """What was last asked of a run, which is cut there next, or a step later."""

    @abstractmethod
    def stretches(self, decodes: int) -> Envelope:
        """A step in which `decodes` sequences decode and none prefills; never less than 1 µs, nor less for more context."""

    @abstractmethod
    def mixed(self, batch: BatchShape) -> float:
        """µs of a step that prefills."""

    def step_time(self, batch: BatchShape) -> Micros:
        if batch.prefill:
            return int(self.mixed(batch)) or 1
        return time_of(self._envelopes[batch.decodes], batch.context)

    def run_time(self, batch: BatchShape, steps: int) -> Micros:
        if steps == 1:
            return self.step_time(batch)
        line, context, growth = self._envelopes[batch.decodes], batch.context, batch.decodes
        if batch is self._parted:
            part = self._part
            if steps == part.steps:
                return part.time
            if steps == part.steps + 1:
                return part.time + time_of(line, context + growth * part.steps)
        if len(line) == 1:
            stretch = line[0]
            return floors(stretch.base + stretch.slope * context, stretch.slope * growth, steps)
        return time_of_run(line, context, growth, steps)

    def steps_within(self, batch: BatchShape, span: Micros, limit: int) -> int:
        part = self._part = part_within(self._envelopes[batch.decodes], batch.context, batch.decodes, span, limit)
        self._parted = batch
        return part.steps


class _Envelopes(dict[int, Envelope]):
    """Those of a model, worked out when they are first asked for."""

    def __init__(self, stretches: Callable[[int], Envelope]) -> None:
        self._stretches = stretches

    def __missing__(self, decodes: int) -> Envelope:
        found = self[decodes] = self._stretches(decodes) if decodes else envelope(())
        return found


class AlongLines(ByContext):
    """A decode-only step lasts as long as the largest of a few lines."""

    @abstractmethod
    def lines(self, decodes: int) -> Sequence[Line]:
        """Of a step in which `decodes` (at least 1) sequences decode."""

    def stretches(self, decodes: int) -> Envelope:
        return envelope(self.lines(decodes))
