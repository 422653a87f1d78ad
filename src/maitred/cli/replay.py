"""`maitred replay`: recorded traffic under another configuration."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from maitred.cli.flags import SWITCH, CommandFlags, command, flag
from maitred.cli.outputs import open_files, prints_table, write_study
from maitred.cli.study import print_result
from maitred.cli.terminal import exit_on_signals, progress_bar
from maitred.core.errors import ConfigError

if TYPE_CHECKING:
    from maitred.config import Config
    from maitred.study.what_if.result import WhatIf

BOUND_MISSED: Final = 1
_TRAFFIC: Final = "The traffic"
_RULES: Final = "What is tried"
_FILES: Final = "What is shown and written"


@dataclass(frozen=True, kw_only=True)
class ReplayFlags(CommandFlags):
    """The flags of `maitred replay`."""

    logs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="A decision log: its file, and those that its rotation has moved away, also compressed (gzip, zstd).",
            metavar="LOG...",
            show_default=False,
        ),
    ] = None
    record: Annotated[
        list[Path] | None,
        flag(_TRAFFIC, "The record of the same run (maitred serve --record). Repeatable.", "FILE"),
    ] = None
    model: Annotated[
        str | None, flag(_TRAFFIC, "Only the requests for this model, where different engines serve several.", "NAME")
    ] = None
    engine: Annotated[
        Path | None,
        flag(_TRAFFIC, "What is known of the engines: a file with the section instance. Default: as the record shows.", "FILE"),
    ] = None
    config: Annotated[Path | None, flag(_RULES, "The other configuration of the gateway.", "OTHER.yaml")] = None
    num_instances: Annotated[int | None, flag(_RULES, "Engines then. Default: as many as recorded.", "N")] = None
    constraint: Annotated[
        list[str] | None,
        flag(_RULES, "A bound for the exit code, as interactive.ttft_p99_ms <= 500, or <= 110% of today. Repeatable.", "BOUND"),
    ] = None
    seeds: Annotated[int, flag(_RULES, "Seeds over which intervals are; 0: no intervals. Default: 10.", "N")] = 10
    jobs: Annotated[int | None, flag(_RULES, "Processes. Default: one for each core.", "N")] = None
    metric: Annotated[
        list[str] | None,
        flag(_FILES, "A figure, as ttft_p90_ms, or of one class or tenant: auth:acme.e2e_p99_ms. Repeatable.", "NAME"),
    ] = None
    json: Annotated[Path | None, flag(_FILES, "The result as JSON.", "FILE")] = None
    report: Annotated[Path | None, flag(_FILES, "All of this as a web page: picture, tables, notes.", "FILE.html")] = None
    quiet: Annotated[bool | None, flag(_FILES, "No table, no progress bar.", SWITCH)] = None


@command(ReplayFlags)
def replay(flags: ReplayFlags) -> None:
    """Replay the traffic of a decision log under another configuration, and print what it changes for each class and tenant.

    maitred replay LOG --record FILE --config OTHER.yaml. Exit code: 0, or 1 if a bound of --constraint is missed, 2 if files
    cannot be used.
    """
    with exit_on_signals(), ExitStack() as stack:
        read: list[tuple[str, Path | None]] = [("--config", flags.config), ("--engine", flags.engine)]
        read += [*(("LOG", path) for path in flags.logs or ()), *(("--record", path) for path in flags.record or ())]
        files = open_files({"--json": flags.json, "--report": flags.report}, stack, read)
        found = _what_if(flags)
        write_study(found, files)
    if prints_table(quiet=flags.quiet, json=flags.json, report=flags.report):
        print_result(found)
    if not all(bound.holds for bound in found.bounds):
        raise typer.Exit(BOUND_MISSED)


def _what_if(flags: ReplayFlags) -> WhatIf:
    from maitred.study.what_if.bounds import parse_bound
    from maitred.study.what_if.recorded import read_recorded
    from maitred.study.what_if.result import DEFAULT_METRICS, check_bounds, what_if
    from maitred.study.what_if.world import ReplayWorld

    logs, records, other = _files(flags)
    bounds = [parse_bound(text) for text in flags.constraint or ()]
    config, keys = _read_config(other)
    engine = _read_config(flags.engine)[1] if flags.engine else None
    world = ReplayWorld.calibrated(read_recorded(logs, records, flags.model), engine)
    check_bounds(bounds, world)
    with progress_bar(quiet=bool(flags.quiet)) as show:
        return what_if(
            world,
            world.candidate(config, keys, num_instances=flags.num_instances),
            log=str(logs[-1]),
            name=str(other),
            metrics=[name.strip() for names in flags.metric or () for name in names.split(",")] or DEFAULT_METRICS,
            bounds=bounds,
            seeds=flags.seeds,
            jobs=flags.jobs,
            progress=lambda done, total: show(done / total, f"{done} of {total} runs"),
        )


def _files(flags: ReplayFlags) -> tuple[Sequence[Path], Sequence[Path], Path]:
    """Return the files of the log in their order, the records, and the other configuration. Raises ConfigError."""
    from maitred.files.rotated import in_order

    usage = "maitred replay LOG --record FILE --config OTHER.yaml"
    if not flags.logs:
        raise ConfigError("no log is named", where="LOG", hint=usage)
    if not flags.record:
        raise ConfigError("a log has no answers: the record of the same run is missing", where="--record", hint=usage)
    if flags.config is None:
        raise ConfigError("no other configuration is named", where="--config", hint=usage)
    if not 0 <= flags.seeds <= 1000:
        raise ConfigError(f"{flags.seeds} seeds cannot be used", where="--seeds", hint="from 0 to 1,000")
    if flags.num_instances is not None and not 1 <= flags.num_instances <= 10_000:
        raise ConfigError("must be from 1 to 10,000", where="--num-instances")
    found = in_order(flags.logs)
    if len(found) > 1:
        raise ConfigError(f"these are {len(found)} logs: {', '.join(found)}", where="LOG", hint="replay one run at a time")
    return next(iter(found.values())), flags.record, flags.config


def _read_config(path: Path) -> tuple[Config, dict[str, Any]]:
    """Return a configuration, and the keys of its section `instance` that are given. Raises ConfigError."""
    from maitred.config import ConfigSources
    from maitred.instance import InstanceConfig

    merged = ConfigSources(file=path, env=os.environ).merged()
    config = merged.build()
    given = (name for name in InstanceConfig.__struct_fields__ if merged.is_given("instance", name))
    return config, {name: getattr(config.instance, name) for name in given}
