"""The progress bar of a simulation: on standard error, and only where somebody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

Watch: TypeAlias = Callable[[int], None]
"""Told how many requests have arrived so far."""


@contextmanager
def watching(share_done: Callable[[int], float]) -> Iterator[Watch | None]:
    """A bar that stands at `share_done(arrived)`, 0..1, while the block runs; None where there is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("simulating"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[arrived]:,} requests"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0, arrived=0)
        yield lambda arrived: bar.update(task, completed=share_done(arrived), arrived=arrived)
