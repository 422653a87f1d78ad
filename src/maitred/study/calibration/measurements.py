"""Measurements of a real engine as files: steps with their durations, or the timeline of each request.

Every mistake in a file is reported with its line. Measured steps have a row per step, in CSV with a header or as one JSON
object per line. Other columns are ignored.

    prefill_tokens   tokens of prefill in the step
    decode_tokens    sequences that decoded, a token each
    context_tokens   tokens of KV that these read, summed (optional: 0)
    prefill_start    tokens of KV before those that prefill (optional: 0)
    step_us          duration; or step_ms, or step_secs

A timeline has a row per request, in CSV with a header.

    input_tokens, output_tokens                              lengths of prompt and answer
    submitted_s                                              when the client sent it, in seconds from any origin (optional)
    queued_ts, first_token_ts, last_token_ts                 on the clock of the engine, in seconds
    scheduled_ts                                             the same (optional)
    prefix_blocks16_seen_before                              leading blocks of 16 tokens that an earlier request had (optional)

A recording of `maitred serve` is a timeline as well. A request is sent, and queued, when the gateway sent it to the backend.
Only streams that completed, with the tokens that the backend has reported, can be compared; the others are left out, and
counted.

Times are compared as differences on one clock, so the two clocks need not agree. TTFT and latency count from `queued_ts`, as in
vLLM's own metrics. Without a column `submitted_s`, a request counts as sent when it was queued.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from math import isfinite
from pathlib import Path
from typing import IO, TextIO, cast

import msgspec

from maitred.core.contracts import BatchShape, ChunkShape
from maitred.core.errors import ConfigError, describe_read_error, nearest_name_hint
from maitred.core.request import Request
from maitred.core.units import from_seconds
from maitred.files import open_input, read_input
from maitred.workload import Job
from maitred.workload.formats.maitred import ALL_COLUMNS, COMPLETED, MEASURED_COLUMNS

_MAX_COUNT = 1_000_000_000
"""More tokens than any step or request has."""
TIME_COLUMNS: Mapping[str, float] = {"step_us": 1.0, "step_ms": 1e3, "step_secs": 1e6}
MAX_SECS: float = 1e12
"""The latest instant of a measurement: clocks that count from 1970 fit, also in ms."""
_STEP_COUNTS = ("prefill_tokens", "decode_tokens")
_OPTIONAL = ("context_tokens", "prefill_start")
SHARED_BLOCK_TOKENS = 16
_TIMELINE_COUNTS = ("input_tokens", "output_tokens", "prefix_blocks16_seen_before")


class MeasuredStep(msgspec.Struct, frozen=True):
    """The content of a step, and its duration."""

    shape: BatchShape
    us: float


def read_steps(path: Path) -> list[MeasuredStep]:
    """Read measured steps. Raises ConfigError with the line of a mistake."""
    rows = _json_rows(path) if ".jsonl" in path.suffixes else _csv_rows(path)
    steps = [_parse_step(named, place) for named, place in rows]
    if not steps:
        raise ConfigError("there are no steps in it", where=str(path))
    return steps


def is_step_file(path: Path) -> bool:
    """Return whether the file holds steps, judging by its first line."""
    return ".jsonl" in path.suffixes or any(unit in read_header(path) for unit in TIME_COLUMNS)


def _csv_rows(path: Path) -> Iterator[tuple[dict[str, float], str]]:
    header = read_header(path)
    unit = next((name for name in TIME_COLUMNS if name in header), "step_us")
    columns = [*_STEP_COUNTS, *(name for name in _OPTIONAL if name in header), unit]
    for line, (values, _) in enumerate(read_rows(path, columns), 2):
        yield dict(zip(columns, values, strict=True)), f"{path}:{line}"


def _json_rows(path: Path) -> Iterator[tuple[dict[str, float], str]]:
    try:
        lines = read_input(path).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(path, error) from error
    for number, line in enumerate(lines, 1):
        place = f"{path}:{number}"
        if not line.strip():
            continue
        row = _json_object(line, place)
        names = (name for name in (*_STEP_COUNTS, *_OPTIONAL, *TIME_COLUMNS) if name in row)
        yield {name: _number(row[name], name, place) for name in names}, place


def _json_object(line: str, place: str) -> dict[str, object]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        hint = 'a step is {"prefill_tokens": 0, "decode_tokens": 8, "step_ms": 7.4}'
        raise ConfigError("no JSON", where=place, hint=hint) from error
    if not isinstance(row, dict):
        raise ConfigError("a step is a JSON object", where=place)
    return row


def _number(value: object, name: str, place: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value):
        return float(value)
    raise ConfigError(f"{name} should be a number, not {value!r}", where=place)


def _parse_step(row: Mapping[str, float], place: str) -> MeasuredStep:
    unit = next((name for name in TIME_COLUMNS if name in row), None)
    missing = [name for name in _STEP_COUNTS if name not in row] + ([] if unit else ["step_us"])
    if unit is None or missing:
        raise ConfigError(f"{missing[0]} is missing", where=place, hint=f"a step has {', '.join(_STEP_COUNTS)} and step_us")
    check_counts({name: row[name] for name in (*_STEP_COUNTS, *_OPTIONAL) if name in row}, place)
    if not 0 < row[unit] * TIME_COLUMNS[unit] <= MAX_SECS:
        raise ConfigError(f"a step takes some time, at most {MAX_SECS:.0e} us, and {unit} is {row[unit]:g}", where=place)
    prefill, decodes = int(row["prefill_tokens"]), int(row["decode_tokens"])
    if not prefill and not decodes:
        raise ConfigError("a step without tokens", where=place, hint="leave out the steps in which nothing was computed")
    start = int(row.get("prefill_start", 0))
    chunks = (ChunkShape(prefill, start, start + prefill),) if prefill else ()
    return MeasuredStep(BatchShape(decodes, int(row.get("context_tokens", 0)), prefill, chunks), row[unit] * TIME_COLUMNS[unit])


class MeasuredRequest(msgspec.Struct, frozen=True):
    """One request of a timeline. Times are in seconds on the clock of the engine, except `sent`."""

    prompt_tokens: int
    output_tokens: int
    sent: float
    queued: float
    scheduled: float
    first_token: float
    last_token: float
    shared_blocks: int
    seen_by_client: bool = False
    """Whether a client measured it: all times are on its clock, and `queued` is when it sent the request."""

    @property
    def ttft(self) -> float:
        return self.first_token - self.queued

    @property
    def tpot(self) -> float:
        """Mean gap between tokens, of a request with at least two tokens."""
        return (self.last_token - self.first_token) / (self.output_tokens - 1)

    @property
    def latency(self) -> float:
        return self.last_token - self.queued


def is_recording(path: Path) -> bool:
    """Return whether the file is a recording of `maitred serve`, judging by its first line."""
    return {*ALL_COLUMNS, *MEASURED_COLUMNS} <= set(read_header(path))


def read_recording(path: Path) -> tuple[list[MeasuredRequest], int]:
    """Return the requests of a recording that can be compared, in the order in which they were sent, and the number of others.

    Raises ConfigError for a recording of several backends or models: a timeline is that of one engine.
    """
    texts = ("arrival_secs", "sent_secs", "ttft_secs", "e2e_secs", "prompt_tokens", "output_tokens", "cached_tokens")
    rows, engines, num_left_out = list[MeasuredRequest](), set[tuple[str, str]](), 0
    for line, (_, (outcome, source, backend, model, *values)) in enumerate(
        read_rows(path, (), ("outcome", "tokens_from", "backend", "model", *texts)), 2
    ):
        # Without the usage that the backend reports, tokens are counted by the gateway as events, which need not be tokens.
        if outcome != COMPLETED or source != "usage" or not all(values[:-1]):
            num_left_out += 1
            continue
        engines.add((backend, model))
        rows.append(_recorded_request(dict(zip(texts, values, strict=True)), f"{path}:{line}"))
    _check_one_engine(engines, path)
    if not rows:
        problem = "there is no completed stream in it with the tokens that the backend has reported"
        raise ConfigError(problem, where=str(path), hint=f"its other requests: {num_left_out}")
    return sorted(rows, key=lambda row: row.sent), num_left_out


def _check_one_engine(engines: Collection[tuple[str, str]], path: Path) -> None:
    if len(engines) > 1:
        named = ", ".join(sorted(f"{model} at {backend}" for backend, model in engines))
        hint = "leave the rows of one of them in a file of its own"
        raise ConfigError(f"these are the requests of {len(engines)} engines: {named}", where=str(path), hint=hint)


def _recorded_request(row: Mapping[str, str], place: str) -> MeasuredRequest:
    numbers = {name: parse_number(text, name, place) for name, text in row.items() if text}
    check_counts({name: value for name, value in numbers.items() if name.endswith("_tokens")}, place)
    arrival = numbers["arrival_secs"]
    sent = arrival + numbers["sent_secs"]
    measured = MeasuredRequest(
        prompt_tokens=int(numbers["prompt_tokens"]),
        output_tokens=int(numbers["output_tokens"]),
        sent=sent,
        queued=sent,
        scheduled=sent,
        first_token=arrival + numbers["ttft_secs"],
        last_token=arrival + numbers["e2e_secs"],
        shared_blocks=int(numbers.get("cached_tokens", 0)) // SHARED_BLOCK_TOKENS,
        seen_by_client=True,
    )
    _check_request(measured, place)
    return measured


def read_timeline(path: Path) -> list[MeasuredRequest]:
    """Return the requests of a timeline in the order in which they were sent. Raises ConfigError with the line of a mistake."""
    header = read_header(path)
    optional = [name for name in ("submitted_s", "scheduled_ts", "prefix_blocks16_seen_before") if name in header]
    columns = ["input_tokens", "output_tokens", "queued_ts", "first_token_ts", "last_token_ts", *optional]
    rows = []
    for line, (values, _) in enumerate(read_rows(path, columns), 2):
        named = dict(zip(columns, values, strict=True))
        check_counts({name: named[name] for name in _TIMELINE_COUNTS if name in named}, f"{path}:{line}")
        rows.append(_timeline_request(named))
        _check_request(rows[-1], f"{path}:{line}")
    if not rows:
        raise ConfigError("there are no requests in it", where=str(path))
    return sorted(rows, key=lambda row: row.sent)


def _timeline_request(row: Mapping[str, float]) -> MeasuredRequest:
    return MeasuredRequest(
        prompt_tokens=int(row["input_tokens"]),
        output_tokens=int(row["output_tokens"]),
        sent=row.get("submitted_s", row["queued_ts"]),
        queued=row["queued_ts"],
        scheduled=row.get("scheduled_ts", row["queued_ts"]),
        first_token=row["first_token_ts"],
        last_token=row["last_token_ts"],
        shared_blocks=int(row.get("prefix_blocks16_seen_before", 0)),
    )


def _check_request(row: MeasuredRequest, place: str) -> None:
    if row.prompt_tokens < 1 or row.output_tokens < 1:
        raise ConfigError("input_tokens and output_tokens must be at least 1", where=place)
    if not all(-MAX_SECS <= at <= MAX_SECS for at in (row.sent, row.queued, row.last_token)):
        raise ConfigError(f"its instants should be within {MAX_SECS:.0e} s", where=place)
    if not row.queued < row.first_token <= row.last_token:
        raise ConfigError("queued_ts, first_token_ts and last_token_ts should follow each other", where=place)
    if not row.queued <= row.scheduled <= row.first_token:
        raise ConfigError("scheduled_ts should be between queued_ts and first_token_ts", where=place)


def timeline_jobs(rows: Sequence[MeasuredRequest]) -> list[Job]:
    """Return the requests of a timeline as jobs for a simulation. The first one arrives at 0.

    The earlier request with which a prefix is shared is not recorded, so the first one that is long enough is taken.
    """
    chains: list[tuple[int, ...]] = []
    for index, row in enumerate(rows):
        chains.append(_prefix_keys(index, row, chains))
    origin = rows[0].sent
    return [_timeline_job(index, row, origin, chain) for index, (row, chain) in enumerate(zip(rows, chains, strict=True))]


def _timeline_job(index: int, row: MeasuredRequest, origin: float, chain: tuple[int, ...]) -> Job:
    request = Request(
        id=index,
        arrival=from_seconds(row.sent - origin),
        prompt_tokens=row.prompt_tokens,
        max_output_tokens=row.output_tokens,
        prefix=_RecordedPrefix(chain),
    )
    return Job(request, row.output_tokens)


class _RecordedPrefix(msgspec.Struct, frozen=True, gc=False):
    """The `PrefixKeys` of a prompt that was recorded in blocks of 16 tokens."""

    chain: tuple[int, ...]

    def block_keys(self, block_size: int) -> Sequence[int]:
        if block_size % SHARED_BLOCK_TOKENS:
            hint = f"use a multiple of {SHARED_BLOCK_TOKENS}"
            raise ConfigError(f"prefixes recorded in blocks of {SHARED_BLOCK_TOKENS} tokens need larger blocks", hint=hint)
        return self.chain[block_size // SHARED_BLOCK_TOKENS - 1 :: block_size // SHARED_BLOCK_TOKENS]


def _prefix_keys(index: int, row: MeasuredRequest, earlier: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the block keys of a prompt: those of an earlier request for the shared blocks, then keys of its own."""
    shared = next((chain[: row.shared_blocks] for chain in earlier if len(chain) >= row.shared_blocks), ())
    first = index * (1 << 20)
    return (*shared, *range(first + len(shared), first + row.prompt_tokens // SHARED_BLOCK_TOKENS))


def read_rows(path: Path, numbers: Sequence[str], texts: Sequence[str] = ()) -> Iterator[tuple[list[float], list[str]]]:
    """Yield the columns `numbers` and the columns `texts` of each row. `path` may be gzipped. Raises ConfigError."""
    try:
        with open_text(path) as lines:
            reader = csv.DictReader(lines)
            _check_header(path, reader.fieldnames or (), (*numbers, *texts))
            for row in reader:
                place = f"{path}:{reader.line_num}"
                yield [parse_number(row[name], name, place) for name in numbers], [row[name] or "" for name in texts]
    except (OSError, EOFError) as error:
        raise _unreadable(path, error) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"no CSV: {describe_read_error(error)}", where=str(path)) from error


def read_header(path: Path) -> Sequence[str]:
    """Return the names of the columns. Raises ConfigError if the file cannot be read."""
    try:
        with open_text(path) as lines:
            return next(csv.reader(lines), [])
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise _unreadable(path, error) from error


def check_counts(counts: Mapping[str, float], place: str) -> None:
    """Raise ConfigError for a number that cannot be a count of tokens or requests."""
    for name, value in counts.items():
        if not (0 <= value <= _MAX_COUNT and value == int(value)):
            raise ConfigError(f"{name} should be a whole number from 0 to {_MAX_COUNT:,}, not {value:g}", where=place)


def _unreadable(path: Path, error: Exception) -> ConfigError:
    return ConfigError(f"cannot be read: {describe_read_error(error)}", where=str(path))


@contextmanager
def open_text(path: Path, *, errors: str = "strict") -> Iterator[TextIO]:
    """Open a text file, perhaps compressed (`.gz`), for a `with`. Raises OSError; reading raises what gzip does, too."""
    with open_input(path) as raw:
        content = cast(IO[bytes], gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw)
        yield TextIOWrapper(content, encoding="utf-8-sig", errors=errors, newline="")


def _check_header(path: Path, found: Sequence[str], wanted: Sequence[str]) -> None:
    if not found:
        raise ConfigError("the file is empty", where=str(path), hint="a line of column names, and a row for each measurement")
    for name in wanted:
        if name not in found:
            raise ConfigError(f"there is no column {name!r}", where=f"{path}:1", hint=nearest_name_hint(name, found))


def parse_number(text: str | None, name: str, place: str) -> float:
    """Return the finite number in `text`. Raises ConfigError that names the number and its place in a file."""
    try:
        value = float(text or "")
    except ValueError:
        value = float("nan")
    if not isfinite(value):
        raise ConfigError(f"{name} should be a number, not {text!r}", where=place)
    return value
