"""Values of files, of the environment and of flags merged key by key, with the place that gave each value.

So an error in a merged value names the file and line, the variable or the flag that it comes from:

    file      gateway: {host: 0.0.0.0, port: 80}     ->  host from maitred.yaml:1, port from --port
    flag      --port 9000

Settings, from the environment and from flags, overlay the values of files. `MAITRED_GATEWAY__PORT=9000` sets `gateway.port`:
two underscores for each dot. A key that takes text gets the value as it is; any other value is read as YAML (`503`, `true`,
`null`, `[http://a, http://b]`, `{queue_size: 3}`). A variable with two underscores is meant for maitred and must name a key. A
variable without them is ignored, with a warning if it is nearly the name of one (`core/environment.py`): Kubernetes sets
MAITRED_GATEWAY_PORT for a service called maitred-gateway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec

from maitred.core.environment import PREFIX, unread_variables
from maitred.core.errors import ConfigError
from maitred.core.registry import Registry
from maitred.core.yaml_document import KeyPath, YamlDocument
from maitred.core.yaml_schema import (
    ConfigProblem,
    accepts_keys,
    accepts_null,
    dotted_key,
    first_problem,
    is_secret,
    is_section,
    section_keys,
    type_at,
)

T = TypeVar("T", bound=msgspec.Struct)


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


def variable_warnings(root: Any, env: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each variable that sets no key, and would be no error: it has no `__`. The plug-in of vLLM reads
    some."""
    meant = {name: value for name, value in env.items() if name.startswith(PREFIX) and "__" not in name.removeprefix(PREFIX)}
    if meant:
        from maitred.plugins.vllm.config import plugin_variables

        others = meant.keys() & set(plugin_variables().values())
        known = {PREFIX + "__".join(map(str, path)).upper() for path in _key_paths(root)}
        yield from unread_variables({name: meant[name] for name in meant.keys() - others}, known)


def _key_paths(root: Any) -> Iterator[KeyPath]:
    """Yield the path of each key that has no section below."""
    for key, kind in section_keys(root).items():
        yield from ((key, *below) for below in _key_paths(kind)) if is_section(kind) else [(key,)]


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
    """Yield the settings of flags that are given, by dotted key; None stands for a flag that is not. A flag has the name of its
    key unless `names` has another. A mapping as the value of a flag sets each of its keys by itself, so that other keys beside
    them stay."""
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


class MergedConfig(Generic[T]):
    """The values of documents and settings together, from which a `root` is built."""

    def __init__(
        self,
        root: type[T],
        documents: Sequence[YamlDocument],
        settings: Sequence[Setting],
        registered: Mapping[KeyPath, Registry[Any]],
        defaults: Callable[[Any], Any] = lambda tree: {},
    ) -> None:
        """Merge: later documents win over earlier ones, later settings over earlier ones, and settings over documents.

        `registered` are the keys that name a policy, each with its registry. `defaults` returns the values that hold where no
        source gives any, and are not those of the struct: it gets all that is given.
        """
        self._root, self._documents, self._settings, self._registered = root, documents, settings, registered
        tree: Any = {}
        for document in documents:
            tree = _overlay(tree, _drop_empty_sections(document.tree, root))
        tree = _drop_empty_sections(apply_settings(tree, settings), root)
        self._tree = _overlay(defaults(tree), tree)

    def build(self) -> T:
        """Return the values as a `root`. Raises ConfigError for the first mistake."""
        problem = self._problem(self._tree)
        if problem:
            raise problem.error
        return msgspec.convert(self._tree, self._root)

    def is_given(self, *path: str) -> bool:
        """Return whether any source gives this key a value other than null."""
        value = self._tree
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value is not None

    def problems(self) -> list[ConfigError]:
        """Return the first 100 mistakes. After each, the wrong value is removed to validate the rest; missing it is none."""
        errors: list[ConfigError] = []
        removed: list[KeyPath] = []
        # A mistake that stays when its value is removed, such as a key that the root lacks, would be found for ever.
        tree, before = self._tree, None
        while tree != before and (problem := self._problem(tree)):
            if len(removed) == _MOST_PROBLEMS:  # Each costs a validation of all that is left.
                return [*errors, ConfigError(f"there are more mistakes than these {len(errors)}")]
            path, text = problem.path, str(problem.error)
            if not any(path == other[: len(path)] and f"missing field `{other[-1]}`" in text for other in removed):
                errors.append(problem.error)
            removed.append(path)
            before, tree = tree, _remove_at(tree, path)
        return errors

    def _problem(self, tree: Any) -> ConfigProblem | None:
        return first_problem(tree, self._root, self._where) or self._unknown_policy(tree) or self._secret_without_value(tree)

    def _secret_without_value(self, tree: Any) -> ConfigProblem | None:
        """Return the first key such as `api_key` that a file has without a value, or None: a gateway that is open to all must
        not come of a slip."""
        for path in (path for document in self._documents for path in _paths_to_null(document.tree)):
            value = tree
            for key in path:
                value = value.get(key, _MISSING) if isinstance(value, dict) else _MISSING
            if is_secret(path) and not value:
                found = ConfigError(f"{dotted_key(path)} has no value", where=self._where(path), hint=_KEY_HINT)
                return ConfigProblem(path, found)
        return None

    def _unknown_policy(self, tree: Any) -> ConfigProblem | None:
        """Return the first key that names no known policy, or None."""
        for path, registry in self._registered.items():
            name = tree
            for key in path:
                name = name.get(key) if name else None
            try:
                for each in name if isinstance(name, list | tuple) else [name]:
                    if each is not None:
                        registry.get(each)
            except ConfigError as error:
                found = ConfigError(f"{dotted_key(path)}: {error.problem}", where=self._where(path), hint=error.hint)
                return ConfigProblem(path, found)
        return None

    def _where(self, path: KeyPath) -> str:
        """Return the place of the value at `path`: the setting that gave it or the section above it; else its line in a file;
        else a setting inside it."""
        latest_first = self._settings[::-1]
        above = (s.where for s in latest_first if s.path == path[: len(s.path)])
        inside = (s.where for s in latest_first if s.path[: len(path)] == path)
        lines = (line for document in self._documents[::-1] if (line := document.where(path)))
        return next(above, None) or next(lines, None) or next(inside, "")


_MISSING: Final = object()
_MOST_PROBLEMS: Final = 100
_KEY_HINT: Final = "write the key, or leave the line out"


def _paths_to_null(tree: Any) -> Iterator[KeyPath]:
    """Yield the path of each key without a value."""
    for key, value in tree.items() if isinstance(tree, dict) else ():
        if value is None:
            yield (key,)
        else:
            yield from ((key, *below) for below in _paths_to_null(value))


def _overlay(below: Any, above: Any) -> Any:
    """Return `above` where it has a value, key by key, else `below`."""
    match below, above:
        case dict(), dict():
            return {**below, **{key: _overlay(below.get(key), value) for key, value in above.items()}}
        case (dict(), None):
            return below
        case (None, _):
            return above
        case (_, dict()):
            return below  # no section here: validation reports that
    return above


def _drop_empty_sections(tree: Any, kind: Any) -> Any:
    """Return `tree` with `{}` for each section that is null, because all its lines are commented out: its defaults hold."""
    if tree is None and accepts_keys(kind) and not accepts_null(kind):
        return {}
    if not isinstance(tree, dict):
        return tree
    kinds = section_keys(kind)
    return {key: _drop_empty_sections(value, kinds.get(key)) for key, value in tree.items()}


def _remove_at(tree: Any, path: KeyPath) -> Any:
    """Return `tree` without the value at `path`, or without the whole list if the value is in a list."""
    if not path or not isinstance(tree, dict):
        return {}
    key, below = path[0], path[1:]
    rest = {k: v for k, v in tree.items() if k != key}
    return {**rest, key: _remove_at(tree[key], below)} if below and isinstance(tree.get(key), dict) else rest
