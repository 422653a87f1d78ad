"""The data files beside this module, entries found by any of their names, and JSON files of the user's."""

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
    """What `file` holds, by name. `also` and the fields of the entry's struct are its keys."""
    return tomllib.loads(Path(__file__).with_name(file).read_text(encoding="utf-8"))


@cache
def names_in_lower_case(file: str) -> Mapping[str, str]:
    """Every name in small letters, other names too, and the one under which the entry is found."""
    found = {}
    for name, entry in load_entries(file).items():
        for each in (name, *entry.get("also", ())):
            found[each.lower()] = name
    return found


def read_json(path: Path, what: str, hint: str) -> Any:
    """What a file of the user's holds. Raises ConfigError, with `hint`, if it cannot be read as `what`."""
    try:
        return msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {what}: {error.strerror}", where=str(path), hint=hint) from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"cannot read {what}: {describe_json_error(str(error))}", where=str(path), hint=hint) from error
