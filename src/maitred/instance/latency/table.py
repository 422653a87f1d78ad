"""Step times looked up in tables of measurements, interpolated between them.

A step is made of what depends on its tokens, on its sequences, and on what they attend to:

    step = tokens(T) + sequences(S) + attention + all_tokens(tokens of all ranks)
    attention = decode(N, C/N)            without prefill: N sequences over C/N tokens of KV each, on average
              = mixed(P, s, N, C/N)       with P tokens of prefill that follow s tokens of KV

Curves and grids are linear between their points, constant before the first and straight on after the last. Several chunks
count as one that attends to as many pairs of tokens: s = max(0, Σ t·(start + t/2) / P - P/2). What all ranks of an engine with
data parallelism do is `all_tokens`; for the rest the slowest rank counts, where sequences are spread evenly and each chunk goes
to the rank that has the fewest tokens so far. As many sequences have not as much context on every rank: without prefill the
slowest one has what the largest of R sums of N/R independent lengths is expected to be, 1 + z(R)·uneven/√(N/R) times the mean.

Between two points a decode-only step is affine in the context, so that a run of them is summed exactly (`affine`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from math import isfinite, prod, sqrt
from statistics import NormalDist
from typing import TypeAlias

import msgspec

from maitred.contracts import BatchShape, ChunkShape, LatencyModel, Overheads
from maitred.errors import ConfigError
from maitred.instance.latency.affine import SHIFT, Envelope, Stretch
from maitred.instance.latency.along_lines import ByContext

_ONE = 1 << SHIFT
_FIRST = 1e12
_MOST_UNEVEN = 100.0

Curve: TypeAlias = tuple[tuple[float, float], ...]
"""Points (tokens or sequences, µs), in increasing order."""
Axis: TypeAlias = tuple[float, ...]
"""In increasing order."""

NOTHING: Curve = ((0.0, 0.0),)


def _check_increasing(points: Sequence[float], what: str) -> None:
    if not points or points[0] < 0 or any(b <= a for a, b in pairwise(points)):
        raise ValueError(f"{what} must have points in increasing order, from 0 on")


def _check_times(times: Sequence[float]) -> None:
    if not all(isfinite(us) and us >= 0 for us in times):
        raise ValueError("every time must be a number of at least 0 (µs)")


class Grid(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """µs at every combination of the points of some axes; the last axis varies fastest. Raises ValueError."""

    axes: tuple[Axis, ...]
    us: tuple[float, ...]

    def __post_init__(self) -> None:
        for axis in self.axes:
            _check_increasing(axis, "an axis")
        if len(self.us) != prod(len(axis) for axis in self.axes):
            raise ValueError(f"{' by '.join(str(len(axis)) for axis in self.axes)} points have {len(self.us)} values")
        _check_times(self.us)

    def at(self, *point: float) -> float:
        """µs at a point, one number for each axis."""
        terms, stride = [(0, 1.0)], len(self.us)
        for axis, x in zip(self.axes, point, strict=True):
            stride //= len(axis)
            index, share = place_on(axis, x)
            beyond = [(offset + (index + 1) * stride, weight * share) for offset, weight in terms] if share else []
            terms = [(offset + index * stride, weight * (1 - share)) for offset, weight in terms] + beyond
        return sum([self.us[offset] * weight for offset, weight in terms])


class StepTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """See the module. Raises ValueError for tables that cannot be."""

    tokens: Curve = NOTHING
    """By the tokens of one rank."""
    sequences: Curve = NOTHING
    """By the sequences of one rank."""
    all_tokens: Curve = NOTHING
    """By the tokens of all ranks."""
    decode: Grid = Grid(((0.0,), (0.0,)), (0.0,))
    """By sequences and context per sequence."""
    mixed: Grid = Grid(((0.0,), (0.0,), (0.0,), (0.0,)), (0.0,))
    """By tokens of prefill, tokens before them, sequences that decode, and context per sequence of these."""
    data_parallel_size: int = 1
    """Ranks among which the sequences of an instance are spread."""
    uneven: float = 0.0
    """Standard deviation of the context of decoding sequences, by its mean; it matters between ranks."""
    source: str = ""
    """Where the measurements are from."""

    def __post_init__(self) -> None:
        for curve in (self.tokens, self.sequences, self.all_tokens):
            _check_increasing([x for x, _ in curve], "a curve")
            _check_times([us for _, us in curve])
        if len(self.decode.axes) != 2 or len(self.mixed.axes) != 4:
            raise ValueError(f"decode has 2 axes and mixed 4, not {len(self.decode.axes)} and {len(self.mixed.axes)}")
        if self.data_parallel_size < 1:
            raise ValueError(f"data_parallel_size must be at least 1, not {self.data_parallel_size}")
        if not 0 <= self.uneven <= _MOST_UNEVEN:
            raise ValueError(f"uneven must be from 0 to {_MOST_UNEVEN:g}, not {self.uneven}")


class TableLatency(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="model", tag="table"):
    """What `maitred calibrate --latency-model table` has written to `file`."""

    file: str = ""
    """As in the configuration; a relative path counts from the folder one works in."""
    table: StepTable | None = None
    """None: what `file` says."""

    @property
    def overheads(self) -> Overheads:
        return Overheads()

    def compiled(self, scale: float = 1.0) -> LatencyModel:
        """Ready to be asked; every step takes `scale` times as long. Raises ConfigError without a table."""
        if self.table is None:
            hint = "latency: {model: table, file: FILE}; maitred calibrate --latency-model table makes one"
            raise ConfigError("the latency model table needs a table", hint=hint)
        return _compiled(self.table, scale)


class _Table(ByContext):
    def __init__(self, table: StepTable, scale: float) -> None:
        super().__init__(Overheads())
        self._table, self._scale, self._ranks = table, scale, table.data_parallel_size
        self._uneven = table.uneven * _largest_of(self._ranks)

    def stretches(self, decodes: int) -> Envelope:
        table, rank = self._table, -(-decodes // self._ranks)
        rest = on_curve(table.tokens, rank) + on_curve(table.sequences, rank) + on_curve(table.all_tokens, decodes)
        times, highest = [], _ONE
        for context in table.decode.axes[1]:
            highest = max(highest, round((rest + table.decode.at(rank, context)) * self._scale * _ONE))
            times.append(highest)
        mean = decodes / (1 + self._uneven / sqrt(rank))
        return _through([round(context * mean) for context in table.decode.axes[1]], times)

    def mixed(self, batch: BatchShape) -> float:
        if self._ranks == 1:
            slowest = self._rank(batch.chunks, batch.decodes, batch)
        else:
            slowest = max([self._rank(chunks, decodes, batch) for chunks, decodes in self._spread(batch)])
        return (slowest + on_curve(self._table.all_tokens, batch.prefill + batch.decodes)) * self._scale

    def _rank(self, chunks: Sequence[ChunkShape], decodes: int, batch: BatchShape) -> float:
        """What it does alone: `decodes` of the sequences of `batch`, and `chunks`."""
        table, prefill = self._table, sum([chunk.tokens for chunk in chunks])
        context = batch.context / batch.decodes if batch.decodes else 0.0
        time = on_curve(table.tokens, prefill + decodes) + on_curve(table.sequences, len(chunks) + decodes)
        if not prefill:
            return time + table.decode.at(decodes, context)
        pairs = sum([chunk.tokens * (chunk.start + chunk.tokens / 2) for chunk in chunks])
        return time + table.mixed.at(prefill, max(0.0, pairs / prefill - prefill / 2), decodes, context)

    def _spread(self, batch: BatchShape) -> list[tuple[list[ChunkShape], int]]:
        each, more = divmod(batch.decodes, self._ranks)
        ranks: list[tuple[list[ChunkShape], int]] = [([], each + (rank < more)) for rank in range(self._ranks)]
        tokens = [decodes for _, decodes in ranks]
        for chunk in batch.chunks:
            rank = tokens.index(min(tokens))
            ranks[rank][0].append(chunk)
            tokens[rank] += chunk.tokens
        return ranks


@lru_cache(maxsize=16)
def _compiled(table: StepTable, scale: float) -> LatencyModel:
    return _Table(table, scale)


def _largest_of(ranks: int) -> float:
    """What the largest of so many standard normal numbers is expected to be (Blom)."""
    return NormalDist().inv_cdf((ranks - 0.375) / (ranks + 0.25)) if ranks > 1 else 0.0


def _through(contexts: list[int], times: list[int]) -> Envelope:
    """The straight stretches through points whose times (in units of 2^-48 µs) never decrease."""
    stretches = [Stretch(times[0], 0, contexts[0])] if contexts[0] else []
    slope = 0
    for (start, time), (end, later) in pairwise(zip(contexts, times, strict=True)):
        if end == start:
            continue
        slope = _slope(later - time, end - start)
        stretches.append(Stretch(time - slope * start, slope, end))
    return (*stretches, Stretch(times[-1] - slope * contexts[-1], slope, None))


def _slope(rise: int, run: int) -> int:
    """Rounded up, so that a whole µs is not missed by a hair; unless that would end above where the next stretch begins."""
    slope = -(-rise // run)
    return slope if slope * (run - 1) <= rise else rise // run


def place_on(axis: Sequence[float], x: float) -> tuple[int, float]:
    """Between which two points, and how far on the way to the second one; beyond 1 after the last."""
    if x <= axis[0] or len(axis) == 1:
        return 0, 0.0
    index = min(bisect_right(axis, x), len(axis) - 1) - 1
    return index, (x - axis[index]) / (axis[index + 1] - axis[index])


def on_curve(curve: Curve, x: float) -> float:
    """µs at `x`: see the module."""
    index = min(bisect_right(curve, (x, _FIRST)), len(curve) - 1) - 1
    if index < 0 or x <= curve[0][0]:
        return curve[0][1]
    (start, time), (end, later) = curve[index], curve[index + 1]
    return time + (later - time) * (x - start) / (end - start)
