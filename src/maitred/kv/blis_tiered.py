"""TieredBlocks: KV blocks by BLIS's rules, with main memory as a second tier (`HostMemory`).

Whoever wants blocks for its prompt first fetches those that the GPU has no more: each takes the free block that is next to go,
and becomes the last to go. Then, by BLIS's rules, which are not those of a real engine:

* What is fetched is held at once. If the rest does not fit, the sequence waits on with what it holds.
* What is fetched for a step is computed in it all the same; only who had to wait finds it done.
* Nobody looks whom a fetched block replaces. If it is another one of this prompt nothing is gained, and the sequence holds
  what was found by its places, whatever is in them by now.
* A chunk that ends within a fetched block holds it as a whole, and the next one goes on in another block.

So a sequence may have room for other tokens than those it has computed: `Seq.borrowed` says how many it lacks, negative if it
has too many. What it then computes goes astray: such blocks have keys of their own, which only who goes the same way can find.

Those who wait may hold so much together that none can enter, while nobody runs who could give any back; or that whoever runs
alone gives way again and again. BLIS goes on like that for ever. Here they let go of what they hold: at once if nobody runs,
and if somebody runs alone and lacks blocks for the second time while nobody has left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from maitred.kv.blis import BlisBlocks
from maitred.kv.blis_pool import BlisPool, CopyLock
from maitred.kv.finds import Found
from maitred.kv.host import HostMemory
from maitred.request import RequestId
from maitred.seq import Seq
from maitred.units import Micros

_ASTRAY = 0x617374726179
"""Marks the keys of what has gone astray."""


class TieredBlocks(BlisBlocks):
    """The KV blocks of one instance and its main memory."""

    __slots__ = ("_bare", "_host", "_own", "_pressed", "_waiting")

    def __init__(self, cache: BlisPool, host: HostMemory) -> None:
        super().__init__(cache)
        self._host = host
        self._own: dict[RequestId, int] = {}
        """Tokens for which those who prefill, or wait and hold blocks, have room."""
        self._waiting: dict[RequestId, Seq] = {}
        """Who waits and holds blocks."""
        self._pressed = False
        """One who ran alone has lacked blocks that others held who waited, and nobody has left since."""
        self._bare: set[RequestId] = set()
        """Who has entered and holds nothing yet."""

    @property
    def fetched(self) -> int:
        """Blocks that came from main memory so far."""
        return self._host.fetched

    @property
    def restless(self) -> bool:
        return bool(self._bare)

    def enter(self, seq: Seq, found: Found, tokens: int) -> bool:
        number, end = seq.request.id, found.tokens + tokens
        if not self._allocate(seq, found.tokens, end, self._pool.copies(self._prompt(seq))):
            if self._own.get(number):
                self._waiting[number] = seq
            return False
        self._waiting.pop(number, None)
        if not self._own[number]:
            self._bare.add(number)
        if not seq.preemptions:
            seq.cached = found.tokens
        self._goes_on(seq, end)
        return True

    def grow(self, seq: Seq, start: int, tokens: int) -> bool:
        grown = self._allocate(seq, start, start + tokens, ())
        self._goes_on(seq, start + tokens if grown else start)
        return grown

    def open_for(self, seq: Seq, tokens: int) -> bool:
        if not tokens:
            self._fetch(seq, 0)
        opened = super().open_for(seq, tokens)
        if opened:
            self._bare.discard(seq.request.id)
        return opened

    def yield_held(self) -> bool:
        waiting = list(self._waiting.values())
        for seq in waiting:
            self._stop_waiting(seq)
        return bool(waiting)

    def relieved(self) -> bool:
        again, self._pressed = self._pressed, bool(self._waiting)
        return again and self.yield_held()

    def over(self, running: Iterable[tuple[Seq, int]]) -> None:
        for seq, tokens in running:
            self._host.copy(self._keys(seq, tokens))

    def charge(self) -> Micros:
        return self._host.charge()

    def forget(self, seq: Seq) -> None:
        self._pressed = False
        if seq.request.id in self._waiting:
            self._stop_waiting(seq)
        super().forget(seq)

    def check(self, held: int) -> None:
        super().check(held + sum(self._own[number] // self.block_size for number in self._waiting))

    def _named(self, seq: Seq) -> bool:
        return super()._named(seq) and self._last(seq) == self._before(seq, len(self._copies(seq)))

    def _let_go(self, seq: Seq, tokens: int, opened: int) -> None:
        super()._let_go(seq, tokens, opened)
        del self._own[seq.request.id]
        self._bare.discard(seq.request.id)

    def _stop_waiting(self, seq: Seq) -> None:
        del self._waiting[seq.request.id]
        self._let_go(seq, self._own[seq.request.id], 0)

    def _allocate(self, seq: Seq, start: int, end: int, found: Sequence[int]) -> bool:
        """Room for the tokens of its prompt from `start` to before `end`, if there is any; `found` are the copies of the blocks
        before `start`, if it enters."""
        begun = seq.request.id in self._own
        moved = self._fetch(seq, len(found))
        if not moved:
            return self._compute(seq, start, end, found)
        copies = self._pool.copies(self._prompt(seq))
        reach = len(copies) * self.block_size
        if reach <= start:
            return self._compute(seq, start, end, [moved.get(copy, copy) for copy in found])
        self._hold(seq, copies[self.blocks(start) if begun else 0 : self.blocks(end)])
        return reach >= end or self._compute(seq, reach, end, copies)

    def _fetch(self, seq: Seq, found: int) -> dict[int, int]:
        """Fetch what the GPU lacks of its prompt, after the first `found` blocks and those that it holds. Returns the copies
        that were made, by those that they have replaced."""
        cache, size, moved = self._pool, self.block_size, dict[int, int]()
        room, own = cache.free, self._own.get(seq.request.id, 0)
        first, key = found, self._before(seq, found)
        if self.blocks(own) > found:
            first, key = self.blocks(own), 0 if own % size else self._last(seq)
        for start in range(first * size, seq.request.prompt_tokens - size + 1, size):
            key = self._key(seq, key, start)
            if cache.holds(key):
                continue
            if not room or key not in self._host:
                break
            room -= 1
            self._host.fetch(key)
            replaced, copy = cache.refill(key)
            moved[replaced] = copy
        return moved

    def _compute(self, seq: Seq, start: int, end: int, found: Sequence[int]) -> bool:
        """Likewise, without what could be fetched."""
        own = self._own.get(seq.request.id)
        needed = self.blocks(max(0, end - start - -(own or 0) % self.block_size))
        if needed + self._pool.unheld(found) > self.free:
            return False
        if own is None:
            self._hold(seq, found if end > start else ())
        self._fill_up(seq, start, end)
        return True

    def _hold(self, seq: Seq, copies: Sequence[int]) -> None:
        content = self._content(seq)
        lock = content.lock
        if not isinstance(lock, CopyLock):
            lock = content.lock = self._pool.lock(())
        self._pool.hold(lock, copies)
        self.free = self._pool.free
        number = seq.request.id
        self._own[number] = self._own.get(number, 0) + len(copies) * self.block_size

    def _fill_up(self, seq: Seq, start: int, end: int) -> None:
        """The tokens from `start` to before `end` go behind what it holds, block by block as in `_fill`."""
        size, own, content = self.block_size, self._own[seq.request.id], self._content(seq)
        total = self._own[seq.request.id] = own + end - start
        for held in range(self.blocks(own), self.blocks(total) + 1):
            if held > self.blocks(own):
                self.take(1)
            lock = self._claimed(content, held)
            assert isinstance(lock, CopyLock)
            full = lock.published * size
            if lock.plain and total >= full + size:
                self._pool.publish(lock, (self._key(seq, self._last(seq), full + start - own),))
                self.free = self._pool.free

    def _goes_on(self, seq: Seq, computed: int) -> None:
        """`computed` tokens will be computed when the step is over."""
        seq.borrowed = computed - self._own[seq.request.id]

    def _key(self, seq: Seq, before: int, start: int) -> int:
        """Of a block with the tokens of its prompt from `start` on, behind one of key `before` (0: none)."""
        place, rest = divmod(start, self.block_size)
        if rest:
            return hash((_ASTRAY, before, seq.order, start))
        key = self._prompt(seq)[place]
        return key if before == self._before(seq, place) else hash((_ASTRAY, before, key))

    def _before(self, seq: Seq, place: int) -> int:
        """The key of the block before `place` in its prompt; 0: none."""
        return self._content(seq).chain[place - 1] if place else 0

    def _last(self, seq: Seq) -> int:
        """The key of the last of its blocks that say something; 0: none."""
        copies = self._copies(seq)
        return self._pool.said(copies[-1:])[0] if copies else 0

    def _copies(self, seq: Seq) -> Sequence[int]:
        lock = self._content(seq).lock
        return lock.copies if isinstance(lock, CopyLock) else ()

    def _keys(self, seq: Seq, tokens: int) -> list[int]:
        """Of the full blocks of `seq`, which owns `tokens` tokens."""
        keys, full = self._pool.said(self._copies(seq)), tokens // self.block_size
        if len(keys) == full:
            return keys
        if self._named(seq):
            return keys + self._whole(seq, full)[len(keys) : full]
        return keys + [hash((_ASTRAY, self._last(seq), seq.order, place)) for place in range(len(keys), full)]
