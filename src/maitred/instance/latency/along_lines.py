"""Latency models whose decode-only steps are affine in the context, piece by piece: what they have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from maitred.contracts import BatchShape, Overheads
from maitred.instance.latency.affine import Envelope, Line, envelope, steps_within, time_of, time_of_run
from maitred.units import Micros


class ByContext(ABC):
    """Says how long any step takes from two things: a decode-only step by its context, and a step with prefill in it.

    The former depends on nothing else but the number of sequences that decode, so it is worked out once for each.
    """

    def __init__(self, overheads: Overheads) -> None:
        self.overheads = overheads
        self._envelopes: dict[int, Envelope] = {}

    @abstractmethod
    def stretches(self, decodes: int) -> Envelope:
        """A step in which `decodes` sequences decode and none prefills; never less than 1 µs, nor less for more context."""

    @abstractmethod
    def mixed(self, batch: BatchShape) -> float:
        """µs of a step that prefills."""

    def step_time(self, batch: BatchShape) -> Micros:
        if batch.prefill:
            return int(self.mixed(batch)) or 1
        return time_of(self._envelope(batch.decodes), batch.context)

    def run_time(self, batch: BatchShape, steps: int) -> Micros:
        if steps == 1:
            return self.step_time(batch)
        return time_of_run(self._envelope(batch.decodes), batch.context, batch.decodes, steps)

    def steps_within(self, batch: BatchShape, span: Micros, limit: int) -> int:
        return steps_within(self._envelope(batch.decodes), batch.context, batch.decodes, span, limit)

    def _envelope(self, decodes: int) -> Envelope:
        known = self._envelopes.get(decodes)
        if known is None:
            known = self._envelopes[decodes] = self.stretches(decodes) if decodes else envelope(())
        return known


class AlongLines(ByContext):
    """A decode-only step lasts as long as the largest of a few lines."""

    @abstractmethod
    def lines(self, decodes: int) -> Sequence[Line]:
        """Of a step in which `decodes` (at least 1) sequences decode."""

    def stretches(self, decodes: int) -> Envelope:
        return envelope(self.lines(decodes))
