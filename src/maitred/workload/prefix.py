"""Prefix keys from a trace that carries block ids, at the block size of whichever cache asks.

The ids of such a trace are chained: an id stands for its block and everything before it. So an id of a large block splits
into the keys of its small ones by arithmetic, without hashing, and equal chains give equal keys.
"""

from __future__ import annotations

from collections.abc import Sequence

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
