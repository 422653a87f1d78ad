"""What differs between two states of JSON, as a merge patch (RFC 7396): members that are new or other, and null for those gone.

    {"a": 1, "b": {"c": 2, "d": 3}}  ->  {"a": 1, "b": {"c": 4}}      is      {"b": {"c": 4, "d": null}}

A member that is null and one that is not there are the same to who reads the patch. Lists are replaced as a whole, so what
changes piece by piece is kept in objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the patch that makes `after` of `before`."""
    patch: dict[str, Any] = {name: None for name in before if name not in after and before[name] is not None}
    for name, value in after.items():
        former = before.get(name)
        if former == value:
            continue
        if isinstance(value, dict):
            # Also where there was no object: a null in the new one must not come through as a member to remove.
            patch[name] = changes(former if isinstance(former, dict) else {}, value)
        else:
            patch[name] = value
    return patch
