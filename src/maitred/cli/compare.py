"""`maitred compare`: configurations on the same workloads, seed by seed."""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from maitred.cli.config_flags import WORKLOAD
from maitred.cli.flags import NO_VALUE, command, flag
from maitred.cli.run_flags import RunFlags, horizon, slo
from maitred.cli.terminal import exit_on_signals, progress_bar
from maitred.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.study.candidate import Candidate
    from maitred.study.compare import Comparison

_STUDY = "The comparison"


@dataclass(frozen=True, kw_only=True)
class CompareFlags(RunFlags):
    """The flags that stand for no single key."""

    configs: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Files with the sections cluster, instance, routing, admission: two or more, each compared with the first.",
            metavar="A.yaml B.yaml ...",
            show_default=False,
        ),
    ] = None
    seeds: Annotated[
        int, flag(_STUDY, "--seeds", "Runs of each configuration, with the seeds from --seed on. Default: 10.", "N")
    ] = 10
    metric: Annotated[
        list[str] | None,
        flag(_STUDY, "--metric", "A key of --metrics-path, or of a class: interactive.ttft_p99_ms. Repeat it.", "NAME"),
    ] = None
    jobs: Annotated[int | None, flag(_STUDY, "--jobs", "Processes. Default: one for each core.", "N")] = None
    json: Annotated[Path | None, flag(_STUDY, "--json", "The comparison as JSON, every run's figures included.", "FILE")] = None
    quiet: Annotated[bool | None, flag(_STUDY, "--quiet", "No table, no progress bar.", NO_VALUE)] = None


@command(CompareFlags, *WORKLOAD)
def run(flags: CompareFlags) -> None:
    """Compare configurations on the same workloads: paired differences, and how certain they are.

    Each seed makes one workload, which all configurations serve. The workload has the flags of maitred simulate.
    """
    with exit_on_signals(), ExitStack() as stack:
        comparison = _compare(flags, stack)
    if not flags.quiet:
        from rich.console import Console

        from maitred.study.compare.comparison import print_comparison

        print_comparison(comparison, Console())


def _compare(flags: CompareFlags, stack: ExitStack) -> Comparison:
    from maitred.report import OutputFile
    from maitred.study.compare.run import DEFAULT_METRICS, compare_candidates
    from maitred.study.runs import FIRST_SEED, parse_seeds
    from maitred.workload.load import as_flag, describe, make_self_contained, read_workload_spec

    sides = _read_candidates(flags)
    targets = slo(flags, read_workload_spec(flags.load, as_flag))
    load = make_self_contained(flags.load, as_flag)
    file = stack.enter_context(OutputFile(flags.json, where="--json")) if flags.json else None
    with progress_bar(quiet=bool(flags.quiet)) as show:
        comparison = compare_candidates(
            sides,
            load,
            parse_seeds(flags.seeds, FIRST_SEED if flags.seed is None else flags.seed, where="--seeds"),
            workload=describe(flags.load),
            metrics=_metrics(flags) or DEFAULT_METRICS,
            slo=targets,
            horizon=horizon(flags),
            jobs=flags.jobs,
            progress=lambda done, total: show(done / total, f"{done} of {total} runs"),
        )
    if file:
        import msgspec

        file.write(msgspec.json.format(msgspec.json.encode(comparison), indent=2) + b"\n")
    return comparison


def _read_candidates(flags: CompareFlags) -> dict[str, Candidate]:
    from maitred.study.candidate import Candidate

    paths = flags.configs or []
    if len(paths) < 2:
        raise ConfigError("there is nothing to compare", hint="maitred compare A.yaml B.yaml --rate 20 --num-requests 1000")
    sides = {str(path): Candidate.from_yaml(path, env=os.environ) for path in paths}
    if len(sides) < len(paths):
        raise ConfigError("one file is given twice", hint="a configuration against itself is no comparison")
    return sides


def _metrics(flags: CompareFlags) -> Sequence[str]:
    return [name.strip() for names in flags.metric or () for name in names.split(",")]
