"""The data files beside this module, and entries found by any of their names."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

Entry = dict[str, Any]


@cache
def entries(file: str) -> Mapping[str, Entry]:
    """What `file` holds, by name. `also` and the fields of the entry's struct are its keys."""
    return tomllib.loads(Path(__file__).with_name(file).read_text(encoding="utf-8"))


@cache
def names(file: str) -> Mapping[str, str]:
    """Every name in small letters, other names too, and the one under which the entry is found."""
    found = {}
    for name, entry in entries(file).items():
        for each in (name, *entry.get("also", ())):
            found[each.lower()] = name
    return found
