"""The YAML header of a BLIS trace, which is a file beside its rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from maitred.errors import ConfigError
from maitred.workload.spec_parts import GoodputTargets


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What of the YAML file beside the rows changes their meaning, or what is expected of who serves them."""

    trace_version: int = 2
    time_unit: str = "microseconds"
    session_context_growth: Literal["", "accumulate"] = ""
    goodput_slo_targets: Mapping[str, GoodputTargets] = {}


def header_path(path: Path) -> Path:
    """Where the header of the rows in `path` is if nobody says: NAME.yaml beside NAME.csv or NAME.csv.gz."""
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    return plain.with_suffix(".yaml")


def header_of(rows: Path) -> Header:
    """The header beside the rows in this file; the usual one if none is there. Raises ConfigError as `read_header` does."""
    path = header_path(rows)
    return read_header(path) if path.is_file() else Header()


def read_header(path: Path) -> Header:
    """Raises ConfigError for one that cannot be read, or that we cannot follow."""
    import yaml

    try:
        text = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(path)) from error
    try:
        header = msgspec.convert(yaml.load(text, Loader=yaml.CSafeLoader), Header)
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise ConfigError("this is no header of a BLIS trace", where=str(path), hint="trace_version: 2") from error
    if header.trace_version not in (2, 3):
        raise ConfigError(f"trace_version is {header.trace_version}", where=str(path), hint="versions 2 and 3 can be read")
    if header.time_unit not in ("microseconds", "us"):
        raise ConfigError(f"time_unit is {header.time_unit!r}", where=str(path), hint="it must be microseconds")
    return header
