"""Block hashes: the names of the full blocks of a prompt in a prefix cache.

A hash stands for the whole prefix that ends in its block, so equal hashes mean equal prefixes, and one comparison of ints
replaces the comparison of all tokens before. A trace that carries block ids has such hashes already (`workload.shared_prefix`);
token ids are chained here: the hash of a block is made of that of the block before and of its own tokens. The namespace is
mixed in last.

Two different prefixes get the same hash with a chance of about n² / 2⁶² for n blocks: one in 46,000 for ten million.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

import msgspec

from maitred.core.contracts import PrefixCacheView
from maitred.core.request import Request
from maitred.core.sequence import SequenceState
from maitred.core.steps import Steps, run_at_once

BYTES_PER_TOKEN = 4
"""Bytes of UTF-8 text that count as a token, by the usual rule of thumb."""
_BLOCKS_IN_STEP = 1_024
"""Blocks that are hashed in a step: less than a millisecond."""


class PromptTokenIds(msgspec.Struct, frozen=True, gc=False):
    """`PrefixKeys` of a prompt with known tokens. They are chained when a cache asks."""

    tokens: tuple[int, ...]
    """Token ids, 0 or more each."""

    def block_keys(self, block_size: int) -> Sequence[int]:
        return extend_block_hashes((), self.tokens, block_size)


class PromptTextBytes(msgspec.Struct, frozen=True, gc=False):
    """`PrefixKeys` of a prompt of which only the text is known: `BYTES_PER_TOKEN` bytes of `text` count as a token."""

    text: bytes

    @property
    def tokens(self) -> int:
        return len(self.text) // BYTES_PER_TOKEN

    def block_keys(self, block_size: int) -> Sequence[int]:
        return run_at_once(hash_text_blocks(self.text, block_size))


def hash_text_blocks(text: bytes, block_size: int) -> Steps[list[int]]:
    """Return in steps the hashes of the full blocks of `text`, of `block_size * BYTES_PER_TOKEN` bytes each."""
    so_far, step, hashes = blake2b(digest_size=8), block_size * BYTES_PER_TOKEN, list[int]()
    for end in range(step, len(text) + 1, step):
        so_far.update(text[end - step : end])
        hashes.append(int.from_bytes(so_far.copy().digest()))
        if not len(hashes) % _BLOCKS_IN_STEP:
            yield
    return hashes


def extend_block_hashes(block_hashes: Sequence[int], tokens: Sequence[int], block_size: int) -> list[int]:
    """Return the hashes of the full blocks of `tokens`, which continue the prefix of the blocks `block_hashes`.

    So the hashes of an answer follow those of its prompt. They have no namespace. Raises ValueError unless `block_size` is at
    least 1.
    """
    if block_size < 1:
        raise ValueError("a block has at least one token")
    tokens = tuple(tokens)
    parent, hashes = block_hashes[-1] if block_hashes else 0, []
    for end in range(block_size, len(tokens) + 1, block_size):
        parent = hash((parent, tokens[end - block_size : end]))  # of ints alone, so it is the same in every process
        hashes.append(parent)
    return hashes


def request_block_hashes(request: Request, block_size: int) -> Sequence[int]:
    """Return the hashes of the full blocks of the prompt, in its namespace; none if nothing is known of its content."""
    if request.prefix is None:
        return ()
    return apply_namespace(request.prefix.block_keys(block_size), request.cache_namespace)


def sequence_block_hashes(seq: SequenceState, cache: PrefixCacheView) -> Sequence[int]:
    """Return the block hashes of the prompt of `seq` in `cache`, that of its instance. They are made once."""
    hashes = seq.block_hashes
    if hashes is None:
        hashes = seq.block_hashes = cache.block_hashes(seq.request)
    return hashes


def common_length(block_hashes: Sequence[int], others: Sequence[int]) -> int:
    """Return how many leading hashes are equal."""
    length = min(len(block_hashes), len(others))
    # A hash stands for all before it: mostly the last ones tell, and else a bisection finds the first that differ.
    if not length or block_hashes[length - 1] == others[length - 1]:
        return length
    return bisect_left(range(length - 1), True, key=lambda index: block_hashes[index] != others[index])


def apply_namespace(block_hashes: Sequence[int], namespace: str) -> Sequence[int]:
    """Return the names of `block_hashes` in `namespace`: equal if and only if they were equal, and different from those of
    other namespaces."""
    if not namespace:
        return block_hashes
    salt = _salt(namespace)
    # A xor keeps what was equal equal and what was different different, so the makers of hashes need not know of namespaces.
    return [block_hash ^ salt for block_hash in block_hashes]


@lru_cache(maxsize=4096)
def _salt(namespace: str) -> int:
    return int.from_bytes(blake2b(namespace.encode(), digest_size=8).digest())
