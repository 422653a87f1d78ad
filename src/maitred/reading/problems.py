"""What is wrong with a configuration, said for the person who wrote it.

msgspec does the validation and says what it expected, in its own words and at a path into the values. This turns one such
error into a ConfigError: the place in the file (or the variable, or the flag), the key, what was found, what was wanted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec

from maitred.errors import ConfigError, nearest
from maitred.reading.document import KeyPath
from maitred.reading.schema import choices, keys_of, kind_at
from maitred.wording import in_words

Locator: TypeAlias = Callable[[KeyPath], str]
"""Where the value at a path came from, as the user would point at it."""

_SECRETS: Final = ("api_key", "api_keys")
"""How the keys end whose values are shown to nobody."""
_MISSING: Final = "Object missing required field"
_ANY_KEY: Final = "[...]"
_STEP: Final = re.compile(r"\.(\w+)|\[(\d+)\]")


class Problem(msgspec.Struct, frozen=True):
    """An error, and the path of the value that is to blame."""

    path: KeyPath
    error: ConfigError


def first_problem(tree: Any, root: type[msgspec.Struct], locate: Locator) -> Problem | None:
    """What msgspec finds wrong first; None when `tree` is a valid `root`."""
    try:
        msgspec.convert(tree, root)
    except msgspec.ValidationError as error:
        return _explain(str(error), tree, root, locate)
    return None


def dotted(path: KeyPath) -> str:
    """As users write it: `gateway.backends[0]`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def _explain(said: str, tree: Any, root: type[msgspec.Struct], locate: Locator) -> Problem:
    if said.startswith(("Object contains unknown field", _MISSING)) and (blamed := _unknown_key(tree, root, ())):
        hint = nearest(str(blamed[-1]), keys_of(kind_at(root, blamed[:-1])))
        return _problem(blamed, f"unknown key {dotted(blamed)!r}", locate, hint)
    message, _, at = said.partition(" - at `")
    path = _path(at, tree, root)
    found = _at(tree, path)
    if wrong := re.fullmatch(r"Expected (.*), got `.*`", message):
        return _problem(path, f"{_name(path)}: expected {in_words(wrong[1])}, found {_shown(found, path)}", locate)
    if message.startswith(_MISSING):
        key = message.removeprefix(_MISSING).strip(" `")
        known = [str(choice) for choice in choices(kind_at(root, (*path, key)))]
        return _problem(path, f"{_name(path)}: the key {key!r} is missing", locate, nearest("", known) if known else "")
    if isinstance(found, dict):
        return _about_section(path, found, message, locate)
    if message.startswith("Invalid "):
        hint = nearest(found if isinstance(found, str) else "", [str(choice) for choice in choices(kind_at(root, path))])
        return _problem(path, f"{_name(path)}: {_shown(found, path)} cannot be chosen", locate, hint)
    return _problem(path, f"{_name(path)}: {in_words(message[:1].lower() + message[1:])}", locate)


def _path(at: str, tree: Any, root: Any) -> KeyPath:
    """Where msgspec says that it is. Among keys of the user's own it does not say at which: at the first that is wrong."""
    before, among, _ = at.partition(_ANY_KEY)
    path: KeyPath = tuple(name or int(index) for name, index in _STEP.findall(before))
    mapping = _at(tree, path)
    if not among or not isinstance(mapping, dict):
        return path
    for key, value in mapping.items():
        kind = kind_at(root, (*path, key))
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            return (*path, key, *_path(str(error).partition(" - at `")[2], value, kind))
    return path


def _unknown_key(tree: Any, root: Any, path: KeyPath) -> KeyPath | None:
    """The first key that its section does not have, in msgspec's order. Looked for in the values and not in what msgspec
    says, because a key may read like anything."""
    known = keys_of(kind_at(root, path))
    steps = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for step, below in steps:
        here = (*path, step)
        if known and step not in known:
            return here
        if found := _unknown_key(below, root, here):
            return found
    return None


def _about_section(path: KeyPath, section: dict[str, Any], message: str, locate: Locator) -> Problem:
    """What a struct raised of itself. It names the key that it is about; that one's place is the one to show."""
    inside, value = _blamed(section, message)
    if not inside:
        return _problem(path, f"{_name(path)}: {message}", locate)
    blamed, shown = (*path, *inside), _shown(value, (*path, *inside))
    what = message if message.startswith(inside[0]) else f"{inside[0]}: {message}"
    said = message.endswith(f"not {shown}") or (isinstance(value, str) and shown in message)
    found = "" if said or isinstance(value, (dict, list)) or _secret(blamed) else f", found {shown}"
    return _problem(blamed, ".".join(filter(None, (dotted(path), f"{what}{found}"))), locate)


def _blamed(section: dict[str, Any], message: str) -> tuple[tuple[str, ...], Any]:
    """The keys that `message` names, each below the one before, and the value there."""
    path: list[str] = []
    value: Any = section
    for quoted, word in re.findall(r"'([^']*)'|(\w+)", message):
        if isinstance(value, dict) and (quoted or word) in value:
            path.append(quoted or word)
            value = value[path[-1]]
    return tuple(path), value


def _problem(path: KeyPath, what: str, locate: Locator, hint: str = "") -> Problem:
    return Problem(path, ConfigError(what, where=locate(path), hint=hint))


def _at(tree: Any, path: KeyPath) -> Any:
    for step in path:
        tree = tree[step]
    return tree


def _name(path: KeyPath) -> str:
    return dotted(path) or "the file"


def _secret(path: KeyPath) -> bool:
    return any(isinstance(step, str) and step.endswith(_SECRETS) for step in path)


def _shown(value: Any, path: KeyPath) -> str:
    match value:
        case None:
            return "nothing"
        case _ if _secret(path):
            return "***"
        case bool():
            return str(value).lower()
        case dict():
            return "a section (keys with values)"
        case list():
            return "a list"
    return repr(value)
