"""PrefixedBlocks: block counts over a prefix cache.

A sequence that enters uses the leading blocks of its prompt that are cached, and computes the rest. Its blocks say what they
hold as soon as the step is formed that computes them, so that one admitted later in the same step may share them. What it
emits nobody else will ask for, as a rule, yet it fills blocks, which take their turn in eviction: they are buried when it
leaves. One that is preempted comes back for them, and finds them by keys of its own, as far as they are still there. And where
somebody will continue the conversation (`expect`), the answer's blocks are published as it leaves.
"""

from __future__ import annotations

from typing import Any

from maitred.errors import InvariantError
from maitred.kv.cache import Lock, PrefixCache
from maitred.kv.counts import BlockCounts
from maitred.kv.finds import NOTHING, Found
from maitred.kv.keys import chain_for, namespaced
from maitred.request import PrefixKeys, RequestId
from maitred.seq import Seq

_OWN = 0x6F776E
"""Marks the keys of what only its sequence knows. Hashes of ints are the same in every process."""


def own_keys(seq: Seq, first: int, end: int) -> list[int]:
    """Keys of its blocks from `first` to before `end`, which nobody else has."""
    return [hash((_OWN, seq.order, block)) for block in range(first, end)]


class Content:
    """What a sequence says, block by block."""

    returns: bool = False
    """It is about to leave, and will come back for what it has computed."""

    def __init__(self, chain: list[int]) -> None:
        self.chain = chain
        """Keys: of its prompt as far as it is known, and then its own, where they are needed."""
        self.known = len(chain)
        """How many of its prompt."""
        self.whole: PrefixKeys | None = None
        """What prompt and answer say together, for those who continue it; None: nobody will."""
        self.lock: Lock | None = None
        """While it is in the batch."""


class PrefixedBlocks(BlockCounts):
    """The KV blocks of one instance, in `cache`, which nobody else may change."""

    __slots__ = ("_contents", "_opened", "_unclaimed", "cache")

    def __init__(self, cache: PrefixCache[Any]) -> None:
        super().__init__(cache.total, cache.block_size)
        self.cache = cache
        self._contents: dict[RequestId, Content] = {}
        self._unclaimed = 0
        """Blocks that decoding sequences have opened and that are nobody's in particular yet."""
        self._opened = 0
        """Of these, the ones that are for the step about to be formed."""

    @property
    def free_so_far(self) -> int:
        return self.free + self._opened

    def take(self, blocks: int) -> None:
        self.cache.take(blocks)
        self._unclaimed += blocks
        self.free -= blocks

    def open_next(self) -> None:
        """Take now what the decoding sequences open in the next step: they come before those who wait, and evict first."""
        opened = self.opens(1) - self._opened
        self.take(opened)
        self._opened += opened

    def run(self, steps: int) -> None:
        opened = self.opens(steps) - self._opened
        self.free += self._opened
        super().run(steps)
        self.cache.take(opened)
        self._unclaimed += opened
        self._opened = 0

    def steps_free(self, limit: int) -> int:
        return self.steps_within(self.free + self._opened, limit)

    def expect(self, seq: Seq, whole: PrefixKeys) -> None:
        """What `seq` will have said in all: others may ask for it when it is over."""
        self._content(seq).whole = whole

    def find(self, seq: Seq) -> Found:
        """What is here already of `seq`, which wants to enter."""
        usable = (seq.target - 1) // self.block_size
        chain = self._whole(seq, usable) if seq.preemptions else self._content(seq).chain
        look = self.cache.look(chain[:usable])
        return Found(look.cached * self.block_size, look.idle) if look.cached else NOTHING

    def admit(self, seq: Seq, found: Found) -> None:
        """`seq` enters, and uses what was found."""
        content = self._content(seq)
        cached = content.chain[: found.tokens // self.block_size]
        content.lock = self.cache.lock(cached, priority=seq.request.priority)
        content.returns = False
        self.free -= found.idle
        if not seq.preemptions:
            seq.cached = found.tokens

    def fill(self, seq: Seq, tokens: int) -> None:
        """The first `tokens` tokens of `seq` are computed when this step is over; their blocks are taken."""
        content = self._content(seq)
        claimed = self._claimed(content, self.blocks(tokens))
        self._publish(claimed, content.chain[: min(tokens // self.block_size, content.known)])

    def returns(self, seq: Seq) -> None:
        """`seq` is about to leave and will come back: let it find what it has computed, if that is still here."""
        self._content(seq).returns = True

    def leave(self, seq: Seq, tokens: int) -> None:
        opened = 1 if self._opened and tokens % self.block_size == 0 else 0
        self._opened -= opened
        super().leave(seq, tokens)
        self._let_go(seq, tokens, opened)

    def give_back(self, seq: Seq, tokens: int) -> None:
        self._let_go(seq, tokens, 0)

    def _let_go(self, seq: Seq, tokens: int, opened: int) -> None:
        """It holds `tokens` tokens, and `opened` blocks more in which there is nothing yet."""
        content, full = self._content(seq), tokens // self.block_size
        lock, content.lock = self._claimed(content, self.blocks(tokens) + opened), None
        if content.returns or content.whole is not None:
            self._publish(lock, self._whole(seq, full)[:full])
            self.cache.unlock(lock)
        else:
            self._publish(lock, content.chain[: min(full, content.known)])
            first = lock.published
            self.cache.bury(lock, full - first, lambda: self._whole(seq, full)[first:full])
        self.free = self.cache.free

    def forget(self, seq: Seq) -> None:
        """`seq` will not come back."""
        self._contents.pop(seq.request.id, None)

    def settle(self) -> None:
        """Whoever looks at what is cached sees it as it is."""
        self.cache.settle()

    def steady(self, limit: int) -> int:
        """The most steps, from 1 to `limit`, that change nothing that a waiting sequence could find here."""
        return max(1, self.steps_within(self.cache.spare + self._opened, limit)) if self._decoders else limit

    def check(self, held: int) -> None:
        self.cache.check()
        locks = [content.lock for content in self._contents.values() if content.lock is not None]
        if held + self._opened != sum(lock.published + lock.plain for lock in locks) + self._unclaimed:
            raise InvariantError(f"KV blocks: sequences say {held}, their locks and {self._unclaimed} unclaimed differ")
        if self.free != self.cache.free or sum(self._opening) != self._decoders or min(self._opening) < 0:
            raise InvariantError(f"KV blocks: {self.free} free or {self._opening} open is not what the cache says")

    def _content(self, seq: Seq) -> Content:
        content = self._contents.get(seq.request.id)
        if content is None:
            content = self._contents[seq.request.id] = Content(list(chain_for(seq, self.cache)))
        return content

    def _whole(self, seq: Seq, blocks: int) -> list[int]:
        """At least the first `blocks` keys of what `seq` says; its own, where nobody knows others."""
        content = self._content(seq)
        chain = content.chain
        if content.whole is not None and len(chain) < blocks:
            keys = namespaced(content.whole.keys(self.block_size), seq.request.cache_namespace)
            chain.extend(keys[len(chain) : blocks])
        chain.extend(own_keys(seq, len(chain), blocks))
        return chain

    def _claimed(self, content: Content, blocks: int) -> Lock:
        """The lock, with `blocks` blocks."""
        lock = content.lock
        assert lock is not None
        missing = blocks - lock.published - lock.plain
        if missing > 0:
            self.cache.claim(lock, missing)
            self._unclaimed -= missing
        return lock

    def _publish(self, lock: Lock, chain: list[int]) -> None:
        if len(chain) > lock.published:
            self.cache.publish(lock, chain[lock.published :])
            self.free = self.cache.free  # a radix tree gives back what it had twice
