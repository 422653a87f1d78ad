"""BlisPool: KV memory as BLIS keeps it, where it differs from `BlockPool`.

* Of several copies of a prefix the last one answers; evicting any of them forgets it. So what is cached of a prompt need not be
  its beginning, and each block is looked for by itself.
* Blocks let go without content take their turn in eviction like any other.

A block whose content is known is a *copy*, named by a serial number; the others are only counted, so the free list holds copies
and extents of blank blocks:

    free list:  [12 blank] [copy 17] [copy 16] [copy 42] ...
                 next to go                 last let go
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence

from maitred.contracts import PrefixWatcher
from maitred.errors import InvariantError
from maitred.kv.cache import Lock, PrefixCache, Watchers


class CopyLock(Lock):
    def __init__(self) -> None:
        super().__init__(0)
        self.copies: list[int] = []
        """The published blocks, first block first."""


class BlisPool(PrefixCache[CopyLock]):
    """The KV blocks of one instance. See `PrefixCache`."""

    def __init__(self, total: int, block_size: int) -> None:
        """Raises ValueError unless both are at least 1 (`block_size` in tokens)."""
        if total < 1 or block_size < 1:
            raise ValueError("a pool has at least one block of at least one token")
        self._total = total
        self._block_size = block_size
        self._free = total
        self._owed = 0
        """Blocks taken that the free list has not given up yet."""
        self._unclaimed = 0
        self._idle: OrderedDict[int, int] = OrderedDict({-1: total})
        """The free list: copies by their number, and extents by a negative one, with how many blocks each has."""
        self._serial = 1
        self._content: dict[int, int] = {}
        """copy -> key"""
        self._cached: dict[int, int] = {}
        """key -> the copy that answers for it"""
        self._users: dict[int, int] = {}
        """copy -> how many locks hold it; those in the free list are left out"""
        self._locks: set[CopyLock] = set()
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
        return len(self._content) - len(self._users)

    @property
    def spare(self) -> int:
        """Those at the head of the free list that say nothing."""
        self.settle()
        blocks = 0
        for entry, size in self._idle.items():
            if entry > 0:
                break
            blocks += size
        return blocks

    @property
    def protected(self) -> int:
        return len(self._users)

    def watch(self, watcher: PrefixWatcher) -> None:
        self._watchers.add(watcher)

    def holds(self, key: int) -> bool:
        self.settle()
        return key in self._cached

    def cached(self, chain: Sequence[int]) -> int:
        self.settle()
        cached = self._cached
        for position, key in enumerate(chain):
            if key not in cached:
                return position
        return len(chain)

    def idle(self, chain: Sequence[int]) -> int:
        return self.unheld(self.copies(chain))

    def unheld(self, copies: Sequence[int]) -> int:
        """How many of `copies` nobody holds."""
        users = self._users
        return sum([copy not in users for copy in copies])

    def copies(self, chain: Sequence[int]) -> list[int]:
        """The copies that answer for the cached prefix of `chain`."""
        cached = self._cached
        return [cached[key] for key in chain[: self.cached(chain)]]

    def said(self, copies: Sequence[int]) -> list[int]:
        """The keys of what `copies` say."""
        return [self._content[copy] for copy in copies]

    def touch(self, chain: Sequence[int]) -> int:
        copies = self.copies(chain)
        for copy in reversed(copies):
            if copy not in self._users:
                self._idle.move_to_end(copy)
        return len(copies)

    def lock(self, chain: Sequence[int], *, priority: float = 0.0) -> CopyLock:
        lock = CopyLock()
        self._locks.add(lock)
        self.hold(lock, self.copies(chain))
        return lock

    def hold(self, lock: CopyLock, copies: Sequence[int]) -> None:
        """`lock`, whose blocks are all published, holds `copies`, too."""
        users, idle = self._users, self._idle
        for copy in copies:
            if copy in users:
                users[copy] += 1
            else:
                users[copy] = 1
                del idle[copy]
                self._free -= 1
        lock.copies.extend(copies)
        lock.published += len(copies)

    def refill(self, key: int) -> tuple[int, int]:
        """The free block that is next to go says `key` from now on, and is the last to go. Returns which copy it was (0: none)
        and which it is. Raises KeyError if none is free."""
        self.settle()
        entry, blocks = self._idle.popitem(last=False)
        if entry > 0:
            self._forget(entry)
        elif blocks > 1:
            self._blank(blocks - 1)
        self._serial += 1
        self._content[self._serial] = key
        self._cached[key] = self._serial
        self._idle[self._serial] = 1
        self._watchers.published((key,))
        return max(entry, 0), self._serial

    def take(self, blocks: int) -> None:
        if blocks > self._free:
            raise ValueError(f"{blocks} blocks are to be taken, {self._free} are free")
        self._free -= blocks
        self._owed += blocks
        self._unclaimed += blocks

    def claim(self, lock: CopyLock, blocks: int) -> None:
        if blocks > self._unclaimed:
            raise ValueError(f"{blocks} blocks are claimed, {self._unclaimed} were taken")
        self._unclaimed -= blocks
        lock.plain += blocks

    def publish(self, lock: CopyLock, keys: Sequence[int]) -> None:
        count = len(keys)
        if count > lock.plain:
            raise ValueError(f"{count} blocks have content, {lock.plain} are held without")
        self.settle()  # what is evicted before is forgotten before: it may be a copy of the same
        copies = range(self._serial + 1, self._serial + 1 + count)
        self._serial += count
        self._content.update(zip(copies, keys, strict=True))
        self._users.update(dict.fromkeys(copies, 1))
        lock.copies.extend(copies)
        lock.plain -= count
        lock.published += count
        fresh = [key for key in keys if key not in self._cached]
        self._cached.update(zip(keys, copies, strict=True))
        self._watchers.published(fresh)

    def unlock(self, lock: CopyLock) -> None:
        self._let_go(lock, 0)

    def bury(self, lock: CopyLock, blocks: int, keys: Callable[[], Sequence[int]]) -> None:
        """`keys` are not needed: what nobody asks for is only counted."""
        if blocks > lock.plain:
            raise ValueError(f"{blocks} blocks are to be buried, {lock.plain} are held without content")
        lock.plain -= blocks
        self._let_go(lock, blocks)

    def _let_go(self, lock: CopyLock, buried: int) -> None:
        self.settle()  # what was taken before is not taken from what is let go now
        self._locks.remove(lock)
        users, idle = self._users, self._idle
        before = len(users)
        if lock.plain:
            self._join(lock.plain)
        if buried:
            self._join(buried)
        for copy in reversed(lock.copies):
            others = users[copy] - 1
            if others:
                users[copy] = others
            else:
                del users[copy]
                idle[copy] = 1
        self._free += lock.plain + buried + before - len(users)

    def evict(self, blocks: int) -> int:
        self.settle()
        copies: list[int] = []
        for copy in self._idle:
            if len(copies) >= blocks:
                break
            if copy > 0:
                copies.append(copy)
        for copy in copies:
            del self._idle[copy]
            self._forget(copy)
        if copies:
            self._blank(len(copies))
        return len(copies)

    def settle(self) -> None:
        owed, idle = self._owed, self._idle
        if not owed:
            return
        self._owed = 0
        while owed:
            entry, blocks = idle.popitem(last=False)
            if entry > 0:
                self._forget(entry)
            elif blocks > owed:
                self._blank(blocks - owed)
                return
            owed -= blocks

    def check(self) -> None:
        self.settle()
        plain = sum(lock.plain for lock in self._locks) + self._unclaimed
        if sum(self._idle.values()) != self._free or self._free + len(self._users) + plain != self._total:
            raise InvariantError(
                f"KV blocks: {self._free} free ({sum(self._idle.values())} listed)"
                f" + {len(self._users)} shared + {plain} plain != {self._total}"
            )
        held = Counter(copy for lock in self._locks for copy in lock.copies)
        if held != self._users or any(len(lock.copies) != lock.published for lock in self._locks):
            raise InvariantError("KV blocks: references are not what the locks hold")
        if {copy for copy in self._idle if copy > 0} | self._users.keys() != self._content.keys():
            raise InvariantError("KV blocks: a copy is neither held nor free, or both")
        if any(self._content.get(copy) != key for key, copy in self._cached.items()):
            raise InvariantError("KV blocks: the index is not what the copies say")

    def _forget(self, copy: int) -> None:
        """`copy` has left the free list and loses its content, and its prefix is forgotten, whoever answers for it."""
        key = self._content.pop(copy)
        if self._cached.pop(key, None) is not None:
            self._watchers.evicted((key,))

    def _join(self, blocks: int) -> int:
        """So many blocks join the end of the free list whose content nobody knows. Returns the name of their extent."""
        self._serial += 1
        self._idle[-self._serial] = blocks
        return -self._serial

    def _blank(self, blocks: int) -> None:
        """Likewise, and they are the next to go."""
        self._idle.move_to_end(self._join(blocks), last=False)
