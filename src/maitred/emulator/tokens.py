"""Tokens without a tokenizer and without a model: how they are counted, how many an answer has, and which words it has.

    text                 ceil(UTF-8 bytes / 4) tokens, the usual rule of thumb
    list of token ids    as many tokens as ids

A prompt becomes token bytes, four for each token, so that two prompts with the same beginning have the same blocks in a prefix
cache. Example: "hello" has 5 bytes and 2 tokens; its token bytes are "hell" and "o" with three zero bytes.

Filler text consists of three-letter words, so a word with its space is four bytes. n tokens of filler are n words, and count as
n tokens when a client sends them back as history. The same position always has the same word. So the KV of an answer is found
in a prefix cache when its text comes back, as a real engine finds it.

A real engine learns how long an answer is, and why it ends, when the model emits "end of sequence" or the limit is reached. An
emulated engine draws the length in advance from a seeded stream (`FinishSampler`), so the n-th prompt has the same answer
length in every run. With `ignore_eos` the model never ends by itself, so an answer has exactly as many tokens as its limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from random import Random

import msgspec

from maitred.core.request import PrefixKeys
from maitred.kv.block_hashes import BYTES_PER_TOKEN, PromptTextBytes
from maitred.workload.lengths import parse_lengths

__all__ = [
    "BYTES_PER_TOKEN",
    "FinishReason",
    "FinishSampler",
    "PlannedFinish",
    "PromptTextBytes",
    "answered_prompt",
    "count",
    "count_bytes",
    "filler",
    "piece",
    "to_token_bytes",
]

CHAT_TOKENS_PER_MESSAGE = 4
"""Tokens that a chat template adds to each message: a head with its role, and an end."""

CHAT_TOKENS_FOR_ANSWER = 3
"""Tokens of the head of a message. A chat template adds one more at the end, to open the answer."""

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


class AnsweredPrompt(msgspec.Struct, frozen=True, gc=False):
    """`PrefixKeys` of a prompt and its answer: the beginning of the prompt that continues the conversation."""

    prompt: PromptTextBytes
    answer_tokens: int

    def block_keys(self, block_size: int) -> Sequence[int]:
        answer = to_token_bytes(filler(self.answer_tokens))
        return PromptTextBytes(self.prompt.text + answer).block_keys(block_size)


def answered_prompt(prompt: PrefixKeys | None, answer_tokens: int) -> PrefixKeys | None:
    """Return the content of a prompt and its answer together; None if the prompt is no text: answers have no token ids."""
    return AnsweredPrompt(prompt, answer_tokens) if isinstance(prompt, PromptTextBytes) else None


class FinishReason(StrEnum):
    """The reason why a request ended, in vLLM's words. Clients see the first two."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class PlannedFinish(msgspec.Struct, frozen=True):
    """The length of an answer, at least 1, and the reason why it ends there."""

    output_tokens: int
    reason: FinishReason


class FinishSampler:
    """Draws the lengths of answers."""

    def __init__(self, lengths: str | int, seed: int) -> None:
        """Raise ConfigError unless `lengths` is a length distribution."""
        self._lengths = parse_lengths(lengths)
        self._uniform = Random(f"{seed}/answers").random

    def draw(self, *, max_tokens: int, min_tokens: int = 0) -> PlannedFinish:
        """Return the finish of a model that ends by itself after at least `min_tokens`, and is cut after `max_tokens` (at least
        1)."""
        drawn = max(min_tokens, self._lengths.draw(self._uniform))
        return PlannedFinish(drawn, FinishReason.STOP) if drawn <= max_tokens else self.exactly(max_tokens)

    @staticmethod
    def exactly(max_tokens: int) -> PlannedFinish:
        """Return the finish of a model that never ends by itself."""
        return PlannedFinish(max_tokens, FinishReason.LENGTH)
