"""Bases of latency models whose decode-only steps are affine in the context, piece by piece.

    PiecewiseAffineModel    the time of a decode-only step depends on its context and on the number of sequences
    MaxOfLinesModel         the same, and it is the largest of a few straight lines
    SpreadAwareModel        the time depends, too, on how unequal the contexts in the batch are

A model says how a step grows (an `Envelope`), and `affine` sums the steps of a run exactly.
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
    """Works out step times from two things: the envelope of decode-only steps, and the time of a step that prefills.

    An envelope depends on nothing but the number of sequences that decode, so it is worked out once for each number.
    """

    def __init__(self, overheads: Overheads) -> None:
        self.overheads = overheads
        self._envelopes = _Envelopes(self.envelope_of)
        self._last_asked: BatchShape | None = None
        self._last_part = RunPart(0, 0)
        """The answer of the last `steps_within`, which was about `_last_asked`."""

    @abstractmethod
    def envelope_of(self, decodes: int) -> Envelope:
        """Return the times of a step in which `decodes` sequences decode and none prefills: at least 1 µs, and not less with
        more context."""

    @abstractmethod
    def prefill_step_time(self, batch: BatchShape) -> float:
        """Return the µs of a step that prefills."""

    def step_time(self, batch: BatchShape) -> Micros:
        if batch.prefill_tokens:
            return int(self.prefill_step_time(batch)) or 1
        return step_time_at(self._envelopes[batch.num_decodes], batch.context_tokens)

    def run_time(self, batch: BatchShape, steps: int) -> Micros:
        if steps == 1:
            return self.step_time(batch)
        times, context, growth = self._envelopes[batch.num_decodes], batch.context_tokens, batch.num_decodes
        # The engine asks how many steps end within a span, truncates the run there or one step later, and then asks for the
        # time of just these steps.
        if batch is self._last_asked:
            part = self._last_part
            if steps == part.steps:
                return part.time
            if steps == part.steps + 1:
                return part.time + step_time_at(times, context + growth * part.steps)
        if len(times) == 1:
            segment = times[0]
            return sum_of_floors(segment.base + segment.slope * context, segment.slope * growth, steps)
        return run_time_from(times, context, growth, steps)

    def steps_within(self, batch: BatchShape, span: Micros, limit: int) -> int:
        part = self._last_part = steps_within_span(
            self._envelopes[batch.num_decodes], batch.context_tokens, batch.num_decodes, span, limit
        )
        self._last_asked = batch
        return part.steps


class _Envelopes(dict[int, Envelope]):
    """The envelopes of a model by the number of decoding sequences, worked out when they are first asked for."""

    def __init__(self, envelope_of: Callable[[int], Envelope]) -> None:
        self._envelope_of = envelope_of

    def __missing__(self, decodes: int) -> Envelope:
        found = self[decodes] = self._envelope_of(decodes) if decodes else envelope(())
        return found


class MaxOfLinesModel(PiecewiseAffineModel):
    """A model whose decode-only step takes as long as the largest of a few lines."""

    @abstractmethod
    def decode_lines(self, decodes: int) -> Sequence[AffineCost]:
        """Return the lines of a step in which `decodes` (at least 1) sequences decode."""

    def envelope_of(self, decodes: int) -> Envelope:
        return envelope(self.decode_lines(decodes))


_EXTRA_STEPS = 16
"""Steps after a run that its envelope covers, too: the next run may be only a step longer."""


class _EnvelopeRange(msgspec.Struct, frozen=True, gc=False):
    """The batches for which an envelope holds: this spread, and a context from `first` to `last`."""

    spread: ContextSpread
    first: int
    last: int


class SpreadAwareModel(PiecewiseAffineModel):
    """A model whose decode-only step depends on its context and on `BatchShape.context_spread`, which stays the same in a run.

    An instance works out the spread of its batches only for models of this class. Nearly every run has another spread, so an
    envelope is worked out no farther than the run goes.
    """

    def __init__(self, overheads: Overheads) -> None:
        super().__init__(overheads)
        self._known_ranges: dict[int, _EnvelopeRange] = {}

    @abstractmethod
    def envelope_within(self, decodes: int, spread: ContextSpread, first: int, last: int) -> Envelope:
        """Return the envelope for contexts from `first` to `last` alone. There it is the same as for any other range."""

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
        """Make the envelope for this number of sequences that of `batch`, as far as `steps` steps go."""
        decodes, spread, first = batch.num_decodes, batch.context_spread, batch.context_tokens
        known = self._known_ranges.get(decodes)
        if known is None or known.first > first or known.last < first + decodes * (steps - 1) or known.spread != spread:
            # Corners that the run does not reach would be worked out for nothing: the next run has another spread.
            last = first + decodes * (steps + _EXTRA_STEPS)
            self._known_ranges[decodes] = _EnvelopeRange(spread, first, last)
            self._envelopes[decodes] = self.envelope_within(decodes, spread, first, last) if decodes else envelope(())
