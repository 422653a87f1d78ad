"""Values from the environment and from flags, and how they overlay those of the file.

`MAITRED_GATEWAY__PORT=9000` sets `gateway.port`: two underscores for each dot. A key that takes text gets the value as it
is; any other value is read as YAML (`503`, `true`, `null`, `[http://a, http://b]`, `{queue_size: 3}`). A variable that does
not begin with a section of ours belongs to somebody else (Kubernetes sets MAITRED_PORT for a service called maitred) and
is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from maitred.config.document import Document, KeyPath
from maitred.config.schema import keys_of, kind_at
from maitred.errors import ConfigError

PREFIX: Final = "MAITRED_"


class Setting(msgspec.Struct, frozen=True):
    """One value from outside the file, and what the user would call its place."""

    path: KeyPath
    value: Any
    where: str


def from_environment(root: Any, env: Mapping[str, str]) -> Iterator[Setting]:
    """Raises ConfigError, naming the variable, for a section without a key and for what is not YAML. What is wrong
    with a key or its value shows when the whole is validated."""
    sections = tuple(f"{section}_" for section in keys_of(root))
    for name in sorted(env):
        rest = name.removeprefix(PREFIX).lower()
        if not (name.startswith(PREFIX) and rest.startswith(sections)):
            continue
        if "__" not in rest:
            section = next(s for s in sections if rest.startswith(s))
            meant = f"{PREFIX}{section.upper()}_{rest.removeprefix(section).upper()}"
            raise ConfigError("names a section but no key of it", where=name, hint=f"did you mean {meant}?")
        path = tuple(rest.split("__"))
        yield Setting(path, _read(env[name], kind_at(root, path), name), name)


def from_flags(flags: Mapping[str, object], names: Mapping[str, str]) -> Iterator[Setting]:
    """A flag that was left out is None and sets nothing. Flags are called after their keys, but for those in `names`."""
    for key, value in flags.items():
        if value is not None:
            path = tuple(key.split("."))
            flag = names.get(key, f"--{path[-1].replace('_', '-')}")
            yield Setting(path, msgspec.to_builtins(value, enc_hook=str), flag)


def overlay(tree: Any, settings: Iterable[Setting]) -> Any:
    """`tree` with each setting put in its place, later ones over earlier ones. `tree` itself stays as it is."""
    for setting in settings:
        tree = _put(tree, setting.path, setting.value)
    return tree


def _put(tree: Any, path: KeyPath, value: Any) -> Any:
    if not path:
        return value
    if tree is not None and not isinstance(tree, dict):
        return tree  # the file has something else where a section belongs: let that be the error
    below = (tree or {}).get(path[0])
    return {**(tree or {}), path[0]: _put(below, path[1:], value)}


def _read(text: str, kind: Any, name: str) -> Any:
    """Text where the key takes this text; else what YAML makes of it."""
    try:
        return msgspec.convert(text, kind)
    except msgspec.ValidationError:
        return Document(text, name).value
