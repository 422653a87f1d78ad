"""Latency models to which it matters how far apart the contexts in a batch lie."""

from __future__ import annotations

from abc import abstractmethod

import msgspec

from maitred.contracts import EVEN, BatchShape, Overheads, Spread
from maitred.instance.latency.affine import Envelope, envelope
from maitred.instance.latency.along_lines import ByContext
from maitred.units import Micros

_MORE = 16
"""Steps after a run for which an envelope is worked out with it: the next one may be but a step longer."""


class _Known(msgspec.Struct, frozen=True, gc=False):
    """For which batches of so many sequences an envelope holds: this spread, and a context from `first` to `last`."""

    spread: Spread
    first: int
    last: int


class BySpread(ByContext):
    """A decode-only step depends on its context, and on `BatchShape.spread`, which is the same all through a run.

    An instance works out the spread of its batches only for models of this class. Nearly every run has another one, so
    an envelope is worked out no farther than the run goes.
    """

    def __init__(self, overheads: Overheads) -> None:
        super().__init__(overheads)
        self._known: dict[int, _Known] = {}

    @abstractmethod
    def apart(self, decodes: int, spread: Spread, first: int, last: int) -> Envelope:
        """As `stretches`, for contexts from `first` to `last` alone; there it is what it would be for any other range."""

    def stretches(self, decodes: int) -> Envelope:
        return self.apart(decodes, EVEN, 0, 0)

    def step_time(self, batch: BatchShape) -> Micros:
        self._look_at(batch, 1)
        return super().step_time(batch)

    def run_time(self, batch: BatchShape, steps: int) -> Micros:
        self._look_at(batch, steps)
        return super().run_time(batch, steps)

    def steps_within(self, batch: BatchShape, span: Micros, limit: int) -> int:
        self._look_at(batch, limit)
        return super().steps_within(batch, span, limit)

    def _look_at(self, batch: BatchShape, steps: int) -> None:
        """The envelope for as many sequences is that of this batch, for so many steps."""
        decodes, spread, first = batch.decodes, batch.spread, batch.context
        known = self._known.get(decodes)
        if known is None or known.first > first or known.last < first + decodes * (steps - 1) or known.spread != spread:
            last = first + decodes * (steps + _MORE)
            self._known[decodes] = _Known(spread, first, last)
            self._envelopes[decodes] = self.apart(decodes, spread, first, last) if decodes else envelope(())
