"""Fields of structs that programs make themselves: numbers, texts and choices of another type are an error at once.

msgspec looks at types where it decodes a file, and not where Python makes a struct: `max_num_seqs="8"` would end in the middle
of a run, or be compared as a text.
"""

from __future__ import annotations

from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

import msgspec

from maitred.core.errors import nearest_name_hint

_PLAIN: Final[dict[Any, tuple[type, ...]]] = {
    int: (Integral,),
    float: (Real,),
    str: (str,),
    bool: (bool,),
    NoneType: (NoneType,),
    None: (NoneType,),
}


def check_field_types(struct: msgspec.Struct) -> None:
    """Raise TypeError for a plain field (of numbers, texts, truth values, or None) with a value of another type, and ValueError
    for a text that is none of the choices of its field. Fields of other types are not looked at."""
    for name, types, choices, said in _plain_fields(type(struct)):
        value = getattr(struct, name)
        if not isinstance(value, types) or (value is True or value is False) > (bool in types):
            raise TypeError(f"{name} must be {said}, not {value!r} ({type(value).__name__})")
        if choices and isinstance(value, str) and value not in choices:
            raise ValueError(f"{name} {value!r} cannot be chosen ({nearest_name_hint(value, choices)})")


@cache
def _plain_fields(kind: type[msgspec.Struct]) -> list[tuple[str, tuple[type, ...], tuple[str, ...], str]]:
    """Return of each plain field of a struct its name, the types of its values, its choices, and what it may be in words."""
    found = []
    for field in msgspec.structs.fields(kind):
        options = get_args(field.type) if get_origin(field.type) in (Union, UnionType) else (field.type,)
        choices = tuple(text for each in options if get_origin(each) is Literal for text in get_args(each))
        plain = [str if get_origin(each) is Literal else each for each in options]
        if all(each in _PLAIN for each in plain) and all(isinstance(each, str) for each in choices):
            types = tuple(kind for each in plain for kind in _PLAIN[each])
            words = " or ".join("None" if each in (None, NoneType) else each.__name__ for each in plain)
            found.append((field.name, types, choices, words))
    return found
