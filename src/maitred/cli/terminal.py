"""What a terminal is given: text that prints, and one progress bar for all commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

ShowProgress: TypeAlias = Callable[[float, str], None]
"""Called with the share that is done, from 0 to 1, and with a count such as `12,000 requests`."""


def printable(text: str) -> str:
    """Return `text`, which may hold names that users chose, with control characters and lone surrogates as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


@contextmanager
def progress_bar(*, quiet: bool) -> Iterator[ShowProgress]:
    """Show a progress bar while the block runs, on standard error and only if it is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda share, count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    what = (TextColumn("simulating"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[count]}"))
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    with Progress(*what, *times, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0, count="")
        yield lambda share, count: bar.update(task, completed=share, count=count)
