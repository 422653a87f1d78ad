"""`maitred policies`: every plug-in that can be named, kind by kind, with its parameters and what it says of itself."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maitred.cli.terminal import printable
from maitred.core.errors import ConfigError, nearest_name_hint

if TYPE_CHECKING:
    from rich.table import Table

    from maitred.core.registry import Registry

_WIDE = 1000
"""Columns where the output is no terminal: then each plug-in has a line of its own, for other programs to read."""


def run(
    name: Annotated[str | None, typer.Argument(help="Show one of them, with its parameters.", metavar="POLICY")] = None,
) -> None:
    """List the policies of the wait queue (--scheduler): their order, what they cost, which requests starve under them; then
    the plug-ins of all other kinds: priorities, admission policies, routers, scorers, latency models, trace formats and so on.

    A plug-in is named as `--scheduler NAME`, or with parameters: `--scheduler 'bounded(lpm, max_wait=5)'`. One of your own is
    MODULE:CLASS, where a file in the working directory is a module: `--scheduler my_policies:SmallFirst`.
    """
    if name is not None:
        for line in _detail_lines(name):
            typer.echo(printable(line))
        return
    from rich.console import Console

    from maitred.config.root import KINDS

    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDE)
    for kind in KINDS:
        console.print(_table(kind))


def _table(kind: Registry[Any]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    table = Table(f"{kind.kind} ({kind.flag})", "parameters", *kind.headings.values(), box=SIMPLE_HEAD, pad_edge=False)
    table.columns[0].style, table.columns[0].no_wrap = "bold", True
    for name in kind:
        parameters = kind.usage(name).removeprefix(name).strip("():")
        table.add_row(name, *(escape(cell) for cell in (parameters, *kind.describe(name).values())))
    return table


def _detail_lines(name: str) -> Iterator[str]:
    """Yield the lines about one plug-in. Raises ConfigError for one that there is not."""
    from maitred.config.root import KINDS
    from maitred.core.policy_spec import parse_spec

    word = parse_spec(name, "policy").word
    kind = _kind_of(word)
    if kind is None:
        raise ConfigError(f"unknown policy {word!r}", hint=nearest_name_hint(word, {known for kind in KINDS for known in kind}))
    yield kind.usage(word) if word == name.strip() else name
    first, *others = kind.describe(name).items()
    yield f"  {first[1]}"
    for heading, text in others:
        yield f"  {heading.partition(',')[0]}: {text}"
    doc = inspect.getdoc(kind.find(word))
    if doc and doc.rstrip(".") != first[1]:
        yield ""
        yield from doc.splitlines()


def _kind_of(word: str) -> Registry[Any] | None:
    """Return the kind that knows the name. Where it is the path of a class, that is the first kind whose methods it has."""
    from maitred.config.root import KINDS

    if ":" not in word:
        return next((kind for kind in KINDS if word in kind), None)
    problem = None
    for kind in KINDS:
        try:
            kind.find(word)
        except ConfigError as error:
            problem = problem or error
        else:
            return kind
    raise problem or ConfigError(f"unknown policy {word!r}")
