"""`maitred policies`: in what order requests may be served and where, and at what price."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maitred.cli.printable import printable
from maitred.core.errors import ConfigError, nearest_name_hint

if TYPE_CHECKING:
    from rich.table import Table

    from maitred.core.registry import Registry

_WIDE = 360
"""Columns where the output is no terminal: then each policy has a line of its own, for other programs to read."""


def run(
    name: Annotated[str | None, typer.Argument(help="Show one of them, with its parameters.", metavar="POLICY")] = None,
) -> None:
    """List the policies of the wait queue (--scheduler): their order, what they cost, who starves under them, who looks at the
    cache; then those that choose an instance (--routing-policy), and the scorers of which one of them is made up.

    A policy is named as `--scheduler NAME`, or with parameters: `--scheduler 'bounded(lpm, max_wait=5)'`.
    """
    if name is not None:
        for line in _one(name):
            typer.echo(printable(line))
        return
    from rich.console import Console

    from maitred.routing import ROUTERS, SCORERS

    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDE)
    console.print(_schedulers())
    for line in _others():
        typer.echo(line)
    typer.echo()
    for line in _admission():
        typer.echo(line)
    typer.echo()
    console.print(_routers("routing policy", "whom it chooses", ROUTERS))
    console.print(_routers("scorer of weighted", "score, from 0 to 1", SCORERS))


def _schedulers() -> Table:
    from maitred.queueing import SCHEDULERS
    from maitred.queueing.base import describe_policy

    table = _table("policy", "order", "cost, with n waiting", "starves", "cache-aware")
    for name in SCHEDULERS:
        about = describe_policy(SCHEDULERS.get(name))
        table.add_row(name, about.summary, about.complexity, about.starves, about.cache_aware.value)
    return table


def _routers(title: str, line: str, registry: Registry[Any]) -> Table:
    from maitred.routing.base import describe_router

    table = _table(title, line, "cost, with n instances", "looks at")
    for name in registry:
        about = describe_router(registry.get(name))
        table.add_row(name, about.summary, about.complexity, about.reads)
    return table


def _table(*columns: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(*columns, box=SIMPLE_HEAD, pad_edge=False)
    table.columns[0].style, table.columns[0].no_wrap = "bold", True
    return table


def _one(name: str) -> Iterator[str]:
    """Raises ConfigError for what there is not."""
    from maitred.core.policy_spec import parse_spec
    from maitred.queueing import SCHEDULERS
    from maitred.routing import ROUTERS, SCORERS

    word = parse_spec(name, "policy").word
    registry = next((kind for kind in (SCHEDULERS, ROUTERS, SCORERS) if word in kind), None)
    if registry is None and ":" not in word:
        raise ConfigError(f"unknown policy {word!r}", hint=nearest_name_hint(word, [*SCHEDULERS, *ROUTERS, *SCORERS]))
    factory = (registry or SCHEDULERS).get(name)
    made_by = getattr(factory, "func", factory)
    yield _usage(word, made_by, registry or SCHEDULERS) if word == name.strip() else name
    yield from _about_router(factory) if registry in (ROUTERS, SCORERS) else _about_scheduler(factory)
    if said := made_by.__doc__:
        yield ""
        yield from inspect.cleandoc(said).splitlines()


def _about_scheduler(factory: Callable[..., Any]) -> Iterator[str]:
    from maitred.queueing.base import describe_policy

    about = describe_policy(factory)
    yield f"  {about.summary}"
    yield f"  cost: {about.complexity}"
    yield f"  starves: {about.starves}"
    yield f"  cache-aware: {about.cache_aware.value}"


def _about_router(factory: Callable[..., Any]) -> Iterator[str]:
    from maitred.routing.base import describe_router

    about = describe_router(factory)
    yield f"  {about.summary}"
    yield f"  cost: {about.complexity}"
    yield f"  looks at: {about.reads}"


def _others() -> Iterator[str]:
    """The policies that are parameters of others."""
    from maitred.queueing.priority import PRIORITIES
    from maitred.queueing.srpt import LENGTH_PREDICTORS

    for title, registry in (
        ("priority policies (--priority-policy)", PRIORITIES),
        ("length predictors of srpt", LENGTH_PREDICTORS),
    ):
        yield f"{title}: {', '.join(_usage(name, registry.get(name), registry) for name in registry)}"


def _admission() -> Iterator[str]:
    """Who is turned away, and when."""
    from maitred.admission import POLICIES

    yield "admission policies (--admission-policy):"
    for name in POLICIES:
        yield f"  {name}: {(POLICIES.find(name).__doc__ or '').strip().partition(chr(10))[0].rstrip('.')}"


def _usage(name: str, factory: Callable[..., Any], registry: Registry[Any]) -> str:
    """Return `name` with its parameters and their defaults."""
    from maitred.core.registry import parameters

    written = [
        parameter.name if parameter.default in (parameter.empty, None) else f"{parameter.name}={_said(parameter.default)}"
        for parameter in parameters(factory, registry.defaults).values()
    ]
    return f"{name}({', '.join(written)})" if written else name


def _said(value: object) -> object:
    return getattr(value, "value", value)
