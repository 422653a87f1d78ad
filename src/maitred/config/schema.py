"""What keys there are: a walk over the configuration structs, by path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from maitred.config.document import KeyPath


def kind_at(root: Any, path: KeyPath) -> Any:
    """The type of the value at `path`; None if there is no such key."""
    kind = root
    for step in path:
        kind = _item_of(kind) or keys_of(kind).get(str(step))
        if kind is None:
            return None
    return kind


def keys_of(kind: Any) -> dict[str, Any]:
    """The keys of a section with their types; empty for what is not a section."""
    struct = section_of(kind)
    return {field.encode_name: field.type for field in msgspec.structs.fields(struct)} if struct else {}


def section_of(kind: Any) -> type[msgspec.Struct] | None:
    """The struct that `kind` is, or may be."""
    return next((k for k in _alternatives(kind) if isinstance(k, type) and issubclass(k, msgspec.Struct)), None)


def is_single(kind: Any) -> bool:
    """Whether a value of this kind is written without brackets."""
    return section_of(kind) is None and _item_of(kind) is None


def may_be_null(kind: Any) -> bool:
    return type(None) in _alternatives(kind)


def leaves(root: Any, path: KeyPath = ()) -> Iterator[KeyPath]:
    """Every key that holds a value, in the order in which the structs declare them."""
    for key, kind in keys_of(root).items():
        if section_of(kind):
            yield from leaves(kind, (*path, key))
        else:
            yield (*path, key)


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
