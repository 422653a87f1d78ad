"""Prompts: texts of a wanted number of tokens that share the prefixes that the workload says, and the bodies around them.

A text consists of sixteen words of three letters, each with a space before it. Nearly every tokenizer has one token for each of
them, and the emulated engine, which counts four bytes, does too; others can be chosen from a tokenizer. What the endpoint
really counts is learned from its own `usage` before the run (`TokenScale`): a fixed number of tokens around the text, such as
those of a chat template, and the tokens of a word.

**Prefixes.** The prefix keys of a request (`core.request.PrefixKeys`) say which blocks of 16 tokens it has in common with
others. A key becomes 16 words by mixing its 64 bits: four words for each 16 bits, so that different keys have different words,
and equal keys equal ones. A run mixes in a number of its own, because the endpoint may still have the prompts of an earlier
run in its cache. Where the keys of a request end, or if it has none, sixteen words follow that no other request has, and then
a piece of a long text that is written once for the run: a prefix cache can find nothing behind words that it does not know.

**Conversations.** A later prompt of a session contains the answers before it, as the endpoint has written them: with words
of our own in their place its prefix cache would miss. So the text of a conversation is kept, as it was sent and received, until
its next request: prompt, answer, and then new words for the tokens that the prompt has beyond both. In a chat these are
messages of their own.

**Words of a tokenizer** (`tokenizer_words`), so that a text of n words has n tokens and nothing has to be tokenised while
requests are sent. A vocabulary has thousands of candidates: entries of ASCII letters that begin a word, whose space is written
as it is, as Ġ (byte-level BPE) or as ▁ (SentencePiece). Taken are the first sixteen of one length, three letters if there are
enough, of which three in a row have two tokens more than one; and then a long text of all of them in random order is counted,
because a tokenizer may join what stands side by side. The library `tokenizers` is an extra (`pip install
'maitred[tokenizer]'`), imported when a tokenizer is read.

Example: a request of 100 tokens and four keys at an endpoint that adds 7. It has 93 words: four blocks of 16 words from its
keys, 16 of its own, and 13 of the long text.
"""

from __future__ import annotations

import re
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from random import Random
from struct import Struct
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from maitred.core.errors import ConfigError, missing_library
from maitred.core.request import Request, RequestId
from maitred.workload import Job

BLOCK_TOKENS: Final = 16
WORDS: Final = (
    *(" the", " and", " for", " not", " you", " but", " are", " was"),
    *(" has", " had", " his", " her", " one", " all", " can", " out"),
)
"""Sixteen words of one length, each with its space."""
_UNIT_WORDS: Final = 4
_UNIT_BITS: Final = 16
_FOUR_UNITS: Final = Struct("4H")
_64_BITS: Final = (1 << 64) - 1
_FILLER_BLOCKS: Final = 4_096
"""Blocks of words of the text that is written once."""
_MAX_CONVERSATIONS: Final = 20_000
"""Conversations of which the text is kept; beyond, the one that was used longest ago is forgotten."""
_LENGTHS: Final = (3, 4, 2, 5, 6, 7, 8, 1)
"""Letters of a word, the best first: those of three are the words that are used without a tokenizer."""
_BEGINS_WORD: Final = re.compile(r"[Ġ▁ ]?([A-Za-z]+)")
_SHORT, _LONG = 64, 512
"""Words of the two texts that are counted."""

_encode = msgspec.json.Encoder().encode


class TokenScale(msgspec.Struct, frozen=True):
    """How an endpoint counts the tokens of our texts."""

    added: float = 0.0
    """Tokens of a prompt beside its words: chat template, beginning of text."""
    per_word: float = 1.0
    """Tokens of a word, above 0."""

    @classmethod
    def of_probes(cls, short: tuple[int, int], long: tuple[int, int]) -> TokenScale:
        """Return the scale of two probes, each (words, tokens), the second with more of both."""
        per_word = (long[1] - short[1]) / (long[0] - short[0])
        return cls(max(0.0, short[1] - per_word * short[0]), per_word)

    def words(self, tokens: int) -> int:
        """Return how many words make a prompt of this many tokens, at least 1."""
        return max(1, round((tokens - self.added) / self.per_word))


class Conversation(msgspec.Struct):
    """The text of one program so far."""

    keys: Sequence[int]
    """The prefix keys of all of it, at `BLOCK_TOKENS`."""
    tokens: int
    """Tokens of all of it, as the endpoint counts."""
    content: bytes
    """JSON: the messages of a chat, or the text between its quotes."""


class PromptWriter:
    """Writes the bodies of the requests of one run."""

    def __init__(
        self,
        model: str,
        *,
        chat: bool,
        scale: TokenScale,
        nonce: int = 0,
        fields: bytes = b"",
        ignore_eos: bool = True,
        words: tuple[str, ...] = WORDS,
    ) -> None:
        """`nonce` tells the texts of this run from those of others. `fields` are further fields of every body, as JSON without
        the braces and with a comma before them. `words` are sixteen of one length in ASCII."""
        self.chat = chat
        self.scale = scale
        self._nonce = nonce
        self._words_used = words
        self._word_bytes = len(words[0])
        self._head = b'{"model":' + _encode(model) + (b',"messages":[' if chat else b',"prompt":"')
        self._tail = (b"]" if chat else b'"') + fields + (b',"ignore_eos":true' if ignore_eos else b"")
        self._block_words = max(1, round(BLOCK_TOKENS / scale.per_word))
        self._run_key = (nonce & _64_BITS).to_bytes(8, "big")
        self._filler = b""
        """Made when the first request needs it."""
        self._conversations: OrderedDict[str, Conversation] = OrderedDict()
        self._open: dict[RequestId, bytes] = {}
        """The content of each prompt in flight, if a later one contains its answer."""

    def body(self, job: Job) -> bytes:
        """Return the body of a request."""
        request = job.request
        limit = b',"max_tokens":%d' % job.output_tokens
        stream = b',"stream":true,"stream_options":{"include_usage":true}' if request.stream else b""
        content = self._content(job)
        if job.conversation_prefix is not None and request.program:
            self._open[request.id] = content
        priority = b',"priority":%d' % -int(request.priority) if request.priority else b""
        return b"".join((self._head, content, self._tail, limit, stream, priority, b"}"))

    def keeps_answer(self, request_id: RequestId) -> bool:
        """Return whether the text of the answer is needed for a later request."""
        return request_id in self._open

    def on_end(self, job: Job, answer: bytes | None, tokens: int) -> None:
        """Note the end of a request. `answer` is the whole text of its answer as JSON without its quotes, or None if there is
        none; `tokens` are those of prompt and answer."""
        content = self._open.pop(job.request.id, None)
        if content is None or answer is None or job.conversation_prefix is None:
            return
        keys = job.conversation_prefix.block_keys(BLOCK_TOKENS)
        content += b',{"role":"assistant","content":"' + answer + b'"}' if self.chat else answer
        program = job.request.program
        self._conversations[program] = Conversation(keys, tokens, content)
        self._conversations.move_to_end(program)
        if len(self._conversations) > _MAX_CONVERSATIONS:
            self._conversations.popitem(last=False)

    def probe(self, words: int) -> bytes:
        """Return the body of a request for one token, with a prompt of this many words that nothing else has."""
        text = self._words(np.arange(words // BLOCK_TOKENS + 1, dtype=np.uint64) ^ np.uint64(_64_BITS - words), words)
        content = self._message(text) if self.chat else text
        return b"".join((self._head, content, self._tail, b',"max_tokens":1}'))

    def _content(self, job: Job) -> bytes:
        """Return the messages, or the text, of a prompt."""
        request = job.request
        keys = request.prefix.block_keys(BLOCK_TOKENS) if request.prefix is not None else ()
        before = self._conversation_before(request, keys)
        if before is None:
            text = self._text(request, keys, self.scale.words(request.prompt_tokens))
            return self._message(text) if self.chat else text
        added_again = self.scale.added if self.chat else 0.0
        words = max(1, round((request.prompt_tokens - before.tokens - added_again) / self.scale.per_word))
        text = self._text(request, keys[len(before.keys) :], words)
        return before.content + (b"," + self._message(text) if self.chat else text)

    def _conversation_before(self, request: Request, keys: Sequence[int]) -> Conversation | None:
        """Return the conversation that the prompt continues, or None."""
        for program in filter(None, (request.program, request.parent_program)):
            before = self._conversations.get(program)
            if before is not None and before.tokens < request.prompt_tokens:
                known = len(before.keys)
                if known and len(keys) >= known and list(keys[:known]) == list(before.keys):
                    return before
        return None

    @staticmethod
    def _message(text: bytes) -> bytes:
        return b'{"role":"user","content":"' + text + b'"}'

    def _text(self, request: Request, keys: Sequence[int], words: int) -> bytes:
        """Return a text of this many words: those of its keys, then words of its own, then any."""
        keys = keys[: -(-words // self._block_words)]
        text = self._words(_as_uint64(keys), min(words, len(keys) * self._block_words)) if keys else b""
        size = words * self._word_bytes
        if len(text) == size:
            return text
        own = blake2b(b"%d" % request.id, digest_size=8, key=self._run_key).digest()
        units = _unit_list(self._words_used)
        text += b"".join([units[number] for number in _FOUR_UNITS.unpack(own)])
        return (text + self._any_words(max(0, words - len(text) // self._word_bytes), request.id))[:size]

    def _any_words(self, words: int, number: int) -> bytes:
        """Return a piece of the long text, which the number of the request chooses."""
        if len(self._filler) <= words * self._word_bytes:
            written = self._words(
                np.arange(_FILLER_BLOCKS, dtype=np.uint64) ^ np.uint64(_64_BITS), _FILLER_BLOCKS * self._block_words
            )
            self._filler = written * (words * self._word_bytes // len(written) + 1)
        start = number * _UNIT_WORDS % (len(self._filler) // self._word_bytes - words) * self._word_bytes
        return self._filler[start : start + words * self._word_bytes]

    def _words(self, numbers: NDArray[np.uint64], words: int) -> bytes:
        """Return the first `words` of the words of these blocks."""
        mixed = _mix(numbers + np.uint64(self._nonce & _64_BITS))
        shifts = np.arange(0, 64, _UNIT_BITS, dtype=np.uint64)
        units = _units(self._words_used)[(mixed[:, None] >> shifts) & np.uint64((1 << _UNIT_BITS) - 1)]
        times = -(-self._block_words // BLOCK_TOKENS)
        rows = np.tile(units, times).view(f"S{times * BLOCK_TOKENS * self._word_bytes}")
        text = (
            rows.astype(f"S{self._block_words * self._word_bytes}").tobytes()
            if self._block_words % BLOCK_TOKENS
            else rows.tobytes()
        )
        return text[: words * self._word_bytes]


def _as_uint64(keys: Sequence[int]) -> NDArray[np.uint64]:
    return np.fromiter((key & _64_BITS for key in keys), dtype=np.uint64, count=len(keys))


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a permutation of 64 bits in which every bit depends on all (splitmix64 of S. Vigna)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@cache
def _unit_list(words: tuple[str, ...]) -> list[bytes]:
    return _units(words).tolist()  # type: ignore[no-any-return]


@cache
def _units(words: tuple[str, ...]) -> NDArray[np.bytes_]:
    """Return four words for each number of 16 bits: a word for each four bits."""
    pairs = [a + b for a in words for b in words]
    return np.array([(a + b).encode() for a in pairs for b in pairs], dtype=f"S{_UNIT_WORDS * len(words[0])}")


def tokenizer_words(path: Path, *, where: str) -> tuple[str, ...]:
    """Return sixteen words of the tokenizer in `path`, a tokenizer.json or the folder of a model.

    Raises ConfigError without the library, for a file that is no tokenizer, and for a tokenizer without such words.
    """
    tokenizer = _read_tokenizer(path / "tokenizer.json" if path.is_dir() else path, where)
    words = choose_words(tokenizer.get_vocab(), lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids))
    if words is None:
        hint = "leave it out: the endpoint's own count decides how many words a prompt has"
        raise ConfigError(f"{path} has no {len(WORDS)} words of one length with one token each", where=where, hint=hint)
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
        words = tuple(islice(_single_tokens(sorted(of_length[length]), count), len(WORDS)))
        if len(words) == len(WORDS) and _adds_up(words, count):
            return words
    return None


def _single_tokens(words: Iterable[str], count: Callable[[str], int]) -> Iterator[str]:
    return (word for word in words if count(word * 3) - count(word) == 2)


def _adds_up(words: tuple[str, ...], count: Callable[[str], int]) -> bool:
    """Return whether a longer text has as many tokens more as it has words more."""
    rng = Random(0)
    texts = ["".join(rng.choice(words) for _ in range(number)) for number in (_SHORT, _LONG)]
    return count(texts[1]) - count(texts[0]) == _LONG - _SHORT


def _read_tokenizer(file: Path, where: str) -> Any:
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
