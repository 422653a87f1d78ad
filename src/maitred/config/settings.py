"""Values from the environment and from flags, which overlay those of the files.

`MAITRED_GATEWAY__PORT=9000` sets `gateway.port`: two underscores for each dot. A key that takes text gets the value as it is;
any other value is read as YAML (`503`, `true`, `null`, `[http://a, http://b]`, `{queue_size: 3}`). A variable with two
underscores is meant for maitred and must name a key. A variable without them is ignored: Kubernetes sets MAITRED_GATEWAY_PORT
for a service called maitred-gateway.
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
    """One value from outside the files, and its place in the user's terms: a variable or a flag."""

    path: KeyPath
    value: Any
    where: str


def environment_settings(root: Any, env: Mapping[str, str]) -> Iterator[Setting]:
    """Yield the settings of the variables that are meant for maitred.

    Raises ConfigError, naming the variable, for a value that is not text or not YAML. Whether the key exists and takes the
    value is checked later, when the whole is validated.
    """
    for name in sorted(env):
        rest = name.removeprefix(PREFIX).lower()
        if not name.startswith(PREFIX) or "__" not in rest:
            continue
        path = tuple(rest.split("__"))
        value = _parse_value(env[name], type_at(root, path), name)
        above = _value_depth(root, path)
        yield Setting(path[:above], _nested(path[above:], value), name)


def _value_depth(root: Any, path: KeyPath) -> int:
    """Return how many steps of `path` lead to the first value that has no keys, or all of them."""
    known = (depth for depth in range(1, len(path)) if (kind := type_at(root, path[:depth])) and not accepts_keys(kind))
    return next(known, len(path))


def _nested(keys: KeyPath, value: Any) -> Any:
    """Return `value` below `keys`: `{a: {b: value}}`."""
    for key in reversed(keys):
        value = {key: value}
    return value


def flag_settings(flags: Mapping[str, object], names: Mapping[str, str]) -> Iterator[Setting]:
    """Yield the settings of flags that are given, by dotted key; None stands for a flag that is not.

    A flag has the name of its key unless `names` has another. A flag whose value is a mapping sets each key of it by itself,
    so that other keys beside them stay.
    """
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
    """Return `tree` with each setting at its place, later ones over earlier ones. `tree` itself is not changed."""
    for setting in settings:
        tree = _set_at(tree, setting.path, setting.value)
    return tree


def _set_at(tree: Any, path: KeyPath, value: Any) -> Any:
    if not path:
        return value
    if tree is not None and not isinstance(tree, dict):
        return tree  # the file has no section here: validation reports that
    below = (tree or {}).get(path[0])
    return {**(tree or {}), path[0]: _set_at(below, path[1:], value)}


def _parse_value(text: str, kind: Any, name: str) -> Any:
    """Return `text` itself if the key takes it as text, else its value as YAML."""
    try:
        (name + text).encode()
    except UnicodeEncodeError as error:
        raise ConfigError("this is not text (UTF-8)", where=name) from error
    try:
        return msgspec.convert(text, kind)
    except msgspec.ValidationError:
        return YamlDocument(text, name).value
