"""`maitred verify`: whether the decisions of a log are those that its cores take of its inputs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from maitred.core.errors import ConfigError, shortened
from maitred.core.printing import printable

if TYPE_CHECKING:
    from maitred.replay.verify import FirstDifference, Gap, Verified

DIFFERENT: Final = 1


def verify(
    logs: Annotated[
        list[Path],
        typer.Argument(
            help="A decision log: its file, and those that its rotation has moved away, also compressed (gzip, zstd).",
            metavar="LOG...",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.", metavar="")] = False,
) -> None:
    """Run the inputs of a decision log once more, and compare every decision.

    The files of one log are put in order by their names: LOG.2.gz, LOG.1, LOG. Files with other names are logs of their own.
    Exit code: 0 if all decisions are equal, 1 if one differs, which is printed with what led to it, 2 if a log cannot be read.
    """
    from maitred.files.rotated import in_order

    found = {name: _verify(name, files) for name, files in in_order(logs).items()}
    if as_json:
        _print_json(found)
    else:
        for name, each in found.items():
            for line in _in_words(name, each):
                typer.echo(printable(line))
    if not all(each.is_equal for each in found.values()):
        raise typer.Exit(DIFFERENT)


def _verify(name: str, files: list[Path]) -> Verified:
    from maitred.files.rotated import read_lines
    from maitred.replay import ROOMS
    from maitred.replay.reading import LogError
    from maitred.replay.verify import Verifier

    try:
        found = Verifier(ROOMS).run(read_lines(files))
    except LogError as error:
        raise ConfigError(str(error), where=name) from error
    if not found.num_inputs:
        if found.difference is not None and found.num_lines == 1:
            raise ConfigError(f"it is no decision log: {found.difference.problem}", where=name)
        if found.difference is None:
            hint = "name the older files too, which say how its cores were made" if found.num_lines else ""
            what = "nothing in it can be verified" if found.num_lines else "it is empty"
            raise ConfigError(what, where=name, hint=hint)
    return found


def _print_json(found: dict[str, Verified]) -> None:
    import json

    import msgspec

    typer.echo(json.dumps({name: _builtins(msgspec.to_builtins(each, enc_hook=str)) for name, each in found.items()}, indent=2))


def _builtins(found: dict[str, Any]) -> dict[str, Any]:
    return {"equal": found["difference"] is None, **found}


def _in_words(name: str, found: Verified) -> Iterator[str]:
    rooms = ", ".join(f"{room} {count:,}" for room, count in sorted(found.decisions.items()))
    verdict = "equal" if found.is_equal else "DIFFERENT"
    yield (
        f"{name}: {verdict}. {found.num_lines:,} lines, {found.num_inputs:,} inputs, {found.num_decisions:,} decisions compared"
        f"{f' ({rooms})' if rooms else ''}"
    )
    if found.num_processes > 1:
        yield f"  processes that wrote it, one after the other: {found.num_processes:,}"
    for gap in found.gaps:
        yield f"  {_gap_in_words(gap)}"
    for place in found.torn:
        yield f"  {place}: half a line, as a kill leaves it; it was passed over"
    if found.num_unsealed:
        yield f"  without a seal, so a byte that no decision depends on may have been changed: {found.num_unsealed:,} lines"
    if found.difference is not None:
        yield from difference_in_words(found.difference)


def _gap_in_words(gap: Gap) -> str:
    missing = "the lines before it are missing" if gap.num_lines is None else f"lines that are missing: {gap.num_lines:,}"
    if gap.bridged_at is not None:
        behind = f"{gap.num_passed:,} lines passed over, until the cores were made anew at {gap.bridged_at}"
    elif gap.num_passed:
        behind = f"{gap.num_passed:,} lines behind it could not be verified, as their cores were made anew nowhere"
    else:
        behind = "nothing behind it depends on them"
    return f"{gap.place}: {missing}; {behind}"


def difference_in_words(difference: FirstDifference) -> Iterator[str]:
    """Yield what differs, and what led to it, of each line no more than anybody reads."""
    lines = [*_difference_lines(difference)]
    yield from map(shortened, lines)
    if any(line != shortened(line) for line in lines):
        yield "  --json prints the lines whole"


def _difference_lines(difference: FirstDifference) -> Iterator[str]:
    import json

    yield f"{difference.place}: {difference.problem}"
    if difference.at is not None:
        yield f"  at        {difference.at:,} µs"
    for name in ("given", "expected", "came"):
        if line := getattr(difference, name):
            yield f"  {name:9} {line}"
    for name, state in difference.state.items():
        yield f"  state of  {name}: {json.dumps(state)}"
