"""Tokens without a tokenizer: one rule for counting, and filler text that obeys it.

    text                 ceil(UTF-8 bytes / 4) tokens, the usual rule of thumb
    list of token ids    as many tokens as ids

A prompt becomes token bytes, four for each token, so that two prompts with the same beginning have the same blocks in a prefix
cache. Example: "hello" has 5 bytes and 2 tokens; its token bytes are "hell" and "o" with three zero bytes.

Filler text consists of three-letter words, so a word with its space is four bytes. n tokens of filler are n words, and count as
n tokens when a client sends them back as history. The same position always has the same word.
"""

from __future__ import annotations

from maitred.kv.block_hashes import BYTES_PER_TOKEN, PromptTextBytes

__all__ = ["BYTES_PER_TOKEN", "PromptTextBytes", "count", "count_bytes", "filler", "piece", "to_token_bytes"]

CHAT_TOKENS_PER_MESSAGE = 4
"""Tokens that a chat template adds to each message: its role and delimiters."""

CHAT_TOKENS_FOR_ANSWER = 3
"""Tokens that a chat template adds once, to open the answer."""

_FILLER_SENTENCE = (
    "the old cat and the new dog sat out one hot day but the dog saw the fat hen run and did not ask why she ran off "
    "and hid her egg for the cat who ate the pie"
)
_WORDS = _FILLER_SENTENCE.split()


def count(text: str) -> int:
    """Return the number of tokens of `text`."""
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return count_bytes(size)


def count_bytes(size: int) -> int:
    """Return the number of tokens of a text of `size` UTF-8 bytes."""
    return -(-size // BYTES_PER_TOKEN)


def to_token_bytes(text: str | bytes) -> bytes:
    """Return `text` as bytes, padded to whole tokens."""
    raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return raw.ljust(count_bytes(len(raw)) * BYTES_PER_TOKEN, b"\0")


def piece(position: int) -> str:
    """Return the text of the token at `position` of an answer (from 0): a word, with a space before it except at 0."""
    word = _WORDS[position % len(_WORDS)]
    return f" {word}" if position else word


def filler(tokens: int) -> str:
    """Return a text of exactly `tokens` tokens, which are as many words."""
    whole, rest = divmod(tokens, len(_WORDS))
    return " ".join(_WORDS * whole + _WORDS[:rest])
