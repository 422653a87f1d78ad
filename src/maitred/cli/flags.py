"""A command's flags as a typed record: declared once, read by typer from a signature made of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Final, TypeVar, get_type_hints

import typer

from maitred.errors import ConfigError

F = TypeVar("F")
NO_VALUE: Final = ""
"""The metavar of a flag that is on when it is there."""


def flag(panel: str, name: str, text: str, metavar: str | None = None, *, alias: str = "") -> Any:
    """A flag under a heading of the help, perhaps with a second name."""
    return typer.Option(*filter(None, (name, alias)), help=text, metavar=metavar, rich_help_panel=panel, show_default=False)


def of_flag(name: str, error: ConfigError) -> ConfigError:
    """`error`, said of a flag."""
    return ConfigError(error.what, where=name, hint=error.hint)


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
