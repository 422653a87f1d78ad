"""Step times that grow with the context along straight lines, summed exactly without making the steps, one by one.

In a run of decode-only steps each of N sequences reads one token of KV more in every step, so step j reads C + N·j tokens.
The time of a step is the largest of a few lines in that context (what computes, what moves bytes, never less than 1 µs),
truncated to a whole µs:

    t(j) = floor(max over lines of (a + b·(C + N·j)))

Lines are kept as integers in units of 2^-48 µs. Truncation is a shift, comparison is exact, and where the largest line
changes is known beforehand, so a run is a few segments on one line each, which `floor_sums` adds up. Nothing is rounded on the
way: a run takes what its steps take, one by one, to the microsecond.

Example: t = max(100 + 0.25·context, 175) µs, 2 sequences with 290 tokens of context together, and a run of 10 steps. The lines
cross at a context of 300, so the first 5 steps (290 to 298 tokens) take 175 µs each, and the others (300 to 308 tokens) take
175.0, 175.5, 176.0, 176.5 and 177.0 µs, truncated to 175, 175, 176, 176 and 177: 1,754 µs in all.

A latency model of this kind says how a step grows (an `Envelope`), and takes the sums from one of these bases:

    PiecewiseAffineModel    the time of a decode-only step depends on its context and on the number of sequences
    MaxOfLinesModel         the same, and it is the largest of a few straight lines
    SpreadAwareModel        the time depends, too, on how unequal the contexts in the batch are
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Protocol, TypeAlias

import msgspec

from maitred.core.contracts import UNIFORM_CONTEXTS, BatchShape, ChunkShape, ContextSpread, Overheads
from maitred.core.units import Micros
from maitred.instance.latency.floor_sums import NO_END, SHIFT, Line, steps_on_line_within, sum_of_floors

_ONE = 1 << SHIFT


class AffineCost(msgspec.Struct, frozen=True, gc=False):
    """A time of base + slope · context, in µs. Neither is negative."""

    base: float
    slope: float = 0.0


class EnvelopeSegment(msgspec.Struct, frozen=True, gc=False):
    """The line that is the largest while the context is below `until` (None in the last segment), in units of 2^-48 µs."""

    base: int
    slope: int
    until: int | None


Envelope: TypeAlias = tuple[EnvelopeSegment, ...]
"""The largest of some lines, in the order of the context. The slopes increase."""


def envelope(lines: Sequence[AffineCost]) -> Envelope:
    """Return the largest of `lines` and of 1 µs, for every context from 0."""
    fixed = [(_ONE, 0), *((round(line.base * _ONE), round(line.slope * _ONE)) for line in lines)]
    segments: list[EnvelopeSegment] = []
    base, slope = max(fixed)
    # From a context of 0 on, the largest line stays so until the first steeper one crosses it: a walk along the upper hull,
    # which is short because there are few lines.
    while steeper := [(b, s) for b, s in fixed if s > slope]:
        until = min(_crossing_context(base, slope, b, s) for b, s in steeper)
        segments.append(EnvelopeSegment(base, slope, until))
        base, slope = max(steeper, key=lambda line: (line[0] + line[1] * until, line[1]))
    return (*segments, EnvelopeSegment(base, slope, None))


def _crossing_context(base: int, slope: int, other: int, steeper: int) -> int:
    """Return the first context at which the steeper line is at least as large."""
    return max(0, -((base - other) // -(steeper - slope)))


def step_time_at(times: Envelope, context: int) -> Micros:
    """Return the time of one step."""
    segment = times[0] if len(times) == 1 else _segment_at(times, context)
    return (segment.base + segment.slope * context) >> SHIFT


def run_time_from(times: Envelope, context: int, growth: int, steps: int) -> Micros:
    """Return the time of `steps` steps, each of which has `growth` tokens of context more than the one before."""
    total = 0
    while steps:
        segment = _segment_at(times, context)
        here = steps if segment.until is None else _steps_below(segment.until, context, growth, steps)
        total += sum_of_floors(segment.base + segment.slope * context, segment.slope * growth, here)
        context += growth * here
        steps -= here
    return total


class RunPart(msgspec.Struct, frozen=True, gc=False):
    """The first steps of a run, and the µs that they take."""

    steps: int
    time: Micros


def steps_within_span(times: Envelope, context: int, growth: int, span: Micros, limit: int) -> RunPart:
    """Return the largest number of steps, at most `limit`, that together take no more than `span`."""
    made, left = 0, span
    while made < limit:
        segment = times[0] if len(times) == 1 else _segment_at(times, context)
        here = limit - made
        if segment.until is not None:
            here = _steps_below(segment.until, context, growth, here)
        fit, left = steps_on_line_within(segment.base + segment.slope * context, segment.slope * growth, left, here)
        made += fit
        context += growth * fit
        if fit < here:
            break
    return RunPart(made, span - left)


def _segment_at(times: Envelope, context: int) -> EnvelopeSegment:
    """Return the segment in which `context` is."""
    return times[_segment_index(times, context)]


def _segment_index(times: Envelope, context: int) -> int:
    """Return the index of the segment in which `context` is."""
    return bisect_right(times, context, 0, len(times) - 1, key=_until)  # the last segment has no end


_until: Callable[[EnvelopeSegment], int] = attrgetter("until")


def _steps_below(until: int, context: int, growth: int, steps: int) -> int:
    """Return how many of the next `steps` steps have a context below `until`. The first one has."""
    return min(steps, -((context - until) // growth)) if growth else steps


class MixedSteps(Protocol):
    """The times of steps that prefill."""

    def time_of(self, chunks: Sequence[ChunkShape], decodes: int, context_tokens: int) -> float:
        """Return the µs of a step with these chunks of prefill, in which `decodes` sequences decode over `context_tokens`."""
        ...

    def prompt_time(self, tokens: int, decodes: int, context_tokens: int) -> float:
        """Return the same for one chunk alone, which is a whole prompt: most are."""
        ...


class PiecewiseAffineModel(ABC):
    """Works out step times from two things: the envelope of decode-only steps, and the time of a step that prefills.

    An envelope depends on nothing but the number of sequences that decode, so it is worked out once for each number.
    """

    mixed_steps: MixedSteps | None = None
    """What `prefill_step_time` is worked out with, if a `BatchShape` need not be made for it."""

    def __init__(self, overheads: Overheads) -> None:
        self.overheads = overheads
        self._envelopes = _Envelopes(self.envelope_of)
        self._lines: dict[tuple[int, int], Line] = {}
        """The lines that were asked for, by the number of sequences and the index of the segment."""
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

    def line_at(self, decodes: int, context: int) -> Line | None:
        """Return the line of decode-only steps of `decodes` sequences over `context` tokens, or None if it depends on more."""
        times = self._envelopes[decodes]
        index = _segment_index(times, context)
        line = self._lines.get((decodes, index))
        if line is None:
            segment, start = times[index], times[index - 1].until if index else 0
            line = Line(segment.base, segment.slope, decodes, start or 0, NO_END if segment.until is None else segment.until)
            self._lines[decodes, index] = line
        return line

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
    """A model in which a decode-only step takes as long as the largest of a few lines."""

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
    """A model in which a decode-only step depends on its context and on `BatchShape.context_spread`, constant in a run.

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

    def line_at(self, decodes: int, context: int) -> Line | None:
        return None  # lines are known for one spread alone

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
