"""timed_trace: what `vllm bench serve --dataset-name timed_trace` reads: one JSON object per line, as Mooncake's, and yet not.

`timestamp` is in seconds and an id of `hash_ids` stands for 16 tokens (its `--timed-trace-sec-multiplier` and
`--timed-trace-chunk-hash-size` by default), whatever stands before them. A Mooncake file, which vLLM reads with 0.001 and 512,
is `mooncake:FILE` here.
"""

from __future__ import annotations

import msgspec

from maitred.units import from_seconds
from maitred.workload.json_rows import Seconds, Tokens, check_ids, objects
from maitred.workload.lines import Lines
from maitred.workload.prefix import ContentIds
from maitred.workload.row import FORMATS, Row, RowError, RowParser, TraceFormat, joined

_BLOCK = 16


class _Line(msgspec.Struct, gc=False):
    timestamp: Seconds
    input_length: Tokens
    output_length: Tokens
    hash_ids: tuple[int, ...] | None = None


@FORMATS.register("timed_trace")
class TimedTrace(TraceFormat):
    """Not told by its first line: it looks like Mooncake's."""

    about = "What vllm bench serve --dataset-name timed_trace replays. To be named: it looks like mooncake."
    example = '{"timestamp": 0.5, "input_length": 40, "output_length": 52, "hash_ids": [7, 8, 9]}'

    def recognises(self, first_line: str) -> bool:
        return False

    def begin(self, lines: Lines) -> RowParser:
        return objects(_Line, self.example, _row)


def _row(said: _Line) -> Row:
    prefix = None if said.hash_ids is None else ContentIds(said.hash_ids, said.input_length, _BLOCK)
    if said.hash_ids is not None:
        try:
            check_ids(said.hash_ids, said.input_length, _BLOCK)
        except RowError as error:
            raise RowError(error.what, joined(error.hint, "a file with blocks of 512 is mooncake:FILE")) from error
    return Row(from_seconds(said.timestamp), said.input_length, said.output_length, prefix=prefix)
