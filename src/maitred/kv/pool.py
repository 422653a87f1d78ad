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

from maitred.contracts import PrefixWatcher
from maitred.errors import InvariantError
from maitred.kv.cache import Lock, PrefixCache, Watchers
from maitred.kv.finds import Look


class Run:
    """Blocks that follow each other in a chain."""

    __slots__ = ("keys", "rest", "users")

    def __init__(self, keys: list[int], users: int) -> None:
        self.keys = keys
        self.users = users
        """How many locks hold it."""
        self.rest: Run | None = None
        """What was split off its end while somebody held it."""


class Blank:
    """Free blocks whose content nobody knows."""

    __slots__ = ("blocks",)

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks


Entry: TypeAlias = Run | Blank


class BlockLock(Lock):
    def __init__(self, published: int, runs: list[tuple[Run, int]], splits: int) -> None:
        super().__init__(published)
        self.runs = runs
        """The published blocks, first block first: runs, with how many blocks each had."""
        self.splits = splits
        """How many runs had been split, while somebody held them, when it was given."""


class BlockPool(PrefixCache[BlockLock]):
    """The KV blocks of one instance. See `PrefixCache`."""

    def __init__(self, total: int, block_size: int) -> None:
        """Raises ValueError unless both are at least 1 (`block_size` in tokens)."""
        if total < 1 or block_size < 1:
            raise ValueError("a pool has at least one block of at least one token")
        self._total = total
        self._block_size = block_size
        self._free = total
        self._held = 0
        """Published blocks that somebody holds."""
        self._owed = 0
        """Blocks taken that the free list has not given up yet."""
        self._unclaimed = 0
        self._idle: OrderedDict[Entry, None] = OrderedDict({Blank(total): None})
        """The free list."""
        self._index: dict[int, Run] = {}
        """first key -> the run that answers for it"""
        self._others: dict[int, list[Run]] = {}
        """key -> its further copies, runs of one block, in the order in which they were published"""
        self._keys: set[int] | None = None
        """All that is cached, once somebody has asked for a single key."""
        self._locks: set[BlockLock] = set()
        self._splits = 0
        """How many runs were split while somebody held them."""
        self._watchers = Watchers()

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
        self.settle()
        return sum(len(entry.keys) for entry in self._idle if isinstance(entry, Run))

    @property
    def spare(self) -> int:
        """Those at the head of the free list that say nothing."""
        self.settle()
        blocks = 0
        for entry in self._idle:
            if isinstance(entry, Run):
                break
            blocks += entry.blocks
        return blocks

    @property
    def protected(self) -> int:
        return self._held

    def watch(self, watcher: PrefixWatcher) -> None:
        self._watchers.add(watcher)

    def holds(self, key: int) -> bool:
        self.settle()
        if self._keys is None:
            self._keys = {key for run in self._index.values() for key in run.keys}
        return key in self._keys

    def cached(self, chain: Sequence[int]) -> int:
        self.settle()
        return self._cached(chain)

    def idle(self, chain: Sequence[int]) -> int:
        return self.look(chain).idle

    def look(self, chain: Sequence[int]) -> Look:
        self.settle()
        index, position, end, idle = self._index, 0, len(chain), 0
        while position < end and (run := index.get(chain[position])) is not None:
            after = _after(run.keys, chain, position)
            if not run.users:
                idle += after - position
            position = after
        return Look(position, idle)

    def touch(self, chain: Sequence[int]) -> int:
        runs = self._runs(chain)
        for run in reversed(runs):
            if not run.users:
                self._idle[run] = None
                self._idle.move_to_end(run)
        return sum(len(run.keys) for run in runs)

    def lock(self, chain: Sequence[int], *, priority: float = 0.0) -> BlockLock:
        held, idle, published = [], self._idle, 0
        for run in self._runs(chain):
            blocks = len(run.keys)
            if not run.users:
                idle.pop(run, None)
                self._free -= blocks
                self._held += blocks
            run.users += 1
            held.append((run, blocks))
            published += blocks
        lock = BlockLock(published, held, self._splits)
        self._locks.add(lock)
        return lock

    def take(self, blocks: int) -> None:
        if blocks > self._free:
            raise ValueError(f"{blocks} blocks are to be taken, {self._free} are free")
        self._free -= blocks
        self._owed += blocks
        self._unclaimed += blocks

    def claim(self, lock: BlockLock, blocks: int) -> None:
        if blocks > self._unclaimed:
            raise ValueError(f"{blocks} blocks are claimed, {self._unclaimed} were taken")
        self._unclaimed -= blocks
        lock.plain += blocks

    def publish(self, lock: BlockLock, keys: Sequence[int]) -> None:
        count = len(keys)
        if count > lock.plain:
            raise ValueError(f"{count} blocks have content, {lock.plain} are held without")
        lock.plain -= count
        lock.published += count
        self._held += count
        fresh = list(keys)
        copied = self._copied(lock, fresh)
        for key in fresh[:copied]:
            run = Run([key], 1)
            self._others.setdefault(key, []).append(run)
            lock.runs.append((run, 1))
        if copied == count:
            return
        del fresh[:copied]
        run = self._index[fresh[0]] = Run(fresh, 1)
        lock.runs.append((run, len(fresh)))
        if self._keys is not None:
            self._keys.update(fresh)
        self._watchers.published(fresh)

    def unlock(self, lock: BlockLock) -> None:
        self._let_go(lock, 0)

    def bury(self, lock: BlockLock, blocks: int, keys: Callable[[], Sequence[int]]) -> None:
        """`keys` are not needed: what nobody asks for is only counted."""
        if blocks > lock.plain:
            raise ValueError(f"{blocks} blocks are to be buried, {lock.plain} are held without content")
        lock.plain -= blocks
        self._let_go(lock, blocks)

    def evict(self, blocks: int) -> int:
        self.settle()
        evicted = 0
        for entry in [entry for entry in self._idle if isinstance(entry, Run)]:
            if evicted < blocks:
                evicted += self._shorten(entry, blocks - evicted)
        if evicted:
            self._blank(evicted)
        return evicted

    def settle(self) -> None:
        owed, idle = self._owed, self._idle
        if not owed:
            return
        self._owed = 0
        while owed:
            entry = next(iter(idle))
            if isinstance(entry, Run):
                owed -= self._shorten(entry, owed)
            elif entry.blocks > owed:
                entry.blocks -= owed
                return
            else:
                owed -= entry.blocks
                del idle[entry]

    def check(self) -> None:
        self.settle()
        plain = sum(lock.plain for lock in self._locks) + self._unclaimed
        listed = sum(entry.blocks if isinstance(entry, Blank) else len(entry.keys) for entry in self._idle)
        if listed != self._free or self._free + self._held + plain != self._total:
            raise InvariantError(
                f"KV blocks: {self._free} free ({listed} listed) + {self._held} shared + {plain} plain != {self._total}"
            )
        users: dict[Run, int] = {}
        for lock in self._locks:
            for part in _parts(lock):
                users[part] = users.get(part, 0) + 1
            if sum(blocks for _, blocks in lock.runs) != lock.published:
                raise InvariantError("KV blocks: a lock does not hold what it published")
        if any(run.users != count for run, count in users.items()) or sum(len(run.keys) for run in users) != self._held:
            raise InvariantError("KV blocks: references are not what the locks hold")
        runs = [*self._index.values(), *(run for others in self._others.values() for run in others)]
        if {entry for entry in self._idle if isinstance(entry, Run)} ^ set(runs) != users.keys():
            raise InvariantError("KV blocks: a run is neither held nor free, or both")
        if any(run.keys[0] != key for key, run in self._index.items()) or any(
            run.keys != [key] for key, others in self._others.items() for run in others
        ):
            raise InvariantError("KV blocks: the index is not what the runs say")

    def _copied(self, lock: BlockLock, keys: list[int]) -> int:
        """How many of `keys`, which follow what `lock` has published, somebody else has published before."""
        last = lock.runs[-1][0] if lock.runs else None
        if last is None or self._index.get(last.keys[0]) is last:
            return self._cached(keys)
        before = [key for part in _parts(lock) for key in part.keys]  # a copy: what answers for it may go on beyond it
        return self._cached(before + keys) - len(before)

    def _cached(self, chain: Sequence[int]) -> int:
        """How many leading blocks of `chain` are cached, or owed."""
        index, position, end = self._index, 0, len(chain)
        while position < end and (run := index.get(chain[position])) is not None:
            position = _after(run.keys, chain, position)
        return position

    def _runs(self, chain: Sequence[int]) -> list[Run]:
        """The runs that make up the cached prefix of `chain`, no more and no less."""
        self.settle()
        index, position, end, runs = self._index, 0, len(chain), []
        while position < end and (run := index.get(chain[position])) is not None:
            after = _after(run.keys, chain, position)
            if after - position < len(run.keys):
                run = self._split(run, after - position)
            runs.append(run)
            position = after
        return runs

    def _split(self, run: Run, blocks: int) -> Run:
        """The first so many blocks of `run`, as a run of their own. One that is free leaves the rest in its place in the free
        list, and is to be taken out of there or put anew."""
        head, tail = run.keys[:blocks], run.keys[blocks:]
        if run.users:
            self._splits += 1
            run.keys = head
            rest = Run(tail, run.users)
            rest.rest, run.rest = run.rest, rest
            self._index[tail[0]] = rest
            return run
        run.keys = tail
        self._index[tail[0]] = run
        first = self._index[head[0]] = Run(head, 0)
        return first

    def _let_go(self, lock: BlockLock, buried: int) -> None:
        self.settle()  # what was taken before is not taken from what is let go now
        self._locks.remove(lock)
        if lock.plain:
            self._blank(lock.plain)
        if buried:
            self._idle[Blank(buried)] = None
        free = lock.plain + buried
        runs = [run for run, _ in lock.runs] if lock.splits == self._splits else _parts(lock)
        for run in reversed(runs):
            run.users -= 1
            if not run.users:
                run.rest = None
                self._idle[run] = None
                self._held -= len(run.keys)
                free += len(run.keys)
        self._free += free

    def _shorten(self, run: Run, blocks: int) -> int:
        """`run`, which is free, loses so many blocks from its end, or all. Returns how many."""
        keys, index = run.keys, self._index
        left = max(0, len(keys) - blocks)
        gone = keys[left:]
        gone.reverse()
        answers = index.get(keys[0]) is run
        if left:
            del keys[left:]
        else:
            del self._idle[run]
            if answers:
                del index[keys[0]]
        if answers:
            self._forget([key for key in gone if not self._promote(key)] if self._others else gone)
        else:
            self._drop_copy(keys[0], run)
        return len(gone)

    def _forget(self, keys: list[int]) -> None:
        if self._keys is not None:
            self._keys.difference_update(keys)
        self._watchers.evicted(keys)

    def _promote(self, key: int) -> bool:
        """Another copy of `key`, if there is one, answers for it from now on."""
        others = self._others.get(key)
        if others is None:
            return False
        self._index[key] = others[0]
        self._drop_copy(key, others[0])
        return True

    def _drop_copy(self, key: int, run: Run) -> None:
        """`run` is no further copy of `key` any more."""
        others = self._others[key]
        others.remove(run)
        if not others:
            del self._others[key]

    def _blank(self, blocks: int) -> None:
        """So many blocks that say nothing are the next to go."""
        first = next(iter(self._idle), None)
        if isinstance(first, Blank):
            first.blocks += blocks
            return
        blank = Blank(blocks)
        self._idle[blank] = None
        self._idle.move_to_end(blank, last=False)


def _after(keys: list[int], chain: Sequence[int], position: int) -> int:
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


def _parts(lock: BlockLock) -> list[Run]:
    """The runs that a lock holds, first block first, as they are by now."""
    parts: list[Run] = []
    for run, blocks in lock.runs:
        parts.append(run)
        left, part = blocks - len(run.keys), run.rest
        while left:
            assert part is not None
            parts.append(part)
            left, part = left - len(part.keys), part.rest
    return parts
