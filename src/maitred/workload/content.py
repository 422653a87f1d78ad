"""What generated prompts hold: pieces of text, of which we know only which are the same.

A prompt is a chain of pieces: the shared prefix of its group, what earlier rounds of its session said, and its own. Each
piece has a number that no other piece has, so two prompts are alike as long as their pieces are, and a block belongs to the
piece in which its last token lies. Keys are counted up, not hashed:

    key of block b  =  number of its piece * 2²⁸ + b
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import msgspec

_ROOM: Final = 1 << 28
"""Blocks that one prompt may have: more than `MOST_TOKENS` tokens."""

Pieces: TypeAlias = tuple[tuple[int, int], ...]
"""For each piece its number, and the token before which it ends."""


class Content(msgspec.Struct, frozen=True, gc=False):
    """`PrefixKeys` of a chain of pieces."""

    pieces: Pieces

    @property
    def tokens(self) -> int:
        return self.pieces[-1][1] if self.pieces else 0

    @property
    def group(self) -> tuple[int, int] | None:
        """Of the shared prefix that it begins with (`sessions.Groups`), the number and the tokens; None: it has none."""
        first = self.pieces[0] if self.pieces else (1, 0)
        return None if first[0] % 2 or not first[1] else first

    def then(self, number: int, tokens: int) -> Content:
        """This, and a piece of so many tokens after it."""
        return Content((*self.pieces, (number, self.tokens + tokens)))

    def grown(self, tokens: int) -> Content:
        """This, its last piece longer by so many tokens."""
        number, end = self.pieces[-1]
        return Content((*self.pieces[:-1], (number, end + tokens)))

    def keys(self, block_size: int) -> Sequence[int]:
        """One key per full block."""
        keys: list[int] = []
        start = 0
        for number, end in self.pieces:
            first = number * _ROOM
            keys.extend(range(first + start // block_size, first + end // block_size))
            start = end
        return keys


NOTHING: Final = Content(())
