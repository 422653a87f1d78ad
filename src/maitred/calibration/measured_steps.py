"""Measured steps of an engine, one row per step.

    prefill_tokens   tokens of prefill in the step
    decode_tokens    sequences that decoded, a token each
    context_tokens   tokens of KV that these read, summed (optional: 0)
    prefill_start    tokens of KV before those that prefill (optional: 0)
    step_us          how long it took; or step_ms, or step_secs

in CSV with a header, or as one JSON object per line. Other columns do not matter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path

import msgspec

from maitred.calibration.csv_file import check_counts, header_of, rows_of
from maitred.contracts import BatchShape, ChunkShape
from maitred.errors import ConfigError

UNITS: Mapping[str, float] = {"step_us": 1.0, "step_ms": 1e3, "step_secs": 1e6}
_COUNTS = ("prefill_tokens", "decode_tokens")
_OPTIONAL = ("context_tokens", "prefill_start")


class MeasuredStep(msgspec.Struct, frozen=True):
    """What was in a step, and how long it took."""

    shape: BatchShape
    us: float


def read_steps(path: Path) -> list[MeasuredStep]:
    """Raises ConfigError with the line of what is wrong."""
    rows = _json_rows(path) if ".jsonl" in path.suffixes else _csv_rows(path)
    steps = [_step(named, place) for named, place in rows]
    if not steps:
        raise ConfigError("there are no steps in it", where=str(path))
    return steps


def holds_steps(path: Path) -> bool:
    """Whether it is a file of steps, as far as its first line tells."""
    return ".jsonl" in path.suffixes or any(unit in header_of(path) for unit in UNITS)


def _csv_rows(path: Path) -> Iterator[tuple[dict[str, float], str]]:
    header = header_of(path)
    unit = next((name for name in UNITS if name in header), "step_us")
    columns = [*_COUNTS, *(name for name in _OPTIONAL if name in header), unit]
    for line, (values, _) in enumerate(rows_of(path, columns), 2):
        yield dict(zip(columns, values, strict=True)), f"{path}:{line}"


def _json_rows(path: Path) -> Iterator[tuple[dict[str, float], str]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", where=str(path)) from error
    for number, line in enumerate(lines, 1):
        place = f"{path}:{number}"
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"no JSON: {error}", where=place) from error
        if not isinstance(row, dict):
            raise ConfigError("a step is a JSON object", where=place)
        yield {name: _number(row[name], name, place) for name in (*_COUNTS, *_OPTIONAL, *UNITS) if name in row}, place


def _number(value: object, name: str, place: str) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value):
        return float(value)
    raise ConfigError(f"{name} should be a number, not {value!r}", where=place)


def _step(row: Mapping[str, float], place: str) -> MeasuredStep:
    unit = next((name for name in UNITS if name in row), None)
    missing = [name for name in _COUNTS if name not in row] + ([] if unit else ["step_us"])
    if unit is None or missing:
        raise ConfigError(f"{missing[0]} is missing", where=place, hint=f"a step has {', '.join(_COUNTS)} and step_us")
    check_counts({name: row[name] for name in (*_COUNTS, *_OPTIONAL) if name in row}, place)
    if row[unit] <= 0:
        raise ConfigError(f"a step takes some time, and {unit} is {row[unit]:g}", where=place)
    prefill, decodes = int(row["prefill_tokens"]), int(row["decode_tokens"])
    if not prefill and not decodes:
        raise ConfigError("a step without tokens", where=place, hint="leave out the steps in which nothing was computed")
    start = int(row.get("prefill_start", 0))
    chunks = (ChunkShape(prefill, start, start + prefill),) if prefill else ()
    return MeasuredStep(BatchShape(decodes, int(row.get("context_tokens", 0)), prefill, chunks), row[unit] * UNITS[unit])
