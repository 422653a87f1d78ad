"""Prefix keys: the content of prompts as far as a workload knows it, at the block size of a prefix cache.

`PrefixKeys` (`maitred.core.request`) gives one key per full block of a prompt; two prompts share a prefix as long as their keys
are equal. Each class here computes the keys from the facts of one kind of source:

    ChainedBlockIds    a trace with chained block ids: an id stands for its block and all blocks before it
    UnchainedBlockIds  a trace with ids that stand for the content of one block; chained here
    GroupPrefixKeys    a trace that says how many tokens a prompt shares with the others of its group
    ConversationKeys   a trace that says which prompts belong to one conversation and contain its history
    PieceChain         a generated prompt: shared prefix, earlier rounds, new tokens

The keys of a generated prompt are counted, not hashed: the key of block b of a piece is number · 2²⁸ + b. Chained ids of large
blocks split into the keys of smaller blocks by arithmetic too. Example: id 7 of a block of 512 tokens gives, for blocks of 256
tokens, the keys 14 and 15; equal chains of ids give equal chains of keys.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from hashlib import blake2b
from itertools import accumulate
from math import gcd
from typing import Final, NamedTuple, TypeAlias

import msgspec

from maitred.core.errors import ConfigError
from maitred.core.request import PrefixKeys
from maitred.kv.key_ranges import counted_keys, expand_keys, join_keys

_BLOCKS_PER_NUMBER: Final = 1 << 28
"""Keys reserved for each number (of a piece, a request or a conversation): more than `MAX_TOKENS` tokens have blocks."""


class ChainedBlockIds(msgspec.Struct, frozen=True, gc=False):
    """The chained block ids of a prompt of `tokens` tokens."""

    ids: Sequence[int]
    """With `KeyRanges` the keys are ranges, too, unless blocks are larger than `block_tokens`."""
    tokens: int
    block_tokens: int
    """Tokens that one id stands for; the last block may be partial."""

    def block_keys(self, block_size: int) -> Sequence[int]:
        """Return a key per full block. Raises ConfigError unless `block_size` divides `block_tokens` or is a multiple of it."""
        if block_size >= 1 and block_size % self.block_tokens == 0:
            ids_per_block = block_size // self.block_tokens
            # The last id of each larger block stands for all before it.
            return self.ids[ids_per_block - 1 : self.tokens // self.block_tokens : ids_per_block]
        if block_size < 1 or self.block_tokens % block_size:
            raise ConfigError(
                f"a block size of {block_size} cannot hold prefixes recorded in blocks of {self.block_tokens} tokens",
                where="--block-size-in-tokens",
                hint=f"use a divisor of {self.block_tokens}, such as {gcd(self.block_tokens, 16)}, or a multiple of it",
            )
        parts = self.block_tokens // block_size
        return expand_keys(self.ids, parts, self.tokens // block_size)


class UnchainedBlockIds(msgspec.Struct, frozen=True, gc=False):
    """Block ids that stand for the content of one block alone, wherever it occurs."""

    ids: Sequence[int]
    tokens: int
    block_tokens: int

    def block_keys(self, block_size: int) -> Sequence[int]:
        """Return one key per full block, as `ChainedBlockIds.block_keys` does."""
        return self.chained().block_keys(block_size)

    def chained(self) -> ChainedBlockIds:
        """Return the same content with ids that stand for a block and all blocks before it."""
        chained = list(accumulate(self.ids, _chain_hash, initial=0))[1:]
        return ChainedBlockIds(chained, self.tokens, self.block_tokens)


def _chain_hash(parent: int, content: int) -> int:
    """Return the hash of a block and its predecessors. Hashes of ints are the same in every process."""
    return hash((parent, content))


def group_number(*names: str) -> int:
    """Return a number for the group with these names. It is the same in every process; two groups have the same number with a
    probability of 2⁻⁶⁰."""
    return int.from_bytes(blake2b("\0".join(names).encode("utf-8", "surrogateescape"), digest_size=8).digest()) >> 2


class GroupPrefixKeys(msgspec.Struct, frozen=True, gc=False):
    """A prompt that begins with `shared_tokens` tokens of a group and continues with tokens of its own.

    A block is shared if it lies completely within the shared tokens. The block in which they end is the request's own (BLIS).
    """

    group: int
    """The `group_number`, or 0 if nothing is shared."""
    shared_tokens: int
    owner: int
    """A number of 0 or more that no other request has."""
    tokens: int
    """Tokens of the prompt, or of prompt and answer."""

    def block_keys(self, block_size: int) -> Sequence[int]:
        """Return one key per full block: hashes of ints for shared blocks, counted keys for the others."""
        group, shared_blocks = self.group, self.shared_tokens // block_size
        keys = [hash((group, block)) for block in range(shared_blocks)]
        first = self.owner * _BLOCKS_PER_NUMBER + shared_blocks
        keys.extend(range(first, first + self.tokens // block_size - shared_blocks))
        return keys


class ConversationKeys(msgspec.Struct, frozen=True, gc=False):
    """A prompt that contains the earlier rounds of its conversation, prompts and answers, and new tokens."""

    number: int
    """The number of the conversation, 0 or more; no other conversation has it."""
    tokens: int
    head: PrefixKeys | None = None
    """The beginning of the conversation, if other conversations may begin with it too."""

    def block_keys(self, block_size: int) -> Sequence[int]:
        """Return one key per full block."""
        head = self.head.block_keys(block_size) if self.head else ()
        first = self.number * _BLOCKS_PER_NUMBER
        own = counted_keys([range(first + len(head), first + self.tokens // block_size)], self.tokens // block_size)
        return join_keys([head, own]) if head else own


Piece: TypeAlias = tuple[int, int]
"""The number of a piece of text, and the token before which the piece ends in its prompt."""


class PieceChain(msgspec.Struct, frozen=True, gc=False):
    """A generated prompt as a chain of pieces: the shared prefix of its group, the earlier rounds of its session, new tokens.

    Every piece has a number of its own, so two prompts are equal as far as their pieces are. A block belongs to the piece that
    holds its last token.

    Example with blocks of 16 tokens: piece 0 ends before token 40 and piece 7 before token 100. Piece 0 has the blocks 0 and 1,
    and piece 7 the blocks 2 to 5. Block 2 begins with 8 tokens of piece 0, but ends in piece 7.
    """

    pieces: tuple[Piece, ...]

    @property
    def tokens(self) -> int:
        """Tokens of all pieces."""
        return self.pieces[-1][1] if self.pieces else 0

    @property
    def shared_piece(self) -> Piece | None:
        """The shared prefix with which the prompt begins (`sessions.PieceNumbers`: an even number), or None."""
        first = self.pieces[0] if self.pieces else (1, 0)
        return None if first[0] % 2 or not first[1] else first

    def append(self, number: int, tokens: int) -> PieceChain:
        """Return this chain followed by a piece of `tokens` tokens."""
        return PieceChain((*self.pieces, (number, self.tokens + tokens)))

    def extend_last(self, tokens: int) -> PieceChain:
        """Return this chain with `tokens` more tokens in its last piece."""
        number, end = self.pieces[-1]
        return PieceChain((*self.pieces[:-1], (number, end + tokens)))

    def resized(self, tokens: int) -> PieceChain:
        """Return this chain with `tokens` tokens: with more or fewer in its last piece, or with less of what is before it."""
        before = tuple((number, min(end, tokens)) for number, end in self.pieces[:-1])
        return PieceChain((*before, (self.pieces[-1][0], tokens)))

    def block_keys(self, block_size: int) -> Sequence[int]:
        """Return one key per full block."""
        keys, start = list[range](), 0
        for number, end in self.pieces:
            # Blocks count from the start of the prompt and not of the piece: the KV of a text depends on all that is before it.
            first = number * _BLOCKS_PER_NUMBER
            keys.append(range(first + start // block_size, first + end // block_size))
            start = end
        return counted_keys(keys, start // block_size)


Pieces: TypeAlias = tuple[tuple[Hashable, int], ...]
"""A prompt as pieces of text: what names each piece, and the token before which the piece ends."""


def pieces_of(prefix: PrefixKeys | None) -> Pieces | None:
    """Return the pieces of a prompt, without empty ones, or None if nothing, or no more than the ids of its blocks, is known of
    its content."""
    if isinstance(prefix, PieceChain):
        starts = (0, *(end for _, end in prefix.pieces))
        return tuple(piece for piece, start in zip(prefix.pieces, starts, strict=False) if piece[1] > start)
    if isinstance(prefix, GroupPrefixKeys):
        shared = ((("group", prefix.group), prefix.shared_tokens),) if prefix.shared_tokens else ()
        return (*shared, (("own", prefix.owner), prefix.tokens)) if prefix.tokens > prefix.shared_tokens else shared
    if isinstance(prefix, ConversationKeys) and prefix.head is None:
        return ((("conversation", prefix.number), prefix.tokens),)
    return None


class SharedBeginning(NamedTuple):
    """The prefix of a group with which a prompt begins."""

    group: str
    """A name that no other group of the workload has; empty if nothing is shared."""
    tokens: int


def shared_beginning(prefix: PrefixKeys | None) -> SharedBeginning:
    """Return the prefix of a group with which a prompt begins; one of 0 tokens if there is none."""
    if isinstance(prefix, GroupPrefixKeys) and prefix.shared_tokens:
        return SharedBeginning(f"g{prefix.group}", prefix.shared_tokens)
    if isinstance(prefix, PieceChain) and prefix.shared_piece:
        return SharedBeginning(f"g{prefix.shared_piece[0]}", prefix.shared_piece[1])
    return SharedBeginning("", 0)


def goes_on(prompt: Pieces, earlier: Pieces) -> bool:
    """Return whether a prompt goes on with an earlier conversation: it begins with all of it, of which the last piece may have
    grown, or it ends within that piece."""
    at = len(earlier) - 1
    if len(prompt) <= at or prompt[:at] != earlier[:at] or prompt[at][0] != earlier[at][0]:
        return False
    return prompt[at][1] >= earlier[at][1] or len(prompt) == at + 1


NO_PIECES: Final = PieceChain(())
