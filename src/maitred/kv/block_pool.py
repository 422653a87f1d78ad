"""BlockPool: KV memory that remembers block by block, and lets the least recently used block go first (vLLM).

    free list:  [12 blank] [run of 8] [run of 31] [5 blank] ...
                 next to go                        last let go

Blocks that are let go join the end of the free list, the end of a sequence before its beginning, and are taken from its front
when somebody needs room. Only then do they lose what they hold; one that somebody asks for again leaves the free list, whoever
used it before. A block without content goes first of all, since nothing is lost with it (vLLM 0.32, by its recorded
schedules).

Blocks that were published together share their fate but for their end, so they are kept as a *run*: a list of keys, found by
its first one. Who shares a part of a run splits it. Whoever holds a block holds all before it, and lets them go after it, so
what is cached of a prompt is always its beginning, and to find it takes one look for each run instead of one for each block.
Blocks without content are only counted.

Two sequences may compute the same prefix at the same time; then there are two copies of it, and the first published answers
for both until it is evicted. (BLIS lets the last one answer, and forgets the prefix with either: `kv.blis`.)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeAlias

from maitred.core.contracts import PrefixCacheListener
from maitred.core.errors import InvariantError
from maitred.kv.prefix_cache import CacheListeners, CacheLock, PrefixCache
from maitred.kv.prefix_hit import PrefixProbe


class BlockRun:
    """Blocks that follow each other in a chain."""

    __slots__ = ("block_hashes", "split_rest", "users")

    def __init__(self, block_hashes: list[int], users: int) -> None:
        self.block_hashes = block_hashes
        self.users = users
        """How many locks hold it."""
        self.split_rest: BlockRun | None = None
        """What was split off its end while somebody held it."""


class FreeExtent:
    """Free blocks whose content nobody knows."""

    __slots__ = ("blocks",)

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks


FreeListEntry: TypeAlias = BlockRun | FreeExtent


class RunLock(CacheLock):
    def __init__(self, num_committed: int, runs: list[tuple[BlockRun, int]], num_splits: int) -> None:
        super().__init__(num_committed)
        self.runs = runs
        """The published blocks, first block first: runs, with how many blocks each had."""
        self.num_splits = num_splits
        """How many runs had been split, while somebody held them, when it was given."""


class BlockPool(PrefixCache[RunLock]):
    """The KV blocks of one instance. See `PrefixCache`."""

    def __init__(self, total: int, block_size: int) -> None:
        """Raises ValueError unless both are at least 1 (`block_size` in tokens)."""
        if total < 1 or block_size < 1:
            raise ValueError("a pool has at least one block of at least one token")
        self._total = total
        self._block_size = block_size
        self._free = total
        self._num_referenced = 0
        """Published blocks that somebody holds."""
        self._pending_evictions = 0
        """Blocks taken that the free list has not given up yet."""
        self._num_unassigned = 0
        self._free_list: OrderedDict[FreeListEntry, None] = OrderedDict({FreeExtent(total): None})
        """The free list."""
        self._runs_by_first_hash: dict[int, BlockRun] = {}
        """first key -> the run that answers for it"""
        self._duplicates: dict[int, list[BlockRun]] = {}
        """key -> its further copies, runs of one block, in the order in which they were published"""
        self._cached_hashes: set[int] | None = None
        """All that is cached, once somebody has asked for a single key."""
        self._locks: set[RunLock] = set()
        self._num_splits = 0
        """How many runs were split while somebody held them."""
        self._listeners = CacheListeners()

    @property
    def block_size(self) -> int:
        return self._block_size

    @property
    def total(self) -> int:
        return self._total

    @property
    def free(self) -> int:
        return self._free

    @property
    def evictable(self) -> int:
        self.apply_evictions()
        return sum(len(entry.block_hashes) for entry in self._free_list if isinstance(entry, BlockRun))

    @property
    def free_uncached(self) -> int:
        """Those at the head of the free list that say nothing."""
        self.apply_evictions()
        blocks = 0
        for entry in self._free_list:
            if isinstance(entry, BlockRun):
                break
            blocks += entry.blocks
        return blocks

    @property
    def referenced(self) -> int:
        return self._num_referenced

    def subscribe(self, listener: PrefixCacheListener) -> None:
        self._listeners.add(listener)

    def contains(self, block_hash: int) -> bool:
        self.apply_evictions()
        if self._cached_hashes is None:
            self._cached_hashes = {key for run in self._runs_by_first_hash.values() for key in run.block_hashes}
        return block_hash in self._cached_hashes

    def num_cached_blocks(self, block_hashes: Sequence[int]) -> int:
        self.apply_evictions()
        return self._match_length(block_hashes)

    def num_unreferenced(self, block_hashes: Sequence[int]) -> int:
        return self.probe(block_hashes).num_unreferenced

    def probe(self, block_hashes: Sequence[int]) -> PrefixProbe:
        self.apply_evictions()
        index, position, end, idle = self._runs_by_first_hash, 0, len(block_hashes), 0
        while position < end and (run := index.get(block_hashes[position])) is not None:
            after = _match_end(run.block_hashes, block_hashes, position)
            if not run.users:
                idle += after - position
            position = after
        return PrefixProbe(position, idle)

    def touch(self, block_hashes: Sequence[int]) -> int:
        runs = self._matched_runs(block_hashes)
        for run in reversed(runs):
            if not run.users:
                self._free_list[run] = None
                self._free_list.move_to_end(run)
        return sum(len(run.block_hashes) for run in runs)

    def lock(self, block_hashes: Sequence[int], *, priority: float = 0.0) -> RunLock:
        held, idle, published = [], self._free_list, 0
        for run in self._matched_runs(block_hashes):
            blocks = len(run.block_hashes)
            if not run.users:
                idle.pop(run, None)
                self._free -= blocks
                self._num_referenced += blocks
            run.users += 1
            held.append((run, blocks))
            published += blocks
        lock = RunLock(published, held, self._num_splits)
        self._locks.add(lock)
        return lock

    def reserve(self, blocks: int) -> None:
        if blocks > self._free:
            raise ValueError(f"{blocks} blocks are to be taken, {self._free} are free")
        self._free -= blocks
        self._pending_evictions += blocks
        self._num_unassigned += blocks

    def assign(self, lock: RunLock, blocks: int) -> None:
        if blocks > self._num_unassigned:
            raise ValueError(f"{blocks} blocks are claimed, {self._num_unassigned} were taken")
        self._num_unassigned -= blocks
        lock.num_private += blocks

    def commit_blocks(self, lock: RunLock, block_hashes: Sequence[int]) -> None:
        count = len(block_hashes)
        if count > lock.num_private:
            raise ValueError(f"{count} blocks have content, {lock.num_private} are held without")
        lock.num_private -= count
        lock.num_committed += count
        self._num_referenced += count
        fresh = list(block_hashes)
        copied = self._num_already_cached(lock, fresh)
        for key in fresh[:copied]:
            run = BlockRun([key], 1)
            self._duplicates.setdefault(key, []).append(run)
            lock.runs.append((run, 1))
        if copied == count:
            return
        del fresh[:copied]
        run = self._runs_by_first_hash[fresh[0]] = BlockRun(fresh, 1)
        lock.runs.append((run, len(fresh)))
        if self._cached_hashes is not None:
            self._cached_hashes.update(fresh)
        self._listeners.notify_stored(fresh)

    def release(self, lock: RunLock) -> None:
        self._release(lock, 0)

    def release_private(self, lock: RunLock, num_full: int, block_hashes: Callable[[], Sequence[int]]) -> None:
        """`keys` are not needed: what nobody asks for is only counted."""
        if num_full > lock.num_private:
            raise ValueError(f"{num_full} blocks are to be buried, {lock.num_private} are held without content")
        lock.num_private -= num_full
        self._release(lock, num_full)

    def evict(self, blocks: int) -> int:
        self.apply_evictions()
        evicted = 0
        for entry in [entry for entry in self._free_list if isinstance(entry, BlockRun)]:
            if evicted < blocks:
                evicted += self._evict_tail(entry, blocks - evicted)
        if evicted:
            self._prepend_free(evicted)
        return evicted

    def apply_evictions(self) -> None:
        owed, idle = self._pending_evictions, self._free_list
        if not owed:
            return
        self._pending_evictions = 0
        while owed:
            entry = next(iter(idle))
            if isinstance(entry, BlockRun):
                owed -= self._evict_tail(entry, owed)
            elif entry.blocks > owed:
                entry.blocks -= owed
                return
            else:
                owed -= entry.blocks
                del idle[entry]

    def check(self) -> None:
        self.apply_evictions()
        plain = sum(lock.num_private for lock in self._locks) + self._num_unassigned
        listed = sum(entry.blocks if isinstance(entry, FreeExtent) else len(entry.block_hashes) for entry in self._free_list)
        if listed != self._free or self._free + self._num_referenced + plain != self._total:
            raise InvariantError(
                f"KV blocks: {self._free} free ({listed} listed) + {self._num_referenced} shared "
                f"+ {plain} plain != {self._total}"
            )
        users: dict[BlockRun, int] = {}
        for lock in self._locks:
            for part in _current_runs(lock):
                users[part] = users.get(part, 0) + 1
            if sum(blocks for _, blocks in lock.runs) != lock.num_committed:
                raise InvariantError("KV blocks: a lock does not hold what it published")
        if (
            any(run.users != count for run, count in users.items())
            or sum(len(run.block_hashes) for run in users) != self._num_referenced
        ):
            raise InvariantError("KV blocks: references are not what the locks hold")
        runs = [*self._runs_by_first_hash.values(), *(run for others in self._duplicates.values() for run in others)]
        if {entry for entry in self._free_list if isinstance(entry, BlockRun)} ^ set(runs) != users.keys():
            raise InvariantError("KV blocks: a run is neither held nor free, or both")
        if any(run.block_hashes[0] != key for key, run in self._runs_by_first_hash.items()) or any(
            run.block_hashes != [key] for key, others in self._duplicates.items() for run in others
        ):
            raise InvariantError("KV blocks: the index is not what the runs say")

    def _num_already_cached(self, lock: RunLock, keys: list[int]) -> int:
        """How many of `keys`, which follow what `lock` has published, somebody else has published before."""
        last = lock.runs[-1][0] if lock.runs else None
        if last is None or self._runs_by_first_hash.get(last.block_hashes[0]) is last:
            return self._match_length(keys)
        before = [
            key for part in _current_runs(lock) for key in part.block_hashes
        ]  # a copy: what answers for it may go on beyond it
        return self._match_length(before + keys) - len(before)

    def _match_length(self, chain: Sequence[int]) -> int:
        """How many leading blocks of `chain` are cached, or owed."""
        index, position, end = self._runs_by_first_hash, 0, len(chain)
        while position < end and (run := index.get(chain[position])) is not None:
            position = _match_end(run.block_hashes, chain, position)
        return position

    def _matched_runs(self, chain: Sequence[int]) -> list[BlockRun]:
        """The runs that make up the cached prefix of `chain`, no more and no less."""
        self.apply_evictions()
        index, position, end, runs = self._runs_by_first_hash, 0, len(chain), []
        while position < end and (run := index.get(chain[position])) is not None:
            after = _match_end(run.block_hashes, chain, position)
            if after - position < len(run.block_hashes):
                run = self._split(run, after - position)
            runs.append(run)
            position = after
        return runs

    def _split(self, run: BlockRun, blocks: int) -> BlockRun:
        """The first so many blocks of `run`, as a run of their own. One that is free leaves the rest in its place in the free
        list, and is to be taken out of there or put anew."""
        head, tail = run.block_hashes[:blocks], run.block_hashes[blocks:]
        if run.users:
            self._num_splits += 1
            run.block_hashes = head
            rest = BlockRun(tail, run.users)
            rest.split_rest, run.split_rest = run.split_rest, rest
            self._runs_by_first_hash[tail[0]] = rest
            return run
        run.block_hashes = tail
        self._runs_by_first_hash[tail[0]] = run
        first = self._runs_by_first_hash[head[0]] = BlockRun(head, 0)
        return first

    def _release(self, lock: RunLock, buried: int) -> None:
        self.apply_evictions()  # what was taken before is not taken from what is let go now
        self._locks.remove(lock)
        if lock.num_private:
            self._prepend_free(lock.num_private)
        if buried:
            self._free_list[FreeExtent(buried)] = None
        free = lock.num_private + buried
        runs = [run for run, _ in lock.runs] if lock.num_splits == self._num_splits else _current_runs(lock)
        for run in reversed(runs):
            run.users -= 1
            if not run.users:
                run.split_rest = None
                self._free_list[run] = None
                self._num_referenced -= len(run.block_hashes)
                free += len(run.block_hashes)
        self._free += free

    def _evict_tail(self, run: BlockRun, blocks: int) -> int:
        """`run`, which is free, loses so many blocks from its end, or all. Returns how many."""
        keys, index = run.block_hashes, self._runs_by_first_hash
        left = max(0, len(keys) - blocks)
        gone = keys[left:]
        gone.reverse()
        answers = index.get(keys[0]) is run
        if left:
            del keys[left:]
        else:
            del self._free_list[run]
            if answers:
                del index[keys[0]]
        if answers:
            self._notify_removed([key for key in gone if not self._promote_duplicate(key)] if self._duplicates else gone)
        else:
            self._drop_duplicate(keys[0], run)
        return len(gone)

    def _notify_removed(self, keys: list[int]) -> None:
        if self._cached_hashes is not None:
            self._cached_hashes.difference_update(keys)
        self._listeners.notify_removed(keys)

    def _promote_duplicate(self, key: int) -> bool:
        """Another copy of `key`, if there is one, answers for it from now on."""
        others = self._duplicates.get(key)
        if others is None:
            return False
        self._runs_by_first_hash[key] = others[0]
        self._drop_duplicate(key, others[0])
        return True

    def _drop_duplicate(self, key: int, run: BlockRun) -> None:
        """`run` is no further copy of `key` any more."""
        others = self._duplicates[key]
        others.remove(run)
        if not others:
            del self._duplicates[key]

    def _prepend_free(self, blocks: int) -> None:
        """So many blocks that say nothing are the next to go."""
        first = next(iter(self._free_list), None)
        if isinstance(first, FreeExtent):
            first.blocks += blocks
            return
        blank = FreeExtent(blocks)
        self._free_list[blank] = None
        self._free_list.move_to_end(blank, last=False)


def _match_end(keys: list[int], chain: Sequence[int], position: int) -> int:
    """Up to where `chain` says what `keys` say, of which the first stands at `position`. A key stands for all that is before
    it, too, so if the last ones are equal the others are."""
    low, high = position, position + len(keys)
    if high <= len(chain) and chain[high - 1] == keys[-1]:
        return high
    high = min(high, len(chain))
    while high - low > 1:
        middle = (low + high) // 2
        if chain[middle] == keys[middle - position]:
            low = middle
        else:
            high = middle
    return high


def _current_runs(lock: RunLock) -> list[BlockRun]:
    """The runs that a lock holds, first block first, as they are by now."""
    parts: list[BlockRun] = []
    for run, blocks in lock.runs:
        parts.append(run)
        left, part = blocks - len(run.block_hashes), run.split_rest
        while left:
            assert part is not None
            parts.append(part)
            left, part = left - len(part.block_hashes), part.split_rest
    return parts
