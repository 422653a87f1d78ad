"""The files that a run writes: opened before it begins, so that a mistake is found then, and filled when it is over."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from maitred.cli.simulate.flags import Flags
from maitred.cli.simulate.trace_output import target_of
from maitred.core.errors import ConfigError

if TYPE_CHECKING:
    from maitred.report import Fitness, OutputFile, RunSetup, Summary
    from maitred.sim import Results
    from maitred.workload import Trace

_Use: TypeAlias = tuple[str, Path]
"""A flag, and a file that it names."""

_OF_REQUESTS = ("results_path", "plot", "report")
"""Flags whose files need every request."""


@dataclass(frozen=True)
class Outputs:
    """Open files, as far as they are wanted."""

    results: OutputFile | None
    metrics: OutputFile | None
    plot: OutputFile | None
    report: OutputFile | None
    decisions: OutputFile | None

    @property
    def charts(self) -> bool:
        """Whether any of them shows what happened in between."""
        return self.plot is not None or self.report is not None

    def write(self, flags: Flags, results: Results, summary: Summary, setup: RunSetup, score: Fitness | None) -> None:
        """All but the decisions, which came one by one."""
        from maitred.report import write_metrics, write_page, write_plot, write_results

        if self.results and flags.results_path:
            write_results(results, flags.results_path, self.results.write)
        if self.metrics:
            write_metrics(summary, self.metrics.write, score)
        if self.plot and flags.plot:
            write_plot(results, summary.slo, flags.plot, self.plot.write)
        if self.report:
            write_page(results, summary, setup, self.report.write)


def outputs(flags: Flags, trace: Trace | None, stack: ExitStack) -> Outputs:
    """Raises ConfigError for files that cannot be written, or that the run reads, and for what is needed to make them."""
    from maitred.report import OutputFile

    _check_kinds(flags)
    named = {
        "--results-path": flags.results_path,
        "--metrics-path": flags.metrics_path,
        "--plot": flags.plot,
        "--report": flags.report,
        "--decision-log": flags.decision_log,
    }
    _check_overlap([*_written(flags), *_present(named)], [*_present(_inputs(flags)), *_read(trace)])
    return Outputs(*(stack.enter_context(OutputFile(path, where=flag)) if path else None for flag, path in named.items()))


def _check_kinds(flags: Flags) -> None:
    from maitred.report import check_plot_path, check_rows_path

    for name in _OF_REQUESTS if flags.summary_only else ():
        if getattr(flags, name) is not None:
            hint = "it keeps no requests; --metrics-path goes with it"
            raise ConfigError(f"--{name.replace('_', '-')} does not go with --summary-only", hint=hint)
    if flags.results_path is not None:
        check_rows_path(flags.results_path, where="--results-path")
    if flags.plot is not None:
        check_plot_path(flags.plot, where="--plot")


def _inputs(flags: Flags) -> Mapping[str, Path | None]:
    return {
        "--workload-spec": flags.workload_spec,
        "--config": flags.config,
        "--admission-config": flags.admission_config,
        "--policy-config": flags.policy_config,
    }


def _present(named: Mapping[str, Path | None]) -> Iterator[_Use]:
    return ((flag, path) for flag, path in named.items() if path is not None)


def _read(trace: Trace | None) -> Iterator[_Use]:
    return (("--trace", path) for path in (trace.files if trace else ()))


def _written(flags: Flags) -> Iterator[_Use]:
    target = target_of(flags)
    return (("--trace-output", path) for path in (target.files if target else ()))


def _check_overlap(outputs: Iterable[_Use], inputs: Iterable[_Use]) -> None:
    taken = {os.path.realpath(path): f"{flag} reads" for flag, path in inputs if path.is_file()}
    for flag, path in outputs:
        use = f"{flag} writes to"
        other = taken.setdefault(os.path.realpath(path), use)
        if other != use:
            raise ConfigError(f"{path} is already what {other}", where=flag, hint="name another file")
