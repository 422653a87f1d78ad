"""Tokens without a tokenizer: one rule for counting, and filler text that obeys it.

    a text has ceil(UTF-8 bytes / 4) tokens        the usual rule of thumb
    a list of token ids has as many as it is long

A prompt is laid out in memory as its tokens are counted, four bytes each, so that two prompts that begin alike have the same
blocks there, and a prefix cache can tell.

Filler text is made of three-letter words, so every piece with its space is four bytes: n tokens of filler are n words and
count as n when a client sends them back as history. The same position always holds the same word.
"""

from __future__ import annotations

from maitred.kv.block_hashes import BYTES_PER_TOKEN, PromptTextBytes

__all__ = ["BYTES_PER_TOKEN", "PromptTextBytes", "count", "count_bytes", "filler", "piece", "to_token_bytes"]

CHAT_TOKENS_PER_MESSAGE = 4
"""What a chat template adds to each message: its role and its delimiters."""

CHAT_TOKENS_FOR_ANSWER = 3
"""What a chat template adds once, to open the answer."""

_FILLER_SENTENCE = (
    "the old cat and the new dog sat out one hot day but the dog saw the fat hen run and did not ask why she ran off "
    "and hid her egg for the cat who ate the pie"
)
_WORDS = _FILLER_SENTENCE.split()


def count(text: str) -> int:
    """Tokens of `text`."""
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return count_bytes(size)


def count_bytes(size: int) -> int:
    """Tokens of a text of `size` UTF-8 bytes."""
    return -(-size // BYTES_PER_TOKEN)


def to_token_bytes(text: str | bytes) -> bytes:
    """`text` filled up to whole tokens."""
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return raw.ljust(count_bytes(len(raw)) * BYTES_PER_TOKEN, b"\0")


def piece(position: int) -> str:
    """The text of the token at `position` of an answer (from 0): a word, with the space before it unless it is the first."""
    word = _WORDS[position % len(_WORDS)]
    return f" {word}" if position else word


def filler(tokens: int) -> str:
    """A text of exactly so many tokens, and so many words."""
    whole, rest = divmod(tokens, len(_WORDS))
    return " ".join(_WORDS * whole + _WORDS[:rest])
