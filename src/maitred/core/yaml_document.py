"""One YAML file as plain values, and the line of each of them.

Files that people write are read in two steps: this module turns text into values that know their lines, and `yaml_schema` turns
the values into frozen structs. Nothing is ignored: an unknown key, or a duplicate one, is an error with file and line.

Text becomes values by the core schema of YAML 1.2, as in JSON: `yes`, `on` and `010` are text. A key of another type reports
them, where YAML 1.1 would silently read true, true and eight. Aliases work; tags and merge keys (`<<`) do not. A duplicate key
is an error, never "the last one wins".

Example: of `admission:` and, indented below it, `mode: priority` the value is {"admission": {"mode": "priority"}}, and
`where(("admission", "mode"))` is "a.yaml:2".
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Protocol, TypeAlias

import yaml

from maitred.core.errors import ConfigError, describe_os_error, quote

KeyPath: TypeAlias = tuple[str | int, ...]
"""From the root: keys of mappings and indices of lists."""

MAX_VALUES: Final = 100_000
"""A limit against aliases of aliases, with which a short file describes exponentially many values."""

_MAX_INT_CHARS: Final = 1_000
_TAG: Final = "tag:yaml.org,2002:"
_SYNTAX: Final = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?(0|[1-9](_?[0-9])*)|0x[0-9a-fA-F]+|0o[0-7]+",
    "float": r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
}


def _parse_int(text: str) -> int:
    """Return the integer. Raises ValueError for one that is longer than any key takes, and that Python could not print."""
    if len(text) > _MAX_INT_CHARS:
        raise ValueError("too many digits")
    return int(text, 0)


_SCALARS: Final[Mapping[str, Callable[[str], Any]]] = {
    "null": lambda text: None,
    "bool": lambda text: text.lower() == "true",
    "int": _parse_int,
    "float": lambda text: float(re.sub(r"\.(?=[iInN])", "", text)),
    "str": str,
}
_KEYS: Final = (_TAG + "str", _TAG + "int")
"""Tags that a key may have. A number as a key is the text of its digits: `{128: 0.5}` has the key "128"."""


class ReadableFile(Protocol):
    """A file, such as a `pathlib.Path`; its text is its name."""

    def read_bytes(self) -> bytes:
        """Return its content. Raises OSError."""
        ...


class _Loader(yaml.SafeLoader):
    """PyYAML's parser with the words of YAML 1.2."""


# PyYAML's own resolvers are those of YAML 1.1. The class gets an empty table, so that of `SafeLoader` is not changed.
_Loader.yaml_implicit_resolvers = {}
for _tag, _words in _SYNTAX.items():
    _Loader.add_implicit_resolver(_TAG + _tag, re.compile(rf"(?:{_words})\Z"), None)


_SYNTAX_ERRORS: Final = (
    ("<stream end>|end of stream", "the file ends where more belongs (is a bracket or a quote not closed?)"),
    (r"'\\t'", "a tab, where YAML takes spaces"),
    ("single document", "a second document begins here, and there may be only one"),
    (
        "mapping values are not allowed",
        "a colon where no key can be (is text with a colon not quoted, or the indentation off?)",
    ),
    ("could not find expected ':'", "a key without a colon"),
    (r"expected ',' or '[\]}]'", "a list or section in brackets that goes on without a comma, or is not closed"),
    ("expected <block end>", "this does not fit the indentation of the lines above"),
    ("cannot start any token", "a character that no value may begin with (quote the text)"),
    ("undefined alias", "a *name for which there is no &name"),
)
"""What PyYAML's parser says, as an expression, and what we say."""


class YamlDocument:
    """A YAML document: `value` as dicts, lists and scalars, and the line of every key in it.

    A document of one `section` has the values of that section only, but is asked for places by their whole path.
    """

    def __init__(self, text: str, name: str, section: str | None = None) -> None:
        """`name` is what error messages call it. Raises ConfigError with `name`, line and column if the text is not YAML."""
        self.name = name
        self.section = section
        self._num_values = 0
        # Composed and not loaded: the nodes know their lines, which values do not.
        try:
            self._root = yaml.compose(text, Loader=_Loader)
            self.value = None if self._root is None else self._to_value(self._root, ())
        except yaml.MarkedYAMLError as error:
            raise self._syntax_error(error) from None
        except yaml.reader.ReaderError as error:
            place = f"{name}:{text.count(chr(10), 0, error.position) + 1}"
            raise ConfigError(f"not YAML: a character that text does not have (U+{error.character:04X})", where=place) from None
        except RecursionError:
            raise ConfigError("nested too deeply", where=name) from None

    @classmethod
    def read(cls, file: ReadableFile, section: str | None = None) -> YamlDocument:
        """Return the document in `file`. Raises ConfigError if it cannot be read, or is not YAML."""
        try:
            return cls(file.read_bytes().decode("utf-8-sig"), str(file), section)
        except OSError as error:
            raise ConfigError(f"cannot be read: {describe_os_error(error)}", where=str(file)) from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"not UTF-8 text (byte {error.start})", where=str(file), hint="is it the right file?") from error

    @property
    def tree(self) -> Any:
        """`value` at its place in the whole configuration."""
        return self.value if self.section is None else {self.section: self.value}

    def keep_keys(self, section: str, keys: Collection[str]) -> YamlDocument:
        """Return the same document without all keys in `section` but `keys`."""
        reduced = copy.copy(self)
        if isinstance(self.value, dict) and section in self.value:
            given = self.value[section]
            kept = {key: given[key] for key in given if key in keys} if isinstance(given, dict) else {}
            reduced.value = {**self.value, section: kept}
        return reduced

    def where(self, path: KeyPath) -> str | None:
        """Return `name:line` of the key at `path`, or None if the document does not have it."""
        if self.section is not None:
            if path[:1] != (self.section,):
                return None
            path = path[1:]
        node, line = self._root, 1
        for step in path:
            found = _child(node, step)
            if found is None:
                return None
            mark, node = found
            line = mark.line + 1
        return f"{self.name}:{line}"

    def _to_value(self, node: yaml.Node, above: tuple[yaml.Node, ...]) -> Any:
        """Return the value of `node`. `above` are the nodes that contain it: an alias to one of them would never end."""
        if node in above:
            raise self._error(node, "an alias that contains itself")
        self._num_values += 1
        if self._num_values > MAX_VALUES:
            raise self._error(node, f"more than {MAX_VALUES:,} values", "do aliases repeat each other?")
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._to_mapping(node, (*above, node))
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self._to_value(item, (*above, node)) for item in node.value]
        return self._to_scalar(node)

    def _to_scalar(self, node: yaml.Node) -> Any:
        scalar = _SCALARS.get(node.tag.removeprefix(_TAG)) if isinstance(node, yaml.ScalarNode) else None
        if scalar is None:
            raise self._error(node, f"the tag {node.tag.replace(_TAG, '!!')} is not supported", "leave it out")
        self._reject_no_text(node)
        try:
            return scalar(node.value)
        except ValueError:
            is_long = len(node.value) > _MAX_INT_CHARS
            what = "too long for a number" if is_long else f"not a {node.tag.removeprefix(_TAG)}"
            raise self._error(node, f"{quote(node.value)} is {what}") from None

    def _to_mapping(self, node: yaml.MappingNode, above: tuple[yaml.Node, ...]) -> dict[str, Any]:
        value: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            key = key_node.value
            if key_node.tag not in _KEYS:
                raise self._error(key_node, "a key must be text", "put it in quotes")
            self._reject_no_text(key_node)
            if key in value:
                raise self._error(key_node, f"{quote(key)} is given twice", f"first in line {lines[key]}")
            lines[key] = key_node.start_mark.line + 1
            value[key] = self._to_value(value_node, above)
        return value

    def _reject_no_text(self, scalar: yaml.Node) -> None:
        """Raise ConfigError for what an escape may write and no text has: half of a surrogate pair, which no encoding has, and
        the character 0, which ends the name of a file."""
        found = re.search("[\0\ud800-\udfff]", scalar.value)
        if found:
            raise self._error(scalar, f"a character that text does not have (U+{ord(found[0]):04X})")

    def _error(self, node: yaml.Node, what: str, hint: str = "") -> ConfigError:
        return ConfigError(what, where=f"{self.name}:{node.start_mark.line + 1}", hint=hint)

    def _syntax_error(self, error: yaml.MarkedYAMLError) -> ConfigError:
        mark = error.problem_mark or error.context_mark
        place = f"{self.name}:{mark.line + 1}:{mark.column + 1}" if mark else self.name
        said = f"{error.context} {error.problem}"
        problem = next((ours for theirs, ours in _SYNTAX_ERRORS if re.search(theirs, said)), "it cannot be read from here on")
        return ConfigError(f"not YAML: {problem}", where=place)


def _child(node: yaml.Node | None, step: str | int) -> tuple[yaml.Mark, yaml.Node] | None:
    """Return where a key or a list item of `node` starts, and its value, or None if there is no such child."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == step:
                return key.start_mark, value
    if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        item = node.value[step]
        return item.start_mark, item
    return None
