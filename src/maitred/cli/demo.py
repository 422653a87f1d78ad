"""`maitred demo`: see what classes are worth, without a GPU."""

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
        typer.Option("--seconds", metavar="SECS", help="Send requests for so long. Default: until Ctrl-C.", show_default=False),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Nothing but one JSON object at the end.", show_default=False)] = False,
) -> None:
    """Two emulated engines and the gateway, under chats and a flood of bulk work.

    A live table shows what each class gets. Try the gateway yourself meanwhile.
    """
    if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
        raise ConfigError(f"{seconds:g} cannot be used", where="--seconds", hint="a number above 0")
    from maitred.cli.demo_show import LiveTable, Silence, print_json, print_summary

    if quiet:
        print_json(_run(Silence(), seconds))
        return
    with LiveTable() as show:
        summary = _run(show, seconds)
    print_summary(summary)


def _run(audience: DemoObserver, seconds: float | None) -> DemoSummary:
    import asyncio

    import uvloop

    from maitred.emulator.demo import Demo

    async def perform() -> DemoSummary:
        return await Demo(audience, seconds).run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(perform())
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
