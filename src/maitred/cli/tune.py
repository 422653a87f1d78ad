"""`maitred tune`: rules that hold an SLO on the traffic of a decision log, and what they cost."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maitred.cli.flags import SWITCH, CommandFlags, command, flag
from maitred.cli.outputs import open_files, prints_table, write_study
from maitred.cli.study import check_ray, print_result
from maitred.cli.terminal import exit_on_signals, progress_bar
from maitred.core.errors import ConfigError

if TYPE_CHECKING:
    from maitred.study.tune import Tuned

NOT_BETTER = 1
_TRAFFIC = "The traffic"
_SEARCH = "The search"
_FILES = "What is shown and written"


@dataclass(frozen=True, kw_only=True)
class TuneFlags(CommandFlags):
    """The flags of `maitred tune`."""

    logs: Annotated[
        list[Path] | None,
        typer.Argument(help="The decision log of the traffic, in one file or several.", metavar="LOG...", show_default=False),
    ] = None
    record: Annotated[
        list[Path] | None, flag(_TRAFFIC, "What maitred serve --record has written of the same traffic. Repeat it.", "FILE")
    ] = None
    config: Annotated[
        Path | None,
        flag(_TRAFFIC, "Today's configuration: its other keys, such as backends, are in what --write writes.", "FILE"),
    ] = None
    engine: Annotated[
        Path | None, flag(_TRAFFIC, "What is known of the engines: a file with the section instance.", "FILE")
    ] = None
    slo: Annotated[
        list[str] | None, flag(_SEARCH, "What is to hold, such as 'interactive.ttft_p99_ms <= 500'. Repeat it.", "LIMIT")
    ] = None
    vary: Annotated[
        list[str] | None,
        flag(_SEARCH, "What is varied: a key, the beginning of keys, or KEY=VALUE,VALUE. Repeat it.", "KEY"),
    ] = None
    space: Annotated[Path | None, flag(_SEARCH, "The keys that are varied and their values, as YAML.", "FILE")] = None
    budget: Annotated[
        float, flag(_SEARCH, "What the search may cost, in replays of the whole of its traffic. Default: 60.", "N")
    ] = 60
    holdout: Annotated[
        float, flag(_SEARCH, "Share of the traffic, the last part, that the search does not see. Default: 0.3.", "SHARE")
    ] = 0.3
    may_refuse: Annotated[
        float,
        flag(_SEARCH, "Share of the requests of a class that may be refused and are served today. Default: 0.01.", "SHARE"),
    ] = 0.01
    seeds: Annotated[int, flag(_SEARCH, "Replays of each of the best on what was held out. Default: 3.", "N")] = 3
    seed: Annotated[int, flag(_SEARCH, "What the search draws by. Default: 42.", "N")] = 42
    jobs: Annotated[int | None, flag(_SEARCH, "Processes. Default: one for each core.", "N")] = None
    ray: Annotated[str | None, flag(_SEARCH, "On a Ray cluster instead: auto, HOST:PORT or ray://HOST:PORT.", "ADDRESS")] = None
    write: Annotated[
        Path | None, flag(_FILES, "The best one as a configuration, for gateway.shadow first and --config then.", "FILE")
    ] = None
    json: Annotated[Path | None, flag(_FILES, "All of it as JSON.", "FILE")] = None
    report: Annotated[Path | None, flag(_FILES, "The same as a web page.", "FILE.html")] = None
    quiet: Annotated[bool | None, flag(_FILES, "No table, no progress bar.", SWITCH)] = None


@command(TuneFlags)
def tune(flags: TuneFlags) -> None:
    """Search rules under which recorded traffic holds an SLO, and say what they cost each class.

    maitred tune LOG --record RECORD --slo 'interactive.ttft_p99_ms <= 500'. Candidates are replayed on the first part of the
    traffic, and the best of them told on the rest. Exit code: 0 if the best one is better than today there with 95 %, 1 if not.
    """
    with exit_on_signals(), ExitStack() as stack:
        read: list[tuple[str, Path | None]] = [
            *(("LOG", path) for path in flags.logs or ()),
            *(("--record", path) for path in flags.record or ()),
        ]
        read += [("--config", flags.config), ("--engine", flags.engine), ("--space", flags.space)]
        files = open_files({"--json": flags.json, "--write": flags.write, "--report": flags.report}, stack, read)
        found = _search(flags)
        write_study(found, files)
        if "--write" in files:
            files["--write"].write(_file(found, flags.config).encode())
    if prints_table(quiet=flags.quiet, json=flags.json, report=flags.report):
        print_result(found)
    if not found.is_better:
        raise typer.Exit(NOT_BETTER)


def _search(flags: TuneFlags) -> Tuned:
    from maitred.study.tune import tune as search

    if not flags.logs:
        raise ConfigError("no log is named", hint="maitred tune LOG --record RECORD --slo 'interactive.ttft_p99_ms <= 500'")
    if not flags.record:
        raise ConfigError("no record is named", where="--record", hint="the file that maitred serve --record has written")
    check_ray(flags.ray, flags.jobs)
    with progress_bar(quiet=bool(flags.quiet)) as show:
        return search(
            flags.logs,
            flags.record,
            flags.slo or [],
            config=flags.config,
            engine=_engine(flags.engine),
            space=flags.space,
            varied=flags.vary or [],
            budget=flags.budget,
            holdout=flags.holdout,
            may_refuse=flags.may_refuse,
            seeds=flags.seeds,
            seed=flags.seed,
            jobs=flags.jobs,
            ray=flags.ray,
            progress=lambda done, total: show(done / total, f"{done} of {total} replays"),
        )


def _engine(path: Path | None) -> dict[str, Any] | None:
    """Return the section `instance` of a file."""
    from maitred.config import Config
    from maitred.core.yaml_document import YamlDocument
    from maitred.core.yaml_schema import document_to_struct
    from maitred.files import InputFile

    if path is None:
        return None
    document = YamlDocument.read(InputFile(path))
    instance = document_to_struct(document, Config).instance
    return {name: getattr(instance, name) for name in (document.value or {}).get("instance") or {}}


def _file(found: Tuned, config: Path | None) -> str:
    """Return the best candidate as a file, with what was foretold of it, and the other keys of `config`."""
    from maitred.study.tune.result import in_words, number
    from maitred.study.tune.rules import with_other_keys

    best = found.best.held_out
    told = [f"{text}: {number(each.today)} -> {in_words(each)} ms" for text, each in best.limits.items()]
    told += [
        f"{name}: {each.other:.2f} of today's time [{each.low:.2f}, {each.high:.2f}]" for name, each in best.prices.items()
    ]
    head = [
        f"maitred tune: better than the rules in force with {best.probability:.0%}, on traffic that it was not chosen by",
        *told,
    ]
    changed = [f"{key}: {value}" for key, value in found.best.settings.items()]
    return "".join(f"# {line}\n" for line in (*head, "Changed:", *changed)) + (
        found.best.config if config is None else with_other_keys(found.best.config, config)
    )
