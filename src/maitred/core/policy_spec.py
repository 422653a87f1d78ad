"""Policy specs: how a policy and its parameters are written in one string, on the command line as in a file.

    sjf                                  a name
    bounded(lpm, max_wait=5)             with parameters: those of the constructor, in their order or by name
    bounded(vtc(lpm, slack=20000), max_displacement=100)
    my_package.policies:Mine(threshold=3)
    linear(beta=[5000, 17.5, 60])        a parameter that takes several values
    table('steps of the H100.json')      text with blanks, commas or brackets in it

This module knows the grammar alone. Which names there are, and which parameters they take, is known by `registry`.

    spec  = word [ "(" [ value { "," value } ] ")" ]
    value = [ word "=" ] ( spec | "[" [ spec { "," spec } ] "]" )
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, TypeAlias

import msgspec

from maitred.core.errors import ConfigError

USAGE: Final = "write NAME, or NAME(VALUE, KEY=VALUE, ...)"
_WORD: Final = re.compile(r"""'[^']*'|"[^"]*"|[^\s(),=\[\]'"]+""")
_MAX_DEPTH: Final = 8
"""Policies within policies. A deeper spec is a slip, and would only exhaust the stack."""


class PolicySpec(msgspec.Struct, frozen=True):
    """A name or a plain value, and the values in the brackets behind it."""

    word: str
    values: tuple[Value, ...] = ()
    named: Mapping[str, Value] = {}

    @property
    def is_plain(self) -> bool:
        """Whether no values follow it."""
        return not self.values and not self.named


Value: TypeAlias = "PolicySpec | tuple[PolicySpec, ...]"
"""What a parameter is given: a name or plain value, or a list of them."""


def parse_spec(text: str, kind: str) -> PolicySpec:
    """Return `text` as a spec; `kind` is what errors call it. Raises ConfigError for text that is no spec."""
    parser = _Parser(text.strip(), kind)
    spec = parser.spec()
    if parser.rest:
        raise parser.error(f"{parser.rest!r} follows its end")
    return spec


def word_of(value: Value) -> str:
    """Return a value as messages quote it."""
    return value.word if isinstance(value, PolicySpec) else f"[{', '.join(item.word for item in value)}]"


class _Parser:
    """Recursive descent over `text`. `rest` is the part still to be parsed."""

    def __init__(self, text: str, kind: str) -> None:
        self._text, self._kind, self._depth = text, kind, 0
        self.rest = text

    def error(self, what: str) -> ConfigError:
        return ConfigError(f"{self._kind} {self._text!r} cannot be read: {what}", hint=USAGE)

    def spec(self) -> PolicySpec:
        word = _WORD.match(self.rest)
        if not word:
            raise self.error(f"a name or value is missing before {self.rest!r}" if self.rest else "a name is missing")
        self._skip(word.end())
        text = word[0][1:-1] if word[0][0] in "'\"" else word[0]
        if not self.rest.startswith("("):
            return PolicySpec(text)
        values, named = self._bracket()
        return PolicySpec(text, tuple(values), named)

    def _bracket(self) -> tuple[list[Value], dict[str, Value]]:
        """Parse a bracket, which may hold others."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise self.error(f"more than {_MAX_DEPTH} policies within each other")
        self._skip(1)
        arguments = self._arguments()
        self._depth -= 1
        return arguments

    def _arguments(self) -> tuple[list[Value], dict[str, Value]]:
        """Parse what follows an opening bracket, up to and including the closing one."""
        values: list[Value] = []
        named: dict[str, Value] = {}
        while not self._take(")"):
            if (values or named) and not self._take(","):
                raise self.error(f"a comma is missing before {self.rest!r}" if self.rest else "a bracket is not closed")
            value = self._value()
            # Whether a word is a name or a value is known only when what follows it is seen.
            if not self._take("="):
                if named:
                    raise self.error(f"{word_of(value)!r} has no name and follows one that has")
                values.append(value)
                continue
            key = word_of(value)
            if not isinstance(value, PolicySpec) or not value.is_plain:
                raise self.error(f"{key!r} is no name of a parameter")
            if key in named:
                raise self.error(f"{key!r} is named twice")
            named[key] = self._value()
        return values, named

    def _value(self) -> Value:
        if not self._take("["):
            return self.spec()
        items: list[PolicySpec] = []
        while not self._take("]"):
            if items and not self._take(","):
                raise self.error(f"a comma is missing before {self.rest!r}" if self.rest else "a bracket is not closed")
            items.append(self.spec())
        return tuple(items)

    def _take(self, mark: str) -> bool:
        """Skip `mark` if the rest begins with it, and return whether it did."""
        if not self.rest.startswith(mark):
            return False
        self._skip(1)
        return True

    def _skip(self, characters: int) -> None:
        self.rest = self.rest[characters:].lstrip()
