"""What crosses a link of a prompt: the hashes of its blocks, for the sizes that the router asks for. Nothing of its text.

A hash stands for the whole prefix that ends in its block (`kv.block_hashes`), so a prompt that the router knows is recognised,
and one that it does not know cannot be guessed from them but by trying. Eight bytes for each block, little-endian; of a prompt
no more than its first MiB is hashed, so with blocks of 16 tokens that are 128 KiB at most.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from maitred.core.request import PrefixKeys

PackedHashes: TypeAlias = dict[int, bytes]
"""The hashes of a prompt, by the size of the blocks in tokens."""


def pack_hashes(prompt: PrefixKeys | None, block_sizes: Sequence[int]) -> PackedHashes | None:
    """Return the hashes of a prompt for these sizes of blocks, or None if nothing is known of it."""
    if prompt is None or not block_sizes:
        return None
    return {size: _little_endian(array("Q", prompt.block_keys(size))).tobytes() for size in block_sizes}


class ReceivedPrompt(PrefixKeys):
    """The `PrefixKeys` of a prompt of which another process has told the hashes."""

    def __init__(self, packed: Mapping[int, bytes]) -> None:
        self._packed = packed

    def block_keys(self, block_size: int) -> Sequence[int]:
        """Return the hashes; none for a size that was not told."""
        hashes = array("Q")
        packed = self._packed.get(block_size, b"")
        hashes.frombytes(packed[: len(packed) // 8 * 8])
        return _little_endian(hashes)


def _little_endian(hashes: array[int]) -> array[int]:
    """Return the hashes in the order of bytes on the link, or from it: the same in both directions."""
    if sys.byteorder == "big":
        hashes.byteswap()
    return hashes
