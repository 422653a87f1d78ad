"""How much work a request is: the sequences that it makes in the engine, and the tokens that they may have.

    sequences   prompts times answers. Prompts are the items of the longest list that holds them, such as `prompt` or `input`;
                of `questions`, which are a prompt each, also the members of an object; of `messages`, conversations alone.
                Answers are the largest of `n` and `best_of`. At most `MAX_SEQUENCES`
    answer      the largest limit that the body has under any name, since which of them counts depends on the engine; with
                engines' readings of numbers: 500.0 and "500" are 500. Without a limit, what answers of the model had lately
    cost        prompt + answer · sequences, in tokens; admission corrects it when the usage has come (`Admission.release`)

Example: two prompts, `n: 4` and `max_tokens: 100` make 8 sequences, which cost 800 tokens beside the prompts.

A list may have millions of items, so its items are counted without an object for each: of a short list with one, and of a long
one only the first `MAX_SEQUENCES` are looked at. A list of numbers is one prompt, in token ids.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from maitred.gateway.bodies.large_body import LARGE_BYTES, LargeBody
from maitred.gateway.bodies.request_fields import BatchFields, BodyFields
from maitred.gateway.routes import ROUTES, Route

MAX_OUTPUT_LIMIT: Final = 10_000_000
"""Largest limit of an answer that counts, in tokens: more than any model generates."""
MAX_SEQUENCES: Final = 2_048
"""Most sequences of a request that are counted: OpenAI's bound for a list of inputs."""
USUAL_OUTPUT: Final = 512
"""What an answer without a limit is taken to have before any of its model has ended, tokens."""
_NUMBER_CHARS: Final = 32
"""Longest text that is taken for a number."""
_MAX_MODELS: Final = 1_024
_NEWEST_SHARE: Final = 0.05
"""Share of the newest answer in the mean."""
_MIN_ITEM_BYTES: Final = 2
"""An item of a list with its comma."""

PROMPT_NAMES: Final = frozenset(name for route in ROUTES.values() for name in route.prompts_in)
"""The members of a body that may be lists of prompts."""

_Items: Final[Any] = msgspec.defstruct(
    "_Items", [(f"item{number}", msgspec.Raw, msgspec.Raw()) for number in range(MAX_SEQUENCES)], array_like=True
)
"""The first items of a list; the decoder passes over all others."""
_decode_items: Final = msgspec.json.Decoder(_Items).decode
_decode_short_list: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_MAX_OBJECT_BYTES: Final = 262_144
"""Largest object of which the members are counted."""
_WHITE_SPACE: Final = b" \t\r\n"
_BEFORE_FIRST: Final = re.compile(rb"\[[ \t\r\n]{0,65536}+(?![ \t\r\n])")
"""What is before the first item of a list; not more white space than is searched in half a millisecond."""
_BEGINNING_BYTES: Final = 64
_BATCH_BEGINS: Final = {"messages": re.compile(rb"\["), "input_embeds": re.compile(rb"\[\s*(?:\[|\Z)")}
"""How the first item begins of a list that is a batch, where a list may also be one prompt: a conversation is a list of
objects, and embeddings are a list of lists of numbers. More white space than is looked at counts as a batch."""
_BEGINS_NUMBER: Final = frozenset(b"%c" % digit for digit in b"-0123456789")


class _SamplingFields(msgspec.Struct, gc=False):
    """What an object such as `sampling_params` says of the answer (SGLang, TGI, vLLM's `/inference/v1/generate`)."""

    n: msgspec.Raw = msgspec.Raw()
    best_of: msgspec.Raw = msgspec.Raw()
    max_tokens: msgspec.Raw = msgspec.Raw()
    max_new_tokens: msgspec.Raw = msgspec.Raw()


_NO_LIMITS: Final[list[object]] = [None, None, None, None]
_decode_sampling: Final = msgspec.json.Decoder(_SamplingFields).decode
_decode_number: Final = msgspec.json.Decoder(int | float | str).decode


def output_limit(fields: BodyFields) -> int | None:
    """Return the limit that the client sets for an answer, in tokens, or None if it sets none. At most `MAX_OUTPUT_LIMIT`,
    because clients may send any number."""
    limits: list[object] = [fields.max_completion_tokens, fields.max_tokens, fields.max_output_tokens, fields.n_predict]
    if limits == _NO_LIMITS and type(fields) is BodyFields:
        return None
    if isinstance(fields, BatchFields):
        limits.append(_number(fields.max_new_tokens))
        for sampling in _sampling_of(fields):
            limits += (_number(sampling.max_tokens), _number(sampling.max_new_tokens))
    limit = _largest(limits)
    return None if limit is None else min(limit, MAX_OUTPUT_LIMIT)


def count_sequences(fields: BodyFields, route: Route, large: LargeBody | None = None) -> int:
    """Return the sequences that a request makes in the engine, at most `MAX_SEQUENCES`. A `large` body has been read."""
    if fields.n is None and fields.best_of is None and not route.prompts_in:
        return 1
    answers: list[object] = [fields.n, fields.best_of]
    prompts = 1
    if isinstance(fields, BatchFields):
        prompts = max((_count_prompts(name, getattr(fields, name), large) for name in route.prompts_in), default=1)
        for sampling in _sampling_of(fields):
            answers += (_number(sampling.n), _number(sampling.best_of))
    num_answers = max(1, _largest(answers) or 1) if route.has_output else 1
    return min(MAX_SEQUENCES, num_answers * prompts)


def _largest(values: Iterable[object]) -> int | None:
    """Return the largest of those that are whole numbers, or None if there is none."""
    largest: int | None = None
    for value in values:
        number = None if value is None else whole_number(value)
        if number is not None and (largest is None or number > largest):
            largest = number
    return largest


def whole_number(value: object) -> int | None:
    """Return a number as engines read it: 500, 500.0 and "500" are 500. Return None for anything else, and for less than 0."""
    if type(value) is int:  # not true or false
        return value if value >= 0 else None
    if isinstance(value, str) and len(value) <= _NUMBER_CHARS:
        try:
            value = float(value)
        except ValueError:
            return None
    return int(value) if isinstance(value, float) and value >= 0 and value.is_integer() else None


def _number(raw: msgspec.Raw) -> object:
    """Return a number or a text; None for anything else."""
    try:
        return _decode_number(raw) if raw and len(memoryview(raw)) <= LARGE_BYTES else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _sampling_of(fields: BatchFields) -> Iterator[_SamplingFields]:
    """Yield what a body says of its answers in objects, or lists of them, of which the first one counts."""
    for raw in (fields.sampling_params, fields.parameters):
        if raw:
            with suppress(msgspec.DecodeError, IndexError, UnicodeDecodeError, RecursionError):
                yield _decode_sampling(_first_items(raw)[0] if _first_byte(raw) == b"[" else raw)


def _count_prompts(name: str, raw: msgspec.Raw, large: LargeBody | None) -> int:
    """Return how many prompts the field `name` holds: the items of a list, at least 1; 1 for anything else, and for token
    ids."""
    first = _first_byte(raw)
    try:
        if first == b"{" and name == "questions":
            return _count_members(raw)
        if first != b"[" or _is_one_prompt(name, _beginning(raw)):
            return 1
        counted = None if large is None else large.num_items(name)
        return max(1, len(_first_items(raw)) if counted is None else counted)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 1


def _is_one_prompt(name: str, first: bytes) -> bool:
    """Return whether the list in the field `name` is one prompt, by the beginning of its first item; not if that is unknown."""
    batch = _BATCH_BEGINS.get(name)
    return _is_number(first) or (batch is not None and first != b"" and batch.match(first) is None)


def _count_members(raw: msgspec.Raw) -> int:
    """Return the members of an object, at least 1. A large one is not decoded, as it may have millions."""
    if len(memoryview(raw)) > _MAX_OBJECT_BYTES:
        return MAX_SEQUENCES
    return max(1, len(_decode_members(raw)))


def _first_items(raw: msgspec.Raw) -> Sequence[msgspec.Raw]:
    """Return the first items of a list."""
    if len(memoryview(raw)) <= MAX_SEQUENCES * _MIN_ITEM_BYTES:
        return _decode_short_list(raw)
    items, names = _decode_items(raw), _Items.__struct_fields__
    number = bisect_left(names, True, key=lambda name: not getattr(items, name))
    return [getattr(items, name) for name in names[:number]]


def _beginning(raw: msgspec.Raw) -> bytes:
    """Return the beginning of the first item of a list; nothing if more white space is before it than is looked at."""
    found = _BEFORE_FIRST.match(raw)
    return b"" if found is None else bytes(memoryview(raw)[found.end() : found.end() + _BEGINNING_BYTES])


def _is_number(text: bytes) -> bool:
    return text[:1] in _BEGINS_NUMBER


def _first_byte(raw: msgspec.Raw) -> bytes:
    """Return the first byte that is no white space; nothing if there is none near the beginning."""
    return bytes(memoryview(raw)[:64]).lstrip(_WHITE_SPACE)[:1]


class UsualOutputs:
    """What answers without a limit had lately, by model, in tokens."""

    def __init__(self) -> None:
        self._means: dict[str, float] = {}
        self._rounded: dict[str, int] = {}

    def mean(self, model: str) -> int:
        """Return the mean length of the answers of `model`."""
        return self._rounded.get(model, USUAL_OUTPUT)

    def note(self, model: str, tokens: float) -> None:
        """Take note of an answer that has ended."""
        mean = self._means.get(model, USUAL_OUTPUT)
        if model in self._means or len(self._means) < _MAX_MODELS:
            self._means[model] = mean = mean + _NEWEST_SHARE * (tokens - mean)
            self._rounded[model] = round(mean)
