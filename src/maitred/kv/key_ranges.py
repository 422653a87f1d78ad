"""KeyRanges: a long sequence of keys as a few ranges of consecutive keys.

The prompts of an agent have thousands of blocks, and each prompt repeats nearly all of the one before. Where the keys of blocks
are counted and not hashed, such a prompt is a handful of ranges, and its keys need never be written out. A range is stored as
the position before which it ends, and as its *shift*, by which its keys exceed their positions:

    position    0   1   2   3 |  4   5   6 |  7   8          ends      4   7   9
    key        70  71  72  73 | 80  81  82 | 84  85          shifts   70  76  77

A slice shares the ranges (`RangeTable`) and has only other bounds, so it costs the same however long it is. A key costs a
bisection over the ranges.

Example: the slice [2:6] of these keys has the positions 2 to 5, which are the keys 72, 73, 80 and 81. Its key 3 is at position
5, in the range that ends before 7, so it is 5 + 76 = 81.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, count, groupby
from operator import sub
from sys import maxsize
from typing import Final, final, overload

_KEYS_PER_RANGE: Final = 8
"""Keys for which a range must stand on average to be worth it."""

_FEW_KEYS: Final = 1024
"""Keys that are sooner written out than handled as ranges."""

_FEW_PARTS: Final = 256
"""The same, of parts of ids."""


class RangeTable:
    """The ranges that several `KeyRanges` share: position before which each ends, and its shift. Not to be changed."""

    __slots__ = ("_expansion", "_parts", "ends", "shifts")

    def __init__(self, ends: Sequence[int], shifts: Sequence[int]) -> None:
        self.ends = ends
        self.shifts = shifts
        self._parts = 0
        self._expansion: RangeTable | None = None
        """The table of the last `expanded`."""

    def expanded(self, parts: int) -> RangeTable:
        """Return the ranges of which each key is one of `parts` parts of a key of these. Prompt after prompt asks for them."""
        expansion = self._expansion
        if expansion is None or self._parts != parts:
            expansion = RangeTable([end * parts for end in self.ends], [shift * parts for shift in self.shifts])
            self._expansion, self._parts = expansion, parts
        return expansion


@final
class KeyRanges(Sequence[int]):
    """An immutable sequence of keys. `key_ranges` makes one.

    Ask for it with `isinstance` in compiled modules only. Elsewhere the compiled class answers as `Sequence` does, and takes a
    tuple for one: mypyc gives it no registry of its own.
    """

    __slots__ = ("_start", "_stop", "_table")

    def __init__(self, table: RangeTable, start: int, stop: int) -> None:
        """`start` and `stop` are the bounds of the sequence among the positions of the ranges."""
        self._table = table
        self._start = start
        self._stop = stop

    def __len__(self) -> int:
        return self._stop - self._start

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        start, stop = self._start, self._stop
        if not isinstance(index, slice):
            position = index + (start if index >= 0 else stop)
            if start <= position < stop:
                table = self._table
                return position + table.shifts[bisect_right(table.ends, position)]
            raise IndexError("no such key")
        first, last, step = index.indices(stop - start)
        if step != 1:
            return list(self)[index]
        if last - first == stop - start:
            return self
        return KeyRanges(self._table, start + first, start + max(first, last))

    def __iter__(self) -> Iterator[int]:
        return chain.from_iterable(self.ranges())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, KeyRanges):
            # Adjacent ranges have different shifts, or they would be one; so equal sequences are equal ranges.
            return self._stop - self._start == other._stop - other._start and self.ranges() == other.ranges()
        return isinstance(other, Sequence) and len(self) == len(other) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]  # equal to lists, which have none

    def __repr__(self) -> str:
        return f"KeyRanges({self.ranges()})"

    def index(self, value: int, start: int = 0, stop: int = maxsize) -> int:
        """Return the first index of the key `value` from `start` to before `stop`. Raises ValueError if there is none."""
        part = self[start:stop]
        position = max(0, len(self) + start) if start < 0 else start
        for each in part.ranges() if isinstance(part, KeyRanges) else ():
            if value in each:
                return position + value - each.start
            position += len(each)
        raise ValueError(f"{value} is not among the keys")

    def ranges(self) -> list[range]:
        """Return the ranges, none of them empty."""
        found, position, stop = list[range](), self._start, self._stop
        ends, shifts = self._table.ends, self._table.shifts
        at = bisect_right(ends, position)
        while position < stop:
            end, shift = min(ends[at], stop), shifts[at]
            found.append(range(position + shift, end + shift))
            position, at = end, at + 1
        return found

    def num_common(self, other: KeyRanges, offset: int) -> int:
        """Return how many leading keys are equal to those of `other` from its index `offset` on."""
        table, other_table = self._table, other._table
        position, other_position = self._start, other._start + offset
        stop = min(self._stop, position + other._stop - other_position)
        if table is other_table and position == other_position:
            return stop - position
        ends, shifts, other_ends, other_shifts = table.ends, table.shifts, other_table.ends, other_table.shifts
        at, other_at = bisect_right(ends, position), bisect_right(other_ends, other_position)
        while position < stop and position + shifts[at] == other_position + other_shifts[other_at]:
            # Both ranges go on together until one of them ends.
            step = min(ends[at] - position, other_ends[other_at] - other_position)
            position, other_position = position + step, other_position + step
            at += position == ends[at]
            other_at += other_position == other_ends[other_at]
        return min(position, stop) - self._start

    def num_common_in_chain(self, other: KeyRanges, offset: int) -> int:
        """As `num_common`, of keys that each stand for themselves and all before them: if the last ones are equal, all are.
        There is at least one key."""
        table, other_table = self._table, other._table
        stop, other_stop = self._stop, other._start + offset + self._stop - self._start
        if other_stop <= other._stop:
            key = stop + table.shifts[bisect_left(table.ends, stop)]
            if key == other_stop + other_table.shifts[bisect_left(other_table.ends, other_stop)]:
                return stop - self._start
        return self.num_common(other, offset)

    def head(self, count: int) -> KeyRanges:
        """Return the first `count` keys, or all if there are fewer."""
        if count >= self._stop - self._start:
            return self
        return KeyRanges(self._table, self._start, self._start + max(count, 0))

    def with_before(self, count: int) -> KeyRanges | None:
        """Return these keys with the `count` keys before them of which they are a part, or None if they are of none."""
        start = self._start - count
        return KeyRanges(self._table, start, self._stop) if start >= 0 else None

    def joined(self, other: KeyRanges) -> KeyRanges:
        """Return these keys followed by those of `other`."""
        if other._table is self._table and other._start == self._stop:
            return KeyRanges(self._table, self._start, other._stop)
        return self.extended(other.ranges())

    def joined_in_chain(self, other: KeyRanges) -> KeyRanges:
        """As `joined`, of keys that each stand for themselves and all before them. If `other` is the end of keys that begin
        with these, as of a conversation that begins with a prompt, the result is a part of them."""
        before, table, stop, other_start = self._table, other._table, self._stop, other._start
        if table is before:
            return KeyRanges(table, self._start, other._stop) if stop == other_start else self.joined(other)
        if 0 < stop - self._start <= other_start:
            key = stop + before.shifts[bisect_left(before.ends, stop)]
            if key == other_start + table.shifts[bisect_left(table.ends, other_start)]:
                return KeyRanges(table, other_start - stop + self._start, other._stop)
        return self.joined(other)

    def extended(self, ranges: Iterable[range]) -> KeyRanges:
        """Return these keys followed by those of `ranges`, one range after the other. Each has a step of 1."""
        ends, shifts, start = list[int](), list[int](), self._start
        end = self._stop - start
        if end:
            table = self._table
            first, last = bisect_right(table.ends, start), bisect_left(table.ends, self._stop)
            ends += table.ends[first:last]
            shifts += table.shifts[first : last + 1]
            if start:  # a table has a key at each position from 0 on
                ends, shifts = [each - start for each in ends], [shift + start for shift in shifts]
            ends.append(end)
        for each in ranges:
            if not each:
                continue
            shift = each.start - end
            end += len(each)
            if shifts and shifts[-1] == shift:
                ends[-1] = end
            else:
                ends.append(end)
                shifts.append(shift)
        return KeyRanges(RangeTable(ends, shifts), 0, end)

    def expanded(self, parts: int, most: int = maxsize) -> KeyRanges:
        """Return, for each key k of these, the `parts` keys from k · `parts` on: the first `most` of all, or fewer."""
        start, stop = self._start * parts, self._stop * parts
        return KeyRanges(self._table.expanded(parts), start, stop if stop - start <= most else start + most)


NO_KEYS: Final = KeyRanges(RangeTable((), ()), 0, 0)


def key_ranges(ranges: Iterable[range]) -> KeyRanges:
    """Return the keys of `ranges`, one range after the other. Each has a step of 1."""
    return NO_KEYS.extended(ranges)


def part_of(keys: Sequence[int], first: int, end: int) -> Sequence[int]:
    """Return `keys[first:end]`, without the detour over a slice. The bounds are in order, and within the keys."""
    if type(keys) is KeyRanges:
        return KeyRanges(keys._table, keys._start + first, keys._start + end)
    return keys[first:end]


def counted_keys(ranges: Sequence[range], num_keys: int) -> Sequence[int]:
    """Return the `num_keys` keys of `ranges`, one range after the other: as a list if they are few, and else as ranges."""
    if num_keys < _FEW_KEYS or num_keys < _KEYS_PER_RANGE * len(ranges):
        return list(chain.from_iterable(ranges))
    return key_ranges(ranges)


def expand_keys(keys: Sequence[int], parts: int, most: int = maxsize) -> Sequence[int]:
    """Return, for each key k of `keys`, the `parts` keys from k · `parts` on: the first `most` of all, or fewer."""
    if isinstance(keys, KeyRanges):
        return keys.expanded(parts, most)
    if len(keys) * parts >= _FEW_PARTS:
        # Ids that a trace counts go on by one in each prompt, but for where it leaves what others have begun with.
        ends, shifts, end = list[int](), list[int](), 0
        for shift, group in groupby(map(sub, keys, count())):
            end += len(list(group)) * parts
            ends.append(end)
            shifts.append(shift * parts)
        if end >= _KEYS_PER_RANGE * len(ends):
            return KeyRanges(RangeTable(ends, shifts), 0, end if end <= most else most)
    return list(chain.from_iterable([range(key * parts, key * parts + parts) for key in keys]))[:most]


def join_keys(parts: Sequence[Sequence[int]]) -> Sequence[int]:
    """Return the keys of `parts`, one part after the other: as ranges if that is much shorter, else as a new list."""
    if len(parts) == 2 and isinstance(parts[0], KeyRanges) and isinstance(parts[1], KeyRanges):
        return parts[0].joined(parts[1])
    if len(parts) == 2 and isinstance(parts[0], list) and isinstance(parts[1], list):
        return parts[0] + parts[1]
    singles = sum([len(part) for part in parts if not isinstance(part, KeyRanges)])
    if singles * _KEYS_PER_RANGE > sum([len(part) for part in parts]):
        return list(chain.from_iterable(parts))
    ranges = list[range]()
    for part in parts:
        ranges += part.ranges() if isinstance(part, KeyRanges) else [range(key, key + 1) for key in part]
    return key_ranges(ranges)
