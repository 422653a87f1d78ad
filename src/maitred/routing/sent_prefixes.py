"""What was sent where: the prefixes that each instance has seen, and so about what its prefix cache holds.

No instance is asked what it has cached. For each one the hashes of the blocks of the prompts that went there are kept, at most
as many as its KV memory holds, the least recently sent forgotten first. That is about what its prefix cache holds. `most` says
another number; where neither is known, as in a simulation, it is 10,000.
Of a prompt that is longer than all that is remembered, the beginning is kept: its end alone would never be found.

    _holders[block]    a bit mask of the instances that were sent the block

A prompt is looked up once, and not in each instance: block by block, the instances drop out that were not sent the next one.
For example, if 0 and 1 were sent block A, and 1 was sent B too, the prompt A B C gives

    A: 0b11    B: 0b10, so instance 0 matched 1 block    C: 0b00, so instance 1 matched 2
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import chain, islice

from maitred.core.contracts import InstanceView
from maitred.core.errors import InvariantError
from maitred.core.request import Request
from maitred.kv.block_hashes import request_block_hashes
from maitred.routing.base import MAX_CHECKED

DEFAULT_BLOCK_TOKENS = 16
DEFAULT_MAX_BLOCKS = 10_000
"""Blocks that are remembered of an instance of which nobody says how much it holds (BLIS's number)."""
_LIMIT_BLOCKS = 1_000_000
"""Most blocks that are remembered of an instance because it says that it holds as many: a memory must be bounded."""


class SentPrefixes:
    """The prefixes that were sent to each instance."""

    def __init__(self, block: int, most: int | None) -> None:
        """`block` is in tokens, `most` is how many blocks are remembered of each instance; None: what it holds. Raises
        ValueError for less than 1 of either."""
        if block < 1 or (most is not None and most < 1):
            raise ValueError(f"block and most must be at least 1, not {block if most is None else min(block, most)}")
        self._block, self._most = block, most
        self._sent: dict[int, OrderedDict[int, None]] = {}
        """The block hashes that each instance was sent, by its index; the least recently sent first."""
        self._holders: dict[int, int] = {}
        """The instances that were sent a block, as bits."""

    def blocks_of(self, request: Request) -> Sequence[int]:
        """Return the hashes of all full blocks of the prompt; none if nothing is known of its content."""
        return request_block_hashes(request, self._block)

    def matched_blocks(self, block_hashes: Sequence[int]) -> dict[int, int]:
        """Return how many leading blocks were sent to each instance, by index; instances that were sent none are left out."""
        found: dict[int, int] = {}
        if not block_hashes:
            return found
        holders = self._holders
        matching = holders.get(block_hashes[0], 0)
        for count, block in enumerate(block_hashes):
            # One AND of integers for all instances together: the cost is that of the blocks, however many instances
            # there are.
            still_matching = matching & holders.get(block, 0)
            if still_matching != matching:
                found.update(dict.fromkeys(_set_bits(matching ^ still_matching), count))
                matching = still_matching
            if not matching:
                return found
        found.update(dict.fromkeys(_set_bits(matching), len(block_hashes)))
        return found

    def _max_blocks(self, view: InstanceView) -> int:
        """Return how many blocks are remembered of an instance."""
        if self._most is not None:
            return self._most
        tokens = view.kv_tokens
        return DEFAULT_MAX_BLOCKS if tokens is None else min(max(1, tokens // self._block), _LIMIT_BLOCKS)

    def note(self, block_hashes: Sequence[int], view: InstanceView) -> None:
        """Remember that a prompt of these blocks is sent to an instance."""
        instance, max_blocks = view.index, self._max_blocks(view)
        sent, bit, holders = self._sent.setdefault(instance, OrderedDict()), 1 << instance, self._holders
        while len(sent) > max_blocks:  # it has said that it holds fewer than was thought
            self._forget(sent.popitem(last=False)[0], bit)
        for block in block_hashes[:max_blocks]:
            if block in sent:
                sent.move_to_end(block)
                continue
            sent[block] = None
            holders[block] = holders.get(block, 0) | bit
            if len(sent) > max_blocks:
                self._forget(sent.popitem(last=False)[0], bit)

    def check(self) -> None:
        """Raise InvariantError if the two tables contradict each other, or more is remembered than may be."""
        most = _LIMIT_BLOCKS if self._most is None else self._most
        share = MAX_CHECKED // (2 * len(self._sent) or 1) + 1
        for instance, sent in self._sent.items():
            if len(sent) > most:
                raise InvariantError(f"instance {instance}: {len(sent)} blocks are remembered, and may be {most}")
            # The ends of the order: what has just been sent, and what is forgotten next.
            for block in chain(islice(sent, share), islice(reversed(sent), share)):
                if not self._holders.get(block, 0) >> instance & 1:
                    raise InvariantError(f"instance {instance} was sent block {block}, and is no holder of it")
        # From the end, because iterating from the beginning would skip the places of all blocks that were forgotten, which
        # takes 0.1 s after millions of them.
        looked_at = 0
        for block, holders in islice(reversed(self._holders.items()), MAX_CHECKED):
            if holders <= 0:
                raise InvariantError(f"block {block} has the holders {holders:b}")
            for instance in _set_bits(holders):
                if block not in self._sent.get(instance, ()):
                    raise InvariantError(f"instance {instance} is a holder of block {block}, and was not sent it")
                looked_at += 1
            if looked_at >= MAX_CHECKED:  # Each of many instances may hold a block.
                break
        if len(self._holders) > sum(map(len, self._sent.values())):
            raise InvariantError("blocks have holders that were sent to no instance")

    def _forget(self, block: int, bit: int) -> None:
        """Take one instance out of the holders of `block`."""
        others = self._holders[block] & ~bit
        if others:
            self._holders[block] = others
        else:
            del self._holders[block]


def _set_bits(mask: int) -> Iterator[int]:
    """Yield the positions of the bits that are set in `mask`."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
