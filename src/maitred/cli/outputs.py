"""The files that a simulated run writes: opened before it begins, so that a mistake is found then, and filled at its end."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from maitred.cli.flags import SWITCH, flag
from maitred.cli.shared_flags import RUN, RunFlags
from maitred.cli.traces import TraceTarget
from maitred.core.errors import ConfigError

if TYPE_CHECKING:
    from maitred.report import Assessment, Fitness, OutputFile, RunSetup, Summary
    from maitred.report.steady_state import Warmup
    from maitred.sim import Results
    from maitred.study.presentation import StudyResult
    from maitred.workload import Trace

STANDARD_OUTPUT: Final = Path("-")
_FILES: Final = "What is shown and written of it"
_FileUse: TypeAlias = tuple[str, Path]
"""A flag, and a file that it names."""
_NEED_REQUESTS: Final = ("results_path", "plot", "report")
"""Flags for files that need every request."""


@dataclass(frozen=True, kw_only=True)
class FileFlags(RunFlags):
    """What is shown and written of a run, simulated or measured."""

    summary_only: bool | None = None
    """Whether no requests are kept; a flag of simulations only."""
    decision_log: Path | None = None
    """The file for decisions; a flag of simulations only."""

    quiet: Annotated[bool | None, flag(RUN, "No table, no progress bar: files and warnings only.", SWITCH)] = None
    per: Annotated[str | None, flag(_FILES, "Break the table down by class, slo-class, tenant, model or instance.", "WHAT")] = (
        None
    )
    warmup: Annotated[
        str | None,
        flag(_FILES, "What the steady state leaves out: mser (MSER-5), none, or a number of seconds. Default: mser.", "RULE"),
    ] = None
    fitness_weights: Annotated[
        str | None, flag(_FILES, "One score, as in BLIS: throughput:0.5,p99_ttft:0.3, ...", "COMPONENT:WEIGHT,...")
    ] = None
    results_path: Annotated[
        Path | None, flag(_FILES, "The requests: completed ones as JSON; all, all columns: .parquet, .csv.", "FILE")
    ] = None
    metrics_path: Annotated[
        Path | None, flag(_FILES, "The figures of the run as JSON; - prints them in place of the table.", "FILE")
    ] = None
    json: Annotated[bool | None, flag(_FILES, "The same as --metrics-path -.", SWITCH)] = None
    report: Annotated[Path | None, flag(_FILES, "The run as a web page: figures, charts, configuration.", "FILE.html")] = None
    plot: Annotated[Path | None, flag(_FILES, "The charts alone: .png, .svg or .pdf.", "FILE")] = None
    trace_output: Annotated[
        str | None, flag(_FILES, "What arrived, as a trace: NAME for BLIS's NAME.csv and NAME.yaml.", "FORMAT:FILE")
    ] = None

    @property
    def metrics_file(self) -> Path | None:
        """The file for the figures, - for standard output. Raises ConfigError for two of them."""
        if not self.json:
            return self.metrics_path
        if self.metrics_path is not None:
            raise ConfigError("--json does not go with --metrics-path", hint="--json is --metrics-path -")
        return STANDARD_OUTPUT

    @property
    def prints_a_file(self) -> bool:
        """Whether a file goes to standard output, which then has no table."""
        return STANDARD_OUTPUT in (self.metrics_file, self.results_path, self.decision_log, self.report)

    @property
    def warmup_rule(self) -> Warmup:
        """What the steady state leaves out. Raises ConfigError."""
        from maitred.report.steady_state import MSER, warmup_of

        return MSER if self.warmup is None else warmup_of(self.warmup, where="--warmup")

    @property
    def weights(self) -> Mapping[str, float] | None:
        """The weights of the fitness score, or None without one. Raises ConfigError."""
        from maitred.report import parse_weights

        return None if self.fitness_weights is None else parse_weights(self.fitness_weights, where="--fitness-weights")

    @property
    def trace_target(self) -> TraceTarget | None:
        """The trace that --trace-output names, or None without that flag. Raises ConfigError."""
        if self.trace_output is None:
            return None
        return TraceTarget(_trace_spec(self.trace_output), where="--trace-output")


@dataclass(frozen=True, kw_only=True)
class OutputFlags(FileFlags):
    """What is shown and written of a simulation."""

    summary_only: Annotated[
        bool | None, flag(RUN, "Keep no requests, in memory that does not grow; percentiles within 0.5 %.", SWITCH)
    ] = None
    decision_log: Annotated[Path | None, flag(_FILES, "Every decision and its reason as JSON lines.", "FILE")] = None


def _trace_spec(given: str) -> str:
    """Return `given` with its format. BLIS names its two files without their endings."""
    if ":" in given or not given:
        return given
    return f"blis:{given}" if given.endswith((".csv", ".csv.gz")) else f"blis:{given}.csv"


@dataclass(frozen=True)
class Outputs:
    """The open files of a run, or None for those that are not wanted."""

    results: OutputFile | None
    metrics: OutputFile | None
    plot: OutputFile | None
    report: OutputFile | None
    decisions: OutputFile | None

    @property
    def need_samples(self) -> bool:
        """Whether any of them needs samples over time."""
        return any(each is not None for each in (self.metrics, self.plot, self.report))

    def write(
        self,
        flags: FileFlags,
        results: Results,
        summary: Summary,
        setup: RunSetup,
        assessment: Assessment,
        score: Fitness | None,
    ) -> None:
        """Write all but the decisions, which were written one by one."""
        from maitred.report import write_metrics, write_page, write_plot, write_results

        if self.results and flags.results_path:
            write_results(results, flags.results_path, self.results.write)
        if self.metrics:
            write_metrics(summary, self.metrics.write, score, assessment)
        if self.plot and flags.plot:
            write_plot(results, summary.slo, flags.plot, self.plot.write)
        if self.report:
            write_page(results, summary, setup, self.report.write, assessment)


def open_outputs(flags: FileFlags, inputs: Mapping[str, Path | None], trace: Trace | None, stack: ExitStack) -> Outputs:
    """Open the files that `flags` name, until `stack` is closed. `inputs` are files that the run reads, by flag.

    Raises ConfigError for files that cannot be written, that are also read, or for which a library is missing.
    """
    _check_kinds(flags)
    named = {
        "--results-path": flags.results_path,
        "--metrics-path": flags.metrics_file,
        "--plot": flags.plot,
        "--report": flags.report,
        "--decision-log": flags.decision_log,
    }
    target = flags.trace_target
    written = [*(("--trace-output", path) for path in (target.files if target else ())), *_present(named)]
    read = [*_present(inputs), *(("--trace", path) for path in (trace.files if trace else ()))]
    _check_overlap(written, read)
    return Outputs(*map(open_files(named, stack).get, named))


def open_files(
    named: Mapping[str, Path | None],
    stack: ExitStack,
    inputs: Iterable[tuple[str, Path | None]] = (),
    plot: Path | None = None,
) -> dict[str, OutputFile]:
    """Open the files that flags name, by flag, until `stack` is closed. `inputs` are those that are read, each with its flag,
    and `plot` is what is written in the end without having been opened. Raises ConfigError for one that cannot be written, for
    two that are the same, and for one that is read."""
    from maitred.report import OutputFile

    written = [*_present({"--plot": plot}), *_present(named)]
    _check_overlap(written, ((name, path) for name, path in inputs if path is not None))
    return {name: stack.enter_context(OutputFile(path, where=name)) for name, path in _present(named)}


def prints_table(*, quiet: bool | None, json: Path | None = None, report: Path | None = None) -> bool:
    """Return whether a study prints its table: not with --quiet, nor where a file goes to standard output."""
    return not quiet and STANDARD_OUTPUT not in (json, report)


def write_study(found: StudyResult, files: Mapping[str, OutputFile]) -> None:
    """Write what came of a study to those of its files that are open: `--json` and `--report`."""
    import msgspec

    if "--json" in files:
        files["--json"].write(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
    if "--report" in files:
        files["--report"].write(found.presentation().page())


def _check_kinds(flags: FileFlags) -> None:
    from maitred.report import check_plot_path, check_rows_path

    for name in _NEED_REQUESTS if flags.summary_only else ():
        if getattr(flags, name) is not None:
            hint = "it keeps no requests; --metrics-path goes with it"
            raise ConfigError(f"--{name.replace('_', '-')} does not go with --summary-only", hint=hint)
    if flags.results_path is not None:
        check_rows_path(flags.results_path, where="--results-path")
    if flags.plot is not None:
        check_plot_path(flags.plot, where="--plot")


def _present(named: Mapping[str, Path | None]) -> Iterator[_FileUse]:
    return ((name, path) for name, path in named.items() if path is not None)


def _check_overlap(outputs: Iterable[_FileUse], inputs: Iterable[_FileUse]) -> None:
    taken = {os.path.realpath(path): f"{name} reads" for name, path in inputs if path.is_file()}
    for name, path in outputs:
        use = f"{name} writes to"
        other = taken.setdefault(os.path.realpath(path), use)
        if other != use:
            raise ConfigError(f"{path} is already what {other}", where=name, hint="name another file")
