"""KeyRanges: a long sequence of keys as a few ranges of consecutive keys.

The prompts of an agent have thousands of blocks, and each prompt repeats nearly all of the one before. Where the keys of blocks
are counted and not hashed, such a prompt is a handful of ranges, and its keys need never be written out. A range is stored as
the position before which it ends, and as its *shift*, by which its keys exceed their positions:

    position    0   1   2   3 |  4   5   6 |  7   8          ends      4   7   9
    key        70  71  72  73 | 80  81  82 | 84  85          shifts   70  76  77

A slice shares the ranges and has only other bounds, so it costs the same however long it is. A key costs a bisection over the
ranges.

Example: the slice [2:6] of these keys has the positions 2 to 5, which are the keys 72, 73, 80 and 81. Its key 3 is at position
5, in the range that ends before 7, so it is 5 + 76 = 81.

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from sys import maxsize
from typing import Final, overload

_KEYS_PER_RANGE: Final = 8
"""Keys for which a range must stand on average to be worth it."""

_FEW_KEYS: Final = 1024
"""Keys that are sooner written out than handled as ranges."""


class KeyRanges(Sequence[int]):
    """An immutable sequence of keys. `key_ranges` makes one.

    Ask for it with `isinstance` in compiled modules only. Elsewhere the compiled class answers as `Sequence` does, and takes a
    tuple for one: mypyc gives it no registry of its own.
    """

    __slots__ = ("_ends", "_shifts", "_start", "_stop")

    def __init__(self, ends: tuple[int, ...], shifts: tuple[int, ...], start: int, stop: int) -> None:
        """`start` and `stop` are the bounds of the sequence among the positions of the ranges."""
        self._ends = ends
        self._shifts = shifts
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
        if isinstance(index, slice):
            first, last, step = index.indices(stop - start)
            if step != 1:
                return list(self)[index]
            if last - first == stop - start:
                return self
            return KeyRanges(self._ends, self._shifts, start + first, start + max(first, last))
        position = index + (start if index >= 0 else stop)
        if not start <= position < stop:
            raise IndexError("no such key")
        return position + self._shifts[bisect_right(self._ends, position)]

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
        found, ends, shifts, position, stop = list[range](), self._ends, self._shifts, self._start, self._stop
        at = bisect_right(ends, position)
        while position < stop:
            end, shift = min(ends[at], stop), shifts[at]
            found.append(range(position + shift, end + shift))
            position, at = end, at + 1
        return found

    def num_common(self, other: KeyRanges, offset: int) -> int:
        """Return how many leading keys are equal to those of `other` from its index `offset` on."""
        ends, shifts, position = self._ends, self._shifts, self._start
        other_ends, other_shifts, other_position = other._ends, other._shifts, other._start + offset
        stop = min(self._stop, position + other._stop - other_position)
        at, other_at = bisect_right(ends, position), bisect_right(other_ends, other_position)
        while position < stop and position + shifts[at] == other_position + other_shifts[other_at]:
            # Both ranges go on together until one of them ends.
            step = min(ends[at] - position, other_ends[other_at] - other_position)
            position, other_position = position + step, other_position + step
            at += position == ends[at]
            other_at += other_position == other_ends[other_at]
        return min(position, stop) - self._start

    def head(self, count: int) -> KeyRanges:
        """Return the first `count` keys, or all if there are fewer."""
        return KeyRanges(self._ends, self._shifts, self._start, min(self._start + max(count, 0), self._stop))

    def joined(self, other: KeyRanges) -> KeyRanges:
        """Return these keys followed by those of `other`."""
        if other._ends is self._ends and other._shifts is self._shifts and other._start == self._stop:
            return KeyRanges(self._ends, self._shifts, self._start, other._stop)
        if not (len(self) and len(other)):
            return self if len(self) else other
        ends, shifts, stop, other_stop = self._ends, self._shifts, self._stop, other._stop
        first, last = bisect_right(ends, self._start), bisect_left(ends, stop)
        other_first, other_last = bisect_right(other._ends, other._start), bisect_left(other._ends, other_stop)
        moved = stop - other._start
        goes_on = shifts[last] == other._shifts[other_first] - moved  # then the last range here and the first one there are one
        added_ends = [end + moved for end in other._ends[other_first:other_last]]
        added_shifts = [shift - moved for shift in other._shifts[other_first + goes_on : other_last + 1]]
        return KeyRanges(
            (*ends[first:last], *(() if goes_on else (stop,)), *added_ends, other_stop + moved),
            (*shifts[first : last + 1], *added_shifts),
            self._start,
            other_stop + moved,
        )

    def expanded(self, parts: int) -> KeyRanges:
        """Return, for each key k of these, the `parts` keys from k · `parts` on."""
        ends = tuple([end * parts for end in self._ends])
        shifts = tuple([shift * parts for shift in self._shifts])
        return KeyRanges(ends, shifts, self._start * parts, self._stop * parts)


def key_ranges(ranges: Iterable[range]) -> KeyRanges:
    """Return the keys of `ranges`, one range after the other. Each has a step of 1."""
    ends, shifts, end = list[int](), list[int](), 0
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
    return KeyRanges(tuple(ends), tuple(shifts), 0, end)


def counted_keys(ranges: Sequence[range], num_keys: int) -> Sequence[int]:
    """Return the `num_keys` keys of `ranges`, one range after the other: as a list if they are few, and else as ranges."""
    if num_keys < _FEW_KEYS or num_keys < _KEYS_PER_RANGE * len(ranges):
        return list(chain.from_iterable(ranges))
    return key_ranges(ranges)


def expand_keys(keys: Sequence[int], parts: int) -> Sequence[int]:
    """Return, for each key k of `keys`, the `parts` keys from k · `parts` on."""
    if isinstance(keys, KeyRanges):
        return keys.expanded(parts)
    return counted_keys([range(key * parts, key * parts + parts) for key in keys], len(keys) * parts)


NO_KEYS = KeyRanges((), (), 0, 0)


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
