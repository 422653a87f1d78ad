"""Rows that are JSON objects, one per line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, TypeAlias, TypeVar

import msgspec

from maitred.wording import plainly
from maitred.workload.lengths import MOST_TOKENS
from maitred.workload.row import Row, RowError, RowParser

Said = TypeVar("Said")

Tokens: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=MOST_TOKENS)]
Millis: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e12)]

_any_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def objects(kind: type[Said], example: str, row: Callable[[Said], Row | Sequence[Row | RowError]]) -> RowParser:
    """A parser of lines that hold a `kind` each. Keys that `kind` does not name are ignored."""
    decode = msgspec.json.Decoder(kind).decode

    def parse(line: str) -> Row | Sequence[Row | RowError]:
        try:
            said = decode(line)
        except msgspec.DecodeError as error:
            raise RowError(plainly(str(error)), f"a row looks like {example}") from error
        return row(said)

    return parse


def keys_of(line: str) -> set[str]:
    """The keys of an object; none if the line holds no object."""
    try:
        return set(_any_object(line))
    except msgspec.DecodeError:
        return set()


def check_ids(ids: Sequence[int], prompt_tokens: int, block: int) -> None:
    """Raises RowError unless these are the blocks of a prompt; the last, partial one may be missing."""
    blocks = -(-prompt_tokens // block)
    if not prompt_tokens // block <= len(ids) <= blocks:
        raise RowError(f"{len(ids)} hash_ids for {prompt_tokens} tokens", f"they are {blocks} blocks of {block}")
