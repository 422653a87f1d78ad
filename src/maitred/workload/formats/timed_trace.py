"""timed_trace: what `vllm bench serve --dataset-name timed_trace` reads: one JSON object per line, as Mooncake's, and yet not.

`timestamp` is in seconds and an id of `hash_ids` stands for 16 tokens (its `--timed-trace-sec-multiplier` and
`--timed-trace-chunk-hash-size` by default), whatever stands before them. A Mooncake file, which vLLM reads with 0.001 and 512,
is `mooncake:FILE` here.
"""

from __future__ import annotations

import msgspec

from maitred.core.units import from_seconds
from maitred.workload.line_reader import LineReader
from maitred.workload.prefix_keys import UnchainedBlockIds
from maitred.workload.trace_format import (
    FORMATS,
    RowError,
    RowParser,
    Seconds,
    TokenCount,
    TraceFormat,
    TraceRow,
    check_block_ids,
    join_hints,
    json_row_parser,
)

_TIMED_TRACE_BLOCK_TOKENS = 16


class _TimedTraceLine(msgspec.Struct, gc=False):
    timestamp: Seconds
    input_length: TokenCount
    output_length: TokenCount
    hash_ids: tuple[int, ...] | None = None


@FORMATS.register("timed_trace")
class TimedTraceFormat(TraceFormat):
    """Not told by its first line: it looks like Mooncake's."""

    description = "What vllm bench serve --dataset-name timed_trace replays. To be named: it looks like mooncake."
    times = "seconds"
    prompts_share = "`hash_ids`, blocks of 16"
    example = '{"timestamp": 0.5, "input_length": 40, "output_length": 52, "hash_ids": [7, 8, 9]}'

    def recognises(self, first_line: str) -> bool:
        return False

    def make_parser(self, lines: LineReader) -> RowParser:
        return json_row_parser(_TimedTraceLine, self.example, _timed_trace_row)


def _timed_trace_row(said: _TimedTraceLine) -> TraceRow:
    prefix = None if said.hash_ids is None else UnchainedBlockIds(said.hash_ids, said.input_length, _TIMED_TRACE_BLOCK_TOKENS)
    if said.hash_ids is not None:
        try:
            check_block_ids(said.hash_ids, said.input_length, _TIMED_TRACE_BLOCK_TOKENS)
        except RowError as error:
            raise RowError(error.what, join_hints(error.hint, "a file with blocks of 512 is mooncake:FILE")) from error
    return TraceRow(from_seconds(said.timestamp), said.input_length, said.output_length, prefix=prefix)
