"""`maitred demo`: what priority classes are worth, shown without a GPU."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from maitred.core.errors import ConfigError

if TYPE_CHECKING:
    from maitred.emulator.demo import DemoObserver, DemoSummary


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
    from maitred.cli.demo_display import LiveTable, SilentObserver, print_json, print_summary

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

    async def perform() -> DemoSummary:
        return await Demo(observer, seconds).run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(perform())
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
