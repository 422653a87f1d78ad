"""Keys: what a full block of a prompt is called in a prefix cache.

A key stands for the whole prefix that ends in its block, so equal keys mean equal prefixes, and one comparison of ints
replaces the comparison of all tokens before. A trace that carries block ids has such keys already (`workload.shared_prefix`);
token ids are chained here, each block's key made of its parent's and its tokens. The namespace is mixed in last, so that
what makes keys need not know of it.

Two different prefixes get the same key with a chance of about n² / 2⁶² for n blocks: one in 20,000 for ten million.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

import msgspec

from maitred.core.contracts import PrefixCacheView
from maitred.core.request import Request
from maitred.core.sequence import SequenceState

BYTES_PER_TOKEN = 4
"""Of UTF-8 text, by the usual rule of thumb."""


class PromptTokenIds(msgspec.Struct, frozen=True, gc=False):
    """`PrefixKeys` of a prompt whose tokens are known; chained when a cache asks."""

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
        so_far, step, keys = blake2b(digest_size=8), block_size * BYTES_PER_TOKEN, []
        for end in range(step, len(self.text) + 1, step):
            so_far.update(self.text[end - step : end])
            keys.append(int.from_bytes(so_far.copy().digest()))
        return keys


def extend_block_hashes(block_hashes: Sequence[int], tokens: Sequence[int], block_size: int) -> list[int]:
    """The keys of the full blocks of `tokens`, which follow a prefix of whole blocks that ends in the last key of `chain`.

    So the keys of an answer follow those of its prompt. Not namespaced. Raises ValueError unless `block_size` is at least 1.
    """
    if block_size < 1:
        raise ValueError("a block has at least one token")
    tokens = tuple(tokens)
    key, keys = block_hashes[-1] if block_hashes else 0, []
    for end in range(block_size, len(tokens) + 1, block_size):
        key = hash((key, tokens[end - block_size : end]))  # of ints alone, so it is the same in every process
        keys.append(key)
    return keys


def request_block_hashes(request: Request, block_size: int) -> Sequence[int]:
    """The keys of the full blocks of its prompt in its namespace; empty if nothing is known of its content."""
    if request.prefix is None:
        return ()
    return apply_namespace(request.prefix.block_keys(block_size), request.cache_namespace)


def sequence_block_hashes(seq: SequenceState, cache: PrefixCacheView) -> Sequence[int]:
    """`cache.block_hashes` of its prompt; `cache` is that of its instance. Made once for all who ask."""
    chain = seq.block_hashes
    if chain is None:
        chain = seq.block_hashes = cache.block_hashes(seq.request)
    return chain


def apply_namespace(keys: Sequence[int], namespace: str) -> Sequence[int]:
    """`keys` as they are called in `namespace`: the same there if and only if they were the same, and never as elsewhere."""
    if not namespace:
        return keys
    salt = _salt(namespace)
    return [key ^ salt for key in keys]


def make_namespace(extra_key: str | None, cache_salt: str | None) -> str:
    """One name for SGLang's pair of `extra_key` and `cache_salt`. An empty salt is none; an empty extra key is one."""
    salt = cache_salt or None
    return "" if extra_key is None and salt is None else repr((extra_key, salt))


@lru_cache(maxsize=4096)
def _salt(namespace: str) -> int:
    return int.from_bytes(blake2b(namespace.encode(), digest_size=8).digest())
