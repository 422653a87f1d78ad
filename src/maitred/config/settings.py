"""Values from the environment and from flags, and how they overlay those of the file.

`MAITRED_GATEWAY__PORT=9000` sets `gateway.port`: two underscores for each dot. A key that takes text gets the value as it
is; any other value is read as YAML (`503`, `true`, `null`, `[http://a, http://b]`, `{queue_size: 3}`). The two underscores
tell that a variable is meant for us, and then it must be right. One without them belongs to somebody else and is left alone:
Kubernetes sets MAITRED_GATEWAY_PORT for a service called maitred-gateway.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from maitred.core.errors import ConfigError
from maitred.core.yaml_document import KeyPath, YamlDocument
from maitred.core.yaml_schema import accepts_keys, type_at

PREFIX: Final = "MAITRED_"


class Setting(msgspec.Struct, frozen=True):
    """One value from outside the file, and what the user would call its place."""

    path: KeyPath
    value: Any
    where: str


def environment_settings(root: Any, env: Mapping[str, str]) -> Iterator[Setting]:
    """Raises ConfigError, naming the variable, for what is not text or not YAML. What is wrong with a section, a key or
    its value shows when the whole is validated."""
    for name in sorted(env):
        rest = name.removeprefix(PREFIX).lower()
        if not name.startswith(PREFIX) or "__" not in rest:
            continue
        path = tuple(rest.split("__"))
        value = _parse_value(env[name], type_at(root, path), name)
        above = _value_depth(root, path)
        yield Setting(path[:above], _nested(path[above:], value), name)


def _value_depth(root: Any, path: KeyPath) -> int:
    """How many steps of `path` lead to a value that has no keys; all of them if it goes below none."""
    known = (depth for depth in range(1, len(path)) if (kind := type_at(root, path[:depth])) and not accepts_keys(kind))
    return next(known, len(path))


def _nested(keys: KeyPath, value: Any) -> Any:
    for key in reversed(keys):
        value = {key: value}
    return value


def flag_settings(flags: Mapping[str, object], names: Mapping[str, str]) -> Iterator[Setting]:
    """A flag that was left out is None and sets nothing. Flags are called after their keys, but for those in `names`. One that
    gives keys with values leaves the other keys there as they are."""
    for key, value in flags.items():
        if value is not None:
            path = tuple(key.split("."))
            flag = names.get(key, f"--{path[-1].replace('_', '-')}")
            plain = msgspec.to_builtins(value, enc_hook=str)
            if isinstance(value, dict):
                yield from (Setting((*path, below), plain[below], flag) for below in plain)
            else:
                yield Setting(path, plain, flag)


def apply_settings(tree: Any, settings: Iterable[Setting]) -> Any:
    """`tree` with each setting put in its place, later ones over earlier ones. `tree` itself stays as it is."""
    for setting in settings:
        tree = _set_at(tree, setting.path, setting.value)
    return tree


def _set_at(tree: Any, path: KeyPath, value: Any) -> Any:
    if not path:
        return value
    if tree is not None and not isinstance(tree, dict):
        return tree  # the file has something else where a section belongs: let that be the error
    below = (tree or {}).get(path[0])
    return {**(tree or {}), path[0]: _set_at(below, path[1:], value)}


def _parse_value(text: str, kind: Any, name: str) -> Any:
    """Text where the key takes this text; else what YAML makes of it."""
    try:
        (name + text).encode()
    except UnicodeEncodeError as error:
        raise ConfigError("this is not text (UTF-8)", where=name) from error
    try:
        return msgspec.convert(text, kind)
    except msgspec.ValidationError:
        return YamlDocument(text, name).value
