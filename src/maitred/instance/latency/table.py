"""The latency model `table`: step times looked up in tables of measurements, interpolated between them.

A step is made of what depends on its tokens, on its sequences, and on what they attend to:

    step = tokens(T) + sequences(S) + attention + all_tokens(tokens of all ranks)
    attention = decode(N, c) + α · (decode(N, longest) - decode(N, c))     without prefill: N sequences of c tokens of KV on
                                                                           average, and α as `skew` has it for their lengths
              = mixed(P, s, N, c)                                          with P tokens of prefill that follow s tokens of KV

Curves and grids are linear between their points and constant before the first. After the last they go straight on, a grid
that was fitted to whole steps within bounds: a step takes no less than at its edge, nor more than in proportion to that
(`Grid.value_at`). Several chunks count as one that attends to as many pairs of tokens: s = max(0, Σ t·(start + t/2) / P - P/2).

With data parallelism, `all_tokens` is what all ranks do together. For the rest the slowest rank counts: sequences are spread
evenly, and each chunk goes to the rank that has the fewest tokens so far. Ranks with as many sequences do not have as much
context: without prefill the mean context of the slowest one is taken to be the expected largest of R means of N/R independent
lengths, z(R)·deviation/√(N/R) tokens above that of all. Longest and deviation are those of the batch itself
(`BatchShape.context_spread`).

Between two points a decode-only step is affine in the context, so that a run of them is summed exactly (`affine`).

Example, on one GPU: `tokens` has the points (0, 1000) and (100, 2000), `sequences` has (0, 0) and (10, 50), and `decode` says
that attention of 10 sequences takes 100 µs at a context of 0 and 300 µs at 1,000. A step of 10 sequences with 5,000 tokens of
KV in all takes 1,100 + 50 + 200 = 1,350 µs, and each following step 0.2 µs more.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from math import floor, inf, sqrt
from statistics import NormalDist

from maitred.core.contracts import BatchShape, ChunkShape, ContextSpread, LatencyModel, Overheads
from maitred.core.errors import ConfigError
from maitred.instance.latency.affine import Envelope, EnvelopeSegment, PiecewiseAffineModel, SpreadAwareModel
from maitred.instance.latency.base import LATENCY_MODELS, LatencyConfig, alpha_overheads, check_alpha
from maitred.instance.latency.floor_sums import SHIFT
from maitred.instance.latency.step_table import Alphas, Curve, StepTable, curve_value

_ONE = 1 << SHIFT
_EXTRAPOLATION_TOKENS = 1024
"""Tokens per sequence from the last bend to the point through which the line goes on."""


@LATENCY_MODELS.register("table")
class TableLatency(LatencyConfig, frozen=True, tag="table"):
    """Step times looked up in the tables that `maitred calibrate --latency-model table` has written to `file`."""

    file: str = ""
    """The tables, as `maitred calibrate --latency-model table` writes them. A relative path starts at the current folder."""
    table: StepTable | None = None
    """The tables themselves, instead of a file."""
    alpha: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """α0, α1 and α2 in µs, as those of `linear`."""

    def __post_init__(self) -> None:
        check_alpha(self.alpha)

    @property
    def overheads(self) -> Overheads:
        return alpha_overheads(self.alpha)

    def compiled(self, scale: float = 1.0) -> LatencyModel:
        """Return the model, in which each step takes `scale` times as long. Raises ConfigError without a table."""
        if self.table is None:
            hint = "latency: {model: table, file: FILE}; maitred calibrate --latency-model table makes one"
            raise ConfigError("the latency model table needs a table", hint=hint)
        return _compiled(self.table, scale, self.overheads)


@lru_cache(maxsize=16)
def _compiled(table: StepTable, scale: float, overheads: Overheads) -> LatencyModel:
    plain = table.skew is None and table.data_parallel_size == 1
    return _UniformTableModel(table, scale, overheads) if plain else _SkewedTableModel(table, scale, overheads)


class _UniformTableModel(PiecewiseAffineModel):
    """The model of one rank, where it does not matter how the context is distributed over the sequences."""

    def __init__(self, table: StepTable, scale: float, overheads: Overheads) -> None:
        super().__init__(overheads)
        self._table, self._scale = table, scale

    def envelope_of(self, decodes: int) -> Envelope:
        grid, rest = self._table.decode, _linear_time(self._table, decodes, decodes, decodes)
        return envelope_through([(round(c * decodes), (rest + grid.value_at(decodes, c)) * self._scale) for c in grid.axes[1]])

    def prefill_step_time(self, batch: BatchShape) -> float:
        tokens = batch.prefill_tokens + batch.num_decodes
        rest = _linear_time(self._table, tokens, len(batch.chunks) + batch.num_decodes, tokens)
        return (rest + _mixed_attention(self._table, batch.chunks, batch.num_decodes, _mean_context(batch))) * self._scale


class _SkewedTableModel(SpreadAwareModel):
    """The model of several ranks, or where unequal lengths have a cost."""

    def __init__(self, table: StepTable, scale: float, overheads: Overheads) -> None:
        super().__init__(overheads)
        self._table, self._scale, self._ranks = table, scale, table.data_parallel_size
        self._max_deviation = _expected_maximum(self._ranks)
        self._curves: dict[int, Curve] = {}

    def envelope_within(self, decodes: int, spread: ContextSpread, first: int, last: int) -> Envelope:
        rank = -(-decodes // self._ranks)
        rest, curve = _linear_time(self._table, rank, rank, decodes), self._decode_curve(rank)
        more = self._max_deviation * spread.std_deviation / sqrt(rank)
        top = max(spread.max_above_mean, more)
        points = []
        for context, alpha in _corners_between(
            _envelope_corners(curve, decodes, more, top, self._alphas_of(rank, more, spread)), first, last
        ):
            mean = context / decodes
            points.append((context, (rest + _attention(curve, mean + more, mean + top, alpha)) * self._scale))
        return envelope_through(points)

    def prefill_step_time(self, batch: BatchShape) -> float:
        slowest = max([self._rank_time(chunks, decodes, batch) for chunks, decodes in chunks_by_rank(batch, self._ranks)])
        return (slowest + curve_value(self._table.all_tokens, batch.prefill_tokens + batch.num_decodes)) * self._scale

    def _rank_time(self, chunks: Sequence[ChunkShape], decodes: int, batch: BatchShape) -> float:
        """Return the µs of one rank alone, with `decodes` of the decoding sequences of `batch`, and with `chunks`."""
        tokens = sum([chunk.num_tokens for chunk in chunks]) + decodes
        rest, mean = _linear_time(self._table, tokens, len(chunks) + decodes), _mean_context(batch)
        if chunks:
            return rest + _mixed_attention(self._table, chunks, decodes, mean)
        longest = mean + batch.context_spread.max_above_mean
        alpha = next(alpha for bound, alpha in self._alphas_of(decodes, 0.0, batch.context_spread) if longest <= bound)
        return rest + _attention(self._decode_curve(decodes), mean, longest, alpha)

    def _alphas_of(self, sequences: int, more: float, spread: ContextSpread) -> Alphas:
        """Return the α of a rank with a mean context `more` above that of all."""
        skew, apart = self._table.skew, spread.max_above_mean + spread.min_below_mean
        if skew is None or sequences < 2:
            return ((inf, 0.0),)
        return skew.alphas_of(sequences, min(1.0, (spread.min_below_mean + more) / apart) if apart else 0.0)

    def _decode_curve(self, sequences: int) -> Curve:
        """Return the µs of attention without prefill, by the context of each sequence; never less for more."""
        curve = self._curves.get(sequences)
        if curve is None:
            grid = self._table.decode
            times = accumulate([grid.value_at(sequences, context) for context in grid.axes[1]], max)
            curve = self._curves[sequences] = tuple(zip(grid.axes[1], times, strict=True))
        return curve


def chunks_by_rank(batch: BatchShape, ranks: int) -> list[tuple[list[ChunkShape], int]]:
    """Return the chunks of each of `ranks` ranks, and the number of sequences that decode there.

    Sequences are spread evenly, and each chunk goes to the rank that has the fewest tokens so far.
    """
    each, more = divmod(batch.num_decodes, ranks)
    found: list[tuple[list[ChunkShape], int]] = [([], each + (rank < more)) for rank in range(ranks)]
    tokens = [decodes for _, decodes in found]
    for chunk in batch.chunks:
        rank = tokens.index(min(tokens))
        found[rank][0].append(chunk)
        tokens[rank] += chunk.num_tokens
    return found


def _mean_context(batch: BatchShape) -> float:
    return batch.context_tokens / batch.num_decodes if batch.num_decodes else 0.0


def _linear_time(table: StepTable, tokens: int, sequences: int, all_tokens: int | None = None) -> float:
    """Return the µs of everything but attention. Without `all_tokens`, of what a rank does alone."""
    time = curve_value(table.tokens, tokens) + curve_value(table.sequences, sequences)
    return time if all_tokens is None else time + curve_value(table.all_tokens, all_tokens)


def _mixed_attention(table: StepTable, chunks: Sequence[ChunkShape], decodes: int, mean: float) -> float:
    prefill = sum([chunk.num_tokens for chunk in chunks])
    pairs = sum([chunk.num_tokens * (chunk.num_computed_tokens + chunk.num_tokens / 2) for chunk in chunks])
    return table.mixed.value_at(prefill, max(0.0, pairs / prefill - prefill / 2), decodes, mean)


def _expected_maximum(ranks: int) -> float:
    """Return the expected value of the largest of `ranks` standard normal numbers (Blom)."""
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 1 else 0.0


def _attention(curve: Curve, mean: float, longest: float, alpha: float) -> float:
    """Return the µs of attention without prefill. No rounding makes it less for more: α and 1 - α are at least 0."""
    return (1 - alpha) * curve_value(curve, mean) + alpha * curve_value(curve, longest) if alpha else curve_value(curve, mean)


def _envelope_corners(curve: Curve, decodes: int, more: float, top: float, alphas: Alphas) -> list[tuple[int, float]]:
    """Return the contexts, in order, at which the time of a step bends or jumps, each with its α.

    There the mean of a rank (`more` above that of all) or the longest sequence (`top` above it) comes to a point of the curve,
    or the longest sequence to a bound of α.
    """
    bends = sorted([round((point - beyond) * decodes) for point, _ in curve for beyond in {more, top}])
    corners, start = [], 0
    for bound, alpha in alphas:
        end = floor((bound - top) * decodes) if bound < inf else max(start, bends[-1]) + _EXTRAPOLATION_TOKENS * decodes
        if end >= start:
            inner = bends[bisect_right(bends, start) : bisect_left(bends, end)]
            corners += [(context, alpha) for context in (start, *inner, end)]
            start = end + 1
    return corners


def _corners_between(corners: Sequence[tuple[int, float]], first: int, last: int) -> Sequence[tuple[int, float]]:
    """Return the corners that the times from `first` to `last` depend on: those next to them, and before these the ends of
    buckets of α, since no time may be less than one before. Within a bucket none is."""
    begin = min(bisect_right(corners, (first, 2.0)), len(corners) - 1) - 1
    end = bisect_right(corners, (last, 2.0)) + 1
    ends = [corner for corner, after in pairwise(corners[: begin + 1]) if after[1] != corner[1]]
    return [*ends, *corners[max(begin, 0) : end]]


def envelope_through(points: Sequence[tuple[int, float]]) -> Envelope:
    """Return the straight segments through points (context, µs). Where the time would fall, it stays."""
    contexts = [context for context, _ in points]
    times = list(accumulate([max(_ONE, round(us * _ONE)) for _, us in points], max))
    stretches = [EnvelopeSegment(times[0], 0, contexts[0])] if contexts[0] else []
    slope = 0
    for (start, time), (end, later) in pairwise(zip(contexts, times, strict=True)):
        if end == start:
            continue
        slope = _slope(later - time, end - start)
        stretches.append(EnvelopeSegment(time - slope * start, slope, end))
    return (*stretches, EnvelopeSegment(times[-1] - slope * contexts[-1], slope, None))


def _slope(rise: int, run: int) -> int:
    """Return the slope, rounded up so that a whole µs is not missed by rounding, unless the segment would end too high then."""
    slope = -(-rise // run)
    return slope if slope * (run - 1) <= rise else rise // run
