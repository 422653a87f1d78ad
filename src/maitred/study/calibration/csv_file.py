"""CSV files as rows of numbers. Every mistake is reported with its file and line."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import TextIO

from maitred.core.errors import ConfigError, nearest_name_hint

_MAX_COUNT = 1_000_000_000
"""More tokens than any step or request has."""


def read_rows(path: Path, numbers: Sequence[str], texts: Sequence[str] = ()) -> Iterator[tuple[list[float], list[str]]]:
    """Yield the columns `numbers` and the columns `texts` of each row. `path` may be gzipped. Raises ConfigError."""
    try:
        with _open(path) as lines:
            reader = csv.DictReader(lines)
            _check_header(path, reader.fieldnames or (), (*numbers, *texts))
            for row in reader:
                place = f"{path}:{reader.line_num}"
                yield [_number(row, name, place) for name in numbers], [row[name] or "" for name in texts]
    except (OSError, EOFError) as error:
        raise _unreadable(path, error) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"no CSV: {error}", where=str(path)) from error


def read_header(path: Path) -> Sequence[str]:
    """Return the names of the columns. Raises ConfigError if the file cannot be read."""
    try:
        with _open(path) as lines:
            return next(csv.reader(lines), [])
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise _unreadable(path, error) from error


def check_counts(counts: Mapping[str, float], place: str) -> None:
    """Raise ConfigError for a number that cannot be a count of tokens or requests."""
    for name, value in counts.items():
        if not (0 <= value <= _MAX_COUNT and value == int(value)):
            raise ConfigError(f"{name} should be a whole number from 0 to {_MAX_COUNT:,}, not {value:g}", where=place)


def _unreadable(path: Path, error: Exception) -> ConfigError:
    why = error.strerror.lower() if isinstance(error, OSError) and error.strerror else str(error)
    return ConfigError(f"cannot be read: {why}", where=str(path))


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _check_header(path: Path, found: Sequence[str], wanted: Sequence[str]) -> None:
    for name in wanted:
        if name not in found:
            raise ConfigError(f"there is no column {name!r}", where=f"{path}:1", hint=nearest_name_hint(name, found))


def _number(row: Mapping[str, str | None], name: str, place: str) -> float:
    text = row[name]
    try:
        value = float(text or "")
    except ValueError:
        value = float("nan")
    if not isfinite(value):
        raise ConfigError(f"{name} should be a number, not {text!r}", where=place)
    return value
