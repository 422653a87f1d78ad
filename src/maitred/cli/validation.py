"""`maitred validate`: how far a simulation is from what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from maitred.core.errors import ConfigError
from maitred.core.printing import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from maitred.study.calibration.measurements import MeasuredRequest
    from maitred.study.calibration.validation import Validation, ValidationLine


def validate(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Folders of measured runs: meta.json, profile/ and requests.csv.", metavar="DIR...", show_default=False
        ),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(
            "--measured",
            help="Your own requests: of the engine (CSV), of clients (as for maitred calibrate --clients), or a recording of "
            "maitred serve.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="The engine that served them: its section instance.", metavar="FILE", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.", metavar="")] = False,
) -> None:
    """Predict TTFT, TPOT and E2E of measured requests, and print the errors.

    Step times come from the layer profiles of each folder; or, with --measured, from the latency model in --config.
    """
    from maitred.study.calibration.validation import validation_builtins

    found = _validate_all(folders or [], measured, config)
    if as_json:
        import json

        typer.echo(json.dumps([validation_builtins(validation) for validation in found], indent=2))
        return
    from rich.console import Console

    for validation in found:
        print_validation(validation, Console())


def print_validation(validation: Validation, console: Console) -> None:
    """Print measured and predicted figures side by side, and the error of each."""
    console.print(_validation_table(validation))
    for line in summary_lines(validation):
        typer.echo(printable(line))
    typer.echo()


def _validate_all(folders: Sequence[Path], measured: Path | None, config: Path | None) -> list[Validation]:
    if (measured is None) != (config is None) or (measured is None and not folders):
        hint = "maitred validate DIR..., or maitred validate --measured requests.csv --config FILE"
        raise ConfigError("there is nothing to compare", hint=hint)
    found = [_validate_folder(path) for path in folders]
    if measured is not None and config is not None:
        found.append(_validate_requests(measured, config))
    return found


def _validate_folder(path: Path) -> Validation:
    from maitred.study.calibration.measured_run import read_measured_run
    from maitred.study.calibration.measurements import read_timeline
    from maitred.study.calibration.validation import validate as validated

    folder = read_measured_run(path)
    return validated(folder.name, read_timeline(folder.requests), folder.instance(), path / "peer_simulator_error.txt")


def _validate_requests(measured: Path, config: Path) -> Validation:
    from maitred.config import load
    from maitred.study.calibration.importers import read_any_timeline
    from maitred.study.calibration.measurements import is_recording
    from maitred.study.calibration.validation import validate as validated

    requests = _read_measured(measured) if is_recording(measured) else read_any_timeline(measured)
    return validated(measured.name, requests, load(config).instance)


def _read_measured(recording: Path) -> Sequence[MeasuredRequest]:
    """Return the requests of a recording that can be compared, and say how many cannot."""
    from maitred.study.calibration.measurements import read_recording

    requests, num_left_out = read_recording(recording)
    if num_left_out:
        why = "no completed stream with the tokens that the backend has reported"
        typer.echo(
            f"maitred: warning: left out of {len(requests) + num_left_out:,} requests, as {why}: {num_left_out:,}", err=True
        )
    return requests


def _validation_table(validation: Validation) -> Table:
    from rich.table import Table

    table = Table(title=f"{validation.name} · {validation.requests} requests", title_justify="left")
    for name in ("", "measured ms", "predicted ms", "error", *(["peer"] if validation.peer else [])):
        table.add_column(name, justify="right" if name else "left")
    for line in validation.lines:
        table.add_row(*_validation_cells(line, peer=validation.peer is not None))
    return table


def prediction_table(found: Sequence[Validation]) -> Table:
    """Return measured and predicted figures side by side for all requests and for each class, with the error of each."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from maitred.report.table import format_number

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("predicted beside measured", "requests", "measured", "predicted", "error"):
        table.add_column(name, justify="left" if name == "requests" or not table.columns else "right")
    for group in found:
        for line in group.lines:
            figures = (format_number(line.measured), format_number(line.predicted), f"{line.error:+.1%}")
            table.add_row(f"{line.metric.upper()} {line.statistic} ms", group.name, *figures)
        table.add_section()
    return table


def _validation_cells(line: ValidationLine, *, peer: bool) -> Iterator[str]:
    yield f"{line.metric.upper()} {line.statistic}"
    yield f"{line.measured:,.1f}"
    yield f"{line.predicted:,.1f}"
    yield f"{line.error:+.1%}"
    if peer:
        yield "" if line.peer_error is None else f"{line.peer_error:+.1%}"


def summary_lines(validation: Validation) -> Iterator[str]:
    """Yield the mean and the worst error in words."""
    peer = validation.peer
    beside = f"; the peer's: mean {peer[0]:.1%}, worst {peer[1]:.1%}" if peer else ""
    yield f"error: mean {validation.mean_error:.1%}, worst {validation.worst_error:.1%}{beside}"
