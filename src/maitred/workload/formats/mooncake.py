"""mooncake: the Mooncake traces (kvcache-ai/Mooncake, FAST'25), as published: JSON lines.

timed_trace: the same keys with other units, as `vllm bench serve --dataset-name timed_trace` reads them:

                   timestamp   an id of hash_ids stands for
    mooncake       ms          a block of 512 tokens and all blocks before it
    timed_trace    seconds     the content of 16 tokens, whatever precedes them

The units of timed_trace are vLLM's defaults (`--timed-trace-sec-multiplier`, `--timed-trace-chunk-hash-size`). vLLM reads a
Mooncake file with 0.001 and 512; here that is `mooncake:FILE`.
"""

from __future__ import annotations

import msgspec

from maitred.core.units import from_ms, from_seconds
from maitred.workload.line_reader import LineReader
from maitred.workload.prefix_keys import ChainedBlockIds, UnchainedBlockIds
from maitred.workload.trace_format import (
    FORMATS,
    Millis,
    RowError,
    RowParser,
    Seconds,
    TokenCount,
    TraceFormat,
    TraceRow,
    check_block_ids,
    join_hints,
    json_keys,
    json_row_parser,
)

_MOONCAKE_BLOCK_TOKENS = 512
_TIMED_TRACE_BLOCK_TOKENS = 16


class _MooncakeLine(msgspec.Struct, gc=False):
    timestamp: Millis
    input_length: TokenCount
    output_length: TokenCount
    hash_ids: tuple[int, ...] | None = None


@FORMATS.register("mooncake")
class MooncakeFormat(TraceFormat):
    """`hash_ids`, if present, are the prefix of the request."""

    description = "The Mooncake traces, with prefixes in blocks of 512 tokens."
    times = "ms"
    shared_prefixes = "`hash_ids`, blocks of 512 tokens"
    example = '{"timestamp": 0, "input_length": 700, "output_length": 52, "hash_ids": [0, 1]}'

    def recognises(self, first_line: str) -> bool:
        keys = json_keys(first_line)
        return {"timestamp", "input_length"} <= keys <= {"timestamp", "input_length", "output_length", "hash_ids"}

    def make_parser(self, lines: LineReader) -> RowParser:
        return json_row_parser(_MooncakeLine, self.example, _mooncake_row)


def _mooncake_row(line: _MooncakeLine) -> TraceRow:
    prefix = None
    if line.hash_ids is not None:
        check_block_ids(line.hash_ids, line.input_length, _MOONCAKE_BLOCK_TOKENS)
        prefix = ChainedBlockIds(line.hash_ids, line.input_length, _MOONCAKE_BLOCK_TOKENS)
    return TraceRow(from_ms(line.timestamp), line.input_length, line.output_length, prefix=prefix)


class _TimedTraceLine(msgspec.Struct, gc=False):
    timestamp: Seconds
    input_length: TokenCount
    output_length: TokenCount
    hash_ids: tuple[int, ...] | None = None


@FORMATS.register("timed_trace")
class TimedTraceFormat(TraceFormat):
    """Its first line looks like Mooncake's, so the format must be named."""

    description = "What vllm bench serve --dataset-name timed_trace reads; it must be named, because it looks like mooncake."
    times = "seconds"
    shared_prefixes = "`hash_ids`, blocks of 16 tokens"
    example = '{"timestamp": 0.5, "input_length": 40, "output_length": 52, "hash_ids": [7, 8, 9]}'

    def recognises(self, first_line: str) -> bool:
        return False

    def make_parser(self, lines: LineReader) -> RowParser:
        return json_row_parser(_TimedTraceLine, self.example, _timed_trace_row)


def _timed_trace_row(line: _TimedTraceLine) -> TraceRow:
    prefix = None
    if line.hash_ids is not None:
        try:
            check_block_ids(line.hash_ids, line.input_length, _TIMED_TRACE_BLOCK_TOKENS)
        except RowError as error:
            hint = join_hints(error.hint, "a file with blocks of 512 is mooncake:FILE")
            raise RowError(error.problem, hint) from error
        prefix = UnchainedBlockIds(line.hash_ids, line.input_length, _TIMED_TRACE_BLOCK_TOKENS)
    return TraceRow(from_seconds(line.timestamp), line.input_length, line.output_length, prefix=prefix)
