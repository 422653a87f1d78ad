"""The words of prompts, chosen from a tokenizer so that each of them is one token wherever it stands.

Prompts are made of sixteen words (`emulator.clients.prompts`). With these a text of n words has n tokens, and nothing has to be
tokenised while requests are sent. A vocabulary has thousands of candidates: entries of ASCII letters that begin a word, whose
space is written as it is, as Ġ (byte-level BPE) or as ▁ (SentencePiece). Taken are the first sixteen of one length, three
letters if there are enough, of which three in a row have two tokens more than one; and then a long text of all of them in
random order is counted, because a tokenizer may join what stands side by side.

Example: a vocabulary with Ġthe, Ġand, ..., Ġout. " the and the" has three tokens, and 512 words in any order have 512.

The library `tokenizers` is an extra (`pip install 'maitred[tokenizer]'`), imported when a tokenizer is read.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Final

from maitred.core.errors import ConfigError, missing_library

_NUM_WORDS: Final = 16
_LENGTHS: Final = (3, 4, 2, 5, 6, 7, 8, 1)
"""Letters of a word, the best first: those of three are the words that are used without a tokenizer."""
_BEGINS_WORD: Final = re.compile(r"[Ġ▁ ]?([A-Za-z]+)")
_SHORT, _LONG = 64, 512
"""Words of the two texts that are counted."""


def tokenizer_words(path: Path, *, where: str) -> tuple[str, ...]:
    """Return sixteen words of the tokenizer in `path`, a tokenizer.json or the folder of a model.

    Raises ConfigError without the library, for a file that is no tokenizer, and for a tokenizer without such words.
    """
    tokenizer = _read(path / "tokenizer.json" if path.is_dir() else path, where)
    words = choose_words(tokenizer.get_vocab(), lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids))
    if words is None:
        hint = "leave it out: the endpoint's own count decides how many words a prompt has"
        raise ConfigError(f"{path} has no {_NUM_WORDS} words of one length with one token each", where=where, hint=hint)
    return words


def choose_words(vocabulary: Iterable[str], count: Callable[[str], int]) -> tuple[str, ...] | None:
    """Return sixteen words, each with its space, of which every text has as many tokens as words; None if there are none.
    `count` returns the tokens of a text."""
    of_length = defaultdict[int, set[str]](set)
    for entry in vocabulary:
        found = _BEGINS_WORD.fullmatch(entry)
        if found is not None:
            of_length[len(found[1])].add(f" {found[1]}")
    for length in _LENGTHS:
        words = tuple(islice(_single_tokens(sorted(of_length[length]), count), _NUM_WORDS))
        if len(words) == _NUM_WORDS and _adds_up(words, count):
            return words
    return None


def _single_tokens(words: Iterable[str], count: Callable[[str], int]) -> Iterator[str]:
    return (word for word in words if count(word * 3) - count(word) == 2)


def _adds_up(words: tuple[str, ...], count: Callable[[str], int]) -> bool:
    """Return whether a longer text has as many tokens more as it has words more."""
    rng = Random(0)
    texts = ["".join(rng.choice(words) for _ in range(number)) for number in (_SHORT, _LONG)]
    return count(texts[1]) - count(texts[0]) == _LONG - _SHORT


def _read(file: Path, where: str) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise missing_library("the library tokenizers", "tokenizer", where) from error
    if not file.is_file():
        raise ConfigError(f"there is no {file}", where=where, hint="a tokenizer.json, or the folder of a model that has one")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # The library raises Exception itself.
        raise ConfigError(f"{file} is no tokenizer", where=where, hint="a tokenizer.json of the library tokenizers") from error
