"""How a policy and its parameters are written: in one string, on the command line as in a file.

    sjf                                  a name
    bounded(lpm, max_wait=5)             with parameters: those of the class's constructor, in their order or by name
    bounded(vtc(lpm, slack=20000), max_displacement=100)
    my.package:Policy(threshold=3)       a class of one's own

What a parameter takes follows from its annotation: another policy where a policy is asked for, else a number, a word or true
and false. All of it is checked where the name is looked up, hence where a configuration is read.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from functools import partial
from typing import Any, Final, TypeVar, get_args, get_type_hints

import msgspec

from maitred.errors import ConfigError, nearest
from maitred.registry import Registry
from maitred.wording import in_words

T = TypeVar("T")

_WORD: Final = re.compile(r"[^\s(),=]+")
_USAGE: Final = "write NAME, or NAME(VALUE, KEY=VALUE, ...)"
_DEEPEST: Final = 8
"""Policies within policies: more is a slip, and would only exhaust the stack."""
_ASKED_FOR: Final[dict[type, PolicyRegistry[Any]]] = {}
"""The registry of the policies that a parameter of this type takes."""


class Spelled(msgspec.Struct, frozen=True):
    """A name or a value, and what is in the brackets behind it."""

    word: str
    values: tuple[Spelled, ...] = ()
    named: Mapping[str, Spelled] = {}

    @property
    def bare(self) -> bool:
        return not self.values and not self.named


class PolicyRegistry(Registry[T]):
    """A registry in which a name may have parameters. `kind`: what users call such a policy; `protocol`: what it is."""

    def __init__(self, kind: str, protocol: type[Any], *, group: str, methods: list[str]) -> None:
        super().__init__(kind, group=group, methods=methods)
        _ASKED_FOR[protocol] = self

    def get(self, name: str) -> Callable[..., T]:
        """The class called `name`; or, with parameters, what makes such policies. Raises ConfigError for whatever is wrong
        with either."""
        return self.given(name, {})

    def given(self, name: str, usual: Mapping[Any, Any]) -> Callable[..., T]:
        """As `get`, but parameters of these types are `usual` where they are left out. Of what cannot be written, such as dice
        (`Random`), this is the only way to get some, and users need not know that there is such a parameter."""
        return self._of(spelled(name, self.kind), usual)

    def _of(self, said: Spelled, usual: Mapping[Any, Any]) -> Callable[..., T]:
        found = super().get(said.word)
        arguments = _Arguments(f"{self.kind} {said.word!r}", found, usual)
        factory = partial(found, **arguments.of(said))
        try:
            factory()
        except ConfigError:
            raise
        except ValueError as error:
            raise ConfigError(f"{self.kind} {said.word!r}: {error}") from error
        except Exception as error:  # a class of the user's own may raise anything
            raise ConfigError(f"{self.kind} {said.word!r} cannot be made: {type(error).__name__}: {error}") from error
        return factory if factory.keywords else found


class _Arguments:
    """What the constructor of a policy takes. `whose` begins the messages."""

    def __init__(self, whose: str, factory: Callable[..., Any], usual: Mapping[Any, Any]) -> None:
        self._whose, self._usual = whose, usual
        self._types = _types(factory)
        self._parameters = settable(factory, usual)
        self._handed = {name: usual[kind] for name, kind in self._types.items() if _unwritten(kind, usual)}

    def of(self, said: Spelled) -> dict[str, Any]:
        """Raises ConfigError for a parameter that is unknown, said twice, missing or of the wrong kind."""
        given = dict(zip(self._parameters, said.values, strict=False))
        if len(said.values) > len(self._parameters):
            raise ConfigError(f"{self._whose} takes no {said.values[len(self._parameters)].word!r}", hint=self._takes())
        for name, value in said.named.items():
            if name not in self._parameters:
                hint = nearest(name, self._parameters) if self._parameters else self._takes()
                raise ConfigError(f"{self._whose} has no parameter {name!r}", hint=hint)
            if name in given:
                raise ConfigError(f"{self._whose} is given {name!r} twice")
            given[name] = value
        values = {name: self._value(name, value) for name, value in given.items()}
        return {**self._handed, **self._left_out(values), **values}

    def _left_out(self, values: Mapping[str, Any]) -> dict[str, Any]:
        filled = {}
        for name, parameter in self._parameters.items():
            usual = next((self._usual[kind] for kind in self._kinds(name) if kind in self._usual), None)
            if name not in values and usual is not None:
                filled[name] = usual
            elif name not in values and parameter.default is parameter.empty:
                raise ConfigError(f"{self._whose} needs {name!r}", hint=self._takes())
        return filled

    def _value(self, name: str, said: Spelled) -> Any:
        for kind in self._kinds(name):
            if kind in _ASKED_FOR:
                return _ASKED_FOR[kind]._of(said, self._usual)()
        if not said.bare:
            raise ConfigError(f"{self._whose}: {name} takes no policy", hint=_USAGE)
        try:
            return msgspec.convert(said.word, self._types.get(name, int | float | str), strict=False)
        except msgspec.ValidationError as error:
            what = in_words(str(error)).partition(", got")[0].replace("Expected", "expected").replace("Invalid", "invalid")
            words = [
                str(word.value)
                for kind in self._kinds(name)
                if isinstance(kind, type) and issubclass(kind, Enum)
                for word in kind
            ]
            if words:
                raise ConfigError(f"{self._whose}: unknown {name} {said.word!r}", hint=nearest(said.word, words)) from error
            raise ConfigError(f"{self._whose}: {name} is {said.word!r}: {what}", hint=self._takes()) from error

    def _kinds(self, name: str) -> tuple[Any, ...]:
        kind = self._types.get(name)
        return (kind,) if isinstance(kind, type) else get_args(kind)

    def _takes(self) -> str:
        if not self._parameters:
            return "it has no parameters"
        return f"its parameters: {', '.join(self._parameters)}"


def settable(factory: Callable[..., Any], handed: Collection[Any] = ()) -> dict[str, inspect.Parameter]:
    """The parameters of `factory` that users may write; those of the types `handed` are its maker's affair."""
    types = _types(factory)
    return {
        name: parameter
        for name, parameter in inspect.signature(factory).parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) and not _unwritten(types.get(name), handed)
    }


def _types(factory: Callable[..., Any]) -> dict[str, Any]:
    made_by: Any = inspect.getattr_static(factory, "__init__") if isinstance(factory, type) else factory
    return get_type_hints(made_by)


def _unwritten(kind: Any, handed: Collection[Any]) -> bool:
    return kind in handed and kind not in _ASKED_FOR


def spelled(text: str, kind: str) -> Spelled:
    """Raises ConfigError for what is not written as a policy."""
    reader = _Reader(text.strip(), kind)
    said = reader.item()
    if reader.rest:
        raise reader.error(f"{reader.rest!r} follows its end")
    return said


class _Reader:
    """Recursive descent over `text`. `rest`: what is still to be read."""

    def __init__(self, text: str, kind: str) -> None:
        self._text, self._kind, self._depth = text, kind, 0
        self.rest = text

    def error(self, what: str) -> ConfigError:
        return ConfigError(f"{self._kind} {self._text!r} cannot be read: {what}", hint=_USAGE)

    def item(self) -> Spelled:
        word = _WORD.match(self.rest)
        if not word:
            raise self.error(f"a name or value is missing before {self.rest!r}" if self.rest else "a name is missing")
        self._skip(word.end())
        if not self.rest.startswith("("):
            return Spelled(word[0])
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self.error(f"more than {_DEEPEST} policies within each other")
        self._skip(1)
        values, named = self._inside()
        self._depth -= 1
        return Spelled(word[0], tuple(values), named)

    def _inside(self) -> tuple[list[Spelled], dict[str, Spelled]]:
        values: list[Spelled] = []
        named: dict[str, Spelled] = {}
        while not self._takes(")"):
            if (values or named) and not self._takes(","):
                raise self.error(f"a comma is missing before {self.rest!r}" if self.rest else "a bracket is not closed")
            said = self.item()
            if not self._takes("="):
                if named:
                    raise self.error(f"{said.word!r} has no name and follows one that has")
                values.append(said)
            elif not said.bare or said.word in named:
                raise self.error(f"{said.word!r} is named twice" if said.bare else f"{said.word!r} is no name of a parameter")
            else:
                named[said.word] = self.item()
        return values, named

    def _takes(self, mark: str) -> bool:
        if not self.rest.startswith(mark):
            return False
        self._skip(1)
        return True

    def _skip(self, characters: int) -> None:
        self.rest = self.rest[characters:].lstrip()
