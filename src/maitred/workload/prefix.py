"""Prefix keys from what a trace says of the content of its prompts, at the block size of whichever cache asks.

`BlockIds`: it carries block ids. `GroupPrefix`: it says how many tokens a prompt shares with others of its group.

The ids of such a trace are chained: an id stands for its block and everything before it. So an id of a large block splits
into the keys of its small ones by arithmetic, without hashing, and equal chains give equal keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from maitred.errors import ConfigError


class BlockIds(msgspec.Struct, frozen=True, gc=False):
    """`PrefixKeys`: the chained block ids of a prompt of `tokens` tokens; expanded when a cache asks."""

    ids: tuple[int, ...]
    tokens: int
    block: int
    """Tokens that one id stands for; the last block may be partial."""

    def keys(self, block_size: int) -> Sequence[int]:
        """One key per full block of `block_size` tokens. Raises ConfigError unless it divides `block`."""
        if block_size < 1 or self.block % block_size:
            hint = f"use a divisor of {self.block}, such as 16"
            raise ConfigError(
                f"a block size of {block_size} cannot hold prefixes recorded in blocks of {self.block} tokens",
                where="--block-size-in-tokens",
                hint=hint,
            )
        parts = self.block // block_size
        expanded = [key for block in self.ids for key in range(block * parts, block * parts + parts)]
        del expanded[self.tokens // block_size :]
        return expanded


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
