"""BlockPool: KV memory in fixed blocks, remembered block by block. The semantic twin of vLLM's block pool and of BLIS's.

A block that is let go keeps its content and joins the end of the free list, a sequence's last block first; new blocks come
from its head, and lose what they still said. So what was used longest ago goes first, and of a sequence its end goes before
its beginning. A cached block that somebody asks for again leaves the free list, whoever used it before. A block without
content goes first of all, since nothing is lost with it (`Blanks`).

Only content makes a block worth telling from another. A *copy* is a block whose content is known, named by a serial number;
the others are only counted, so the free list holds copies and *extents* of blank blocks, and a sequence that decodes for an
hour costs no more than one that ends at once:

    free list:  [12 blank] [copy 17] [copy 16] [copy 42] ...
                 next to go                 last let go

Two sequences may compute the same prefix at the same time; then there are two copies of it, and the first published answers
for both until it is evicted. (BLIS lets the last one answer, and forgets the prefix with either.)
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from enum import Enum

import msgspec

from maitred.contracts import PrefixWatcher
from maitred.errors import InvariantError
from maitred.kv.cache import Lock, PrefixCache, Watchers


class Blanks(Enum):
    """When blocks that are let go without content are used again."""

    FIRST = "before all others"
    """As vLLM does (0.32, by its recorded schedules)."""
    IN_TURN = "like any other"
    """As BLIS does."""


class BlockLock(Lock, eq=False):
    copies: list[int] = msgspec.field(default_factory=list)
    """The published blocks, first block first."""


class BlockPool(PrefixCache[BlockLock]):
    """The KV blocks of one instance. See `PrefixCache`."""

    def __init__(self, total: int, block_size: int, blanks: Blanks = Blanks.FIRST) -> None:
        """Raises ValueError unless both are at least 1 (`block_size` in tokens)."""
        if total < 1 or block_size < 1:
            raise ValueError("a pool has at least one block of at least one token")
        self._total = total
        self._block_size = block_size
        self._blanks = blanks
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
        self._others: dict[int, list[int]] = {}
        """key -> its further copies, in the order in which they were published"""
        self._users: dict[int, int] = {}
        """copy -> how many locks hold it; those in the free list are left out"""
        self._locks: set[BlockLock] = set()
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
        users = self._users
        return sum([copy not in users for copy in self._copies(chain)])

    def touch(self, chain: Sequence[int]) -> int:
        copies = self._copies(chain)
        for copy in reversed(copies):
            if copy not in self._users:
                self._idle.move_to_end(copy)
        return len(copies)

    def lock(self, chain: Sequence[int], *, priority: float = 0.0) -> BlockLock:
        copies, users, idle = self._copies(chain), self._users, self._idle
        for copy in copies:
            if copy in users:
                users[copy] += 1
            else:
                users[copy] = 1
                del idle[copy]
                self._free -= 1
        lock = BlockLock(len(copies), 0, copies)
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
        copies = range(self._serial + 1, self._serial + 1 + count)
        self._serial += count
        self._content.update(zip(copies, keys, strict=True))
        self._users.update(dict.fromkeys(copies, 1))
        lock.copies.extend(copies)
        lock.plain -= count
        lock.published += count
        self._watchers.published(self._answer(copies, keys))

    def unlock(self, lock: BlockLock) -> None:
        self._let_go(lock, 0)

    def bury(self, lock: BlockLock, blocks: int, keys: Callable[[], Sequence[int]]) -> None:
        """`keys` are not needed: what nobody asks for is only counted."""
        if blocks > lock.plain:
            raise ValueError(f"{blocks} blocks are to be buried, {lock.plain} are held without content")
        lock.plain -= blocks
        self._let_go(lock, blocks)

    def _let_go(self, lock: BlockLock, buried: int) -> None:
        self.settle()  # what was taken before is not taken from what is let go now
        self._locks.remove(lock)
        users, idle = self._users, self._idle
        before = len(users)
        if lock.plain:
            self._blank(lock.plain, last=self._blanks is Blanks.IN_TURN)
        if buried:
            self._blank(buried, last=True)
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
        self._check_index()

    def _check_index(self) -> None:
        answering = [(key, copy) for key, copy in self._cached.items()]
        answering += [(key, copy) for key, copies in self._others.items() for copy in copies]
        if sorted(answering) != sorted((key, copy) for copy, key in self._content.items()):
            raise InvariantError("KV blocks: the index is not what the copies say")

    def _copies(self, chain: Sequence[int]) -> list[int]:
        """The copies that answer for the cached prefix of `chain`."""
        cached = self._cached
        return [cached[key] for key in chain[: self.cached(chain)]]

    def _answer(self, copies: Sequence[int], keys: Sequence[int]) -> Sequence[int]:
        """`copies` of `keys` are there now. Returns the keys that had none before."""
        cached, distinct = self._cached, set(keys)
        if len(distinct) == len(keys) and cached.keys().isdisjoint(distinct):
            cached.update(zip(keys, copies, strict=True))
            return keys
        fresh = []
        for copy, key in zip(copies, keys, strict=True):
            if cached.setdefault(key, copy) == copy:
                fresh.append(key)
            else:
                self._others.setdefault(key, []).append(copy)
        return fresh

    def _forget(self, copy: int) -> None:
        """`copy` has left the free list and loses its content."""
        key = self._content.pop(copy)
        others = self._others.get(key)
        if others is None:
            del self._cached[key]
            self._watchers.evicted((key,))
            return
        if self._cached[key] == copy:
            self._cached[key] = others.pop(0)
        else:
            others.remove(copy)
        if not others:
            del self._others[key]

    def _blank(self, blocks: int, *, last: bool = False) -> None:
        """So many blocks join the free list whose content nobody knows."""
        self._serial += 1
        self._idle[-self._serial] = blocks
        self._idle.move_to_end(-self._serial, last=last)
