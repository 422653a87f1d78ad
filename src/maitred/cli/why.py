"""`maitred why`: the story of one request, and what the slowest ones waited for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from maitred.core.errors import ConfigError
from maitred.core.printing import printable

if TYPE_CHECKING:
    from rich.table import Table

    from maitred.replay.why import SlowRequest, SlowRow

_MAX_STORIES = 20
"""Stories that are printed of requests with one id."""


def why(
    names: Annotated[
        list[str],
        typer.Argument(help="The id of a request, or its number in the log; with --slow, the files of the log.", metavar="ID"),
    ],
    log: Annotated[
        list[Path] | None,
        typer.Option("--log", help="The decision log; once for each of its files.", metavar="FILE", show_default=False),
    ] = None,
    slow: Annotated[
        int | None,
        typer.Option(
            "--slow",
            help="In place of a story: what the slowest 1 % of each class waited for, at least N requests of each, and the N "
            "slowest of each.",
            metavar="N",
            min=1,
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.", metavar="")] = False,
) -> None:
    """Tell from a decision log what happened to a request, when, and by which rule.

    maitred why ID --log LOG, or maitred why --slow 20 LOG. The id is that of the answer, the access log and the recording.
    Exit code: 0, or 2 if the log has no such request or cannot be read.
    """
    files = [*(log or []), *map(Path, names)] if slow is not None else log or []
    if not files:
        raise ConfigError("no log is named", where="--log", hint="maitred why ID --log LOG")
    if slow is not None:
        _print_slow(files, slow, as_json=as_json)
        return
    if len(names) != 1:
        raise ConfigError("one request at a time", hint="maitred why ID --log LOG.1 --log LOG")
    _print_stories(files, names[0], as_json=as_json)


def _print_stories(files: list[Path], name: str, *, as_json: bool) -> None:
    from maitred.files.rotated import in_order, read_lines
    from maitred.replay import ROOMS
    from maitred.replay.story import in_sentences, story_data
    from maitred.replay.why import tell

    stories = [
        story
        for parts in in_order(files, "--log").values()
        for story in tell(read_lines(parts, "--log"), ROOMS, name)[0][:_MAX_STORIES]
    ]
    if not stories:
        hint = "ids are those of the access log; a number is that of the log's inputs"
        raise ConfigError(f"the log has no request {name}", where=", ".join(map(str, files)), hint=hint)
    if as_json:
        import json

        typer.echo(json.dumps([story_data(story) for story in stories], indent=2))
        return
    for story in stories:
        for line in in_sentences(story):
            typer.echo(printable(line))


def _print_slow(files: list[Path], count: int, *, as_json: bool) -> None:
    from maitred.files.rotated import in_order, read_lines
    from maitred.replay import ROOMS
    from maitred.replay.why import find_slow

    for name, parts in in_order(files).items():
        table, _ = find_slow(read_lines(parts), ROOMS)
        rows, requests = table.rows(count), table.requests(count)
        if not rows:
            raise ConfigError("no request in it has ended", where=name)
        if as_json:
            import json

            import msgspec

            said = {"log": name, "classes": msgspec.to_builtins(rows), "slowest": msgspec.to_builtins(requests)}
            typer.echo(json.dumps(said, indent=2))
            continue
        from rich.console import Console

        console = Console()
        console.print(f"{name}: the slowest 1 % of each class", highlight=False)
        console.print(_classes_table(rows))
        console.print(_requests_table(requests))


def _classes_table(rows: list[SlowRow]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("until the first byte, mean ms", *(row.priority_class for row in rows)):
        table.add_column(column, justify="right" if table.columns else "left")
    reasons = sorted({reason for row in rows for reason in row.by_reason})
    lines = {
        "requests": [f"{row.slowest:,} of {row.requests:,}" for row in rows],
        "the fastest of them": [f"{row.from_ms:,.1f}" for row in rows],
        "mean": [f"{row.mean_ms:,.1f}" for row in rows],
        "waited for memory": [f"{row.memory_ms:,.1f}" for row in rows],
        **{f"waited: {_words(reason)}": [f"{row.by_reason.get(reason, 0):,.1f}" for row in rows] for reason in reasons},
        "then, at an instance": [f"{row.served_ms:,.1f}" for row in rows],
        "preemptions": [f"{row.preemptions:,}" for row in rows],
        "rejected": [f"{row.rejected:,}" for row in rows],
    }
    for title, cells in lines.items():
        table.add_row(title, *cells)
    return table


def _words(reason: str) -> str:
    return reason.replace("_", " ")


def _requests_table(requests: list[SlowRequest]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("class", "request", "ms", "mostly"):
        table.add_column(column, justify="right" if column == "ms" else "left")
    for cells in _request_cells(requests):
        table.add_row(*cells)
    return table


def _request_cells(requests: list[SlowRequest]) -> Iterator[tuple[str, str, str, str]]:
    for each in requests:
        name = printable(each.request_id) or str(each.number)
        yield each.priority_class, name, f"{each.total_ms:,.1f}", _words(each.mostly)
