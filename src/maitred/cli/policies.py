"""`maitred policies`: in what order requests may be served, and at what price."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maitred.cli.printable import printable

if TYPE_CHECKING:
    from rich.table import Table

    from maitred.registry import Registry

_WIDE = 360
"""Columns where the output is no terminal: then each policy has a line of its own, for other programs to read."""


def run(
    name: Annotated[str | None, typer.Argument(help="Show one of them, with its parameters.", metavar="POLICY")] = None,
) -> None:
    """List the policies of the wait queue: their order, what they cost, who starves under them, who looks at the cache.

    A policy is named as `--scheduler NAME`, or with parameters: `--scheduler 'bounded(lpm, max_wait=5)'`.
    """
    from maitred.queueing import SCHEDULERS

    if name is not None:
        for line in _one(name):
            typer.echo(printable(line))
        return
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDE)
    console.print(_table(SCHEDULERS))
    for line in _others():
        typer.echo(line)


def _table(schedulers: Registry[Any]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from maitred.queueing.policy import info

    table = Table("policy", "order", "cost, with n waiting", "starves", "cache-aware", box=SIMPLE_HEAD, pad_edge=False)
    table.columns[0].style, table.columns[0].no_wrap = "bold", True
    for name in schedulers:
        about = info(schedulers.get(name))
        table.add_row(name, about.line, about.complexity, about.starves, about.cache_aware.value)
    return table


def _one(name: str) -> Iterator[str]:
    from maitred.queueing import SCHEDULERS
    from maitred.queueing.policy import info

    factory = SCHEDULERS.get(name)
    about = info(factory)
    yield _usage(name, factory) if isinstance(factory, type) else name
    yield f"  {about.line}"
    yield f"  cost: {about.complexity}"
    yield f"  starves: {about.starves}"
    yield f"  cache-aware: {about.cache_aware.value}"
    if said := getattr(factory, "func", factory).__doc__:
        yield ""
        yield from inspect.cleandoc(said).splitlines()


def _others() -> Iterator[str]:
    """The policies that are parameters of others."""
    from maitred.queueing.lengths import PREDICTORS
    from maitred.queueing.priorities import PRIORITIES

    for title, registry in (("priority policies (--priority-policy)", PRIORITIES), ("length predictors of srpt", PREDICTORS)):
        yield f"{title}: {', '.join(_usage(name, registry.get(name)) for name in registry)}"


def _usage(name: str, factory: Callable[..., Any]) -> str:
    """`name`, with its parameters and what they are if nobody says."""
    parameters = [
        parameter.name if parameter.default in (parameter.empty, None) else f"{parameter.name}={parameter.default}"
        for parameter in inspect.signature(factory).parameters.values()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    return f"{name}({', '.join(parameters)})" if parameters else name
