"""Runs of blocks: how a `BlockPool` keeps blocks that follow each other in a prompt, and how locks refer to them.

A run that a lock holds is split when another one holds only its beginning. The first lock keeps its reference to the first
part, and reaches the rest from there:

    lock of blocks 1 to 5     [run 1 2 3 4 5], 5 blocks
    another locks 1 and 2     [run 1 2] --split_rest--> [run 3 4 5]; the first lock still says 5 blocks from the first run on

Compiled (`tools/compile.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from maitred.kv.key_ranges import KeyRanges
from maitred.kv.prefix_cache import CacheLock


class BlockRun:
    """Committed blocks that follow each other in a prompt."""

    __slots__ = ("block_hashes", "first_hash", "num_locks", "split_rest")

    def __init__(self, block_hashes: Sequence[int], num_locks: int) -> None:
        self.block_hashes = block_hashes
        """Hashes of the blocks: a list that only this run has, or `KeyRanges`."""
        self.first_hash = block_hashes[0]
        """The first of them, by which the run is found."""
        self.num_locks = num_locks
        self.split_rest: BlockRun | None = None
        """The run that was split off its end while it was locked."""


class FreeExtent:
    """Free blocks without content."""

    __slots__ = ("blocks",)

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks


class RunLock(CacheLock):
    """The lock of a `BlockPool`."""

    def __init__(self, num_committed: int, runs: list[tuple[BlockRun, int]], num_splits: int) -> None:
        super().__init__(num_committed)
        self.runs = runs
        """The committed blocks, first block first: runs, with the number of blocks that each had then."""
        self.num_found = len(runs)
        """The number of leading runs that were cached when the lock was made."""
        self.num_splits = num_splits
        """`BlockPool._num_splits` when the lock was made: while it is the same, no run of the lock has been split."""


def match_end(run: Sequence[int], block_hashes: Sequence[int], position: int) -> int:
    """Return the position up to which `block_hashes` agree with `run`, which begins at `position` and agrees there.

    A hash stands for its block and all before it. If the last ones are equal, the others are, so the end is found by bisection,
    or range by range.
    """
    if type(run) is KeyRanges and type(block_hashes) is KeyRanges:
        return position + run.num_common_in_chain(block_hashes, position)
    low, high = position, position + len(run)
    if high <= len(block_hashes) and block_hashes[high - 1] == run[-1]:
        return high
    high = min(high, len(block_hashes))
    while high - low > 1:
        middle = (low + high) // 2
        if block_hashes[middle] == run[middle - position]:
            low = middle
        else:
            high = middle
    return high


def current_runs(lock: RunLock) -> list[BlockRun]:
    """Return the runs that `lock` holds, first block first, as they have been split by now."""
    runs: list[BlockRun] = []
    for run, blocks in lock.runs:
        runs.append(run)
        left, rest = blocks - len(run.block_hashes), run.split_rest
        while left:
            assert rest is not None
            runs.append(rest)
            left, rest = left - len(rest.block_hashes), rest.split_rest
    return runs
