"""What keys there are: a walk over the configuration structs, by path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from maitred.reading.document import KeyPath


def kind_at(root: Any, path: KeyPath) -> Any:
    """The type of the value at `path`; None if there is no such key."""
    kind = root
    for step in path:
        kind = _item_of(kind) or keys_of(kind).get(str(step))
        if kind is None:
            return None
    return kind


def keys_of(kind: Any) -> dict[str, Any]:
    """The keys of a section with their types, and the one that tells its alternatives apart; empty for other kinds."""
    keys: dict[str, Any] = {}
    for section in _sections(kind):
        tag_field, tag = section.__struct_config__.tag_field, section.__struct_config__.tag
        if tag_field:
            keys[tag_field] = keys[tag_field] | Literal[tag] if tag_field in keys else Literal[tag]
        keys |= {field.encode_name: field.type for field in msgspec.structs.fields(section)}
    return keys


def is_section(kind: Any) -> bool:
    """Whether it has keys of its own."""
    return bool(_sections(kind))


def holds_keys(kind: Any) -> bool:
    """Whether there may be keys below it: a section, or a mapping with keys of the user's own."""
    origins = (get_origin(k) for k in _alternatives(kind))
    return is_section(kind) or any(isinstance(origin, type) and issubclass(origin, Mapping) for origin in origins)


def choices(kind: Any) -> list[Any]:
    """The values of a closed set; empty for other kinds."""
    return [value for k in _alternatives(kind) if get_origin(k) is Literal for value in get_args(k)]


def may_be_null(kind: Any) -> bool:
    return type(None) in _alternatives(kind)


def _sections(kind: Any) -> list[type[msgspec.Struct]]:
    return [k for k in _alternatives(kind) if isinstance(k, type) and issubclass(k, msgspec.Struct)]


def _item_of(kind: Any) -> Any:
    """What a list or a free mapping of this kind holds; None for other kinds."""
    for k in _alternatives(kind):
        origin = get_origin(k)
        if isinstance(origin, type) and issubclass(origin, (Sequence, Mapping)):
            return next(item for item in reversed(get_args(k)) if item is not Ellipsis)
    return None


def _alternatives(kind: Any) -> tuple[Any, ...]:
    if get_origin(kind) in (Union, UnionType):
        return get_args(kind)
    if get_origin(kind) is Annotated:
        return _alternatives(get_args(kind)[0])
    return (kind,)
