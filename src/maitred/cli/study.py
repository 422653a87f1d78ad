"""`maitred compare`: configurations on the same workloads, seed by seed. `maitred sweep`: which of many clusters is best.
`maitred capacity`: how many of which GPU hold an SLO, and the highest rate that they hold.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maitred.cli.config_flags import CAPACITY, WORKLOAD
from maitred.cli.flags import SWITCH, CommandFlags, command, flag
from maitred.cli.outputs import open_files, prints_table, write_study
from maitred.cli.shared_flags import InstanceFlags, RunFlags, horizon, instance_values, parse_groups, slo
from maitred.cli.terminal import ShowProgress, exit_on_signals, progress_bar
from maitred.core.errors import ConfigError
from maitred.core.printing import printable
from maitred.core.units import to_seconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maitred.study.candidate import Candidate
    from maitred.study.capacity import CapacityResult
    from maitred.study.comparison import Comparison
    from maitred.study.presentation import StudyResult
    from maitred.study.sweep import SweepResult


_HIGHEST_PRICE = 1e9
_COMPARED = "The comparison"
_RUNS = "The runs"
_FILES = "What is shown and written"
_OPTIONS = "What could be bought"
_HELD = "What it is to hold"


def _jobs(panel: str) -> Any:
    return flag(panel, "Processes. Default: one for each core.", "N")


def _report(panel: str) -> Any:
    return flag(panel, "All of this as a web page: picture, tables, notes.", "FILE.html")


def _quiet(panel: str) -> Any:
    return flag(panel, "No table, no progress bar.", SWITCH)


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
    seeds: Annotated[int, flag(_COMPARED, "Runs of each configuration, with the seeds from --seed on. Default: 10.", "N")] = 10
    metric: Annotated[
        list[str] | None, flag(_COMPARED, "A key of --metrics-path, or of a class: interactive.ttft_p99_ms. Repeat it.", "NAME")
    ] = None
    jobs: Annotated[int | None, _jobs(_COMPARED)] = None
    json: Annotated[Path | None, flag(_COMPARED, "The comparison as JSON, every run's figures included.", "FILE")] = None
    report: Annotated[Path | None, _report(_COMPARED)] = None
    quiet: Annotated[bool | None, _quiet(_COMPARED)] = None


@command(CompareFlags, *WORKLOAD)
def compare(flags: CompareFlags) -> None:
    """Compare configurations on the same workloads: paired differences, and how certain they are.

    Each seed makes one workload, which all configurations serve. The workload has the flags of maitred simulate.
    """
    with exit_on_signals(), ExitStack() as stack:
        files = open_files(
            {"--json": flags.json, "--report": flags.report}, stack, (("CONFIG", path) for path in flags.configs or ())
        )
        comparison = _compare(flags)
        write_study(comparison, files)
    if prints_table(quiet=flags.quiet, json=flags.json, report=flags.report):
        print_result(comparison)


def _compare(flags: CompareFlags) -> Comparison:
    from maitred.study.compare import DEFAULT_METRICS, compare_candidates
    from maitred.study.runs import parse_seeds
    from maitred.workload.load import as_flag, describe, make_self_contained, read_workload_spec

    sides = _read_candidates(flags)
    targets = slo(flags, read_workload_spec(flags.load, as_flag))
    load = make_self_contained(flags.load, as_flag)
    with progress_bar(quiet=bool(flags.quiet)) as show:
        return compare_candidates(
            sides,
            load,
            parse_seeds(flags.seeds, flags.run_seed, where="--seeds"),
            workload=describe(flags.load),
            metrics=[name.strip() for names in flags.metric or () for name in names.split(",")] or DEFAULT_METRICS,
            slo=targets,
            horizon=horizon(flags),
            jobs=flags.jobs,
            progress=lambda done, total: show(done / total, f"{done} of {total} runs"),
        )


def print_result(result: StudyResult) -> None:
    from rich.console import Console

    result.presentation().print(Console())


def _read_candidates(flags: CompareFlags) -> dict[str, Candidate]:
    from maitred.study.candidate import Candidate

    paths = flags.configs or []
    if len(paths) < 2:
        raise ConfigError("there is nothing to compare", hint="maitred compare A.yaml B.yaml --rate 20 --num-requests 1000")
    sides = {str(path): Candidate.from_yaml(path, env=os.environ) for path in paths}
    if len(sides) < len(paths):
        raise ConfigError("one file is given twice", hint="a configuration against itself is no comparison")
    return sides


@dataclass(frozen=True, kw_only=True)
class SweepFlags(CommandFlags):
    """The flags of `maitred sweep`."""

    spec: Annotated[
        Path | None,
        typer.Argument(
            help="The study: a base, a workload, and a grid or a search (docs/studies.md).",
            metavar="SPEC.yaml",
            show_default=False,
        ),
    ] = None
    jobs: Annotated[int | None, _jobs(_RUNS)] = None
    ray: Annotated[str | None, flag(_RUNS, "On a Ray cluster instead: auto, HOST:PORT or ray://HOST:PORT.", "ADDRESS")] = None
    resume: Annotated[bool | None, flag(_RUNS, "Continue a stopped sweep: runs that are done are not repeated.", SWITCH)] = None
    out: Annotated[Path | None, flag(_FILES, "A folder for every run. Default: SPEC.sweep, in the current one.", "DIR")] = None
    plot: Annotated[Path | None, flag(_FILES, "The Pareto plot: .png, .svg or .pdf.", "FILE")] = None
    report: Annotated[Path | None, _report(_FILES)] = None
    quiet: Annotated[bool | None, _quiet(_FILES)] = None


@command(SweepFlags)
def sweep(flags: SweepFlags) -> None:
    """Simulate every candidate of a grid or a search, and print which is best.

    Each run is on disk as soon as it is done. The results depend neither on the number of processes nor on interruptions.
    """
    if flags.spec is None:
        raise ConfigError("there is nothing to sweep", hint="maitred sweep SPEC.yaml")
    out = flags.out or Path(f"{flags.spec.stem}.sweep")
    with exit_on_signals(), ExitStack() as stack:
        if flags.report is not None and flags.report.parent == out:  # The folder is made by the first run.
            out.mkdir(parents=True, exist_ok=True)
        files = open_files({"--report": flags.report}, stack, [("SPEC", flags.spec)], flags.plot)
        result = _run_and_write(flags, flags.spec, out)
        write_study(result, files)
    if prints_table(quiet=flags.quiet, report=flags.report):
        print_result(result)


def _run_and_write(flags: SweepFlags, spec: Path, out: Path) -> SweepResult:
    from maitred.report import check_plot_path
    from maitred.study.sweep import sweep as run_sweep

    check_ray(flags.ray, flags.jobs)
    if flags.plot is not None:
        check_plot_path(flags.plot, where="--plot")
    progress = _Progress()
    try:
        with progress_bar(quiet=bool(flags.quiet)) as progress.show:
            result = run_sweep(
                spec,
                out=out,
                resume=bool(flags.resume),
                jobs=flags.jobs,
                ray=flags.ray,
                env=os.environ,
                progress=progress.update,
            )
    except (KeyboardInterrupt, SystemExit):
        progress.print_resume_hint(spec, out)
        raise
    _write_result(flags, result, out)
    return result


def _write_result(flags: SweepFlags, result: SweepResult, out: Path) -> None:
    """Write the files of a sweep, and say on standard error which."""
    from maitred.study.sweep.result import write_sweep

    written = write_sweep(result, out)
    if flags.plot is not None:
        result.plot(flags.plot)
        written.append(flags.plot)
    if flags.report is not None:
        written.append(flags.report)
    _announce_files(written, quiet=bool(flags.quiet))


def _announce_files(written: Sequence[Path], *, quiet: bool) -> None:
    if not any(path.suffix == ".parquet" for path in written):
        typer.echo("maitred: warning: without polars there is no results.parquet (pip install 'maitred[frames]')", err=True)
    if not quiet:
        typer.echo(printable(f"written: {', '.join(map(str, written))}"), err=True)


class _Progress:
    """How many runs of a sweep are done: shown while it runs, and printed when it is stopped."""

    def __init__(self) -> None:
        self._total = 0
        self.show: ShowProgress

    def update(self, done: int, total: int) -> None:
        self._total = total
        self.show(done / max(total, 1), f"{done} of {total} runs")

    def print_resume_hint(self, spec: Path, out: Path) -> None:
        """Print how many runs are on disk, and how to continue. The signal may have come before `update` counted the last."""
        from maitred.study.sweep.journal import RUNS_FILE

        where = ""
        if self._total:
            done = (out / RUNS_FILE).read_bytes().count(b"\n")
            where = f"{done} of {self._total} runs are in {out}; "
        typer.echo(printable(f"maitred: stopped: {where}go on with: maitred sweep {spec} --out {out} --resume"), err=True)


@dataclass(frozen=True, kw_only=True)
class CapacityFlags(RunFlags, InstanceFlags):
    """The flags of `maitred capacity`."""

    config: Annotated[
        Path | None, flag(_OPTIONS, "A file with the sections cluster, instance, routing, admission for all options.", "FILE")
    ] = None
    model: Annotated[str | None, flag(_OPTIONS, "The model that is served, as in maitred models.", "NAME")] = None
    hardware: Annotated[
        list[str] | None, flag(_OPTIONS, "A kind of GPU. Repeatable. Default: that of the file, or H100.", "GPU")
    ] = None
    tensor_parallel_size: Annotated[
        list[int] | None, flag(_OPTIONS, "GPUs of an instance. Repeatable. Default: 1.", "N", alias=("--tp", "-tp"))
    ] = None
    instance_groups: Annotated[
        list[str] | None,
        flag(
            _OPTIONS,
            "Unequal instances as an option: H100:1,L40S:2 grows to 2 H100 and 4 L40S. Repeatable.",
            "[TPx]GPU:N,...",
        ),
    ] = None
    num_instances: Annotated[int | None, flag(_OPTIONS, "This many instances, and only the rate is searched.", "N")] = None
    disaggregation: Annotated[
        bool | None, flag(_OPTIONS, "Add options with prefill and decode instances, whose split is searched.", SWITCH)
    ] = None
    max_instances: Annotated[int | None, flag(_OPTIONS, "Most instances that are tried. Null: 64.", "N")] = None
    price: Annotated[list[str] | None, flag(_OPTIONS, "The price of a GPU per hour, as H100=2.5. Repeatable.", "GPU=PRICE")] = (
        None
    )
    constraint: Annotated[
        list[str] | None,
        flag(_HELD, "As interactive.ttft_p99_ms <= 500. Repeatable. Default: slo_attainment >= 0.99.", "METRIC<=NUMBER"),
    ] = None
    tolerance: Annotated[float, flag(_HELD, "Share within which the rate is found.", "SHARE")] = 0.02
    seeds: Annotated[
        int | None,
        flag(_HELD, "Runs of each probe, from --seed on. Default: 3, more until --precision; 1 for a trace.", "N"),
    ] = None
    precision: Annotated[float, flag(_HELD, "Half width of the interval of a rate that needs no more seeds.", "SHARE")] = 0.05
    latency_error: Annotated[
        float | None,
        flag(_HELD, "Standard deviation of the factor on all step times. Default: as published or calibrated.", "SHARE"),
    ] = None
    jobs: Annotated[int | None, _jobs(_RUNS)] = None
    ray: Annotated[str | None, flag(_RUNS, "On a Ray cluster instead: auto, HOST:PORT or ray://HOST:PORT.", "ADDRESS")] = None
    plot: Annotated[
        Path | None, flag(_FILES, "The knee: the figure that binds against the rate: .png, .svg or .pdf.", "FILE")
    ] = None
    json: Annotated[Path | None, flag(_FILES, "The result as JSON, everything that was tried included.", "FILE")] = None
    report: Annotated[Path | None, _report(_FILES)] = None
    quiet: Annotated[bool | None, _quiet(_FILES)] = None


@command(CapacityFlags, *CAPACITY)
def capacity(flags: CapacityFlags) -> None:
    """Find out how many of which GPU hold an SLO for a traffic, and the highest rate that they hold.

    The workload has the flags of maitred simulate. Size and rate are bisected, with the same workload for all options.
    """
    from maitred.report import check_plot_path

    check_ray(flags.ray, flags.jobs)
    if flags.plot is not None:
        check_plot_path(flags.plot, where="--plot")
    with exit_on_signals(), ExitStack() as stack:
        files = open_files({"--json": flags.json, "--report": flags.report}, stack, [("--config", flags.config)], flags.plot)
        result = _find_capacity(flags)
        write_study(result, files)
    if flags.plot is not None:
        result.plot(flags.plot)
    if prints_table(quiet=flags.quiet, json=flags.json, report=flags.report):
        print_result(result)


def _find_capacity(flags: CapacityFlags) -> CapacityResult:
    from maitred.study.capacity import DEFAULT_CONSTRAINT
    from maitred.study.capacity import capacity as find_capacity
    from maitred.study.runs import parse_seeds
    from maitred.workload.load import as_flag, make_self_contained, read_workload_spec

    targets, last = slo(flags, read_workload_spec(flags.load, as_flag)), horizon(flags)
    make_self_contained(flags.load, as_flag)
    seeds = None if flags.seeds is None else parse_seeds(flags.seeds, flags.run_seed, where="--seeds")
    with progress_bar(quiet=bool(flags.quiet)) as show:
        return find_capacity(
            _common(flags),
            hardware=flags.hardware or (),
            tensor_parallel_sizes=flags.tensor_parallel_size or (),
            groups=[parse_groups(text) for text in flags.instance_groups or ()],
            num_instances=flags.num_instances,
            workload=flags.load,
            slo=targets,
            constraints=flags.constraint or (DEFAULT_CONSTRAINT,),
            prices=_prices(flags.price),
            seeds=seeds,
            first_seed=flags.run_seed,
            precision=flags.precision,
            latency_error=flags.latency_error,
            disaggregation=bool(flags.disaggregation),
            tolerance=flags.tolerance,
            max_instances=flags.max_instances,
            horizon_secs=None if last is None else to_seconds(last),
            jobs=flags.jobs,
            ray=flags.ray,
            progress=lambda done, what: show(0.0, f"{done} runs, now {what}"),
        )


def _common(flags: CapacityFlags) -> Candidate:
    """Return the configuration that all options share, from the file, the environment and the flags. Raises ConfigError."""
    from maitred.config import ConfigSources
    from maitred.config.sources import with_simulation_defaults
    from maitred.study.candidate import Candidate

    values = {key: value for key, value in instance_values(flags).items() if not key.startswith("workload.")}
    names = {**capacity.flag_names, "instance.latency": "--latency-model"}
    values["instance.model"] = flags.model
    sources = ConfigSources(file=flags.config, env=os.environ, flags=values, flag_names=names)
    return Candidate.from_config(with_simulation_defaults(sources.merged()))


def _prices(given: list[str] | None) -> dict[str, float] | None:
    """Return the prices per GPU and hour of `H100=2.5`, or None if there are none. Raises ConfigError."""
    prices: dict[str, float] = {}
    for text in given or ():
        name, equals, number = (word.strip() for word in text.partition("="))
        try:
            price = float(number)
        except ValueError:
            price = 0.0
        if not (name and equals and 0 < price < _HIGHEST_PRICE):
            raise ConfigError(f"cannot read {text!r}", where="--price", hint="write it as H100=2.5")
        prices[name] = price
    return prices or None


def check_ray(ray: str | None, jobs: int | None) -> None:
    if ray is not None and jobs is not None:
        raise ConfigError("--jobs does not go with --ray", hint="a cluster runs as many as it has CPUs")
