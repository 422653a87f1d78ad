"""Timelines: what became of each request of a real engine, one row per request.

    input_tokens, output_tokens                              what was asked and what came
    submitted_s                                              when the client sent it, in seconds from any origin
    queued_ts, first_token_ts, last_token_ts                 on the engine's clock, in seconds
    scheduled_ts                                             the same (optional)
    prefix_blocks16_seen_before                              leading blocks of 16 tokens that an earlier request had (optional)

Times are compared as differences on one clock, so the two clocks need not agree. TTFT and latency count from `queued_ts`, as
vLLM's own metrics do. Without a column `submitted_s`, requests are taken to have been sent when they were queued.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from maitred.calibration.csv_file import check_counts, header_of, rows_of
from maitred.errors import ConfigError
from maitred.request import Request
from maitred.units import from_seconds
from maitred.workload import Job

SHARED_BLOCK = 16
_COUNTS = ("input_tokens", "output_tokens", "prefix_blocks16_seen_before")


class Measured(msgspec.Struct, frozen=True):
    """One request. Times in seconds on the engine's clock, but `sent`."""

    prompt_tokens: int
    output_tokens: int
    sent: float
    queued: float
    scheduled: float
    first_token: float
    last_token: float
    shared_blocks: int

    @property
    def ttft(self) -> float:
        return self.first_token - self.queued

    @property
    def tpot(self) -> float:
        """Of a request with two tokens or more."""
        return (self.last_token - self.first_token) / (self.output_tokens - 1)

    @property
    def latency(self) -> float:
        return self.last_token - self.queued


def read_timeline(path: Path) -> list[Measured]:
    """In the order in which they were sent. Raises ConfigError with the line of what is wrong."""
    header = header_of(path)
    optional = [name for name in ("submitted_s", "scheduled_ts", "prefix_blocks16_seen_before") if name in header]
    columns = ["input_tokens", "output_tokens", "queued_ts", "first_token_ts", "last_token_ts", *optional]
    rows = []
    for line, (values, _) in enumerate(rows_of(path, columns), 2):
        named = dict(zip(columns, values, strict=True))
        check_counts({name: named[name] for name in _COUNTS if name in named}, f"{path}:{line}")
        row = Measured(
            prompt_tokens=int(named["input_tokens"]),
            output_tokens=int(named["output_tokens"]),
            sent=named.get("submitted_s", named["queued_ts"]),
            queued=named["queued_ts"],
            scheduled=named.get("scheduled_ts", named["queued_ts"]),
            first_token=named["first_token_ts"],
            last_token=named["last_token_ts"],
            shared_blocks=int(named.get("prefix_blocks16_seen_before", 0)),
        )
        _check(row, f"{path}:{line}")
        rows.append(row)
    if not rows:
        raise ConfigError("there are no requests in it", where=str(path))
    return sorted(rows, key=lambda row: row.sent)


def _check(row: Measured, place: str) -> None:
    if row.prompt_tokens < 1 or row.output_tokens < 1:
        raise ConfigError("input_tokens and output_tokens must be at least 1", where=place)
    if not row.queued < row.first_token <= row.last_token:
        raise ConfigError("queued_ts, first_token_ts and last_token_ts should follow each other", where=place)
    if not row.queued <= row.scheduled <= row.first_token:
        raise ConfigError("scheduled_ts should be between queued_ts and first_token_ts", where=place)


def jobs_of(rows: Sequence[Measured]) -> list[Job]:
    """The same requests, to be simulated; the first arrives at 0.

    Which earlier request a prefix is shared with is not recorded: the first one that is long enough is taken.
    """
    origin, chains = rows[0].sent, list[tuple[int, ...]]()
    jobs = []
    for index, row in enumerate(rows):
        chains.append(_chain(index, row, chains))
        request = Request(
            id=index,
            arrival=from_seconds(row.sent - origin),
            prompt_tokens=row.prompt_tokens,
            max_output_tokens=row.output_tokens,
            prefix=_Chain(chains[-1]),
        )
        jobs.append(Job(request, row.output_tokens))
    return jobs


class _Chain(msgspec.Struct, frozen=True, gc=False):
    """`PrefixKeys` in blocks of 16 tokens."""

    chain: tuple[int, ...]

    def keys(self, block_size: int) -> Sequence[int]:
        if block_size % SHARED_BLOCK:
            hint = f"use a multiple of {SHARED_BLOCK}"
            raise ConfigError(f"prefixes recorded in blocks of {SHARED_BLOCK} tokens need larger blocks", hint=hint)
        return self.chain[block_size // SHARED_BLOCK - 1 :: block_size // SHARED_BLOCK]


def _chain(index: int, row: Measured, earlier: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    shared = next((chain[: row.shared_blocks] for chain in earlier if len(chain) >= row.shared_blocks), ())
    first = index * (1 << 20)
    return (*shared, *range(first + len(shared), first + row.prompt_tokens // SHARED_BLOCK))
