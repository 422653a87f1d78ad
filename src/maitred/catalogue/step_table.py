"""Step tables as files: what `maitred calibrate` writes, and `latency: {model: table, file: FILE}` reads."""

from __future__ import annotations

from pathlib import Path

import msgspec

from maitred.errors import ConfigError
from maitred.instance.latency import StepTable


def read_table(path: Path) -> StepTable:
    """Raises ConfigError if it cannot be read, or is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=StepTable)
    except OSError as error:
        raise ConfigError(f"cannot be read: {(error.strerror or str(error)).lower()}", where=str(path)) from error
    except msgspec.DecodeError as error:
        hint = "maitred calibrate MEASURED --latency-model table makes one"
        raise ConfigError(f"no step table: {error}", where=str(path), hint=hint) from error


def table_bytes(table: StepTable) -> bytes:
    """What a file holds, to 4 decimals (of a µs, say)."""
    return msgspec.json.encode(_rounded(msgspec.to_builtins(table)))


def _rounded(value: object) -> object:
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {key: _rounded(held) for key, held in value.items()}
    return [_rounded(held) for held in value] if isinstance(value, list | tuple) else value
