"""Prefix keys from what a trace says of the content of its prompts, at the block size of whichever cache asks.

`ChainedBlockIds`: it carries block ids that are chained: an id stands for its block and everything before it. So an id of a
large
block splits into the keys of its small ones by arithmetic, without hashing, and equal chains give equal keys.
`UnchainedBlockIds`: its
ids stand for a block's own tokens, and are chained here. `GroupPrefixKeys`: it says how many tokens a prompt shares with
others of
its group. `ConversationKeys`: it says which prompts belong together, each of which begins with all that was said before.

What generated prompts hold: pieces of text, of which we know only which are the same.

A prompt is a chain of pieces: the shared prefix of its group, what earlier rounds of its session said, and its own. Each
piece has a number that no other piece has, so two prompts are alike as long as their pieces are, and a block belongs to the
piece in which its last token lies. Keys are counted up, not hashed:

    key of block b  =  number of its piece * 2²⁸ + b

Chains of block ids as ranges: the thousands of blocks of a long prompt in a handful of numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import Final, TypeAlias

import msgspec

from maitred.core.errors import ConfigError
from maitred.core.request import PrefixKeys


class ChainedBlockIds(msgspec.Struct, frozen=True, gc=False):
    """`PrefixKeys`: the chained block ids of a prompt of `tokens` tokens; expanded when a cache asks."""

    ids: Sequence[int]
    tokens: int
    block_tokens: int
    """Tokens that one id stands for; the last block may be partial."""

    def block_keys(self, block_size: int) -> Sequence[int]:
        """One key per full block of `block_size` tokens. Raises ConfigError if it neither divides `block` nor is a multiple."""
        if block_size >= 1 and block_size % self.block_tokens == 0:
            of_each = block_size // self.block_tokens
            return self.ids[of_each - 1 : self.tokens // self.block_tokens : of_each]
        if block_size < 1 or self.block_tokens % block_size:
            hint = f"use a divisor of {self.block_tokens}, such as 16, or a multiple of it"
            raise ConfigError(
                f"a block size of {block_size} cannot hold prefixes recorded in blocks of {self.block_tokens} tokens",
                where="--block-size-in-tokens",
                hint=hint,
            )
        parts = self.block_tokens // block_size
        expanded = [key for block in self.ids for key in range(block * parts, block * parts + parts)]
        del expanded[self.tokens // block_size :]
        return expanded


class UnchainedBlockIds(msgspec.Struct, frozen=True, gc=False):
    """`PrefixKeys` from ids that stand for the content of a block alone, wherever it occurs; chained when a cache asks."""

    ids: Sequence[int]
    tokens: int
    block_tokens: int

    def block_keys(self, block_size: int) -> Sequence[int]:
        """As `ChainedBlockIds.keys`."""
        return ChainedBlockIds(
            list(accumulate(self.ids, _chain_hash, initial=0))[1:], self.tokens, self.block_tokens
        ).block_keys(block_size)


def _chain_hash(parent: int, content: int) -> int:
    """Of ints alone, so it is the same in every process."""
    return hash((parent, content))


_BLOCKS_PER_OWNER = 1 << 28
"""Keys that each number has for its blocks: more than a prompt has tokens."""


def group_number(*names: str) -> int:
    """A number for the group of these names: the same in every process, another one for other names (within 2⁻⁶⁰)."""
    return int.from_bytes(blake2b("\0".join(names).encode("utf-8", "surrogateescape"), digest_size=8).digest()) >> 2


class GroupPrefixKeys(msgspec.Struct, frozen=True, gc=False):
    """`PrefixKeys` of a prompt that begins with `shared` tokens of a group and goes on with tokens that are its own.

    A block is shared if it lies wholly within the shared tokens; the one in which they end is the request's own (BLIS).
    """

    group: int
    """`group_number`, or 0 where nothing is shared."""
    shared_tokens: int
    """Tokens."""
    owner: int
    """A number of 0 or more that no other request has."""
    tokens: int
    """The whole prompt, or prompt and answer."""

    def block_keys(self, block_size: int) -> Sequence[int]:
        """One key per full block. Group keys are hashes of ints (the same in every process), own ones are counted up."""
        group, common = self.group, self.shared_tokens // block_size
        keys = [hash((group, block)) for block in range(common)]
        first = self.owner * _BLOCKS_PER_OWNER + common
        keys.extend(range(first, first + self.tokens // block_size - common))
        return keys


class ConversationKeys(msgspec.Struct, frozen=True, gc=False):
    """`PrefixKeys` of a turn whose prompt is all that was said in the turns before, and something new."""

    number: int
    """Of the conversation: 0 or more, and no other has it."""
    tokens: int
    head: PrefixKeys | None = None
    """How the conversation began, where others may have begun so too."""

    def block_keys(self, block_size: int) -> Sequence[int]:
        keys = list(self.head.block_keys(block_size)) if self.head else []
        first = self.number * _BLOCKS_PER_OWNER
        keys.extend(range(first + len(keys), first + self.tokens // block_size))
        return keys


_BLOCKS_PER_PIECE: Final = 1 << 28
"""Blocks that one prompt may have: more than `MAX_TOKENS` tokens."""

Pieces: TypeAlias = tuple[tuple[int, int], ...]
"""For each piece its number, and the token before which it ends."""


class PieceChain(msgspec.Struct, frozen=True, gc=False):
    """`PrefixKeys` of a chain of pieces."""

    pieces: Pieces

    @property
    def tokens(self) -> int:
        return self.pieces[-1][1] if self.pieces else 0

    @property
    def shared_piece(self) -> tuple[int, int] | None:
        """Of the shared prefix that it begins with (`sessions.PieceNumbers`), the number and the tokens; None: it has none."""
        first = self.pieces[0] if self.pieces else (1, 0)
        return None if first[0] % 2 or not first[1] else first

    def append(self, number: int, tokens: int) -> PieceChain:
        """This, and a piece of so many tokens after it."""
        return PieceChain((*self.pieces, (number, self.tokens + tokens)))

    def extend_last(self, tokens: int) -> PieceChain:
        """This, its last piece longer by so many tokens."""
        number, end = self.pieces[-1]
        return PieceChain((*self.pieces[:-1], (number, end + tokens)))

    def block_keys(self, block_size: int) -> Sequence[int]:
        """One key per full block."""
        keys: list[int] = []
        start = 0
        for number, end in self.pieces:
            first = number * _BLOCKS_PER_PIECE
            keys.extend(range(first + start // block_size, first + end // block_size))
            start = end
        return keys


NO_PIECES: Final = PieceChain(())


_IDS_PER_SESSION = 1 << 32


class BlockRanges(msgspec.Struct, frozen=True, gc=False):
    """Chained ids, each range from its first to its last, both included."""

    ranges: tuple[tuple[int, int], ...] = ()

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.ranges)

    def head(self, count: int) -> BlockRanges:
        """The first `count` of them, or all."""
        kept: list[tuple[int, int]] = []
        for first, last in self.ranges:
            if count <= 0:
                break
            kept.append((first, min(last, first + count - 1)))
            count -= last - first + 1
        return BlockRanges(tuple(kept))

    def append(self, ranges: Sequence[tuple[int, int]]) -> BlockRanges:
        return BlockRanges((*self.ranges, *ranges))


class SessionBlockIds(msgspec.Struct, frozen=True, gc=False):
    """`PrefixKeys` of a prompt of one session, written out when a cache asks."""

    blocks: BlockRanges
    tokens: int
    block_tokens: int
    """Tokens that one id stands for."""
    session: int
    """A number; ids of different sessions have nothing to do with each other."""

    def block_keys(self, block_size: int) -> Sequence[int]:
        """As `ChainedBlockIds.keys`."""
        base = self.session * _IDS_PER_SESSION
        ids = [base + block for first, last in self.blocks.ranges for block in range(first, last + 1)]
        return ChainedBlockIds(ids, self.tokens, self.block_tokens).block_keys(block_size)
