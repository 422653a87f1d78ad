"""What all commands need of a terminal and a process: one progress bar, signals, the limit of open files."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

import typer

from maitred.core.errors import ConfigError
from maitred.core.printing import printable

if TYPE_CHECKING:
    from maitred.workload import Trace
    from maitred.workload.load import Load

ShowProgress: TypeAlias = Callable[[float, str], None]
"""Called with the share that is done, from 0 to 1, and with a count such as `12,000 requests`."""
_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)


def exit_if_any(problems: Iterable[ConfigError]) -> None:
    """Print each mistake on a line of its own, on standard error, and exit with 2 if there is any."""
    lines = [printable(str(problem)) for problem in problems]
    for line in lines:
        typer.echo(f"maitred: error: {line}", err=True)
    if lines:
        raise typer.Exit(2)


@contextmanager
def progress_bar(*, quiet: bool, doing: str = "simulating") -> Iterator[ShowProgress]:
    """Show a progress bar while the block runs, on standard error and only if it is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda share, count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    what = (TextColumn(doing), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[count]}"))
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    with Progress(*what, *times, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0, count="")
        yield lambda share, count: bar.update(task, completed=share, count=count)


def request_progress(load: Load, trace: Trace | None, show: ShowProgress) -> Callable[[int], None]:
    """Return a function that shows a number of requests: as the share of those that are expected or that of the trace that is
    read, whichever is larger."""
    expected = load.num_requests or load.max_requests

    def progress(count: int) -> None:
        # A trace may end before the most requests that it may give.
        shares = (count / expected if expected else 0.0, trace.fraction_read if trace else 0.0)
        show(max(shares), f"{count:,} requests")

    return progress


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Raise SystemExit(128 + signal) for SIGTERM and SIGHUP while the block runs; ignored signals (`nohup`) stay ignored.

    So these signals end a command as Ctrl-C does: its stack is unwound, and every `with` cleans up after itself. By default
    they end the interpreter at once, and half-written files stay behind.
    """
    handled = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in handled:
        signal.signal(number, _exit)
    try:
        yield
    finally:
        for number in handled:
            signal.signal(number, signal.SIG_DFL)


def _exit(number: int, frame: Any) -> NoReturn:
    raise SystemExit(128 + number)


def raise_file_limit() -> None:
    """Raise the limit of open files to the hard limit: each request takes a connection or two, and the default is 1,024."""
    try:
        import resource
    except ImportError:  # not on Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # macOS refuses what it calls unlimited
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
