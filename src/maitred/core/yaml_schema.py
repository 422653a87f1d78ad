"""Values of a YAML file as a frozen struct, or one clear line that says what is wrong with them and where.

msgspec validates the values and describes the first mistake in its own words, with a path into the values. From that this
module makes a ConfigError in the user's terms: the place (file and line, variable or flag), the key, what was found, what was
expected, and the nearest valid name.

    msgspec       Expected `int`, got `str` - at `$.gateway.port`
    ConfigError   maitred.yaml:3: gateway.port: expected a whole number, found 'x'

It also answers which keys there are, by a walk over the types of the structs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar, Union, get_args, get_origin

import msgspec

from maitred.core.errors import ConfigError, describe_expected, nearest_name_hint, quote
from maitred.core.yaml_document import KeyPath, ReadableFile, YamlDocument

T = TypeVar("T", bound=msgspec.Struct)
Locator: TypeAlias = Callable[[KeyPath], str]
"""Returns the place of the value at a path in the user's terms: file and line, variable or flag."""

_SECRET_SUFFIXES: Final = ("api_key", "api_keys", "secret")
"""Ends of secret keys: no message shows their values."""
_MISSING_FIELD: Final = "Object missing required field"
_MOST: Final = 2**63 - 1
"""The largest whole number that workers, gateways and schedulers can tell each other (MessagePack)."""
_ANY_KEY: Final = "[...]"
_STEP: Final = re.compile(r"\.(\w+)|\[(\d+)\]")


def read_struct(file: ReadableFile, root: type[T]) -> T:
    """Return the content of a YAML file as a `root`. Raises ConfigError with file, line and the nearest valid name."""
    return document_to_struct(YamlDocument.read(file), root)


def document_to_struct(document: YamlDocument, root: type[T]) -> T:
    """Return the document as a `root`. Raises ConfigError with its name, the line and the nearest valid name."""
    if not isinstance(document.value, dict):
        found = "nothing" if document.value is None else "something else"
        raise ConfigError(f"there should be keys with values, and there is {found}", where=document.name)

    def place(at: KeyPath) -> str:
        """Return the line of the key, or of the nearest key above it that the file has."""
        return next((found for end in range(len(at), -1, -1) if (found := document.where(at[:end]))), document.name)

    problem = first_problem(document.value, root, place)
    if problem:
        raise problem.error
    return msgspec.convert(document.value, root)


def type_at(root: Any, path: KeyPath) -> Any:
    """Return the type of the value at `path`, or None if there is no such key."""
    kind = root
    for step in path:
        kind = _item_type(kind) or section_keys(kind).get(str(step))
        if kind is None:
            return None
    return kind


def section_keys(kind: Any) -> dict[str, Any]:
    """Return the keys of a section with their types, its tag included; no keys for a type that is no section."""
    keys: dict[str, Any] = {}
    for section in struct_types(kind):
        tag_field, tag = section.__struct_config__.tag_field, section.__struct_config__.tag
        if tag_field:
            keys[tag_field] = keys[tag_field] | Literal[tag] if tag_field in keys else Literal[tag]
        keys |= {field.encode_name: field.type for field in msgspec.structs.fields(section)}
    return keys


def is_section(kind: Any) -> bool:
    """Return whether the type is a section, with keys of its own."""
    return bool(struct_types(kind))


def accepts_keys(kind: Any) -> bool:
    """Return whether there may be keys below: the type is a section, or a mapping with keys that the user chooses."""
    origins = (get_origin(k) for k in union_members(kind))
    return is_section(kind) or any(isinstance(origin, type) and issubclass(origin, Mapping) for origin in origins)


def literal_choices(kind: Any) -> list[Any]:
    """Return the values of a closed set; none for other types."""
    return [value for k in union_members(kind) if get_origin(k) is Literal for value in get_args(k)]


def accepts_null(kind: Any) -> bool:
    """Return whether null is a value of the type."""
    return type(None) in union_members(kind)


def struct_types(kind: Any) -> list[type[msgspec.Struct]]:
    """Return the structs among the members of a type: the alternatives of a section."""
    return [k for k in union_members(kind) if isinstance(k, type) and issubclass(k, msgspec.Struct)]


def _item_type(kind: Any) -> Any:
    """Return the type of the items of a list or of a free mapping, or None for other types."""
    for k in union_members(kind):
        origin = get_origin(k)
        if isinstance(origin, type) and issubclass(origin, (Sequence, Mapping)):
            return next(item for item in reversed(get_args(k)) if item is not Ellipsis)
    return None


def union_members(kind: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the type itself if it is none."""
    if get_origin(kind) in (Union, UnionType):
        return tuple(each for member in get_args(kind) for each in union_members(member))
    if get_origin(kind) is Annotated:
        return union_members(get_args(kind)[0])
    return (kind,)


class ConfigProblem(msgspec.Struct, frozen=True):
    """An error, and the path of the value that causes it."""

    path: KeyPath
    error: ConfigError


def first_problem(tree: Any, root: type[msgspec.Struct], locate: Locator) -> ConfigProblem | None:
    """Return the first mistake that msgspec finds, or the first whole number that no message can hold; None if `tree` is a
    valid `root`."""
    try:
        msgspec.convert(tree, root)
    except msgspec.ValidationError as error:
        return _explain(str(error), tree, root, locate)
    for path, number in _whole_numbers(tree, ()):
        if abs(number) > _MOST and float not in union_members(type_at(root, path)):
            what = f"expected a whole number of 64 bits at most, found {_display_value(number, path)}"
            return _problem(path, f"{_display_path(path)}: {what}", locate)
    return None


def _whole_numbers(tree: Any, path: KeyPath) -> Iterator[tuple[KeyPath, int]]:
    if isinstance(tree, int):
        yield path, tree
    elif isinstance(tree, dict | list | tuple):
        for step, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _whole_numbers(value, (*path, step))


def dotted_key(path: KeyPath) -> str:
    """Return a path as users write it: `gateway.backends[0]`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def _explain(text: str, tree: Any, root: type[msgspec.Struct], locate: Locator) -> ConfigProblem:
    # msgspec has no errors with fields, so its text is taken apart. A misspelled key may be reported as the missing one that it
    # should have been; the user knows only the key that is in the file, so an unknown key is named first.
    if text.startswith(("Object contains unknown field", _MISSING_FIELD)) and (unknown := _unknown_key(tree, root, ())):
        hint = nearest_name_hint(str(unknown[-1]), section_keys(type_at(root, unknown[:-1])))
        return _problem(unknown, f"unknown key {dotted_key(unknown)!r}", locate, hint)
    message, _, at = text.partition(" - at `")
    path = _error_path(at, tree, root)
    found = _value_at(tree, path)
    if wrong := re.fullmatch(r"Expected (.*), got `.*`", message):
        what = f"expected {describe_expected(wrong[1])}, found {_display_value(found, path)}"
        return _problem(path, f"{_display_path(path)}: {what}", locate)
    if message.startswith(_MISSING_FIELD):
        key = message.removeprefix(_MISSING_FIELD).strip(" `")
        known = _choices(root, (*path, key))
        hint = nearest_name_hint("", known) if known else ""
        return _problem(path, f"{_display_path(path)}: the key {key!r} is missing", locate, hint)
    if isinstance(found, dict):
        return _explain_section_error(path, found, message, locate)
    if message.startswith("Invalid "):
        hint = nearest_name_hint(found if isinstance(found, str) else "", _choices(root, path))
        return _problem(path, f"{_display_path(path)}: {_display_value(found, path)} cannot be chosen", locate, hint)
    return _problem(path, f"{_display_path(path)}: {describe_expected(message[:1].lower() + message[1:])}", locate)


def _choices(root: type[msgspec.Struct], path: KeyPath) -> list[str]:
    kind = type_at(root, path)
    return [*map(str, literal_choices(kind)), *(["a whole number"] if int in union_members(kind) else [])]


def _error_path(at: str, tree: Any, root: Any) -> KeyPath:
    """Return the path that msgspec gives as `at`. Among keys that the user chooses it does not say at which: it is the first
    one with a value that is not valid."""
    before, among, _ = at.partition(_ANY_KEY)
    path: KeyPath = tuple(name or int(index) for name, index in _STEP.findall(before))
    mapping = _value_at(tree, path)
    if not among or not isinstance(mapping, dict):
        return path
    for key, value in mapping.items():
        try:
            msgspec.convert(value, kind := type_at(root, (*path, key)))
        except msgspec.ValidationError as error:
            return (*path, key, *_error_path(str(error).partition(" - at `")[2], value, kind))
    return path


def _unknown_key(tree: Any, root: Any, path: KeyPath) -> KeyPath | None:
    """Return the path of the first key that its section does not have, in msgspec's order, or None.

    It is searched in the values, not in msgspec's message: the text of a key may look like any message.
    """
    known = section_keys(type_at(root, path))
    steps = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for step, below in steps:
        here = (*path, step)
        if known and step not in known:
            return here
        if found := _unknown_key(below, root, here):
            return found
    return None


def _explain_section_error(path: KeyPath, section: dict[str, Any], message: str, locate: Locator) -> ConfigProblem:
    """Explain what a struct raised of itself (`__post_init__`). The place is that of the key that the message names."""
    inside, value = _keys_named_in(section, message)
    if not inside:
        return _problem(path, f"{_display_path(path)}: {message}", locate)
    cause, shown = (*path, *inside), _display_value(value, (*path, *inside))
    what = message if message.startswith(inside[0]) else f"{inside[0]}: {message}"
    is_shown = message.endswith((f"not {shown}", f"not {value!r}")) or (isinstance(value, str) and shown in message)
    found = "" if is_shown or isinstance(value, (dict, list)) or is_secret(cause) else f", found {shown}"
    return _problem(cause, ".".join(filter(None, (dotted_key(path), f"{what}{found}"))), locate)


def _keys_named_in(section: dict[str, Any], message: str) -> tuple[tuple[str, ...], Any]:
    """Return the keys that `message` names, each below the one before, and the value there."""
    path: list[str] = []
    value: Any = section
    for quoted, word in re.findall(r"'([^']*)'|(\w+)", message):
        if isinstance(value, dict) and (quoted or word) in value:
            path.append(quoted or word)
            value = value[path[-1]]
    return tuple(path), value


def _problem(path: KeyPath, what: str, locate: Locator, hint: str = "") -> ConfigProblem:
    return ConfigProblem(path, ConfigError(what, where=locate(path), hint=hint))


def _value_at(tree: Any, path: KeyPath) -> Any:
    for step in path:
        tree = tree[step]
    return tree


def _display_path(path: KeyPath) -> str:
    return dotted_key(path) or "the file"


def is_secret(path: KeyPath) -> bool:
    """Return whether no message may show the value at `path`: it is an API key."""
    return any(isinstance(step, str) and step.endswith(_SECRET_SUFFIXES) for step in path)


def _display_value(value: Any, path: KeyPath) -> str:
    match value:
        case None:
            return "nothing"
        case _ if is_secret(path):
            return "***"
        case bool():
            return str(value).lower()
        case dict():
            return "a section (keys with values)"
        case list():
            return "a list"
    return quote(value)
