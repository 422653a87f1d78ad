"""How a command declares its flags.

A flag that stands for a key of the configuration is a `KeyFlag`, a row of the tables in `config_flags`: its type, its default
and its text come from the field of the config struct. Every other flag is a field of the command's own frozen dataclass,
annotated with `flag(...)` and called after that field. `command` makes one signature of both, which typer reads; the config
structs are imported only when that signature is asked for, so that other commands start without them.

What a shell offers for a value, after `maitred --install-completion`: the values of a key with fixed ones, and the names that
are known where a flag names a plug-in, a model or a GPU. A file in their place is left to the shell, which completes files
where nothing is offered.
"""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields
from functools import cached_property, wraps
from typing import Annotated, Any, Final, Generic, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import typer
from typer.models import OptionInfo, ParameterInfo

from maitred.core.errors import ConfigError
from maitred.core.units import to_ms

SWITCH: Final = ""
"""The metavar of a flag that is on when it is given."""
_TURN_OFF: Final = "Turn off: "
_SENTENCE_END: Final = re.compile(r"(?<=\.) (?=[A-Z0-9`])")


def flag(panel: str, text: str, metavar: str | None = None, *, name: str = "", alias: str | tuple[str, ...] = ()) -> Any:
    """Return the annotation of a flag under a heading of the help. It is called after its field, or `name`, and perhaps has a
    second name or several."""
    aliases = (alias,) if isinstance(alias, str) else alias
    return typer.Option(name, *aliases, help=text, metavar=metavar, rich_help_panel=panel, show_default=False)


def set_value(values: dict[str, object], key: str, value: object, name: str, other: str) -> None:
    """Give `key` the value that the flag `name` stands for. Raises ConfigError if the flag `other` gives it another one."""
    if values.get(key, value) != value:
        raise ConfigError(f"contradicts {other} {values[key]}", where=name, hint="give one of them")
    values[key] = value


class KeyFlag(NamedTuple):
    """A flag that stands for one key."""

    key: str
    """Dotted path in the configuration; below `workload` the keys of a `Load`."""
    metavar: str = SWITCH
    name: str = ""
    """The flag, with its dashes, or empty if it is called after the last part of the key."""
    alias: str | tuple[str, ...] = ()
    """A second name with its dashes, or several."""
    in_micros: bool = False
    """Whether the flag is in µs, as in BLIS, for a key in ms."""
    default: str = ""
    """What holds without the flag, where it is not the default of the key."""
    turns_off: bool = False
    """Whether giving the flag, which begins with `--no-`, makes the key false."""

    @property
    def option(self) -> str:
        """The flag's name, with its dashes."""
        return self.name or f"--{'no-' * self.turns_off}{self.key.rpartition('.')[2].replace('_', '-')}"

    @property
    def is_workload(self) -> bool:
        """Whether it stands for a key of a `Load`, of which the texts of the configuration do not speak."""
        return self.key.startswith("workload.")

    @property
    def parameter(self) -> str:
        """The name of its parameter."""
        return self.option.strip("-").replace("-", "_")


class FlagGroup:
    """Flags under one heading of the help."""

    def __init__(self, panel: str, *flags: KeyFlag) -> None:
        self.panel, self.flags = panel, flags


@dataclass(frozen=True, kw_only=True)
class CommandFlags:
    """The flags of a command line. A command adds its own as fields."""

    values: Mapping[str, object] = field(default_factory=dict)
    """Given flags that stand for keys: by dotted key, in the unit of the key."""
    command_line: str = ""
    """The flags and arguments as they are typed, in canonical order."""


F = TypeVar("F", bound=CommandFlags)


class Command(Generic[F]):
    """A command with flags from config structs."""

    def __init__(self, function: Callable[[F], None], kind: type[F], groups: Sequence[FlagGroup]) -> None:
        self._function, self._kind = function, kind
        self._groups = groups
        self.__doc__ = function.__doc__

    def callback(self) -> Callable[..., None]:
        """Return the command as a function that typer can read."""

        def run(**given: Any) -> None:
            self._function(self._flags(given))

        run.__doc__ = self.__doc__
        return _with_parameters(run, self.parameters.values())

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The flags of the command by parameter name, those under one heading together."""
        declared = [*self._key_parameters(), *((_info(p).rich_help_panel or "", p) for p in self._own_parameters)]
        # In the order in which headings first occur: typer shows them in the order of the parameters.
        panels = list(dict.fromkeys(panel for panel, _ in declared))
        declared.sort(key=lambda each: panels.index(each[0]))
        return {parameter.name: parameter for _, parameter in declared}

    @cached_property
    def _own_parameters(self) -> Sequence[inspect.Parameter]:
        return [*_own_parameters(self._kind)]

    def _key_parameters(self) -> Iterator[tuple[str, inspect.Parameter]]:
        """Yield the flags that stand for keys, each with its heading."""
        sections = _sections()
        # Help texts come from the docstrings of keys, which name other keys: these become the names of their flags. Keys of the
        # workload have a name space of their own.
        known: dict[bool, dict[str, str]] = {True: {}, False: {}}
        for row in self.key_flags.values():
            known[row.is_workload][row.key.rpartition(".")[2]] = row.option
        for group in self._groups:
            for row in group.flags:
                yield group.panel, _key_parameter(sections, group.panel, row, known[row.is_workload])

    @cached_property
    def key_flags(self) -> Mapping[str, KeyFlag]:
        """The flags of the command that stand for keys, by dotted key."""
        return {row.key: row for group in self._groups for row in group.flags}

    @property
    def flag_names(self) -> dict[str, str]:
        """The names of its flags that stand for keys, by dotted key."""
        return {key: row.option for key, row in self.key_flags.items()}

    def _flags(self, given: Mapping[str, Any]) -> F:
        """Return the flags of a command line. `given` has every parameter; None or an empty list stand for no flag."""
        own = {parameter.name: given[parameter.name] for parameter in self._own_parameters}
        values: dict[str, object] = {}
        for key, row in self.key_flags.items():
            value = given[row.parameter]
            if value not in (None, []):
                values[key] = not row.turns_off if value is True else to_ms(value) if row.in_micros else value
        return self._kind(**own, values=values, command_line=shlex.join(self._words(given)))

    def _words(self, given: Mapping[str, Any]) -> Iterator[str]:
        """Yield the words of the command line that gives the same flags, each by its first name."""
        for name, parameter in self.parameters.items():
            value = given[name]
            if value is None or value is False:
                continue
            info = _info(parameter)
            for each in value if isinstance(value, list) else [value]:
                if isinstance(info, OptionInfo):
                    yield str(info.default)  # where typer keeps the first name
                if each is not True:
                    yield str(each)


def _with_parameters(function: Callable[..., None], parameters: Iterable[inspect.Parameter]) -> Callable[..., None]:
    """Return the function with these as its parameters, for typer."""
    named = {parameter.name: parameter for parameter in parameters}
    function.__signature__ = inspect.Signature([*named.values()])  # type: ignore[attr-defined]
    function.__annotations__ = {name: parameter.annotation for name, parameter in named.items()}
    return function


def documented(function: Callable[..., None], shown: Collection[str] = ()) -> Callable[..., None]:
    """Return the function of a command with flags of which each says its default.

    If `shown` names flags, the help has these alone, and the others are hidden.
    """
    hints = get_type_hints(function, include_extras=True)

    @wraps(function)
    def run(**given: Any) -> None:
        function(**given)

    given = inspect.signature(function).parameters.values()
    parameters = (parameter.replace(annotation=hints[parameter.name]) for parameter in given)
    return _with_parameters(run, (_documented(parameter, shown) for parameter in parameters))


def _documented(parameter: inspect.Parameter, shown: Collection[str]) -> inspect.Parameter:
    info = _info(parameter)
    if not isinstance(info, OptionInfo):
        return parameter
    info, kind, text = copy(info), get_args(parameter.annotation)[0], info.help or ""
    if "Default: " not in text:
        is_switch = bool in (kind, *get_args(kind))
        default = "on" if text.startswith(_TURN_OFF) else "off" if is_switch else parameter.default or "none"
        info.help = f"{text} Default: {default}."
    info.show_default = False
    info.autocompletion = info.autocompletion or offered_names(str(info.default))
    info.hidden = info.hidden or bool(shown and info.default not in shown)
    return parameter.replace(annotation=Annotated[kind, info])


def command(kind: type[F], *groups: FlagGroup) -> Callable[[Callable[[F], None]], Command[F]]:
    """Decorate a function of a dataclass `kind` to be a command. Its flags are the fields of `kind` and those of `groups`."""
    return lambda function: Command(function, kind, groups)


def _own_parameters(kind: type) -> Iterator[inspect.Parameter]:
    """Yield a parameter for each field of a dataclass that is annotated with `flag(...)` or as an argument."""
    hints = get_type_hints(kind, include_extras=True)
    for own in fields(kind):
        if get_origin(hints[own.name]) is Annotated:
            yield _parameter(own.name, _named(own.name, hints[own.name]), own.default)


def _named(field_name: str, annotation: Any) -> Any:
    """Return the annotation of a field, in which a flag without a name is called after the field."""
    kind, info = get_args(annotation)
    if not isinstance(info, OptionInfo) or info.default:
        return annotation
    info = copy(info)
    info.default = f"--{field_name.replace('_', '-')}"
    return Annotated[kind, info]


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _info(parameter: inspect.Parameter) -> ParameterInfo:
    found: ParameterInfo = next(each for each in parameter.annotation.__metadata__ if isinstance(each, ParameterInfo))
    return found


def _sections() -> Mapping[str, Any]:
    """Return the sections by name: those of the configuration, and the workload."""
    from maitred.config import Config
    from maitred.workload.load import Load

    return {**get_type_hints(Config), "workload": Load}


def _key_parameter(sections: Mapping[str, Any], panel: str, row: KeyFlag, known: Mapping[str, str]) -> inspect.Parameter:
    """Return the parameter of a flag that stands for a key. `known` are the flags for other keys, by the key's last part."""
    from maitred.config.root import config_key
    from maitred.core.yaml_schema import literal_choices

    section, _, below = row.key.partition(".")
    key = config_key(sections[section], below)
    kind = int if row.in_micros else _flag_type(key.type)
    text = _key_text(row, _help(key.text, row.default or key.default, known), repeats=kind == list[str])
    info = flag(panel, text, row.metavar, name=row.option, alias=row.alias)
    choices = [value for value in literal_choices(key.type) if isinstance(value, str)]
    info.autocompletion = offer(choices) if choices else None
    return _parameter(row.parameter, Annotated[kind | None, info], None)


def _key_text(row: KeyFlag, text: str, *, repeats: bool) -> str:
    """Return the help of a key as that of its flag, which may have another unit, turn the key off, or be repeated."""
    if row.in_micros:
        text = text.replace(" in ms", " in µs")
    return f"{_TURN_OFF if row.turns_off else ''}{text}{' Repeatable.' if repeats else ''}"


def _flag_type(kind: Any) -> Any:
    """Return the type that the flag for a key of type `kind` takes: text wherever the key does."""
    from maitred.core.yaml_schema import literal_choices, union_members

    members = [type(value) for value in literal_choices(kind)] or union_members(kind)
    if any(get_origin(member) is tuple for member in members) and str not in members:
        return list[str]
    return next(each for each in (str, float, int, bool) if each in members)


def _help(text: str, default: object, known: Mapping[str, str]) -> str:
    """Return the help of a flag: the first sentence of its key's text, and the default.

    "`hardware`: the kind of GPU. Null: H100." becomes "--hardware: the kind of GPU. Default: H100."
    """
    first, *others = _SENTENCE_END.split(text)
    null = next((each.removeprefix("Null: ").rstrip(".") for each in others if each.startswith("Null: ")), "")
    shown = f"{default:g}" if isinstance(default, float) else str(default)
    without = null if default is None else "" if isinstance(default, (bool, tuple)) else shown
    whole = f"{first} Default: {without}." if without else first
    return re.sub(r"`([^`]*)`", lambda quoted: known.get(quoted[1], quoted[1]), whole).replace("[", r"\[")


_REGISTRIES = {
    "--scheduler": "scheduler",
    "--batching": "batch scheduler",
    "--priority-policy": "priority policy",
    "--admission-policy": "admission policy",
    "--routing-policy": "routing policy",
    "--latency-model": "latency model",
    "--radix-eviction-policy": "eviction policy",
    "--acting-estimator": "acting estimator",
}
"""The kind of plug-in that a flag names."""


def offer(values: Iterable[str]) -> Callable[[str], list[str]]:
    """Return a function for typer that offers these values."""
    known = [str(value) for value in values]

    def matching(incomplete: str) -> list[str]:
        return [value for value in known if value.startswith(incomplete)]

    return matching


def offered_names(flag: str) -> Callable[[str], list[str]] | None:
    """Return a function for typer that offers the names which a flag takes, or None if it names nothing that is known."""
    if flag not in (*_REGISTRIES, "--model", "--hardware"):
        return None

    def matching(incomplete: str) -> list[str]:
        return offer(_names(flag))(incomplete)

    return matching


def _names(flag: str) -> Iterable[str]:
    """Return the names that a flag takes. What knows them is imported only when a shell asks."""
    from maitred.config.root import KINDS
    from maitred.instance.catalogue import hardware_names, model_names

    if flag == "--model":
        return model_names()
    if flag == "--hardware":
        return hardware_names()
    return next(kind for kind in KINDS if kind.kind == _REGISTRIES[flag])
