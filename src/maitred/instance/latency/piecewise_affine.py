"""Latency models whose decode-only steps are affine in the context, piece by piece: what they have in common.

Latency models to which it matters how far apart the contexts in a batch lie.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import msgspec

from maitred.core.contracts import UNIFORM_CONTEXTS, BatchShape, ContextSpread, Overheads
from maitred.core.units import Micros
from maitred.instance.latency.affine import (
    AffineCost,
    Envelope,
    RunPart,
    envelope,
    run_time_from,
    step_time_at,
    steps_within_span,
    sum_of_floors,
)


class PiecewiseAffineModel(ABC):
    """Says how long any step takes from two things: a decode-only step by its context, and a step with prefill in it.

    The former depends on nothing else but the number of sequences that decode, so it is worked out once for each.
    """

    def __init__(self, overheads: Overheads) -> None:
        self.overheads = overheads
        self._envelopes = _Envelopes(self.envelope_of)
        self._partial_run: BatchShape | None = None
        self._partial_run_part = RunPart(0, 0)
        """What was last asked of a run, which is cut there next, or a step later."""

    @abstractmethod
    def envelope_of(self, decodes: int) -> Envelope:
        """A step in which `decodes` sequences decode and none prefills; never less than 1 µs, nor less for more context."""

    @abstractmethod
    def prefill_step_time(self, batch: BatchShape) -> float:
        """µs of a step that prefills."""

    def step_time(self, batch: BatchShape) -> Micros:
        if batch.prefill_tokens:
            return int(self.prefill_step_time(batch)) or 1
        return step_time_at(self._envelopes[batch.num_decodes], batch.context_tokens)

    def run_time(self, batch: BatchShape, steps: int) -> Micros:
        if steps == 1:
            return self.step_time(batch)
        line, context, growth = self._envelopes[batch.num_decodes], batch.context_tokens, batch.num_decodes
        if batch is self._partial_run:
            part = self._partial_run_part
            if steps == part.steps:
                return part.time
            if steps == part.steps + 1:
                return part.time + step_time_at(line, context + growth * part.steps)
        if len(line) == 1:
            stretch = line[0]
            return sum_of_floors(stretch.base + stretch.slope * context, stretch.slope * growth, steps)
        return run_time_from(line, context, growth, steps)

    def steps_within(self, batch: BatchShape, span: Micros, limit: int) -> int:
        part = self._partial_run_part = steps_within_span(
            self._envelopes[batch.num_decodes], batch.context_tokens, batch.num_decodes, span, limit
        )
        self._partial_run = batch
        return part.steps


class _Envelopes(dict[int, Envelope]):
    """Those of a model, worked out when they are first asked for."""

    def __init__(self, stretches: Callable[[int], Envelope]) -> None:
        self._stretches = stretches

    def __missing__(self, decodes: int) -> Envelope:
        found = self[decodes] = self._stretches(decodes) if decodes else envelope(())
        return found


class MaxOfLinesModel(PiecewiseAffineModel):
    """A decode-only step lasts as long as the largest of a few lines."""

    @abstractmethod
    def decode_lines(self, decodes: int) -> Sequence[AffineCost]:
        """Of a step in which `decodes` (at least 1) sequences decode."""

    def envelope_of(self, decodes: int) -> Envelope:
        return envelope(self.decode_lines(decodes))


_EXTRA_STEPS = 16
"""Steps after a run for which an envelope is worked out with it: the next one may be but a step longer."""


class _EnvelopeRange(msgspec.Struct, frozen=True, gc=False):
    """For which batches of so many sequences an envelope holds: this spread, and a context from `first` to `last`."""

    spread: ContextSpread
    first: int
    last: int


class SpreadAwareModel(PiecewiseAffineModel):
    """A decode-only step depends on its context, and on `BatchShape.context_spread`, which is the same all through a run.

    An instance works out the spread of its batches only for models of this class. Nearly every run has another one, so
    an envelope is worked out no farther than the run goes.
    """

    def __init__(self, overheads: Overheads) -> None:
        super().__init__(overheads)
        self._known_ranges: dict[int, _EnvelopeRange] = {}

    @abstractmethod
    def envelope_within(self, decodes: int, spread: ContextSpread, first: int, last: int) -> Envelope:
        """As `stretches`, for contexts from `first` to `last` alone; there it is what it would be for any other range."""

    def envelope_of(self, decodes: int) -> Envelope:
        return self.envelope_within(decodes, UNIFORM_CONTEXTS, 0, 0)

    def step_time(self, batch: BatchShape) -> Micros:
        self._prepare_envelope(batch, 1)
        return super().step_time(batch)

    def run_time(self, batch: BatchShape, steps: int) -> Micros:
        self._prepare_envelope(batch, steps)
        return super().run_time(batch, steps)

    def steps_within(self, batch: BatchShape, span: Micros, limit: int) -> int:
        self._prepare_envelope(batch, limit)
        return super().steps_within(batch, span, limit)

    def _prepare_envelope(self, batch: BatchShape, steps: int) -> None:
        """The envelope for as many sequences is that of this batch, for so many steps."""
        decodes, spread, first = batch.num_decodes, batch.context_spread, batch.context_tokens
        known = self._known_ranges.get(decodes)
        if known is None or known.first > first or known.last < first + decodes * (steps - 1) or known.spread != spread:
            last = first + decodes * (steps + _EXTRA_STEPS)
            self._known_ranges[decodes] = _EnvelopeRange(spread, first, last)
            self._envelopes[decodes] = self.envelope_within(decodes, spread, first, last) if decodes else envelope(())
