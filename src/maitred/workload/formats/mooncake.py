"""mooncake: the Mooncake traces (kvcache-ai/Mooncake, FAST'25), as published: one JSON object per line."""

from __future__ import annotations

from typing import Annotated

import msgspec

from maitred.units import from_ms
from maitred.wording import plainly
from maitred.workload.lengths import MOST_TOKENS
from maitred.workload.lines import Lines
from maitred.workload.prefix import BlockIds
from maitred.workload.row import FORMATS, Row, RowError, RowParser, TraceFormat

BLOCK = 512
"""Tokens that one hash id stands for; an id covers its block and all before it."""

_Tokens = Annotated[int, msgspec.Meta(ge=1, le=MOST_TOKENS)]
_Millis = Annotated[float, msgspec.Meta(ge=0, le=1e15)]


class _Line(msgspec.Struct, gc=False):
    timestamp: _Millis
    input_length: _Tokens
    output_length: _Tokens
    hash_ids: tuple[int, ...] | None = None


@FORMATS.register("mooncake")
class Mooncake(TraceFormat):
    """`timestamp` is in ms from the start of the trace. `hash_ids`, where present, become the prefix of the request."""

    example = '{"timestamp": 0, "input_length": 700, "output_length": 52, "hash_ids": [0, 1]}'

    def recognises(self, first_line: str) -> bool:
        return first_line.lstrip().startswith("{") and '"input_length"' in first_line and '"timestamp"' in first_line

    def begin(self, lines: Lines) -> RowParser:
        return _parse


_decode = msgspec.json.Decoder(_Line).decode


def _parse(line: str) -> Row:
    try:
        said = _decode(line)
    except msgspec.DecodeError as error:
        raise RowError(plainly(str(error)), f"a row looks like {Mooncake.example}") from error
    prefix = None if said.hash_ids is None else _prefix(said.hash_ids, said.input_length)
    return Row(from_ms(said.timestamp), said.input_length, said.output_length, prefix=prefix)


def _prefix(ids: tuple[int, ...], prompt_tokens: int) -> BlockIds:
    blocks = -(-prompt_tokens // BLOCK)
    if not prompt_tokens // BLOCK <= len(ids) <= blocks:
        raise RowError(f"{len(ids)} hash_ids for {prompt_tokens} tokens", f"they are {blocks} blocks of {BLOCK}")
    return BlockIds(ids, prompt_tokens, BLOCK)
