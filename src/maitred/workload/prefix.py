"""Prefix keys from what a trace says of the content of its prompts, at the block size of whichever cache asks.

`BlockIds`: it carries block ids that are chained: an id stands for its block and everything before it. So an id of a large
block splits into the keys of its small ones by arithmetic, without hashing, and equal chains give equal keys. `ContentIds`: its
ids stand for a block's own tokens, and are chained here. `GroupPrefix`: it says how many tokens a prompt shares with others of
its group. `Conversation`: it says which prompts belong together, each of which begins with all that was said before.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from itertools import accumulate

import msgspec

from maitred.errors import ConfigError
from maitred.request import PrefixKeys


class BlockIds(msgspec.Struct, frozen=True, gc=False):
    """`PrefixKeys`: the chained block ids of a prompt of `tokens` tokens; expanded when a cache asks."""

    ids: Sequence[int]
    tokens: int
    block: int
    """Tokens that one id stands for; the last block may be partial."""

    def keys(self, block_size: int) -> Sequence[int]:
        """One key per full block of `block_size` tokens. Raises ConfigError if it neither divides `block` nor is a multiple."""
        if block_size >= 1 and block_size % self.block == 0:
            of_each = block_size // self.block
            return self.ids[of_each - 1 : self.tokens // self.block : of_each]
        if block_size < 1 or self.block % block_size:
            hint = f"use a divisor of {self.block}, such as 16, or a multiple of it"
            raise ConfigError(
                f"a block size of {block_size} cannot hold prefixes recorded in blocks of {self.block} tokens",
                where="--block-size-in-tokens",
                hint=hint,
            )
        parts = self.block // block_size
        expanded = [key for block in self.ids for key in range(block * parts, block * parts + parts)]
        del expanded[self.tokens // block_size :]
        return expanded


class ContentIds(msgspec.Struct, frozen=True, gc=False):
    """`PrefixKeys` from ids that stand for the content of a block alone, wherever it occurs; chained when a cache asks."""

    ids: Sequence[int]
    tokens: int
    block: int

    def keys(self, block_size: int) -> Sequence[int]:
        """As `BlockIds.keys`."""
        return BlockIds(list(accumulate(self.ids, _follow, initial=0))[1:], self.tokens, self.block).keys(block_size)


def _follow(parent: int, content: int) -> int:
    """Of ints alone, so it is the same in every process."""
    return hash((parent, content))


_ROOM = 1 << 28
"""Keys that each number has for its blocks: more than a prompt has tokens."""


def group_number(*names: str) -> int:
    """A number for the group of these names: the same in every process, another one for other names (within 2⁻⁶⁰)."""
    return int.from_bytes(blake2b("\0".join(names).encode("utf-8", "surrogateescape"), digest_size=8).digest()) >> 2


class GroupPrefix(msgspec.Struct, frozen=True, gc=False):
    """`PrefixKeys` of a prompt that begins with `shared` tokens of a group and goes on with tokens that are its own.

    A block is shared if it lies wholly within the shared tokens; the one in which they end is the request's own (BLIS).
    """

    group: int
    """`group_number`, or 0 where nothing is shared."""
    shared: int
    """Tokens."""
    own: int
    """A number of 0 or more that no other request has."""
    tokens: int
    """The whole prompt, or prompt and answer."""

    def keys(self, block_size: int) -> Sequence[int]:
        """One key per full block. Group keys are hashes of ints (the same in every process), own ones are counted up."""
        group, common = self.group, self.shared // block_size
        keys = [hash((group, block)) for block in range(common)]
        first = self.own * _ROOM + common
        keys.extend(range(first, first + self.tokens // block_size - common))
        return keys


class Conversation(msgspec.Struct, frozen=True, gc=False):
    """`PrefixKeys` of a turn whose prompt is all that was said in the turns before, and something new."""

    number: int
    """Of the conversation: 0 or more, and no other has it."""
    tokens: int
    head: PrefixKeys | None = None
    """How the conversation began, where others may have begun so too."""

    def keys(self, block_size: int) -> Sequence[int]:
        keys = list(self.head.keys(block_size)) if self.head else []
        first = self.number * _ROOM
        keys.extend(range(first + len(keys), first + self.tokens // block_size))
        return keys
