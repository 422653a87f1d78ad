"""A command's flags as a typed record: declared once, read by typer from a signature made of them."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Final, TypeVar, get_type_hints

import typer
from typer.models import OptionInfo

from maitred.core.errors import ConfigError

F = TypeVar("F")
NO_VALUE: Final = ""
"""The metavar of a flag that is on when it is there."""


def flag(panel: str, name: str, text: str, metavar: str | None = None, *, alias: str = "") -> Any:
    """A flag under a heading of the help, perhaps with a second name."""
    return typer.Option(*filter(None, (name, alias)), help=text, metavar=metavar, rich_help_panel=panel, show_default=False)


def of_flag(name: str, error: ConfigError) -> ConfigError:
    """`error`, said of a flag."""
    return ConfigError(error.problem, where=name, hint=error.hint)


def command(kind: type[F]) -> Callable[[Callable[[F], None]], Callable[..., None]]:
    """Decorator: make a function of a dataclass `kind`, whose fields are annotated with `flag`s, a command for typer."""

    def decorate(act: Callable[[F], None]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            act(kind(**given))

        hints = get_type_hints(kind, include_extras=True)
        keyword = inspect.Parameter.KEYWORD_ONLY
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [inspect.Parameter(f.name, keyword, default=f.default, annotation=hints[f.name]) for f in fields(kind)]  # type: ignore[arg-type]
        )
        run.__annotations__ = dict(hints)
        run.__doc__ = act.__doc__
        return run

    return decorate


def spelled(command: str, flags: Any) -> str:
    """The command line that says the same as `flags`, whatever the order and the second names in which it was said."""
    words = ["maitred", command]
    for field, hint in get_type_hints(type(flags), include_extras=True).items():
        value = getattr(flags, field)
        if value is None or value is False:
            continue
        name = next(each for each in hint.__metadata__ if isinstance(each, OptionInfo)).default  # so typer keeps the first one
        for each in value if isinstance(value, list) else [value]:
            words += [str(name)] if each is True else [str(name), str(each)]
    return shlex.join(words)
