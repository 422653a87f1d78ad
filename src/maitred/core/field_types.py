"""Fields of structs that programs make themselves: values of another type, and a choice that there is not.

msgspec looks at types where it decodes a file, and not where Python makes a struct: `max_num_seqs="8"` and `num_instances=2.5`
would end in the middle of a run, and `enable_prefix_caching="off"` would be true.
"""

from __future__ import annotations

from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

import msgspec

from maitred.core.errors import nearest_name_hint

_PLAIN: Final[tuple[Any, ...]] = (int, float, bool, NoneType)


def check_field_types(struct: msgspec.Struct) -> None:
    """Raise TypeError for a text in a field of numbers or truth values, for a fraction in a field of whole numbers and for a
    truth value in a field of numbers, and ValueError for a text that is no choice of its field. Fields of other types are not
    looked at."""
    for name, choices, kinds in _plain_fields(type(struct)):
        value = getattr(struct, name)
        if isinstance(value, str):
            if choices and value not in choices:
                raise ValueError(f"{name} {value!r} cannot be chosen ({nearest_name_hint(value, choices)})")
            is_wrong = not choices
        else:
            is_wrong = (isinstance(value, float) and float not in kinds) or (isinstance(value, bool) and bool not in kinds)
        if is_wrong and kinds:
            said = " or ".join("None" if each is NoneType else each.__name__ for each in kinds)
            raise TypeError(f"{name} must be {said}, not {value!r} ({type(value).__name__})")


@cache
def _plain_fields(kind: type[msgspec.Struct]) -> list[tuple[str, tuple[str, ...], tuple[Any, ...]]]:
    """Return of each field of numbers, truth values or choices its name, its choices, and what else it may be."""
    found = []
    for field in msgspec.structs.fields(kind):
        options = get_args(field.type) if get_origin(field.type) in (Union, UnionType) else (field.type,)
        choices = tuple(text for each in options if get_origin(each) is Literal for text in get_args(each))
        plain = tuple(each for each in options if get_origin(each) is not Literal)
        if all(each in _PLAIN for each in plain) and all(isinstance(each, str) for each in choices):
            found.append((field.name, choices, plain))
    return found
