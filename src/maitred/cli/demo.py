"""`maitred demo`: what priority classes are worth, shown without a GPU, as a live table, a summary or one JSON object.

The demo's engines and its gateway are commands in processes of their own (`run_as_child`, started by
`emulator/demo.py`), each of which ends when the demo has.
"""

from __future__ import annotations

import math
import os
import signal
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Self

import typer

from maitred.core.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from maitred.emulator.clients import ClientStats
    from maitred.emulator.demo import DemoObserver, DemoSummary

_STDIN = 0
_HEADLINE = "Two emulated engines of {slots} slots each; the gateway in front of them listens on [bold]{url}[/bold]"
_CURL = """\
curl -N {url}/v1/chat/completions \\
  -H 'content-type: application/json' -H 'x-smg-priority: interactive' \\
  -d '{{"model": "{model}", "stream": true, "max_tokens": 20,
       "messages": [{{"role": "user", "content": "Hello"}}]}}'"""
_PYTHON = """\
from openai import OpenAI
client = OpenAI(base_url="{url}/v1", api_key="any")
answer = client.chat.completions.create(
    model="{model}", messages=[{{"role": "user", "content": "Hello"}}],
    extra_headers={{"x-smg-priority": "interactive"}})
print(answer.choices[0].message.content)"""


def run(
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", metavar="SECS", help="Seconds to send requests. Default: until Ctrl-C.", show_default=False),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Nothing but one JSON object at the end.", show_default=False)] = False,
) -> None:
    """Run two emulated engines and the gateway, under chats and a flood of bulk work.

    A live table shows what each class gets. The gateway also takes requests of your own meanwhile.
    """
    if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
        raise ConfigError(f"{seconds:g} cannot be used", where="--seconds", hint="a number above 0")
    if quiet:
        print_json(_run(SilentObserver(), seconds))
        return
    with LiveTable() as table:
        summary = _run(table, seconds)
    print_summary(summary)


def _run(observer: DemoObserver, seconds: float | None) -> DemoSummary:
    import asyncio

    import uvloop

    from maitred.emulator.demo import Demo

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(Demo(observer, seconds).run())
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None


def run_as_child() -> None:
    """Run the command line of this process, a child of the demo, which stops as on SIGTERM when its parent is gone.

    The parent holds the other end of this process's standard input and writes nothing. When the parent ends, even by SIGKILL,
    the system closes that end.
    """
    from maitred.cli import main

    threading.Thread(target=_stop_when_orphaned, daemon=True).start()
    main()


def _stop_when_orphaned() -> None:
    while os.read(_STDIN, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


class SilentObserver:
    """An observer that shows nothing."""

    refresh_secs = 60.0

    def on_start(self, url: str) -> None:
        pass

    def on_progress(self, stats: ClientStats, seconds: float) -> None:
        pass


class LiveTable:
    """An observer that shows a table on the terminal, and removes it at the end; without a terminal it shows no table."""

    refresh_secs = 0.25

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        self._live.update("Starting two engines and a gateway ...", refresh=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._live.stop()

    def on_start(self, url: str) -> None:
        from maitred.emulator.demo import MODEL, SLOTS_PER_ENGINE

        print_ = self._console.print
        print_(_HEADLINE.format(slots=SLOTS_PER_ENGINE, url=url))
        print_("\nTry it meanwhile, in another terminal:\n", style="dim")
        print_(_CURL.format(url=url, model=MODEL), markup=False, soft_wrap=True)
        print_("\nor in Python:\n", style="dim")
        print_(_PYTHON.format(url=url, model=MODEL), markup=False, soft_wrap=True)
        print_()

    def on_progress(self, stats: ClientStats, seconds: float) -> None:
        self._live.update(live_table(stats, seconds), refresh=True)


def live_table(stats: ClientStats, seconds: float) -> Table:
    """Return the table of what each class has got, `seconds` after the start."""
    from maitred.emulator.clients import ClientOutcome

    table = _classes_table(
        f"{seconds:.0f} s · Ctrl-C ends it", "waiting", "in flight", "TTFT p50", "TTFT p99", "done", "rejected"
    )
    for priority_class, counts in stats.classes.items():
        done, rejected = counts.num_ended[ClientOutcome.COMPLETED], counts.num_ended[ClientOutcome.REJECTED]
        times = (_time(counts.ttft_ms(50)), _time(counts.ttft_ms(99)))
        table.add_row(
            priority_class.label, f"{counts.num_waiting}", f"{counts.num_in_flight}", *times, f"{done}", f"{rejected}"
        )
    return table


def print_summary(summary: DemoSummary) -> None:
    """Print the whole run as a table."""
    from rich.console import Console

    ends, times = ("done", "rejected", "preempted", "failed", "gone"), ("TTFT\np50", "TTFT\np99", "E2E\np50")
    table = _classes_table(f"{summary.arrivals} requests in {summary.seconds:g} s", *ends, *times)
    for label, of in summary.classes.items():
        counts = (of.completed, of.rejected, of.preempted, of.failed, of.cancelled)
        table.add_row(label, *map(str, counts), *map(_time, (of.ttft_p50_ms, of.ttft_p99_ms, of.e2e_p50_ms)))
    console = Console(highlight=False)
    console.print(table)
    console.print(f"Slots leaked: {summary.leaked_slots}")


def print_json(summary: DemoSummary) -> None:
    import msgspec

    typer.echo(msgspec.json.encode(summary))


def _classes_table(title: str, *headings: str) -> Table:
    """Return an empty table for one row per class, at most 80 columns wide."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("class", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _time(milliseconds: float | None) -> str:
    if milliseconds is None:
        return "–"
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"
