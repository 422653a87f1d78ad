"""The data files of the catalogue, with entries found by any of their names; and JSON files of the user."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from maitred.core.error_text import describe_json_error
from maitred.core.errors import ConfigError

Entry = dict[str, Any]


@cache
def load_entries(file: str) -> Mapping[str, Entry]:
    """Return the content of `file` by name. The keys of an entry are `also` (other names) and the fields of its struct."""
    return tomllib.loads(Path(__file__).with_name(file).read_text(encoding="utf-8"))


@cache
def names_in_lower_case(file: str) -> Mapping[str, str]:
    """Return the name of an entry by each of its names in lower case."""
    found = {}
    for name, entry in load_entries(file).items():
        for each in (name, *entry.get("also", ())):
            found[each.lower()] = name
    return found


def read_json(path: Path, what: str, hint: str) -> Any:
    """Return the content of a file of the user. Raises ConfigError, with `hint`, if it cannot be read as `what`."""
    try:
        return msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {what}: {error.strerror}", where=str(path), hint=hint) from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"cannot read {what}: {describe_json_error(str(error))}", where=str(path), hint=hint) from error
