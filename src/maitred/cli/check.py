"""`maitred check`: is this configuration file usable, and what does it amount to?"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from maitred.cli.printable import printable
from maitred.errors import ConfigError

if TYPE_CHECKING:
    from maitred.config import Config


def run(file: Annotated[str, typer.Argument(help="The YAML file to check.", metavar="FILE")]) -> None:
    """Check a configuration file, together with the MAITRED_ variables, and show what it amounts to.

    If it cannot be used, prints every error with its place, and exits with 2.
    """
    from maitred import config

    if not file:
        raise ConfigError("'' names no file", where="FILE", hint="name the YAML file to check")
    path = Path(file)
    problems = config.problems(path, env=os.environ)
    for problem in problems:
        typer.echo(f"maitred: error: {printable(str(problem))}", err=True)
    if problems:
        raise typer.Exit(2)
    typer.echo(f"{printable(file)}: ok")
    for line in _summary(config.load(path, env=os.environ)):
        typer.echo(f"  {printable(line)}")


def _summary(config: Config) -> Iterator[str]:
    from maitred.gateway.config import DEFAULT_SLOTS

    gateway, engine, instance, cluster = config.gateway, config.engine, config.instance, config.cluster
    backends = len(gateway.backends)
    slots = gateway.slots_per_backend or DEFAULT_SLOTS
    yield f"gateway    {gateway.host}:{gateway.port}, {_count(backends, 'backend')}, {slots} slots on each"
    yield from _classes(config, max(1, backends) * slots)
    yield f"routing    {config.routing.policy}"
    yield f"instance   {instance.scheduler}, {instance.max_num_seqs} sequences, {instance.max_num_batched_tokens} tokens a step"
    yield f"engine     {engine.model!r} on {engine.host}:{engine.port}"
    admission = "no admission" if cluster.capacity is None else f"{cluster.capacity} slots"
    yield f"cluster    {_count(cluster.num_instances, 'instance')}, {admission}"


def _classes(config: Config, capacity: int) -> Iterator[str]:
    """What each class gets of the slots of a model that all backends serve."""
    from maitred.admission import Admission

    yield f"admission  of {capacity} slots"
    for c, view in Admission(config.admission, {"": capacity}).view("").classes.items():
        timeout = config.admission.of(c).queue_timeout_secs
        reserved = f"{view.reserved:>5} reserved" + (f" (of {view.desired} wished)" if view.reserved < view.desired else "")
        yield f"  {c.label:<12}{reserved}, {view.queue_size} may wait, {timeout:g} s at most"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
